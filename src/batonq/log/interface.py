"""The log interface: its methods, the ownership of buffers, and the errors.

A log is a sequence of frames numbered 1, 2, 3… without gaps. One owner appends, with an ownership epoch; anyone may
read. Appending uses a callback, so that an implementation may commit inline (files), on a thread, or over a network.
All methods are called from one thread, the loop's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from batonq.log.frames import Frame

Done = Callable[[BaseException | None], None]


class Room(Enum):
    """How much a log can still accept."""

    PLENTY = "plenty"
    RESERVE = "reserve"  # only records that shrink the queue (deletes, returns, settles) should be appended
    NONE = "none"


class Piece(NamedTuple):
    """Frames `start` up to `stop` (exclusive), not read yet. `read` raises OSError."""

    start: int
    stop: int
    read: Callable[[], bytes]


class SegmentInfo(Protocol):
    """A part of the log that is deleted as a whole: frames `first` up to `stop` (exclusive)."""

    @property
    def first(self) -> int: ...
    @property
    def stop(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def first_time_ms(self) -> int: ...
    @property
    def last_time_ms(self) -> int: ...
    @property
    def sealed(self) -> bool: ...


class Log(Protocol):
    @property
    def far(self) -> bool:
        """Whether an append starts only after its caller has returned, so that the caller should yield to the loop."""

    @property
    def shard(self) -> int:
        """The shard of this log (65535 for the catalog)."""

    @property
    def first(self) -> int:
        """Number of the first retained frame (equal to `next` if the log is empty)."""

    @property
    def next(self) -> int:
        """Number of the next frame to append."""

    @property
    def tail_digest(self) -> bytes:
        """Digest of the last frame, which the next one contains; sixteen zero bytes in an empty log."""

    @property
    def tail_epoch(self) -> int:
        """Epoch of the last frame; 0 in an empty log. A new owner's epoch must be above it."""

    @property
    def frame_bytes_max(self) -> int:
        """Maximum size of a frame, including its header."""

    def append(self, frame: Frame, done: Done, *, in_thread: bool = False) -> None:
        """Append one frame; call `done(None)` when it is committed, `done(error)` if it never will be.

        At most one append may be in progress: a second call before `done` is a programming error (AssertionError), and
        so is a `frame.number` that is not `next` or a `frame.previous_digest` that is not the tail digest. `done` may
        run before `append` returns. `in_thread` requests a commit off the loop; a log without a thread commits as
        always. The log keeps references to the frame's buffers; the caller must not change them. After `done(error)`
        the log accepts nothing more: reopen it. `Fenced` means that another owner has taken over.
        """

    def frames(self, start: int, stop: int | None = None) -> Iterator[Frame]:
        """Committed frames from `start` up to `stop` (exclusive; default: the end at the time of the call).

        Raises LogGap if `start` is before `first`, LogCorrupt if a stored frame is not valid. The caller may keep the
        frames.
        """

    def read_variable(self, position: int, offset: int, length: int) -> bytes:
        """`length` bytes at `offset` of the variable section of the frame of `position` (its row is ignored).

        Only for committed frames. Raises LogGap if it is no longer retained, LogCorrupt if it is not valid.
        """

    def section(self, number: int) -> bytes | None:
        """The whole variable section of a committed frame, if it is in memory or small enough to be cached.

        None: read the needed parts with `read_variable`. Raises LogGap or LogCorrupt.
        """

    def is_cold(self, number: int) -> bool:
        """Whether reading a committed frame would have to wait for the disk; fast, and False if that is unknown."""

    def warm(self, numbers: Sequence[int]) -> None:
        """Load cold frames into memory, so that reading them does not wait. May be called on another thread."""

    def frame(self, number: int) -> Frame:
        """One committed frame. Raises LogGap or LogCorrupt."""

    def piece(self, start: int, bytes_max: int, frames_max: int = 1 << 32) -> Piece:
        """Committed frames from `start` on as stored: up to this many bytes and frames, but at least one frame.

        Nothing is read yet: `read` of the result may be called on any thread. If the front of the log is dropped
        meanwhile, it may return other data; the caller checks the frames and that `start` is still retained. Raises
        LogGap.
        """

    def room(self) -> Room:
        """How much can still be appended; fast enough to be called for every request."""

    def bytes_retained(self) -> int:
        """Size of the retained log in bytes."""

    def droppable(self, before: int) -> int:
        """The largest frame number F <= before such that dropping all frames below F frees whole segments."""

    def segments(self) -> list[SegmentInfo]:
        """The retained segments, oldest first; the last one is being written. The list belongs to the log; do not keep
        it.
        """

    def drop_front(self, before: int) -> None:
        """Delete frames below `before` (whole segments only; others stay). The caller has carried their live messages
        forward.

        The last frame is always kept, because the next one contains its digest.
        """

    def note(self) -> None:
        """Record which frame was committed last, if the log keeps such a note. Nothing waits for it and nothing depends
        on it; called a few milliseconds after a commit.
        """

    def tick(self) -> None:
        """Maintenance off the append path, such as preparing a segment. Called when idle or once per second."""

    def close(self) -> None:
        """Close the log; nothing that was not committed is flushed. An append in progress is awaited, or, over a
        network, answered with an error: then its outcome is unknown.
        """


