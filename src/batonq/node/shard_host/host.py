"""A shard's host: one shard over one log on the event loop.

Commands arrive through `submit`. The commands of one turn of the event loop are executed together (command_groups.py),
and each gets its outcome when the frame is committed (group_commit.py). A receive that finds nothing may stay as a long
poll (long_polls.py). The shard decides what a command does. When the log fails, the host ends, and the keeper
(keeper.py) opens the shard again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ParamSpec, TypeVar

from batonq.core.commands import (
    Arrival,
    ChangeVisibility,
    Counters,
    ExactCounters,
    Leases,
)
from batonq.core.limits import ROLL_ROWS
from batonq.core.policy import QueuePolicy
from batonq.core.records import ROW_WORDS
from batonq.core.schedule import Schedule
from batonq.core.shard.machine import Shard
from batonq.core.shard.state.columns import NIL
from batonq.core.spread import Hint
from batonq.core.topics.subscription import Subscription
from batonq.errors import BatonError, DiskFull, LogCorrupt, OverLimit, QueueDoesNotExist, Unavailable
from batonq.log.interface import Log, Room
from batonq.node import events
from batonq.node.alarms.book import AlarmBook, queue_id
from batonq.node.alarms.kinds import KINDS, label_of, severity_of
from batonq.node.clock import Clock
from batonq.node.jobs.job_runner import JobRunner
from batonq.node.schedules.schedule_runner import ScheduleRunner
from batonq.node.settings import KIB, MIB, Settings
from batonq.node.shard_host.command_groups import CommandGroups
from batonq.node.shard_host.group_commit import CommitStatistics, GroupCommit
from batonq.node.shard_host.long_polls import LongPolls
from batonq.node.shard_host.reader_waits import ReaderWaits
from batonq.node.shard_host.waiters import NO_LEASES

P = ParamSpec("P")
T = TypeVar("T")
ROOM_RETRY_MS = 1_000
COMMAND_BYTES_MAX = 5 * MIB + 512 * KIB  # what one command may put into a frame: a request, a channel's window, a step
STARTING = "The shard is being opened. Retry."
EXTENSIONS_MAX = 3  # a reply that is late again after this many extensions is sent as it is


class ShardHost:
    """Hosts one opened shard. The host serves from `start` until its log fails or `close` is called."""

    def __init__(
        self,
        shard: Shard,
        log: Log,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        settings: Settings,
        cluster: int,
        alarms: AlarmBook,
        on_commit: Callable[[], None],
        on_failure: Callable[[BaseException], None],
        statistics: CommitStatistics | None = None,
        region: int = 0,
        assured: Callable[[], bool] = lambda: True,
    ) -> None:
        self.shard = shard
        self.log = log
        shard.forget_producers_after(int(settings.producer_idle_hours * 3_600_000))
        self.serving = False
        self.why = STARTING
        self._loop = loop
        self._clock = clock
        self._alarms = alarms
        self._account = settings.account
        self._on_commit = on_commit
        self._on_failure = on_failure
        self._words_max = settings.frame_rows_max * ROW_WORDS
        self._bytes_max = settings.frame_bytes_max
        self._roll_bytes = log.frame_bytes_max - COMMAND_BYTES_MAX
        self._pending_max = settings.pending_max
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = 0
        self.jobs = JobRunner(self, loop, settings.window_entries * 4)
        self.schedules = ScheduleRunner(self)
        self.polls = LongPolls(self, loop, settings)
        self.reader_waits = ReaderWaits(loop, settings.waiters_max)
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
        self.commands = CommandGroups(self, self.commit, loop, settings)
        self.submit = self.commands.submit

    # --- lifecycle ----------------------------------------------------------------------------

    async def start(self) -> None:
        """Commit what is in the open frame (the epoch record of the new owner), then serve."""
        point = self.commit.point()
        if point is not None:
            try:
                await point
            except BaseException:
                point.cancel()  # if the future is not done, no caller waits for it any more
                raise
        self.serving = True
        self.jobs.begin(self._clock.now_ms())
        self.schedules.begin()
        self._arm()

    async def drain(self) -> None:
        """Execute what has arrived, and wait until every decision is committed.

        Raises Unavailable when some of them never will be.
        """
        while (self.commands.arrived or not self.commit.idle) and not self.commit.failed:
            self.commands.execute()
            self.commit.kick()
            point = self.commit.under_way() or self.commit.point()
            if point is not None:
                await point
        if self.commit.failed:
            raise Unavailable(self.why)

    def close(self, why: str = "The node is stopping. Retry.") -> None:
        """Stop serving. Waiting requests are answered with a retryable error; the caller closes the log."""
        self._end(why)
        self.commit.stop(why)

    def _failed(self, problem: BaseException) -> None:
        self._end(f"The shard's log failed and is being reopened. Retry. ({problem})")
        self._on_failure(problem)

    def _end(self, why: str) -> None:
        self.serving = False
        self.why = why
        if self.commands.arrived:
            self._loop.call_soon(self.commands.execute)  # they are refused there
        self.jobs.end()
        self.schedules.end()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.polls.end(why)
        self.reader_waits.end()

    def stop_waiting(self) -> None:
        """Answer every long poll now, accept no new ones, and suspend jobs: the node is stopping."""
        self.jobs.end()  # jobs resume when the shard is opened again
        self.schedules.end()
        self.polls.stop()
        self.reader_waits.end()

    # --- running commands ------------------------------------------------------------------------

    def run(self, command: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Run a command that changes the shard. Every change goes through this method.

        A command that raises anything but a refusal may have left a partial change behind. Then nothing of the open
        frame may be committed, and the shard restarts from its log. A refusal changes nothing.
        """
        try:
            return command(*arguments, **named)
        except Exception as problem:
            if isinstance(problem, BatonError) and not isinstance(problem, LogCorrupt):
                raise
            events.logger.exception("shard %d: a command failed", self.shard.number)
            self.commit.abandon(problem)
            raise

    def admit(self, *, adds: bool = False) -> int:
        """Check that a command can be accepted, and return the current time.

        A command that `adds` messages needs more free space.
        """
        if not self.serving:
            raise Unavailable(self.why)
        frame = self.shard.frame
        words = len(frame.rows)
        if (
            words > self._words_max
            or frame.variable_bytes + frame.finished_bytes > self._bytes_max
            or self.commit.pending >= self._pending_max
        ):
            self.commit.kick()  # write the full frame now, whatever filled it
            raise OverLimit("The shard's disk is too slow for the current load. Retry.")
        room = self.log.room()
        if room is not Room.PLENTY and (adds or room is Room.NONE):
            raise DiskFull
        if words * 8 + frame.variable_bytes > self._roll_bytes:
            frame.roll()
        return self._clock.now_ms()

    def admit_own(self) -> int:
        """Like `admit`, for work that the shard owes: a full open frame is no reason to refuse it.

        The amount of such work is bounded by what was accepted before.
        """
        if not self.serving:
            raise Unavailable(self.why)
        if self.log.room() is Room.NONE:
            raise DiskFull
        self.make_room()
        return self._clock.now_ms()

    def make_room(self) -> None:
        """Make sure that one command's worth of records fits into the open frame."""
        frame = self.shard.frame
        if len(frame.rows) > ROLL_ROWS * ROW_WORDS or frame.size > self._roll_bytes:
            frame.roll()

    @property
    def frame_is_full(self) -> bool:
        return len(self.shard.frame.rows) > self._words_max

    # --- leases whose answer was late or lost ---------------------------------------------------------

    def give_back(self, queue: int, claims: Sequence[tuple[int, int, int]]) -> None:
        """Give back messages whose answer never left because the client disconnected. Other consumers may have them.

        Not for a receive with an attempt id. The client may hold those leases from its first attempt, and a client that
        got no answer asks for them again.
        """
        if not claims or not self.serving:
            return
        try:
            self.run(self.shard.give_back, queue, claims, self.admit_own())
        except BatonError:
            return  # the messages become visible again when their leases expire
        self.commit.kick()

    def is_late(self, leases: Leases, decided_ms: int = 0) -> bool:
        """Whether so much of these leases has passed since the decision that they must be extended."""
        decided_ms = decided_ms or leases.leased_ms
        return (self._clock.now_ms() - decided_ms) * 10 > leases.deadline_ms - decided_ms > 0

    async def in_time(self, queue: int, leases: Leases, attempt: str = "") -> Leases:
        """Return committed leases, extended if the commit took a noticeable part of their time.

        Leases that cannot be extended are returned unchanged while they last, because they are committed. Raises
        QueueDoesNotExist.
        """
        decided_ms = leases.leased_ms
        visibility_ms = leases.deadline_ms - decided_ms
        for _ in range(EXTENSIONS_MAX):
            if not leases or not self.is_late(leases, decided_ms):
                break
            change = ChangeVisibility(queue, leases.claims(), [visibility_ms] * len(leases), strict=True)
            try:
                decided_ms = self.admit_own()
                results = self.run(self.shard.change_visibility, change, decided_ms, by_attempt=bool(attempt))
                # A lease that expired meanwhile must not be handed over.
                kept = [at for at, result in enumerate(results) if not isinstance(result, BatonError)]
                extended = replace(leases.pick(kept), deadline_ms=decided_ms + visibility_ms)
                await self._committed(queue, extended, attempt)
            except QueueDoesNotExist:
                raise
            except BatonError:
                return leases if leases.deadline_ms > self._clock.now_ms() else NO_LEASES
            leases = extended
        return leases

    async def _committed(self, queue: int, leases: Leases, attempt: str) -> None:
        """Wait for the commit of the last decision. If the client disconnects meanwhile, give the messages back."""
        point = self.point()
        if point is not None:
            try:
                await point
            except asyncio.CancelledError:
                if not attempt:
                    self.give_back(queue, leases.claims())
                raise

    # --- timers -------------------------------------------------------------------------------

    def _before_seal(self) -> None:
        if self.commands.arrived:
            self.commands.execute()
        try:
            if self.serving:
                self.polls.serve()
        finally:
            if self.commands.arrived:  # a client that was answered meanwhile has sent another request
                self._loop.call_soon(self.commands.execute)
            if self.serving:
                self._arm()

    def _after_commit(self) -> None:
        if self.shard.alarms:
            self._raise_alarms()
        if self.reader_waits.waiting:
            self.reader_waits.look(self.shard, self.log)
        self._on_commit()

    def _raise_alarms(self) -> None:
        raised, self.shard.alarms[:] = self.shard.alarms[:], []
        for alarm in raised:
            state = self.shard.queues.get(alarm.queue)
            policy = state.policy if state is not None else None
            kind, word = KINDS[alarm.key.partition(":")[0]], policy.alarm_severity if policy is not None else ""
            self._alarms.put(
                kind.name,
                alarm.text,
                of=alarm.queue if policy is None else queue_id(policy.name, policy.tenant, self._account),
                severity=severity_of(kind, 1, word),
                queue=policy.name if policy is not None else "",
                account=policy.tenant if policy is not None else "",
                label=label_of(word),
            )

    def schedule_alarm(self, schedule: Schedule, text: str) -> None:
        """Raise an alarm about a schedule that cannot fire; an empty text ends it."""
        state = self.shard.queues.get(schedule.queue)
        policy = state.policy if state is not None else None
        name = queue_id(policy.name, policy.tenant, self._account) if policy is not None else str(schedule.queue)
        of = f"{schedule.name}@{name}"
        if not text:
            self._alarms.clear("schedule-waiting", of)
        elif policy is not None:
            severity = severity_of(KINDS["schedule-waiting"], 1, policy.alarm_severity)
            label = label_of(policy.alarm_severity)
            self._alarms.put(
                "schedule-waiting",
                f"Queue {policy.name}: {text}",
                of=of,
                severity=severity,
                queue=policy.name,
                account=policy.tenant,
                label=label,
            )

    def _arm(self) -> None:
        """Set one timer, for the first thing that is due."""
        due_ms = self.shard.next_due()
        if self.jobs.due_ms is not None and (due_ms is None or self.jobs.due_ms < due_ms):
            due_ms = self.jobs.due_ms
        if self.schedules.due_ms is not None and (due_ms is None or self.schedules.due_ms < due_ms):
            due_ms = self.schedules.due_ms
        if self._timer is not None:
            if due_ms is not None and self._timer_due_ms <= due_ms:
                return  # the timer fires early enough, and is set again then
            self._timer.cancel()
            self._timer = None
        if due_ms is not None:
            self._timer_due_ms = due_ms
            self._timer = self._loop.call_later(self._clock.seconds_until(due_ms), self._tick)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def due_changed(self) -> None:
        """Called when something may be due earlier than before."""
        if self.serving:
            self._arm()

    def tick(self) -> bool:
        """Do what is due now, after the clock was moved.

        Returns False when the disk is full. The work is then done once there is space.
        """
        if self._timer is not None:
            self._timer.cancel()
        self._tick()
        return self.log.room() is not Room.NONE

    def _tick(self) -> None:
        self._timer = None
        if not self.serving:
            return
        if self.frame_is_full or self.log.room() is Room.NONE:
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
        if self.jobs.due_ms is not None and self.jobs.due_ms <= now_ms and not self.frame_is_full:
            self.make_room()
            self.jobs.step(now_ms)
        if self.schedules.due_ms is not None and self.schedules.due_ms <= now_ms and not self.frame_is_full:
            self.schedules.step(now_ms)
        if shard.woken:
            self.polls.woken()
        if shard.frame.filled:
            self.commit.kick()

    # --- queues ---------------------------------------------------------------------------------------

    def set_policy(self, policy: QueuePolicy) -> None:
        self.run(self.shard.set_policy, policy, self.admit_own())

    def set_subscription(self, topic: int, number: int, subscription: Subscription | None, version: int) -> None:
        """Tell the shard of a topic about one of its subscriptions; None: it was removed."""
        self.run(self.shard.set_subscription, topic, number, subscription, version, self.admit_own())

    def close_queue(self, queue: int, version: int) -> None:
        """Tell everyone who waits on a deleted queue that it is gone. `purge` removes its messages."""
        now_ms = self.admit_own()
        self.run(self.shard.close_queue, queue, version, now_ms)
        self.shard.woken.add(queue)
        self.polls.woken()
        self.jobs.queue_closed(now_ms)

    def purge(self, queue: int, through: int | None) -> tuple[int, bool]:
        """Do one step of a purge up to sequence `through` (None: all messages).

        Returns the number of messages removed, and whether the purge is complete.
        """
        return self.run(self.shard.purge, queue, self.admit(), through)

    def counters(self, queue: int) -> Counters:
        self.run(self.shard.advance, self.admit())
        return self.shard.counters(queue)

    def exact_counters(self, queue: int) -> ExactCounters:
        self.run(self.shard.advance, self.admit())
        return self.shard.exact_counters(queue)

    def seek(self, queue: int, after_sequence: int, slot: int = NIL, sequence: int = 0) -> tuple[int, bool]:
        """Do one step towards a position in a queue, after everything due has been recorded; see Shard.seek."""
        self.run(self.shard.advance, self.admit())
        return self.run(self.shard.seek, queue, after_sequence, slot, sequence)

    # --- between shards -----------------------------------------------------------------------

    def arrive(self, arrivals: Sequence[Arrival]) -> list[tuple[int, int]]:
        """Accept entries of a channel from another shard. Returns (number, verdict) per entry."""
        now_ms = self.admit(adds=True)
        self.shard.check_arrivals(arrivals)  # an error of the source must not stop this shard
        results = self.run(self.shard.arrive, arrivals, now_ms)
        if self.shard.woken:
            self.polls.woken()
        return results

    def settle(self, destination_shard: int, results: Sequence[tuple[int, int]]) -> None:
        self.run(self.shard.settle, destination_shard, results, self.admit())
        if self.shard.woken:
            self.polls.woken()

    def filled_queues(self) -> list[int]:
        """The queues that have messages to deliver."""
        self.run(self.shard.advance, self.admit())
        return self.run(self.shard.filled_queues)

    def hint(self, queue: int) -> Hint:
        """What a receive would find in the queue."""
        self.run(self.shard.advance, self.admit())
        return self.run(self.shard.hint, queue)


async def committed(host: ShardHost) -> None:
    """Wait until the last decision is committed."""
    point = host.point()
    if point is not None:
        await point
