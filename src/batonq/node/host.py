"""A shard's host: one shard over one log on the event loop.

Commands run at once, one after the other, and answer with what they decided; `point()` says what the reply has to wait
for. Between a command and its `point()` nothing may be awaited. Timers, long polls and limits are here; what a command
means is the shard's. When the log fails, the host is over: the keeper (keeper.py) opens the shard again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec, TypeVar

from batonq.core.commands import Accepted, Arrival, Claim, Counters, FirstLeases, Lease, Nack, Send
from batonq.core.policy import QueuePolicy
from batonq.core.records import State
from batonq.core.shard.columns import NIL
from batonq.core.shard.machine import Shard
from batonq.core.shard.once import Once
from batonq.core.shard.sending import PlainSend
from batonq.errors import BatonError, DiskFull, LogCorrupt, OverLimit, QueueDoesNotExist, Unavailable
from batonq.log.interface import Log, Room
from batonq.node import events
from batonq.node.clock import Clock
from batonq.node.commit import CommitStatistics, GroupCommit
from batonq.node.events import AlarmBoard
from batonq.node.jobrunner import JobRunner
from batonq.node.settings import Settings
from batonq.node.waiters import Waiter, Waiters, Watcher

P = ParamSpec("P")
T = TypeVar("T")
EXTENSIONS_MAX = 3  # a reply that is late again after so many extensions leaves as it is
ROOM_RETRY_MS = 1_000
STARTING = "The shard is being opened; try again."


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
        self._words_max = settings.frame_rows_max * 8
        self._bytes_max = settings.frame_bytes_max
        self._pending_max = settings.pending_max
        self._waiters = Waiters(settings.waiters_per_queue_max, settings.waiters_max)
        self._watchers: dict[Watcher, None] = {}  # receives over many queues, first come first
        self._watchers_max = settings.waiters_max
        self.answers_at_once = False  # while stopping, long polls do not wait
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
        )
        self.point = self.commit.point

    # --- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Commit what is in the open frame (the record of a new owner), then serve."""
        point = self.commit.point()
        if point is not None:
            await point
        self.serving = True
        self.jobs.begin(self._clock.now_ms())
        self._arm()

    def stop_waiting(self) -> None:
        """Answer every long poll now, let no other wait, and let jobs rest: the node is stopping."""
        self.answers_at_once = True
        self.jobs.end()  # they go on when the shard is opened again
        for waiter in self._waiters.all():
            self._time_over(waiter)
        for watcher in list(self._watchers):
            watcher.end()

    async def drain(self) -> None:
        """Wait until everything that was decided is committed."""
        while not self.commit.idle and not self.commit.failed:
            self.commit.kick()
            point = self.commit.point()
            if point is not None:
                await point

    def close(self, why: str = "The node is stopping; try again.") -> None:
        """Serve nothing more. What waits is answered with a retryable error; the log stays the caller's to close."""
        self._end(why)
        self.commit.stop(why)

    def _failed(self, problem: BaseException) -> None:
        self._end(f"The shard's log failed and is being opened again; try again. ({problem})")
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
        for waiter in self._waiters.all():
            self._waiters.remove(waiter)
            if not waiter.future.done():
                waiter.future.set_exception(Unavailable(why))
        for watcher in list(self._watchers):
            watcher.end()

    # --- commands -----------------------------------------------------------------------------

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
            events.logger.exception("shard %d: a command broke off", self.shard.number)
            self.commit.abandon(problem)
            raise

    def begin(self, *, adds: bool = False) -> int:
        """Check that a command can be taken, one that `adds` messages with more room left; return what time it is."""
        if not self.serving:
            raise Unavailable(self.why)
        frame = self.shard.frame
        if (
            len(frame.rows) > self._words_max
            or frame.variable_bytes > self._bytes_max
            or self.commit.pending >= self._pending_max
        ):
            raise OverLimit("The shard has more to write than its disk keeps up with; try again.")
        room = self.log.room()
        if room is not Room.PLENTY and (adds or room is Room.NONE):
            raise DiskFull
        return self._clock.now_ms()

    def send(self, queue: int, sends: Sequence[Send], invocation: int = 0) -> list[Accepted | BatonError]:
        now_ms = self.begin(adds=True)
        results = self.run(self.shard.send, queue, sends, now_ms, invocation)
        if self.shard.woken:
            self._woken()
        return results

    def send_once(self, queue: int, sends: Sequence[Send], once: Once) -> tuple[list[Accepted | BatonError], bool]:
        """See Shard.send_once: the same request again is answered as the first time."""
        now_ms = self.begin(adds=True)
        outcome = self.run(self.shard.send_once, queue, sends, now_ms, once)
        if self.shard.woken:
            self._woken()
        return outcome

    def send_plain(
        self,
        queue: int,
        bodies: Sequence[bytes],
        digests: Sequence[bytes],
        sender: str,
        invocation: int,
        content: int = 0,
        producer: str = "",
        producer_sequence: int = 0,
    ) -> int:
        """See Shard.send_plain: the first sequence, or 0 when `send` must be called."""
        now_ms = self.begin(adds=True)
        first = self.run(
            self.shard.send_plain,
            queue,
            bodies,
            digests,
            sender,
            now_ms,
            invocation,
            content,
            producer,
            producer_sequence,
        )
        if self.shard.woken:
            self._woken()
        return first

    def receive_front(
        self, queue: int, max_messages: int, visibility_ms: int | None, holder: str
    ) -> FirstLeases | None:
        """See Shard.receive_front: leases without a choice or a wait, or None when `receive` must be called."""
        if self._waiters.total and self._waiters.count(queue):
            return None
        return self.run(self.shard.receive_front, queue, max_messages, visibility_ms, self.begin(), holder)

    # --- of several requests at once, see Shard ------------------------------------------------

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
                events.logger.exception("shard %d: gathered requests broke off", self.shard.number)

    def has_front(self, queue: int) -> bool:
        """Is there something to lease without a choice to make, and nobody who waits for it?"""
        state = self.shard.queues.get(queue)
        if state is None or (self._waiters.total and self._waiters.count(queue)):
            return False
        return bool(state.ready.front(1))

    def send_together(self, queue: int, requests: Sequence[PlainSend], sender: str, content: int = 0) -> list[int]:
        now_ms = self.begin(adds=True)
        return self.run(self.shard.send_together, queue, requests, sender, now_ms, content)

    def receive_together(
        self, queue: int, wants: Sequence[tuple[str, int]], visibility_ms: int | None
    ) -> tuple[FirstLeases, list[int]] | None:
        if self._waiters.total and self._waiters.count(queue):
            return None
        return self.run(self.shard.receive_together, queue, wants, visibility_ms, self.begin())

    def delete_together(self, queue: int, claims: list[tuple[int, int, int]]) -> bool:
        return self.run(self.shard.delete_together, queue, claims, self.begin())

    # ---

    def is_late(self, leases: FirstLeases) -> bool:
        """Has so much of these leases passed since they were decided that they must be extended?"""
        passed_ms = self._clock.now_ms() - leases.leased_ms
        return passed_ms * 10 > leases.deadline_ms - leases.leased_ms

    def delete(self, queue: int, claims: Sequence[Claim], strict: bool = False) -> list[BatonError | None]:
        now_ms = self.begin()
        results = self.run(self.shard.delete, queue, claims, now_ms, strict)
        if self.shard.woken:  # a FIFO group is free again
            self._woken()
        return results

    def change_visibility(
        self, queue: int, changes: Sequence[tuple[Claim, int]], strict: bool = False, by_attempt: bool = False
    ) -> list[BatonError | None]:
        now_ms = self.begin()
        results = self.run(self.shard.change_visibility, queue, changes, now_ms, strict, by_attempt)
        if self.shard.woken:
            self._woken()
        return results

    def deadline(self, claim: Claim) -> int:
        """When the lease that a claim names ends; 0: it is over."""
        columns = self.shard.columns
        slot = claim.slot
        if slot >= columns.used or columns.sequence[slot] != claim.sequence or columns.epoch[slot] != claim.epoch:
            return 0
        return columns.until[slot] if columns.state[slot] == State.IN_FLIGHT else 0

    def nack(self, queue: int, nacks: Sequence[Nack]) -> list[BatonError | None]:
        now_ms = self.begin()
        results = self.run(self.shard.nack, queue, nacks, now_ms)
        if self.shard.woken:
            self._woken()
        return results

    def set_policy(self, policy: QueuePolicy) -> None:
        self.run(self.shard.set_policy, policy, self.begin())

    def close_queue(self, queue: int, version: int) -> None:
        """The queue was deleted: whoever waits on it is told so. `purge` removes its messages."""
        self.run(self.shard.close_queue, queue, version, self.begin())
        if self._waiters.count(queue):
            self._serve(queue)

    def purge(self, queue: int, through: int) -> tuple[int, bool]:
        """One step of a purge up to sequence `through`: how many messages went, and whether that was all."""
        return self.run(self.shard.purge, queue, self.begin(), through)

    def jobs_changed(self) -> None:
        """Something of the jobs may be due earlier than it was."""
        if self.serving:
            self._arm()

    def counters(self, queue: int) -> Counters:
        self.run(self.shard.advance, self.begin())
        return self.shard.counters(queue)

    def seek(self, queue: int, after_sequence: int, slot: int = NIL, sequence: int = 0) -> tuple[int, bool]:
        """See Shard.seek: one step towards a place in a queue, as the queue is when what is due has happened."""
        self.run(self.shard.advance, self.begin())
        return self.run(self.shard.seek, queue, after_sequence, slot, sequence)

    def waiting(self, queue: int) -> int:
        """How many long polls wait on a queue."""
        return self._waiters.count(queue)

    @property
    def waiting_total(self) -> int:
        return self._waiters.total + len(self._watchers)

    # --- between shards -----------------------------------------------------------------------

    def arrive(self, arrivals: Sequence[Arrival]) -> list[tuple[int, int]]:
        """Take entries of a channel from another shard: (number, verdict) of each."""
        now_ms = self.begin(adds=True)
        if arrivals and arrivals[0].number > self.shard.cursor(arrivals[0].source_shard) + 1:
            # A fault of the source's: this shard is sound.
            raise LogCorrupt(
                f"entry {arrivals[0].number} from shard {arrivals[0].source_shard} follows "
                f"{self.shard.cursor(arrivals[0].source_shard)}: a gap in the channel"
            )
        results = self.run(self.shard.arrive, arrivals, now_ms)
        if self.shard.woken:
            self._woken()
        return results

    def settle(self, destination_shard: int, results: Sequence[tuple[int, int]]) -> None:
        self.run(self.shard.settle, destination_shard, results, self.begin())
        if self.shard.woken:
            self._woken()

    # --- receive ------------------------------------------------------------------------------

    async def receive(
        self,
        queue: int,
        max_messages: int,
        visibility_ms: int | None,
        wait_ms: int,
        holder: str,
        attempt: str = "",
    ) -> list[Lease]:
        """Lease messages; the leases are committed when this returns. Waits up to `wait_ms` while there is none."""
        decided_ms = self.begin()
        if self._waiters.count(queue):
            self._serve(queue)  # those who wait come first
        leases = self.run(self.shard.receive, queue, max_messages, visibility_ms, decided_ms, holder, attempt)
        if not leases and wait_ms > 0 and not self.answers_at_once:
            if self.shard.frame.rows:
                self.commit.kick()
            waiter = Waiter(queue, max_messages, visibility_ms, holder, attempt, self._loop.create_future())
            await self._wait(waiter, wait_ms)
            leases, decided_ms = waiter.leases, waiter.decided_ms
        else:
            await self._committed(queue, leases, attempt)
        return await self.in_time(queue, leases, decided_ms, attempt)

    async def in_time(self, queue: int, leases: list[Lease], decided_ms: int, attempt: str = "") -> list[Lease]:
        """Leases that were decided then and are committed now, extended if that took too long."""
        if leases and (self._clock.now_ms() - decided_ms) * 10 > leases[0].deadline_ms - decided_ms:
            return await self.extend_late(queue, leases, decided_ms, attempt)
        return leases

    # --- receives over many queues, see watching.py ---------------------------------------------

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def filled_queues(self) -> list[int]:
        """The queues that have something to give."""
        self.run(self.shard.advance, self.begin())
        return self.run(self.shard.filled_queues)

    def take(self, queue: int, max_messages: int, visibility_ms: int | None, holder: str) -> list[Lease]:
        """Lease messages, as many as there are; one queue's limits are no reason to give nothing of the others."""
        now_ms = self.begin()
        if self._waiters.count(queue):
            self._serve(queue)  # those who wait come first
        try:
            return self.run(self.shard.receive, queue, max_messages, visibility_ms, now_ms, holder)
        except (OverLimit, QueueDoesNotExist):
            return []

    def watch(self, watcher: Watcher) -> None:
        if self.waiting_total >= self._watchers_max:
            raise OverLimit("Too many long polls are waiting; try again, or use fewer connections.")
        if self.shard.frame.rows:
            self.commit.kick()
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)

    def _serve_watchers(self, touched: set[int]) -> None:
        ready = self._ready(touched)
        for watcher in list(self._watchers):
            if not ready:
                return
            wanted = [queue for queue in ready if watcher.wants(queue)]
            if wanted and watcher.serve(self, wanted, self._clock.now_ms()):
                ready = self._ready(ready)

    def _ready(self, queues: Iterable[int]) -> list[int]:
        states = self.shard.queues
        return [number for number in queues if number in states and states[number].visible]

    async def _wait(self, waiter: Waiter, wait_ms: int) -> None:
        self._waiters.add(waiter)
        waiter.timer = self._loop.call_later(wait_ms / 1000, self._time_over, waiter)
        try:
            await waiter.future
        except asyncio.CancelledError:  # the client has gone
            if not self._waiters.remove(waiter) and not waiter.attempt:
                self.give_back(waiter.queue, waiter.leases)
            raise

    def _time_over(self, waiter: Waiter) -> None:
        if self._waiters.remove(waiter):
            self.commit.release(waiter.future)

    def give_back(self, queue: int, leases: Sequence[Lease]) -> None:
        """The client went before its answer left: nobody holds these messages, so the next one may.

        Not for a receive with an attempt id: its leases may be in the client's hands from the first time it asked, and
        the client that was not answered asks for them again.
        """
        if not leases or not self.serving:
            return
        claims = [Claim(lease.slot, lease.sequence, lease.epoch) for lease in leases]
        try:
            self.run(self.shard.give_back, queue, claims, self.begin())
        except BatonError:
            return  # they come back when their leases run out
        self.commit.kick()

    async def extend_late(self, queue: int, leases: list[Lease], decided_ms: int, attempt: str = "") -> list[Lease]:
        """The commit took so long that a noticeable part of the lease is over: extend it before the reply leaves."""
        for _ in range(EXTENSIONS_MAX):
            visibility_ms = leases[0].deadline_ms - decided_ms
            if visibility_ms <= 0 or (self._clock.now_ms() - decided_ms) * 10 <= visibility_ms:
                break
            changes = [(Claim(lease.slot, lease.sequence, lease.epoch), visibility_ms) for lease in leases]
            decided_ms = self._clock.now_ms()
            results = self.change_visibility(queue, changes, strict=True, by_attempt=bool(attempt))
            deadline_ms = decided_ms + visibility_ms
            leases = [
                lease._replace(deadline_ms=deadline_ms)
                for lease, problem in zip(leases, results, strict=True)
                if problem is None  # a lease that ran out meanwhile is nobody's to hand over
            ]
            await self._committed(queue, leases, attempt)
            if not leases:
                break
        return leases

    async def _committed(self, queue: int, leases: list[Lease], attempt: str) -> None:
        """Wait for the commit of what was just decided; if the client goes meanwhile, give the messages back."""
        point = self.point()
        if point is not None:
            try:
                await point
            except asyncio.CancelledError:
                if not attempt:
                    self.give_back(queue, leases)
                raise

    # --- long polls ---------------------------------------------------------------------------

    def _woken(self) -> None:
        """Something became deliverable: those who wait are served just before the frame is sealed."""
        if self._waiters.total or self._watchers:
            self.commit.kick()
        else:
            self.shard.woken.clear()

    def _serve_waiters(self) -> None:
        """Try every queue that somebody waits on and in which something happened: by a record, or by time alone."""
        touched = {word >> 32 for word in set(self.shard.frame.rows[0::8])} | self.shard.woken
        for queue in self._waiters.queues() & touched:
            self._serve(queue)
        if self._watchers:
            self._serve_watchers(touched)

    def _serve(self, queue: int) -> None:
        shard = self.shard
        shard.woken.discard(queue)
        waiters = self._waiters
        while (waiter := waiters.first(queue)) is not None:
            now_ms = self._clock.now_ms()
            try:
                leases = self.run(
                    shard.receive,
                    queue,
                    waiter.max_messages,
                    waiter.visibility_ms,
                    now_ms,
                    waiter.holder,
                    waiter.attempt,
                )
            except BatonError as problem:
                waiters.remove(waiter)
                if not waiter.future.done():
                    waiter.future.set_exception(problem)
                continue
            if not leases:
                return
            waiters.remove(waiter)
            waiter.leases = leases
            waiter.decided_ms = now_ms
            self.commit.release(waiter.future)

    # --- timers -------------------------------------------------------------------------------

    def _before_seal(self) -> None:
        shard = self.shard
        if self._gathered:
            self._run_gathered()
        if self.serving and (self._waiters.total or self._watchers):
            self._serve_waiters()
        shard.woken.clear()
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

    def tick(self) -> None:
        """The clock was moved: do what is due now."""
        if self._timer is not None:
            self._timer.cancel()
        self._tick()

    def _tick(self) -> None:
        self._timer = None
        if not self.serving:
            return
        frame = self.shard.frame
        if self.log.room() is Room.NONE or len(frame.rows) > self._words_max:
            self._timer_due_ms = self._clock.now_ms() + ROOM_RETRY_MS
            self._timer = self._loop.call_later(ROOM_RETRY_MS / 1000, self._tick)
            return
        now_ms = self._clock.now_ms()
        shard = self.shard
        self.run(shard.advance, now_ms)
        if self.jobs.due_ms is not None and self.jobs.due_ms <= now_ms:
            self.jobs.step(now_ms)
        if shard.woken:
            self._woken()
        if frame.rows:
            self.commit.kick()
        self._arm()
