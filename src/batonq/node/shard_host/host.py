"""A shard's host: one shard over one log on the event loop.

Commands come by `submit`. Those that arrive in one turn of the event loop are executed together, just before the open
frame is sealed, and each gets its outcome when the frame is committed. A receive that finds nothing may stay as a long
poll (long_polls.py). What a command means is the shard's. When the log fails, the host is over: the keeper (keeper.py)
opens the shard again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import ParamSpec, TypeVar

from batonq.core.commands import (
    Arrival,
    ChangeVisibility,
    Command,
    Counters,
    Delete,
    Leases,
    Nack,
    Receive,
    Send,
)
from batonq.core.limits import GROUP_MESSAGES_MAX, ROLL_ROWS
from batonq.core.policy import QueuePolicy
from batonq.core.records import ROW_WORDS
from batonq.core.shard.columns import NIL
from batonq.core.shard.machine import Shard
from batonq.core.spread import Hint
from batonq.errors import BatonError, DiskFull, LogCorrupt, OverLimit, QueueDoesNotExist, Unavailable
from batonq.log.interface import Log, Room
from batonq.node import events
from batonq.node.clock import Clock
from batonq.node.events import AlarmBoard
from batonq.node.jobs.job_runner import JobRunner
from batonq.node.routing.submission import Done, tell, told
from batonq.node.settings import KIB, MIB, Settings
from batonq.node.shard_host.group_commit import CommitStatistics, GroupCommit
from batonq.node.shard_host.long_polls import LongPolls
from batonq.node.shard_host.waiters import NO_LEASES, Poll

P = ParamSpec("P")
T = TypeVar("T")
ROOM_RETRY_MS = 1_000
COMMAND_BYTES_MAX = 5 * MIB + 512 * KIB  # what one command may put into a frame: a request, a channel's window, a step
STARTING = "The shard is being opened. Retry."
TOGETHER_MAX = 256  # requests that are executed at once, beside GROUP_MESSAGES_MAX for their messages,
TOGETHER_BYTES_MAX = 4 * MIB  # and bytes of theirs: the host looks at its limits in between
HEAD_BYTES = 48  # of a payload, beside what its length depends on
EXTENSIONS_MAX = 3  # a reply that is late again after so many extensions leaves as it is

Submitted = tuple[Command, Done, Poll | None]


class ShardHost:
    """Hosts one opened shard. It serves after `start` and until its log fails or `close`."""

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
        self._arrived: list[Submitted] = []
        self._execute: dict[type, Callable[[Sequence[Submitted]], None]] = {
            Send: self._execute_sends,
            Receive: self._execute_receives,
            Delete: self._execute_deletes,
            ChangeVisibility: self._execute_others,
            Nack: self._execute_others,
        }
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = 0
        self.jobs = JobRunner(self, loop, settings.window_entries * 4)
        self.polls = LongPolls(self, loop, settings)
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
        if self._arrived:
            self._loop.call_soon(self._execute_arrived)  # to be refused
        self.jobs.end()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.polls.end(why)

    def stop_waiting(self) -> None:
        """Answer every long poll now, let no other wait, and let jobs rest: the node is stopping."""
        self.jobs.end()  # they go on when the shard is opened again
        self.polls.stop()

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
    def frame_is_full(self) -> bool:
        return len(self.shard.frame.rows) > self._words_max

    # --- commands -----------------------------------------------------------------------------------

    def submit(self, command: Command, done: Done) -> Poll | None:
        """Execute a command with the others of this turn of the event loop, and call `done` once what was decided is
        committed: with the outcome (for a Receive, Leases), or with a BatonError. Of a receive, what can be abandoned.
        """
        poll = Poll(command, done, self.polls.remove) if isinstance(command, Receive) else None
        if not self._arrived:
            if self.serving and not self.commit.appending:
                self.commit.kick()
            else:
                self._loop.call_soon(self._execute_arrived)
        self._arrived.append((command, done, poll))
        return poll

    def _execute_arrived(self) -> None:
        arrived, self._arrived = self._arrived, []
        groups: dict[tuple[type, int, int | None], list[Submitted]] = {}
        for one in arrived:
            command = one[0]
            key = type(command), command.queue, command.visibility_ms if isinstance(command, Receive) else None
            group = groups.get(key)
            if group is None:
                groups[key] = [one]
            else:
                group.append(one)
        for (kind, _, _), group in groups.items():
            self._execute[kind](group)

    def _portions(self, group: Sequence[Submitted]) -> Iterator[Sequence[Submitted]]:
        """Parts of a group that are executed at once: as much as the limits leave room for now, or a single command,
        which `begin` then takes or refuses.
        """
        start = 0
        while start < len(group):
            frame = self.shard.frame
            requests = min(TOGETHER_MAX, self._pending_max - self.commit.pending)
            messages = min(GROUP_MESSAGES_MAX, (self._words_max - len(frame.rows)) // ROW_WORDS)
            size = min(TOGETHER_BYTES_MAX, self._bytes_max - frame.variable_bytes - frame.finished_bytes)
            end = start
            while end < len(group):
                command = group[end][0]
                requests -= 1
                messages -= messages_of(command)
                size -= size_of(command)
                if end > start and (requests < 0 or messages < 0 or size < 0):
                    break
                end += 1
            yield group[start:end]
            start = end

    def _refuse(self, some: Sequence[Submitted], problem: Exception) -> None:
        """Tell these why they could not be executed."""
        outcome = told(problem) if self.serving else Unavailable(self.why)  # then the shard starts over from its log
        for _, done, _ in some:
            tell(done, outcome)

    def _release(self, done: Done, outcome: object) -> None:
        self.commit.call(lambda problem: done(outcome if problem is None else problem))

    def _execute_sends(self, group: Sequence[Submitted]) -> None:
        for some in self._portions(group):
            try:
                now_ms = self.begin(adds=True)
                outcomes = self.run(self.shard.send, [one[0] for one in some], now_ms)  # type: ignore[misc]
                offset = self.shard.numbers_from(some[0][0].queue)
            except Exception as problem:
                self._refuse(some, problem)
                continue
            for (_, done, _), sent in zip(some, outcomes, strict=True):
                self._release(done, sent.numbered(offset))
        if self.shard.woken:
            self.polls.woken()

    def _execute_receives(self, group: Sequence[Submitted]) -> None:
        wanted = [one for one in group if one[2] is not None and not one[2].left]
        for some in self._portions(wanted):
            self._receive(some)

    def _receive(self, some: Sequence[Submitted]) -> None:
        polls: list[Poll] = [one[2] for one in some]  # type: ignore[misc]
        commands = [poll.command for poll in polls]
        queue = commands[0].queue
        try:
            now_ms = self.begin()
            if self.polls.count(queue):
                self.polls.serve_first(queue, len(polls))
            outcomes = self.run(self.shard.receive, commands, now_ms)
        except Exception as problem:
            self._refuse(some, problem)
            return
        for poll, outcome in zip(polls, outcomes, strict=True):
            if isinstance(outcome, BatonError):
                tell(poll.done, outcome)
            elif outcome or poll.command.wait_ms <= 0 or self.polls.answers_at_once:
                poll.leases = outcome
                self.commit.call(poll.committed)
            else:
                try:
                    self.polls.add(poll)
                except OverLimit as problem:
                    tell(poll.done, problem)

    def _execute_deletes(self, group: Sequence[Submitted]) -> None:
        for some in self._portions(group):
            try:
                now_ms = self.begin()
                outcomes = self.run(self.shard.delete, [one[0] for one in some], now_ms)  # type: ignore[misc]
            except Exception as problem:
                self._refuse(some, problem)
                continue
            for (_, done, _), results in zip(some, outcomes, strict=True):
                self._release(done, results)
        if self.shard.woken:  # a FIFO group is free again
            self.polls.woken()

    def _execute_others(self, group: Sequence[Submitted]) -> None:
        for one in group:
            command, done, _ = one
            decide = self.shard.nack if isinstance(command, Nack) else self.shard.change_visibility
            try:
                results = self.run(decide, command, self.begin())  # type: ignore[arg-type]
            except Exception as problem:
                self._refuse([one], problem)
                continue
            self._release(done, results)
        if self.shard.woken:
            self.polls.woken()

    # --- leases that were not told in time -----------------------------------------------------------

    def give_back(self, queue: int, claims: Sequence[tuple[int, int, int]]) -> None:
        """The client went before its answer left: nobody holds these messages, so the next one may.

        Not for a receive with an attempt id: its leases may be in the client's hands from the first time it asked, and
        the client that was not answered asks for them again.
        """
        if not claims or not self.serving:
            return
        try:
            self.run(self.shard.give_back, queue, claims, self.begin_own())
        except BatonError:
            return  # they come back when their leases run out
        self.commit.kick()

    def is_late(self, leases: Leases, decided_ms: int = 0) -> bool:
        """Has so much of these leases passed since they were decided that they must be extended?"""
        decided_ms = decided_ms or leases.leased_ms
        return (self._clock.now_ms() - decided_ms) * 10 > leases.deadline_ms - decided_ms > 0

    async def in_time(self, queue: int, leases: Leases, attempt: str = "") -> Leases:
        """Leases that are committed, extended if that took so long that a noticeable part of them is over.

        Leases that cannot be extended are handed over as they are, while they last: they are committed. Raises
        QueueDoesNotExist.
        """
        decided_ms = leases.leased_ms
        visibility_ms = leases.deadline_ms - decided_ms
        for _ in range(EXTENSIONS_MAX):
            if not leases or not self.is_late(leases, decided_ms):
                break
            change = ChangeVisibility(queue, leases.claims(), [visibility_ms] * len(leases), strict=True)
            try:
                decided_ms = self.begin_own()
                results = self.run(self.shard.change_visibility, change, decided_ms, by_attempt=bool(attempt))
                # A lease that ran out meanwhile is nobody's to hand over.
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
        """Wait for the commit of what was just decided; if the client goes meanwhile, give the messages back."""
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
        if self._arrived:
            self._execute_arrived()
        try:
            if self.serving:
                self.polls.serve()
        finally:
            if self._arrived:  # somebody who was answered meanwhile has asked again
                self._loop.call_soon(self._execute_arrived)
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
        if shard.woken:
            self.polls.woken()
        if shard.frame.filled:
            self.commit.kick()

    # --- queues ---------------------------------------------------------------------------------------

    def set_policy(self, policy: QueuePolicy) -> None:
        self.run(self.shard.set_policy, policy, self.begin_own())

    def close_queue(self, queue: int, version: int) -> None:
        """The queue was deleted: whoever waits on it is told so. `purge` removes its messages."""
        self.run(self.shard.close_queue, queue, version, self.begin_own())
        self.shard.woken.add(queue)
        self.polls.woken()

    def purge(self, queue: int, through: int | None) -> tuple[int, bool]:
        """One step of a purge up to sequence `through` (None: of all messages): how many went, and whether that was
        all.
        """
        return self.run(self.shard.purge, queue, self.begin(), through)

    def counters(self, queue: int) -> Counters:
        self.run(self.shard.advance, self.begin())
        return self.shard.counters(queue)

    def seek(self, queue: int, after_sequence: int, slot: int = NIL, sequence: int = 0) -> tuple[int, bool]:
        """See Shard.seek: one step towards a place in a queue, as the queue is when what is due has happened."""
        self.run(self.shard.advance, self.begin())
        return self.run(self.shard.seek, queue, after_sequence, slot, sequence)

    # --- between shards -----------------------------------------------------------------------

    def arrive(self, arrivals: Sequence[Arrival]) -> list[tuple[int, int]]:
        """Take entries of a channel from another shard: (number, verdict) of each."""
        now_ms = self.begin(adds=True)
        self.shard.check_arrivals(arrivals)  # a fault of the source's is none of this shard
        results = self.run(self.shard.arrive, arrivals, now_ms)
        if self.shard.woken:
            self.polls.woken()
        return results

    def settle(self, destination_shard: int, results: Sequence[tuple[int, int]]) -> None:
        self.run(self.shard.settle, destination_shard, results, self.begin())
        if self.shard.woken:
            self.polls.woken()

    def filled_queues(self) -> list[int]:
        """The queues that have something to give."""
        self.run(self.shard.advance, self.begin())
        return self.run(self.shard.filled_queues)

    def hint(self, queue: int) -> Hint:
        """What a receive would find there."""
        self.run(self.shard.advance, self.begin())
        return self.run(self.shard.hint, queue)


async def committed(host: ShardHost) -> None:
    """Wait until what was decided last is committed."""
    point = host.point()
    if point is not None:
        await point


def size_of(command: Command) -> int:
    """About how many bytes a command puts into a frame beside its records."""
    if not isinstance(command, Send):
        return 0
    size = sum([len(body) for body in command.bodies]) + len(command.bodies) * (HEAD_BYTES + len(command.sender))
    for column in (command.attributes, command.groups, command.dedup_ids, command.traces):
        if column:
            size += sum([len(value) for value in column])
    return size


def messages_of(command: Command) -> int:
    """How many messages a command is about, at most."""
    if isinstance(command, Send):
        return len(command.bodies)
    return command.max_messages if isinstance(command, Receive) else len(command.claims)
