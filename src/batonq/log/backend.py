"""The remote store of a replicated log: the operations that JetStream and PostgreSQL provide for one shard.

Only frames are stored, by number: a JetStream sequence, or the key of a row, is the frame's number. Fencing, retries
and the mirror are implemented once, in `replicated_log.py`. Every method has its own timeout, and none retries by
itself.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple, Protocol

from batonq.errors import LogError, Unavailable
from batonq.log.frames import Frame
from batonq.log.interface import OwnershipLeases, Room


class Unreachable(Unavailable):
    """The store of the log did not answer, or its answer settles nothing. The request may have been executed, or may
    still be.
    """


class NameTaken(LogError):
    """Another process has the name of this node."""

    def __init__(self, node: str, address: str) -> None:
        super().__init__(
            f"Another process is running as node {node}, at {address}. Give this node another --node, or stop the "
            "other process first."
        )


class Leaderless(Unreachable):
    """The store reports that it has no leader for the log, so it accepts nothing from anyone."""


class Unsafe(LogError):
    """The configuration of the log's store could lose acknowledged data."""


class WrongEnd(LogError):
    """The log does not end with the frame before this one."""


class Bounds(NamedTuple):
    """Frames `first` up to `next` (exclusive) are retained."""

    first: int
    next: int
    room: Room = Room.PLENTY
    replica_lags: tuple[tuple[str, int], ...] = ()  # replicas of the store, and how many frames each is behind


class Entry(NamedTuple):
    """The data stored as frame `number`, not checked."""

    number: int
    data: bytes


class Backend(Protocol):
    """One shard's frames. Any method may raise Unreachable."""

    @property
    def shard(self) -> int: ...

    @property
    def where(self) -> str:
        """The store's name in messages."""

    @property
    def frame_bytes_max(self) -> int:
        """Maximum size of a frame."""

    async def bounds(self) -> Bounds:
        """The retained range. Raises LogCorrupt if frames are missing in between."""

    async def append(self, frame: Frame) -> None:
        """Store a frame if the log ends with the one before it: all or nothing, and replicated when this returns.

        Raises WrongEnd if the log ends elsewhere, possibly because this very frame is already stored; Fenced if the log
        is known to have a higher epoch.
        """

    async def find(self, number: int) -> bytes | None:
        """The entry with this number, read from the authority on appends; None if there is none (yet)."""

    def tail(self, start: int) -> AsyncGenerator[list[Entry], None]:
        """Entries from `start` on, in order, in non-empty batches, and then new entries as they are stored. Raises
        LogGap if `start` is no longer retained. The reader closes it.
        """

    async def drop_front(self, before: int) -> None:
        """Delete the frames below `before`, which is not above the last number."""

    async def close(self) -> None:
        """Release the resources of this backend."""


class LogStore(Protocol):
    """The store of a whole cluster's logs: one connection, checked when it is opened."""

    @property
    def cluster(self) -> int:
        """The cluster id, created by the first node and the same for all."""

    @property
    def where(self) -> str:
        """The store's name in messages; without secrets."""

    @property
    def remarks(self) -> Sequence[str]:
        """Notes from opening it, for the operator."""

    @property
    def replicas(self) -> int:
        """Default number of replicas of a log; always used for the catalog and the leases."""

    async def check_kind(self, replicas: int) -> None:
        """Raises Unsafe if the store cannot keep a log with that many replicas."""

    async def backend(self, shard: int, replicas: int) -> Backend:
        """The remote store of a shard's log, created with that many replicas if it does not exist. Raises Unsafe if it
        exists with a different number.
        """

    def leases(self, node: str, address: str, ttl_s: float) -> OwnershipLeases:
        """Ownership of shards, as seen by this node."""

    async def close(self) -> None: ...
