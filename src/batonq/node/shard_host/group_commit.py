"""Group commit: many requests into one frame, one append in flight, replies released in the order of their decisions.

A command has changed the state and put its records into the open frame before anyone is told. Its reply is released
when the last frame that its decision could have read is committed: the open one if it holds anything, else the one
under way, else at once. While one frame is being written the next one fills, so batches grow with load by themselves.

A reply that waits for no record of its own is only as good as the ownership of whoever gives it. While that is not
assured such replies are refused; a frame that gets committed shows that it still was the owner.

Two rules hold whatever goes wrong. Sealing a frame cannot fail: an exception in `before_seal` is logged, and the frame
is sealed without the rest of that work. A committed outcome is always told, also when `after_commit` raises or the
commit is stopped before the replies were written.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from batonq.core.open_frame import OpenFrame
from batonq.errors import BatonError, Unavailable
from batonq.log import frames
from batonq.log.interface import Log
from batonq.node import events


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
        """The version of the log format that its records need."""

    def begin_frame(self, number: int) -> None: ...
    def seal(self) -> tuple[bytes, bytes]: ...


Committed = Callable[[BatonError | None], None]  # called with None once it is committed, else with why it is not
NOT_ASSURED = "This node could not renew its lease, so its state may be out of date. Retry."
NOTE_AFTER_S = 0.005  # after a commit, and so at most 200 times a second
INLINE_TRIAL_EVERY = 128  # appends on the thread between two that try whether the disk is quick (again)
ESTIMATE_STEP = 1.05  # how far one measurement moves the estimate of the median
ESTIMATE_MIN_S = 1e-6


class _Waiting(NamedTuple):
    """Replies that wait for one frame."""

    number: int
    futures: list[asyncio.Future[None]]
    calls: list[Committed]


@dataclass(slots=True)
class CommitStatistics:
    """What has been committed so far, for the metrics."""

    frames: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0


class SyncChoice:
    """Where the next append should sync: on the loop's thread while the disk is quick, else beside it.

    A quick sync costs less than handing it to a thread and back; a slow one would keep every client waiting. Only
    appends on the loop's thread tell how quick the disk is, so now and then one is tried there. It is the median that
    counts: some take long because others had the processor, and a thread would make that worse.
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
        """How long an append on the loop's thread took."""
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
        self._clock = clock  # seconds, finely: uvloop's own counts milliseconds
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
        self._aside = False  # the last frame was not written on the loop's thread, which was free meanwhile
        self._thread = threading.get_ident()
        self._scheduled = False
        self._again = False  # `before_seal` has not done all of its work
        self._appending = False
        self._started_s = 0.0
        self._failed = False  # then nothing is scheduled, and everything is answered with `_why`
        self._why = NOT_ASSURED
        self._current: list[asyncio.Future[None]] = []  # released by the frame under way
        self._next: list[asyncio.Future[None]] = []  # released by the open frame, which had
        self._next_number = machine.frame.number  # this number when they came
        self._rolled: deque[_Waiting] = deque()  # released by frames that are finished and not under way yet
        self._rolled_count = 0
        self._current_calls: list[Committed] = []
        self._next_calls: list[Committed] = []
        self._released: list[asyncio.Future[None]] = []  # of frames that are committed, to be told in a moment
        self._calls: list[Committed] = []
        self._noting: asyncio.TimerHandle | None = None
        self.committed = log.next - 1

    @property
    def pending(self) -> int:
        """How many replies wait for a commit."""
        return (
            len(self._current) + len(self._next) + len(self._current_calls) + len(self._next_calls) + self._rolled_count
        )

    @property
    def idle(self) -> bool:
        """Nothing is open and nothing is under way."""
        return not self._appending and not self._machine.frame.filled

    @property
    def appending(self) -> bool:
        """A frame is under way."""
        return self._appending

    @property
    def failed(self) -> bool:
        return self._failed

    def point(self) -> asyncio.Future[None] | None:
        """What a reply that was decided just now has to wait for; None: nothing. After a failure: an error at once."""
        if self._machine.frame.filled:
            future = self._loop.create_future()
            if self._failed:  # what is open will never be committed
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
        """When the frame that is being written is committed; None: there is none."""
        if not self._appending:
            return None
        future = self._loop.create_future()
        self._current.append(future)
        return future

    def call(self, committed: Committed) -> None:
        """Like `point`, for a reply that is ready to be written: `committed(None)` writes it, without a task."""
        if self._machine.frame.filled:
            if not self._scheduled:
                if self._failed:  # what is open will never be committed
                    _call_all([committed], Unavailable(self._why))
                    return
                self.kick()
            if self._machine.frame.number != self._next_number:
                self._part_replies()
            self._next_calls.append(committed)
        elif not self._assured():
            _call_all([committed], Unavailable(self._why))
        elif self._appending:
            self._current_calls.append(committed)
        else:
            _call_all([committed], None)

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
        elif self._appending:
            self._current.append(future)
        elif not future.done():
            future.set_result(None)

    def _part_replies(self) -> None:
        """The open frame is another one: what came before waits for an earlier frame than what comes now."""
        if self._next or self._next_calls:
            self._rolled.append(_Waiting(self._next_number, self._next, self._next_calls))
            self._rolled_count += len(self._next) + len(self._next_calls)
            self._next, self._next_calls = [], []
        self._next_number = self._machine.frame.number

    def _take_replies(self, number: int) -> None:
        """The frame of this number is under way: its commit releases what waits for it, or for an earlier one."""
        while self._rolled and self._rolled[0].number <= number:
            waiting = self._rolled.popleft()
            self._rolled_count -= len(waiting.futures) + len(waiting.calls)
            self._current += waiting.futures
            self._current_calls += waiting.calls
        if self._next_number <= number or not self._machine.frame.filled:
            self._current += self._next
            self._current_calls += self._next_calls
            self._next, self._next_calls = [], []

    def kick(self) -> None:
        """See to it that what is open gets committed, once the events that are ready now have been handled."""
        if not self._scheduled and not self._failed:
            self._scheduled = True
            if not self._appending:
                self._loop.call_soon(self._flush)

    def resume(self) -> None:
        """Called by `before_seal` when it has left work for later: it is called again once this frame is committed."""
        self._again = True

    def _flush(self) -> None:
        if self._failed or self._appending:
            return
        self._scheduled = True  # what is decided now is in the frame that is sealed now
        try:
            self._before_seal()
        except Exception:  # one request's fault must not keep the others from being committed
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
        except Exception as problem:  # what cannot be sealed now never can be
            self._fail(problem)
            return
        self._scheduled = again
        self._appending = True
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
            self._aside = self._appending
        except Exception as problem:  # an append that raises is one that failed
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
        if not self._in_thread:
            self._choice.measured(seconds)
        self._appending = False
        self.committed += 1
        self._released += self._current
        self._calls += self._current_calls
        self._current, self._current_calls = [], []
        try:
            self._after_commit()
        except Exception:  # it is committed all the same
            events.logger.exception("shard %d: the work after a commit failed", self._log.shard)
        if self._aside and (self._scheduled or self._machine.frame.filled):
            self._flush()
        if self._appending and self._log.far:
            self._loop.call_soon(self._tell)  # the log is at work again while the replies are written
        else:
            self._tell()
        if self.failed:
            return
        if self._noting is None:
            self._noting = self._loop.call_later(NOTE_AFTER_S, self._note)
        if not self._appending and (self._scheduled or self._machine.frame.filled):
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _tell(self) -> None:
        """Release what waited for frames that are committed."""
        released, self._released = self._released, []
        calls, self._calls = self._calls, []
        for future in released:
            if not future.done():
                future.set_result(None)
        _call_all(calls, None)

    def _note(self) -> None:
        self._noting = None
        self._log.note()

    def stop(self, why: str) -> None:
        """Answer everything that waits, or comes yet, with a retryable error, and commit nothing more.

        What is committed already is answered with success.
        """
        self._failed = True
        self._assured = _never
        self._appending = False
        if self._noting is not None:
            self._noting.cancel()
            self._noting = None
        self._scheduled = False
        self._why = why
        self._part_replies()
        waiting, calls = self._current, self._current_calls
        for rolled in self._rolled:
            waiting += rolled.futures
            calls += rolled.calls
        self._rolled.clear()
        self._rolled_count = 0
        self._current, self._current_calls = [], []
        self._tell()
        for future in waiting:
            if not future.done():
                future.set_exception(Unavailable(why))
        _call_all(calls, Unavailable(why))

    def abandon(self, problem: BaseException) -> None:
        """The machine's state is not to be trusted any more: treat it like a log that failed."""
        self._fail(problem)

    def _fail(self, problem: BaseException) -> None:
        if not self._failed:
            self.stop(f"The last change could not be committed. It may or may not be stored. Retry. ({problem})")
            self._on_failure(problem)


def _never() -> bool:
    return False


def _call_all(calls: list[Committed], problem: BatonError | None) -> None:
    """Tell everybody: one that cannot be told must not keep the others from hearing it."""
    for committed in calls:
        try:
            committed(problem)
        except Exception:
            events.logger.exception("a response could not be written")
