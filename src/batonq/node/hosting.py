"""What hosts one shard over one log: its life, its timers, and the one way to run a command (see host.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from batonq.core.limits import ROLL_ROWS
from batonq.core.records import ROW_WORDS
from batonq.core.shard.machine import Shard
from batonq.errors import BatonError, DiskFull, LogCorrupt, OverLimit, Unavailable
from batonq.log.interface import Log, Room
from batonq.node import events
from batonq.node.clock import Clock
from batonq.node.commit import CommitStatistics, GroupCommit
from batonq.node.events import AlarmBoard
from batonq.node.jobrunner import JobRunner
from batonq.node.settings import KIB, MIB, Settings

P = ParamSpec("P")
T = TypeVar("T")
ROOM_RETRY_MS = 1_000
COMMAND_BYTES_MAX = 5 * MIB + 512 * KIB  # what one command may put into a frame: a request, a channel's window, a step
STARTING = "The shard is being opened. Retry."


class Hosting:
    """It serves after `start` and until its log fails or `close`. Those who wait are the subclass's."""

    def __init__(
        self,
        shard: Shard,
        log: Log,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        settings: Settings,
        cluster: int,
        alarms: AlarmBoard,
        on_commit: Callable[[], None],
        on_failure: Callable[[BaseException], None],
        statistics: CommitStatistics | None = None,
        region: int = 0,
        assured: Callable[[], bool] = lambda: True,
    ) -> None:
        self.shard = shard
        self.log = log
        shard.producer_idle_ms = int(settings.producer_idle_hours * 3_600_000)
        self.serving = False
        self.why = STARTING
        self._loop = loop
        self._clock = clock
        self._alarms = alarms
        self._on_commit = on_commit
        self._on_failure = on_failure
        self._words_max = settings.frame_rows_max * ROW_WORDS
        self._bytes_max = settings.frame_bytes_max
        self._roll_bytes = log.frame_bytes_max - COMMAND_BYTES_MAX
        self._pending_max = settings.pending_max
        self._gathered: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = 0
        self.jobs = JobRunner(self, loop, settings.window_entries * 4)
        self.commit = GroupCommit(
            loop=loop,
            machine=shard,
            log=log,
            cluster=cluster,
            region=region,
            before_seal=self._before_seal,
            after_commit=self._after_commit,
            on_failure=self._failed,
            statistics=statistics or CommitStatistics(),
            inline_max_s=settings.inline_sync_us / 1e6,
            clock=clock.monotonic,
            assured=assured,
        )
        self.point = self.commit.point

    # --- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Commit what is in the open frame (the record of a new owner), then serve."""
        point = self.commit.point()
        if point is not None:
            try:
                await point
            except BaseException:
                point.cancel()  # if it is not over, nobody waits for it any more
                raise
        self.serving = True
        self.jobs.begin(self._clock.now_ms())
        self._arm()

    async def drain(self) -> None:
        """Wait until everything that was decided is committed. Raises Unavailable when some of it will never be."""
        while not self.commit.idle and not self.commit.failed:
            self.commit.kick()
            point = self.commit.under_way() or self.commit.point()
            if point is not None:
                await point
        if self.commit.failed:
            raise Unavailable(self.why)

    def close(self, why: str = "The node is stopping. Retry.") -> None:
        """Serve nothing more. What waits is answered with a retryable error; the log stays the caller's to close."""
        self._end(why)
        self.commit.stop(why)

    def _failed(self, problem: BaseException) -> None:
        self._end(f"The shard's log failed and is being reopened. Retry. ({problem})")
        self._on_failure(problem)

    def _end(self, why: str) -> None:
        self.serving = False
        self.why = why
        if self._gathered:
            self._loop.call_soon(self._run_gathered)  # to be refused
        self.jobs.end()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._end_waits(why)

    # --- those who wait, see polling.py --------------------------------------------------------------

    def _serve_waits(self) -> None:
        """The frame is about to be sealed: serve whoever waits for something in it."""

    def _woken(self) -> None:
        """Something became deliverable."""

    def _end_waits(self, why: str) -> None:
        """Nothing is served any more: tell whoever waits."""

    # --- running commands ------------------------------------------------------------------------

    def run(self, command: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Every change of the shard comes through here: one that breaks off may have left half of itself behind.

        Then nothing of the open frame may be committed, and the shard starts over from its log. A refusal changes
        nothing.
        """
        try:
            return command(*arguments, **named)
        except Exception as problem:
            if isinstance(problem, BatonError) and not isinstance(problem, LogCorrupt):
                raise
            events.logger.exception("shard %d: a command failed", self.shard.number)
            self.commit.abandon(problem)
            raise

    def begin(self, *, adds: bool = False) -> int:
        """Check that a command can be taken, one that `adds` messages with more room left; return what time it is."""
        if not self.serving:
            raise Unavailable(self.why)
        frame = self.shard.frame
        words = len(frame.rows)
        if (
            words > self._words_max
            or frame.variable_bytes + frame.finished_bytes > self._bytes_max
            or self.commit.pending >= self._pending_max
        ):
            self.commit.kick()  # whoever filled the frame, it is written now
            raise OverLimit("The shard's disk is too slow for the current load. Retry.")
        room = self.log.room()
        if room is not Room.PLENTY and (adds or room is Room.NONE):
            raise DiskFull
        if words * 8 + frame.variable_bytes > self._roll_bytes:
            frame.roll()
        return self._clock.now_ms()

    def begin_own(self) -> int:
        """As `begin`, for what the shard owes to somebody: it is not refused because the open frame is full.

        How much there can be of it is bounded by what was accepted before.
        """
        if not self.serving:
            raise Unavailable(self.why)
        if self.log.room() is Room.NONE:
            raise DiskFull
        self.make_room()
        return self._clock.now_ms()

    def make_room(self) -> None:
        """What is put into the open frame now, one command's worth, fits into one frame of the log."""
        frame = self.shard.frame
        if len(frame.rows) > ROLL_ROWS * ROW_WORDS or frame.size > self._roll_bytes:
            frame.roll()

    @property
    def _frame_is_full(self) -> bool:
        return len(self.shard.frame.rows) > self._words_max

    def gather(self, run: Callable[[], None]) -> None:
        """Have `run` called soon: just before the open frame is sealed, or in the next turn while one is written.

        What came until then can be run together.
        """
        self._gathered.append(run)
        if self.serving and not self.commit.appending:
            self.commit.kick()
        else:
            self._loop.call_soon(self._run_gathered)

    def _run_gathered(self) -> None:
        gathered, self._gathered = self._gathered, []
        for run in gathered:
            try:
                run()
            except Exception:
                events.logger.exception("shard %d: a batch of requests failed", self.shard.number)

    # --- timers -------------------------------------------------------------------------------

    def _before_seal(self) -> None:
        if self._gathered:
            self._run_gathered()
        if not self.serving:
            return
        try:
            self._serve_waits()
        finally:
            if self.serving:
                self._arm()

    def _after_commit(self) -> None:
        if self.shard.alarms:
            self._raise_alarms()
        self._on_commit()

    def _raise_alarms(self) -> None:
        raised, self.shard.alarms[:] = self.shard.alarms[:], []
        for alarm in raised:
            state = self.shard.queues.get(alarm.queue)
            policy = state.policy if state is not None else None
            name = policy.name if policy is not None else ""
            severity = policy.alarm_severity if policy is not None else ""
            self._alarms.put(alarm.key, alarm.text, severity=severity or "warning", queue=name)

    def _arm(self) -> None:
        """One timer, for the first thing that is due."""
        due_ms = self.shard.next_due()
        if self.jobs.due_ms is not None and (due_ms is None or self.jobs.due_ms < due_ms):
            due_ms = self.jobs.due_ms
        if self._timer is not None:
            if due_ms is not None and self._timer_due_ms <= due_ms:
                return  # it fires early enough, and is set again then
            self._timer.cancel()
            self._timer = None
        if due_ms is not None:
            self._timer_due_ms = due_ms
            self._timer = self._loop.call_later(self._clock.seconds_until(due_ms), self._tick)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def jobs_changed(self) -> None:
        """Something of the jobs may be due earlier than it was."""
        if self.serving:
            self._arm()

    def tick(self) -> bool:
        """The clock was moved: do what is due now. False: there is no room on the disk; it is done when there is."""
        if self._timer is not None:
            self._timer.cancel()
        self._tick()
        return self.log.room() is not Room.NONE

    def _tick(self) -> None:
        self._timer = None
        if not self.serving:
            return
        if self._frame_is_full or self.log.room() is Room.NONE:
            if self.shard.frame.filled:
                self.commit.kick()  # when the frame is sealed, the timer is set again
            self._tick_later()
            return
        try:
            self._do_what_is_due()
        except Exception:
            if self.serving:
                events.logger.exception("shard %d: the work that was due failed", self.shard.number)
                self._tick_later()
            return
        self._arm()

    def _tick_later(self) -> None:
        self._timer_due_ms = self._clock.now_ms() + ROOM_RETRY_MS
        self._timer = self._loop.call_later(ROOM_RETRY_MS / 1000, self._tick)

    def _do_what_is_due(self) -> None:
        shard = self.shard
        now_ms = self._clock.now_ms()
        self.make_room()
        self.run(shard.advance, now_ms)
        if self.jobs.due_ms is not None and self.jobs.due_ms <= now_ms and not self._frame_is_full:
            self.make_room()
            self.jobs.step(now_ms)
        if shard.woken:
            self._woken()
        if shard.frame.filled:
            self.commit.kick()
