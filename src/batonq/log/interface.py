"""The log: what every implementation does, who owns each buffer, and which error means what.

A log is a sequence of frames numbered 1, 2, 3… without a gap. One owner appends, under an ownership epoch; anyone may
read. Appending is by callback, so that an implementation may commit inline (files), on a thread, or over a network.
All methods are called from one thread, the loop's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from batonq.log.frames import Frame

Done = Callable[[BaseException | None], None]


class Room(Enum):
    """How much a log can still take."""

    PLENTY = "plenty"
    RESERVE = "reserve"  # only what shrinks the queue (deletes, returns, settles) should be appended now
    NONE = "none"


class Piece(NamedTuple):
    """Frames `start` up to `stop` (exclusive), not read yet. `read` raises OSError."""

    start: int
    stop: int
    read: Callable[[], bytes]


class SegmentInfo(Protocol):
    """A part of the log that is dropped as a whole: frames `first` up to `stop` (exclusive)."""

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
        """Whether an append begins when whoever called it has returned, so that the loop should be left to it."""

    @property
    def shard(self) -> int:
        """The shard (or 65535 for the catalog) whose log this is."""

    @property
    def first(self) -> int:
        """The number of the first retained frame (equal to `next` when the log is empty)."""

    @property
    def next(self) -> int:
        """The number that the next appended frame gets."""

    @property
    def tail_digest(self) -> bytes:
        """The digest of the last frame, that the next one names; sixteen zero bytes in an empty log."""

    @property
    def tail_epoch(self) -> int:
        """The epoch of the last frame; 0 in an empty log. A new owner's epoch must be above it."""

    @property
    def frame_bytes_max(self) -> int:
        """The longest frame that can be appended, header included."""

    def append(self, frame: Frame, done: Done, *, in_thread: bool = False) -> None:
        """Append one frame; call `done(None)` once it is committed, `done(error)` if it never will be.

        At most one append is under way: a second call before `done` is a programming error (AssertionError), and so is
        a `frame.number` that is not `next` or a `frame.previous_digest` that is not the tail digest. `done` may run
        before `append` returns. `in_thread` asks for the commit to happen beside the loop; a log that has no thread
        commits as it always does. The log keeps references to the frame's buffers; the caller must not change them.
        After `done(error)` the log takes nothing more: reopen it. `Fenced` means that another owner has it.
        """

    def frames(self, start: int, stop: int | None = None) -> Iterator[Frame]:
        """Committed frames from `start` up to `stop` (exclusive; default: the end at the time of the call).

        Raises LogGap when `start` is before `first`, LogCorrupt when what is stored does not check. The frames are
        the caller's to keep.
        """

    def read_variable(self, position: int, offset: int, length: int) -> bytes:
        """`length` bytes at `offset` of the variable section of the frame that `position` names (row is ignored).

        Only for committed frames. Raises LogGap when it is no longer retained, LogCorrupt when it does not check.
        """

    def section(self, number: int) -> bytes | None:
        """The whole variable section of a committed frame, if it is in memory or small enough to be kept there.

        None: read the parts that are wanted by `read_variable`. Raises LogGap or LogCorrupt.
        """

    def is_cold(self, number: int) -> bool:
        """Whether reading a committed frame would have to wait for the disk; cheap, and False when nobody can tell."""

    def warm(self, numbers: Sequence[int]) -> None:
        """Bring cold frames into memory, so that reading them does not wait. May be called on another thread."""

    def frame(self, number: int) -> Frame:
        """One committed frame. Raises LogGap or LogCorrupt."""

    def piece(self, start: int, bytes_max: int, frames_max: int = 1 << 32) -> Piece:
        """Committed frames from `start` on as they are stored: at most so many bytes and frames, but one in any case.

        Nothing is read yet: `read` of the result may be called on any thread. If the front is dropped meanwhile it may
        give something else; whoever calls it checks the frames, and that `start` is still retained. Raises LogGap.
        """

    def room(self) -> Room:
        """How much can still be appended; cheap enough to ask for every request."""

    def bytes_retained(self) -> int:
        """Size of the retained log in bytes."""

    def droppable(self, before: int) -> int:
        """The largest frame number F <= before such that dropping all frames below F frees whole segments."""

    def segments(self) -> list[SegmentInfo]:
        """The retained segments, oldest first, the last one being written. They are the log's own, not to be kept."""

    def drop_front(self, before: int) -> None:
        """Forget frames below `before` (whole segments only; others stay). The caller has carried what lives in them.

        The last frame is always kept: the next one names its digest.
        """

    def note(self) -> None:
        """Put down which frame was the last to be committed, where a log keeps such a note. Never waited for, and a
        promise of nothing; called a few milliseconds after a commit.
        """

    def tick(self) -> None:
        """Housekeeping kept off the append path, such as pre-writing a segment. Called when idle or once a second."""

    def close(self) -> None:
        """Stop; flushes nothing that was not committed already. An append that is under way is waited for, or, over a
        network, answered with an error: then nobody knows whether it will be committed.
        """


class Ownership(Protocol):
    """Who may append to a shard's log. Liveness only: safety is the log's, by epoch and frame number."""

    async def acquire(self, shard: int, above: int = 0) -> int:
        """Become the owner; returns an epoch above `above` (the log's own) and above every one given before.

        Raises OwnershipHeld, naming the holder.
        """

    async def release(self, shard: int) -> None:
        """Give it up; no error when it is not held."""


class Lease(NamedTuple):
    """Who owns a shard, as the lease store tells it. `node` is empty when nobody does."""

    shard: int
    node: str
    address: str
    epoch: int


class Member(NamedTuple):
    """A node that is alive, as it tells it itself. `note` is the nodes' own, opaque here."""

    node: str
    address: str
    note: str


class Leases(Ownership, Protocol):
    """Ownership among nodes: it ends by itself unless it is renewed. So does being a member."""

    async def announce(self, note: str) -> None:
        """This node is alive, for another term. Raises Unavailable."""

    async def withdraw(self) -> None:
        """This node is a member no more; no error when it was none."""

    async def members(self) -> list[Member]:
        """The nodes that are alive, by name."""

    async def renew(self, shard: int) -> None:
        """Hold it for another term, also when it ran out and nobody has taken it since. Raises Fenced when somebody
        has, or it was given up; Unavailable when nobody answered.
        """

    def held(self) -> list[int]:
        """The shards that this node has acquired and has neither given up nor been told to have lost."""

    async def holders(self) -> dict[int, Lease]:
        """The owners right now, by shard; shards without one are left out."""

    def watch(self) -> AsyncGenerator[Lease, None]:
        """Every change of an owner from now on, after one Lease for each owner there is. A lease that ran out is told
        like one that was given up, within a second or so. It is closed by whoever reads it, and ends with Unavailable
        when the store does not answer: then begin again.
        """
