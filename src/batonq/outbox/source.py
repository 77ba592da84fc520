"""What a relay needs of a database: batches under the lock of their lane, and a place to note how they went."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from batonq.outbox.rows import Row

BATCH_BYTES_MAX = 16 << 20  # of all rows that are held in memory at a time, as they are stored


@dataclass(slots=True)
class Batch:
    """Rows of one lane for one queue, and the number that each is published under.

    It is on record before it is published, and stays there until the queue has taken or refused each row. A relay that
    finds it after a crash publishes it again under the same numbers, and the queue takes only what it did not have.
    """

    lane: int
    queue: str
    producer: str
    first: int
    rows: list[tuple[int, Row]]  # the number of each


class Lag(NamedTuple):
    """How far behind publishing is."""

    waiting: int  # rows that are committed and not published
    oldest_s: float  # the age of the oldest of them
    in_doubt: int  # of them, in a batch that was begun: being published now, or left by a crash
    refused: int  # rows that a queue refused for good, set aside
    published: int  # rows that were published and not pruned yet


class Source(Protocol):
    """One database with its outbox."""

    def claim(self, rows_max: int, resting: Collection[str]) -> list[Batch]:
        """Lock some lanes that have rows for other queues than the resting ones, and put batches of them on record."""
        ...

    def settle(
        self, batch: Batch, published: Sequence[int], refused: Sequence[tuple[int, str]], finished: bool
    ) -> None:
        """Note what was published, and what was refused for good and why; finished: nothing is left of the batch."""
        ...

    def release(self) -> None:
        """Unlock the lanes."""
        ...

    def wait(self, seconds: float) -> None:
        """Until something was committed, or for so long."""
        ...

    def lag(self) -> Lag: ...

    def prune(self, older_than: float) -> int:
        """Delete some rows that were published more than so many seconds ago; how many. 0: there are no more."""
        ...

    def retry(self, ids: Sequence[int]) -> int:
        """Let refused rows be tried again: these, or all when none are named; how many."""
        ...

    def close(self) -> None: ...