class Ownership(Protocol):
    """Who may append to a shard's log. For liveness only: safety comes from the log, by epoch and frame number."""

    async def acquire(self, shard: int, above: int = 0) -> int:
        """Become the owner. Returns an epoch above `above` (the log's own) and above every earlier one.

        Raises OwnershipHeld, which names the holder.
        """

    async def release(self, shard: int) -> None:
        """Give up ownership; no error if it is not held."""


class Lease(NamedTuple):
    """The owner of a shard, as recorded in the lease store. `node` is empty if there is none."""

    shard: int
    node: str
    address: str
    epoch: int


class Member(NamedTuple):
    """A live node, by its own report. `note` is opaque data of the nodes."""

    node: str
    address: str
    note: str
    incarnation: str = ""  # of the process that has this name; empty: an older release, which has none


class OwnershipLeases(Ownership, Protocol):
    """Ownership among nodes: it expires unless it is renewed. So does membership."""

    def incarnate(self, incarnation: str, replaces: str = "") -> None:
        """Announce this node as this process from now on. `replaces` is the incarnation of an earlier process of the
        same name, which has ended.
        """

    async def announce(self, note: str) -> None:
        """Report that this node is alive, for another term. Raises NameTaken if another process has this node's name;
        Unavailable.
        """

    async def withdraw(self) -> None:
        """End this node's membership; no error if it is not a member."""

    async def members(self) -> list[Member]:
        """The live nodes, by name."""

    async def agree(self, name: str, text: str, replaces: Collection[str] = ()) -> str:
        """Store a text for good under a name, unless another text is stored that is not one of `replaces`. Returns the
        stored text. Raises Unavailable.
        """

    async def expect(self, node: str, is_expected: bool) -> None:
        """Record that a node is one of the cluster's nodes, also while it is not running; or that it no longer is.
        Raises Unavailable.
        """

    async def expected(self) -> list[str]:
        """The names of the cluster's nodes, whether they run or not. Raises Unavailable."""

    async def store_time_ms(self) -> int:
        """The time of day by the store's clock; 0: the store does not tell. Raises Unavailable."""

    async def renew(self, shard: int) -> None:
        """Hold the lease for another term, also if it expired and no other node has taken it. Raises Fenced if another
        node has, or if it was given up; Unavailable if there is no answer.
        """

    def held(self) -> list[int]:
        """The shards that this node has acquired, and neither given up nor been reported to have lost."""

    async def holders(self) -> dict[int, Lease]:
        """The current owners, by shard; shards without an owner are omitted."""

    def watch(self) -> AsyncGenerator[Lease, None]:
        """Every change of an owner from now on, after one Lease per current owner. An expired lease is reported like
        one that was given up, within about a second. The reader closes it; it ends with Unavailable if the store does
        not answer: then start again.
        """
