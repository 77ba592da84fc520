"""Group commit: many requests per frame, one append in flight, replies released in the order of their decisions.

A command has changed the state and put its records into the open frame before any client is told. Its reply is released
when the newest frame that the decision depends on is committed. That is the open frame if it holds anything, else the
frame in flight; with neither, the reply is released at once. A disk that syncs fast is synced on the event loop, a slow
one on a thread; then the next frame fills meanwhile.

A reply that waits for no record of its own is only valid while this node owns the shard. While ownership is not
assured, such replies are refused. A frame that gets committed proves that the node was still the owner.

Two rules hold in every failure. Sealing a frame cannot fail: an exception in `before_seal` is logged, and the frame is
sealed without the rest of that work. A committed outcome is always reported, even when `after_commit` raises or the
commit is stopped before the replies were written.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from batonq.core.open_frame import OpenFrame
from batonq.errors import BatonError, Unavailable
from batonq.log import frames
from batonq.log.interface import Log
from batonq.node import events
from batonq.node.routing.submission import Done, tell


class Machine(Protocol):
    """A state machine that fills frames: a shard, or the catalog."""

    @property
    def frame(self) -> OpenFrame: ...
    @property
    def epoch(self) -> int: ...
    @property
    def last_time_ms(self) -> int: ...
    @property
    def format(self) -> int:
        """The version of the log format that the machine's records need."""

    def begin_frame(self, number: int) -> None: ...
    def seal(self) -> tuple[bytes, bytes]: ...


Reply = tuple[Done, object]  # called with the outcome after the commit, else with the error that says why not
NOT_ASSURED = "This node could not renew its lease, so its state may be out of date. Retry."
NOTE_AFTER_S = 0.005  # after a commit, and so at most 200 times per second
INLINE_TRIAL_EVERY = 128  # appends on the thread between two probes of the disk's speed on the loop
ESTIMATE_STEP = 1.05  # how far one measurement moves the estimate of the median
ESTIMATE_MIN_S = 1e-6
DURATION_BUCKETS = 64


class _Waiting(NamedTuple):
    """Replies that wait for one frame."""

    number: int
    futures: list[asyncio.Future[None]]
    replies: list[Reply]


@dataclass(slots=True)
class CommitStatistics:
    """What has been committed so far, for the metrics."""

    frames: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    # by the number of bits of the duration in microseconds, see monitoring/histogram.py
    durations: list[int] = field(default_factory=lambda: [0] * DURATION_BUCKETS)


class SyncChoice:
    """Decides where the next append syncs: on the loop's thread while the disk is fast, else on another thread.

    A fast sync costs less than handing it to a thread and back. A slow sync would delay every client. Only appends on
    the loop's thread measure the disk, so one is tried there now and then. The decision uses the median: some appends
    are slow because other processes had the processor, and a thread would make that worse.
    """

    __slots__ = ("_inline_max_s", "_since_trial", "estimate_s")

    def __init__(self, inline_max_s: float) -> None:
        self._inline_max_s = inline_max_s
        self._since_trial = 0
        self.estimate_s = inline_max_s / 4  # the median of appends on the loop's thread

    def in_thread(self) -> bool:
        if self.estimate_s <= self._inline_max_s:
            return False
        self._since_trial += 1
        if self._since_trial < INLINE_TRIAL_EVERY:
            return True
        self._since_trial = 0
        return False

    def measured(self, seconds: float) -> None:
        """Record how long an append on the loop's thread took."""
        if seconds > self.estimate_s:
            self.estimate_s = min(self.estimate_s * ESTIMATE_STEP, 2 * self._inline_max_s)
        else:
            self.estimate_s = max(self.estimate_s / ESTIMATE_STEP, ESTIMATE_MIN_S)


