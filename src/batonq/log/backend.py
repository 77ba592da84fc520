"""The far side of a replicated log: the little that JetStream and PostgreSQL do for one shard.

Frames lie there by number, and nothing else does: a JetStream sequence, or the key of a row, is the frame's number.
What fencing, retries and the mirror make of it is in `mirrored.py`, once for all. Every method has a timeout of its own
and none tries again by itself.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple, Protocol

from batonq.errors import LogError, Unavailable
from batonq.log.frames import Frame
from batonq.log.interface import Leases, Room


class Unreachable(Unavailable):
    """What keeps the log gave no answer, or none that settles anything. What was asked may have been done, or be done
    yet.
    """


class Leaderless(Unreachable):
    """What keeps the log says itself that it takes nothing for it now, from nobody."""


class Unsafe(LogError):
    """The server that should keep the log is set up so that it could lose what it acknowledged."""


class WrongEnd(LogError):
    """The log does not end where this frame would follow."""


class Bounds(NamedTuple):
    """Frames `first` up to `next` (exclusive) are retained."""

    first: int
    next: int
    room: Room = Room.PLENTY


class Entry(NamedTuple):
    """What is stored as frame `number`, unchecked."""

    number: int
    data: bytes


class Backend(Protocol):
    """One shard's frames. Any method may raise Unreachable."""

    @property
    def shard(self) -> int: ...

    @property
    def where(self) -> str:
        """What to call it in messages."""

    @property
    def frame_bytes_max(self) -> int:
        """The longest frame that can be stored."""

    async def bounds(self) -> Bounds:
        """What is retained now. Raises LogCorrupt when something is missing in between."""

    async def append(self, frame: Frame) -> None:
        """Store a frame if the log ends with the one before it: all or nothing, and replicated when this returns.

        Raises WrongEnd when the log ends elsewhere, which it may do because this very frame is stored already; Fenced
        when the log is known to be at a higher epoch.
        """

    async def find(self, number: int) -> bytes | None:
        """What stands at a number, asked of the one who decides on appends; None when nothing does (yet)."""

    def tail(self, start: int) -> AsyncGenerator[list[Entry], None]:
        """What is stored from `start` on, in order, in batches that are never empty, and then what is stored as time
        goes by. Raises LogGap when `start` is not retained any more. It is closed by whoever reads it.
        """

    async def drop_front(self, before: int) -> None:
        """Forget what is below `before`, which is not above the last number."""

    async def close(self) -> None:
        """Let go of what this backend alone uses."""


class LogStore(Protocol):
    """Where the logs of a whole cluster are: one connection, checked when it is opened."""

    @property
    def cluster(self) -> int:
        """The cluster id, made by the first node and the same for all."""

    @property
    def where(self) -> str:
        """What to call it in messages; without secrets."""

    @property
    def remarks(self) -> Sequence[str]:
        """What opening it found worth telling."""

    @property
    def replicas(self) -> int:
        """How many replicas a log has here unless it is said; the catalog's and the leases always."""

    async def check_kind(self, replicas: int) -> None:
        """Raises Unsafe when no log with so many replicas can be kept here."""

    async def backend(self, shard: int, replicas: int) -> Backend:
        """The far side of a shard's log, made with so many replicas if there is none yet. Raises Unsafe when it has
        others.
        """

    def leases(self, node: str, address: str, ttl_s: float) -> Leases:
        """Ownership of shards as this node sees it."""

    async def close(self) -> None: ...
