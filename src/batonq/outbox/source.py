"""The database interface of a relay: batches under the lock of their lane, and a record of their results."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from batonq.outbox.rows import Row

BATCH_BYTES_MAX = 16 << 20  # of all rows that are held in memory at a time, as stored


@dataclass(slots=True)
class Batch:
    """Rows of one lane for one queue, with the number of each.

    It is recorded before it is published, and stays recorded until the queue has accepted or refused each row. A relay
    that finds it after a crash publishes it again with the same numbers, and the queue accepts only what it did not
    have.
    """

    lane: int
    queue: str
    producer: str
    first: int
    rows: list[tuple[int, Row]]  # the number of each


class Lag(NamedTuple):
    """How far behind publishing is."""

    waiting: int  # committed rows that are not published
    oldest_s: float  # age of the oldest of them
    in_doubt: int  # of them, in a batch that was started: being published now, or left by a crash
    refused: int  # rows that a queue refused permanently, set aside
    published: int  # published rows that are not pruned yet


class Source(Protocol):
    """One database with its outbox."""

    def claim(self, rows_max: int, resting: Collection[str]) -> list[Batch]:
        """Lock some lanes that have rows for queues that are not paused, and record batches of them."""
        ...

    def settle(
        self, batch: Batch, published: Sequence[int], refused: Sequence[tuple[int, str]], finished: bool
    ) -> None:
        """Record which rows were published, and which were refused permanently and why. `finished`: nothing is left of
        the batch.
        """
        ...

    def release(self) -> None:
        """Unlock the lanes."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait until something was committed, or until the timeout."""
        ...

    def lag(self) -> Lag: ...

    def prune(self, older_than: float) -> int:
        """Delete some rows that were published more than this many seconds ago. Returns their number; 0 if there are no
        more.
        """
        ...

    def retry(self, ids: Sequence[int]) -> int:
        """Retry refused rows: these, or all if none are given. Returns their number."""
        ...

    def close(self) -> None: ...