class GroupCommit:
    """Commits one machine's frames to one log. Everything here runs on the event loop's thread."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        machine: Machine,
        log: Log,
        cluster: int,
        region: int,
        before_seal: Callable[[], None],
        after_commit: Callable[[], None],
        on_failure: Callable[[BaseException], None],
        statistics: CommitStatistics,
        inline_max_s: float,
        clock: Callable[[], float],
        assured: Callable[[], bool] = lambda: True,
    ) -> None:
        self._loop = loop
        self._assured = assured
        self._clock = clock  # seconds with a fine resolution: uvloop's clock counts milliseconds
        self._machine = machine
        self._log = log
        self._cluster = cluster
        self._region = region
        self._before_seal = before_seal
        self._after_commit = after_commit
        self._on_failure = on_failure
        self._statistics = statistics
        self._choice = SyncChoice(inline_max_s)
        self._in_thread = False
        self._aside = False  # the last frame was written on another thread, while the loop was free
        self._thread = threading.get_ident()
        self._scheduled = False
        self._again = False  # `before_seal` has not done all of its work
        self.appending = False  # whether a frame is in flight
        self._started_s = 0.0
        self._failed = False  # from then on nothing is scheduled, and everything is answered with `_why`
        self._why = NOT_ASSURED
        self._current: list[asyncio.Future[None]] = []  # released by the frame in flight
        self._next: list[asyncio.Future[None]] = []  # released by the open frame
        self._next_number = machine.frame.number  # number of the open frame when `_next` and `_next_replies` were added
        self._rolled: deque[_Waiting] = deque()  # released by frames that are sealed and not in flight yet
        self._rolled_count = 0
        self._current_replies: list[Reply] = []
        self._next_replies: list[Reply] = []
        self._released: list[asyncio.Future[None]] = []  # of committed frames, to be told soon
        self._replies: list[Reply] = []
        self._noting: asyncio.TimerHandle | None = None
        self.committed = log.next - 1

    @property
    def pending(self) -> int:
        """How many replies wait for a commit."""
        futures = len(self._current) + len(self._next)
        return futures + len(self._current_replies) + len(self._next_replies) + self._rolled_count

    @property
    def idle(self) -> bool:
        """Whether no frame is open with records and none is in flight."""
        return not self.appending and not self._machine.frame.filled

    @property
    def failed(self) -> bool:
        return self._failed

    def point(self) -> asyncio.Future[None] | None:
        """The future that a reply decided just now must wait for; None: nothing to wait for.

        After a failure the future already has an error.
        """
        if self._machine.frame.filled:
            future = self._loop.create_future()
            if self._failed:  # the open frame will never be committed
                future.set_exception(Unavailable(self._why))
                return future
            if not self._scheduled:
                self.kick()
            if self._machine.frame.number != self._next_number:
                self._part_replies()
            self._next.append(future)
            return future
        if not self._assured():
            future = self._loop.create_future()
            future.set_exception(Unavailable(self._why))
            return future
        return self.under_way()

    def under_way(self) -> asyncio.Future[None] | None:
        """Done when the frame in flight is committed; None: no frame is in flight."""
        if not self.appending:
            return None
        future = self._loop.create_future()
        self._current.append(future)
        return future

    def call(self, done: Done, outcome: object = None) -> None:
        """Call `done` with the outcome of a decision made just now, once that is committed; else with the reason."""
        self.reply([(done, outcome)])

    def reply(self, replies: list[Reply]) -> None:
        """Like `call`, for the outcomes of one decision about several requests."""
        if self._machine.frame.filled:
            if not self._scheduled:
                if self._failed:  # the open frame will never be committed
                    _tell_all(replies, Unavailable(self._why))
                    return
                self.kick()
            if self._machine.frame.number != self._next_number:
                self._part_replies()
            self._next_replies += replies
        elif not self._assured():
            _tell_all(replies, Unavailable(self._why))
        elif self.appending:
            self._current_replies += replies
        else:
            _tell_all(replies)

    def release(self, future: asyncio.Future[None]) -> None:
        """Like `point`, for a future that exists already."""
        if self._machine.frame.filled:
            if self._failed:
                if not future.done():
                    future.set_exception(Unavailable(self._why))
                return
            self.kick()
            if self._machine.frame.number != self._next_number:
                self._part_replies()
            self._next.append(future)
        elif not self._assured():
            if not future.done():
                future.set_exception(Unavailable(self._why))
        elif self.appending:
            self._current.append(future)
        elif not future.done():
            future.set_result(None)

    def _part_replies(self) -> None:
        """Separate the replies after a new frame was opened: earlier ones wait for an earlier frame than new ones."""
        if self._next or self._next_replies:
            self._rolled.append(_Waiting(self._next_number, self._next, self._next_replies))
            self._rolled_count += len(self._next) + len(self._next_replies)
            self._next, self._next_replies = [], []
        self._next_number = self._machine.frame.number

    def _take_replies(self, number: int) -> None:
        """Take the replies that the commit of this frame releases: those that wait for this frame or an earlier one."""
        while self._rolled and self._rolled[0].number <= number:
            waiting = self._rolled.popleft()
            self._rolled_count -= len(waiting.futures) + len(waiting.replies)
            self._current += waiting.futures
            self._current_replies += waiting.replies
        if self._next_number <= number or not self._machine.frame.filled:
            self._current += self._next
            self._current_replies += self._next_replies
            self._next, self._next_replies = [], []
            self._next_number = self._machine.frame.number

    def kick(self) -> None:
        """Schedule the commit of the open frame, after the events that are ready now have been handled."""
        if not self._scheduled and not self._failed:
            self._scheduled = True
            if not self.appending:
                self._loop.call_soon(self._flush)

    def resume(self) -> None:
        """Called by `before_seal` when it has left work for later: it is called again once this frame is committed."""
        self._again = True

    def _flush(self) -> None:
        if self._failed or self.appending:
            return
        self._scheduled = True  # what is decided now goes into the frame that is sealed now
        try:
            self._before_seal()
        except Exception:  # the failure of one request must not prevent the commit of the others
            if not self.failed:
                events.logger.exception("shard %d: a frame was sealed without the remaining commands", self._log.shard)
        self._scheduled = False
        again, self._again = self._again, False
        if self.failed:
            return
        if not self._machine.frame.filled:
            if again:
                self.kick()
            return
        try:
            frame = self._seal()
        except Exception as problem:  # a frame that cannot be sealed now never can be
            self._fail(problem)
            return
        self._scheduled = again
        self.appending = True
        self._take_replies(frame.number)
        self._started_s = self._clock()
        statistics = self._statistics
        statistics.frames += 1
        statistics.rows += len(frame.rows) >> 6
        statistics.bytes += frame.size
        self._in_thread = self._choice.in_thread()
        self._aside = False  # an append that is done when it returns must not flush from within
        try:
            self._log.append(frame, self._done, in_thread=self._in_thread)
            self._aside = self.appending
        except Exception as problem:  # an append that raises counts as failed
            self._fail(problem)

    def _seal(self) -> frames.Frame:
        machine = self._machine
        open_frame = machine.frame
        if open_frame.finished:
            number, rows, variable = open_frame.take_finished()
        else:
            number = open_frame.number
            rows, variable = machine.seal()
            machine.begin_frame(number + 1)
        return frames.build(
            cluster=self._cluster,
            region=self._region,
            shard=self._log.shard,
            epoch=machine.epoch,
            number=number,
            time_ms=machine.last_time_ms,
            previous_digest=self._log.tail_digest,
            rows=rows,
            variable=variable,
            version=machine.format,
        )

    def _done(self, problem: BaseException | None) -> None:
        if threading.get_ident() == self._thread:
            self._finish(problem)
        else:
            self._loop.call_soon_threadsafe(self._finish, problem)

    def _finish(self, problem: BaseException | None) -> None:
        if self._failed:
            return
        if problem is not None:
            self._fail(problem)
            return
        seconds = self._clock() - self._started_s
        self._statistics.seconds += seconds
        self._statistics.durations[int(seconds * 1e6).bit_length()] += 1
        if not self._in_thread:
            self._choice.measured(seconds)
        self.appending = False
        self.committed += 1
        self._released += self._current
        self._replies += self._current_replies
        self._current, self._current_replies = [], []
        try:
            self._after_commit()
        except Exception:  # the frame is committed all the same
            events.logger.exception("shard %d: the work after a commit failed", self._log.shard)
        if self._aside and (self._scheduled or self._machine.frame.filled):
            self._flush()
        if self.appending and self._log.far:
            self._loop.call_soon(self._tell)  # the log writes the next frame while the replies are written
        else:
            self._tell()
        if self.failed:
            return
        if self._noting is None:
            self._noting = self._loop.call_later(NOTE_AFTER_S, self._note)
        if not self.appending and (self._scheduled or self._machine.frame.filled):
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _tell(self) -> None:
        """Release the replies that waited for frames that are committed."""
        released, self._released = self._released, []
        replies, self._replies = self._replies, []
        for future in released:
            if not future.done():
                future.set_result(None)
        _tell_all(replies)

    def _note(self) -> None:
        self._noting = None
        self._log.note()

    def stop(self, why: str) -> None:
        """Commit nothing more, and answer every waiting or later request with a retryable error.

        What is already committed is answered with success.
        """
        self._failed = True
        self._assured = _never
        self.appending = False
        if self._noting is not None:
            self._noting.cancel()
            self._noting = None
        self._scheduled = False
        self._why = why
        self._part_replies()
        waiting, replies = self._current, self._current_replies
        for rolled in self._rolled:
            waiting += rolled.futures
            replies += rolled.replies
        self._rolled.clear()
        self._rolled_count = 0
        self._current, self._current_replies = [], []
        self._tell()
        for future in waiting:
            if not future.done():
                future.set_exception(Unavailable(why))
        _tell_all(replies, Unavailable(why))

    def abandon(self, problem: BaseException) -> None:
        """Treat the machine like one whose log failed: its state can no longer be trusted."""
        self._fail(problem)

    def _fail(self, problem: BaseException) -> None:
        if not self._failed:
            self.stop(f"The last change could not be committed. It may or may not be stored. Retry. ({problem})")
            self._on_failure(problem)


def _never() -> bool:
    return False


def _tell_all(replies: list[Reply], problem: BatonError | None = None) -> None:
    """Call every callback, with its outcome or with the problem that all of them met."""
    for done, outcome in replies:
        tell(done, outcome if problem is None else problem)
