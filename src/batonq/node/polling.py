"""Receives at one shard: long polls that wait on a queue or on many, and leases that are handed over in time.

Whoever waits is served just before a frame is sealed, from the queues in which something happened: by a record, or by
time alone. That is a bounded piece of work (ServingBudget). It may go beyond the limits of the frame by as much, so
that senders who keep the frame full do not keep others waiting. Queues that are left for later, or that have more to
look at than one step may, stay in `_unserved`, and the work goes on as soon as the frame is committed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from batonq.core.commands import Claim, Lease
from batonq.core.spread import Hint
from batonq.errors import BatonError, QueueDoesNotExist, Unavailable
from batonq.log.interface import Room
from batonq.node import events
from batonq.node.hosting import ROOM_RETRY_MS, Hosting
from batonq.node.settings import MIB, Settings
from batonq.node.waiters import HintWait, ServingBudget, Waiter, Waiters, Watcher

EXTENSIONS_MAX = 3  # a reply that is late again after so many extensions leaves as it is
# What serving those who wait may do before one frame is sealed:
SERVED_ROWS_MAX = 4_096  # records that are written,
SERVED_BYTES_MAX = 1 * MIB  # with what belongs to them,
ATTEMPTS_MAX = 512  # receives that are tried,
CHECKS_MAX = 4_096  # and queues that watchers are asked about.
TURN_MAX = 64  # long polls of one queue that are served before those of others
BATCH_MAX = 256  # queues that the watchers are asked about together


class Polling(Hosting):
    """A host whose queues can be waited on."""

    def __init__(self, *arguments: Any, settings: Settings, **named: Any) -> None:
        super().__init__(*arguments, settings=settings, **named)
        self._waiters = Waiters(settings.waiters_per_queue_max, settings.waiters_max)
        self._served_rows_max = min(SERVED_ROWS_MAX, settings.frame_rows_max)
        self._unserved: dict[int, None] = {}  # queues in which there may be something for those who wait
        self._ready: list[int] = []  # queues with messages that
        self._to_ask: deque[Watcher] = deque()  # these watchers have not been asked about yet
        self._retry: asyncio.TimerHandle | None = None
        self.answers_at_once = False  # while stopping, long polls do not wait

    def stop_waiting(self) -> None:
        """Answer every long poll now, let no other wait, and let jobs rest: the node is stopping."""
        self.answers_at_once = True
        self.jobs.end()  # they go on when the shard is opened again
        for waiter in self._waiters.polls():
            self._time_over(waiter)
        for other in self._waiters.others():
            other.end()

    def _end_waits(self, why: str) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        for waiter in self._waiters.polls():
            self._waiters.remove(waiter)
            if not waiter.future.done():
                waiter.future.set_exception(Unavailable(why))
        for other in self._waiters.others():
            other.end()

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
            self._serve_first(queue)
        leases = self.run(self.shard.receive, queue, max_messages, visibility_ms, decided_ms, holder, attempt)
        if not leases and wait_ms > 0 and not self.answers_at_once:
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

    def filled_queues(self) -> list[int]:
        """The queues that have something to give."""
        self.run(self.shard.advance, self.begin())
        return self.run(self.shard.filled_queues)

    def take(
        self,
        queue: int,
        max_messages: int,
        visibility_ms: int | None,
        holder: str,
        budget: ServingBudget | None = None,
    ) -> list[Lease]:
        """Lease messages, as many as there are; one queue that refuses is no reason to give nothing of the others.

        With a budget it is for somebody who has waited.
        """
        try:
            if budget is not None:
                return self._lease(queue, max_messages, visibility_ms, holder, "", budget)
            try:
                now_ms = self.begin()
            except BatonError:
                self._unserved[queue] = None  # whoever goes on to wait is served when the shard takes commands again
                return []
            if self._waiters.count(queue):
                self._serve_first(queue)
            return self.run(self.shard.receive, queue, max_messages, visibility_ms, now_ms, holder)
        except BatonError:
            return []

    def hint(self, queue: int) -> Hint:
        """What a receive would find there."""
        self.run(self.shard.advance, self.begin())
        return self.run(self.shard.hint, queue)

    async def until_filled(self, queue: int, wait_ms: int, waiting: int) -> None:
        """Until the queue has something to give, this host ends, or the time is over."""
        wait = HintWait(queue, waiting, self._loop.create_future())
        self._waiters.add_hint(wait)
        self._see_to_it()
        timer = self._loop.call_later(wait_ms / 1000, wait.end)
        try:
            await wait.future
        finally:
            timer.cancel()
            self._waiters.remove_hint(wait)

    def watch(self, watcher: Watcher, unseen: bool = False) -> None:
        """`unseen`: the shard refused to say what it has, so all of it is looked at as soon as that is possible."""
        if not self.serving:
            raise Unavailable(self.why)
        self._waiters.add_watcher(watcher)
        if unseen:
            self._unserved.update(dict.fromkeys(self.shard.filled))
        self._see_to_it()

    def unwatch(self, watcher: Watcher) -> None:
        self._waiters.remove_watcher(watcher)

    def _see_to_it(self) -> None:
        """Somebody has begun to wait: what is in the open frame, or was left for later, may be for them."""
        if self.shard.frame.filled or self.shard.woken or self._unserved:
            self.commit.kick()

    async def _wait(self, waiter: Waiter, wait_ms: int) -> None:
        self._waiters.add(waiter)
        self._see_to_it()
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

    def give_back(self, queue: int, leases: Sequence[Lease] | Sequence[Claim]) -> None:
        """The client went before its answer left: nobody holds these messages, so the next one may.

        Not for a receive with an attempt id: its leases may be in the client's hands from the first time it asked, and
        the client that was not answered asks for them again.
        """
        if not leases or not self.serving:
            return
        claims = [Claim(lease.slot, lease.sequence, lease.epoch) for lease in leases]
        try:
            self.run(self.shard.give_back, queue, claims, self.begin_own())
        except BatonError:
            return  # they come back when their leases run out
        self.commit.kick()

    def change_visibility(
        self, queue: int, changes: Sequence[tuple[Claim, int]], strict: bool = False, by_attempt: bool = False
    ) -> list[BatonError | None]:
        now_ms = self.begin()
        results = self.run(self.shard.change_visibility, queue, changes, now_ms, strict, by_attempt)
        if self.shard.woken:
            self._woken()
        return results

    async def extend_late(self, queue: int, leases: list[Lease], decided_ms: int, attempt: str = "") -> list[Lease]:
        """The commit took so long that a noticeable part of the lease is over: extend it before the reply leaves.

        Leases that cannot be extended are handed over as they are, while they last: they are committed.
        """
        for _ in range(EXTENSIONS_MAX):
            visibility_ms = leases[0].deadline_ms - decided_ms
            if visibility_ms <= 0 or (self._clock.now_ms() - decided_ms) * 10 <= visibility_ms:
                break
            changes = [(Claim(lease.slot, lease.sequence, lease.epoch), visibility_ms) for lease in leases]
            try:
                decided_ms = self.begin_own()
                results = self.run(
                    self.shard.change_visibility, queue, changes, decided_ms, strict=True, by_attempt=bool(attempt)
                )
                deadline_ms = decided_ms + visibility_ms
                extended = [
                    lease._replace(deadline_ms=deadline_ms)
                    for lease, problem in zip(leases, results, strict=True)
                    if problem is None  # a lease that ran out meanwhile is nobody's to hand over
                ]
                await self._committed(queue, extended, attempt)
            except QueueDoesNotExist:
                raise
            except BatonError:
                now_ms = self._clock.now_ms()
                return [lease for lease in leases if lease.deadline_ms > now_ms]
            leases = extended
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

    # --- serving those who wait -----------------------------------------------------------------

    def _woken(self) -> None:
        """Something became deliverable: those who wait are served just before the frame is sealed."""
        if self._waiters.total:
            self.commit.kick()
        else:
            self.shard.woken.clear()

    def _serve_waits(self) -> None:
        shard = self.shard
        if not self._waiters.total:
            shard.woken.clear()
            self._unserved.clear()
            return
        touched = {word >> 32 for word in shard.frame.heads()}
        self._unserved.update(dict.fromkeys(self._waiters.waited_on(touched)))
        if not self._has_work():
            return
        if self.log.room() is Room.NONE:
            if self._retry is None:
                self._retry = self._loop.call_later(ROOM_RETRY_MS / 1000, self._retry_serving)
            return
        budget = self._begin_serving()
        while self.serving and self._has_work():
            if budget.over:
                self.commit.resume()
                return
            if not self._to_ask:
                self._serve_batch(budget)
            self._ask_watchers(budget)

    def _has_work(self) -> bool:
        woken = self.shard.woken
        if woken:
            self._unserved.update(dict.fromkeys(self._waiters.waited_on(woken)))
            woken.clear()
        return bool(self._unserved or self._to_ask)

    def _retry_serving(self) -> None:
        self._retry = None
        if self.serving:
            self.commit.kick()

    def _begin_serving(self) -> ServingBudget:
        """What is due is recorded first, and only once; but not in a frame that is full."""
        self.make_room()
        begin = self.shard.pass_time if self._frame_is_full else self.shard.begin
        now_ms = self.run(begin, self._clock.now_ms())
        return ServingBudget(now_ms, self._served_rows_max, SERVED_BYTES_MAX, ATTEMPTS_MAX, CHECKS_MAX)

    def _serve_batch(self, budget: ServingBudget) -> None:
        """The next queues: first whoever waits on one of them alone; the others are asked by `_ask_watchers`."""
        batch = list(islice(self._unserved, BATCH_MAX))
        for queue in batch:
            if budget.over:
                break
            del self._unserved[queue]
            budget.checks -= 1
            self._serve_polls(queue, budget)
            self._tell_hints(queue)
        if self._waiters.watchers:
            self._ready = self._with_messages(queue for queue in batch if queue not in self._unserved)
            self._to_ask.extend(self._waiters.watchers if self._ready else ())

    def _with_messages(self, queues: Iterable[int]) -> list[int]:
        states = self.shard.queues
        return [number for number in queues if number in states and states[number].visible]

    def _serve_first(self, queue: int) -> None:
        """Those who wait on a queue come before whoever comes now."""
        self._serve_polls(queue, self._begin_serving())
        self.make_room()
        if self._unserved:
            self.commit.kick()

    def _serve_polls(self, queue: int, budget: ServingBudget) -> None:
        waiters = self._waiters
        for _ in range(TURN_MAX):
            waiter = waiters.first(queue)
            if waiter is None:
                return
            if budget.over:
                break
            try:
                leases = self._lease(
                    queue, waiter.max_messages, waiter.visibility_ms, waiter.holder, waiter.attempt, budget
                )
            except BatonError as problem:
                waiters.remove(waiter)
                if not waiter.future.done():
                    waiter.future.set_exception(problem)
                continue
            if not leases:
                return  # if there is more to look at, the shard has marked the queue
            waiters.remove(waiter)
            waiter.leases = leases
            waiter.decided_ms = budget.now_ms
            self.commit.release(waiter.future)
        if waiters.count(queue):
            self._unserved[queue] = None

    def _lease(
        self,
        queue: int,
        max_messages: int,
        visibility_ms: int | None,
        holder: str,
        attempt: str,
        budget: ServingBudget,
    ) -> list[Lease]:
        """One attempt for somebody who waits; none when the budget is over: the queue's turn comes again."""
        if budget.over:
            self._unserved[queue] = None
            return []
        self.make_room()
        frame = self.shard.frame
        rows, size = frame.row_count, frame.size
        budget.attempts -= 1
        leases: list[Lease] = []
        try:
            leases = self.run(self.shard.receive_at, queue, max_messages, visibility_ms, budget.now_ms, holder, attempt)
        finally:
            budget.rows -= frame.row_count - rows
            budget.bytes -= frame.size - size
            if len(leases) < max_messages:
                budget.dry.add(queue)
        return leases

    def _tell_hints(self, queue: int) -> None:
        """They take nothing, so the others go on waiting for the same."""
        for wait in self._waiters.hints(queue):
            try:
                if not self.shard.hint(queue).visible:
                    return
            except QueueDoesNotExist:
                pass  # that is what they hear when they ask again
            wait.end()

    def _ask_watchers(self, budget: ServingBudget) -> None:
        """Each watcher is asked once about the queues that have messages now; one that cannot be served is told so."""
        self._ready = self._with_messages(self._ready)
        while self._to_ask and self._ready:
            if budget.over or not self.serving:
                return
            watcher = self._to_ask.popleft()
            if watcher not in self._waiters.watchers:
                continue
            budget.checks -= len(self._ready)
            try:
                wanted = [queue for queue in self._ready if watcher.wants(queue)]
                if wanted:
                    watcher.serve(self, wanted, budget)
            except Exception as problem:
                if not isinstance(problem, BatonError):
                    events.logger.exception("shard %d: a long poll over several queues failed", self.shard.number)
                watcher.fail(problem)
                continue
            if wanted:
                self._ready = self._with_messages(queue for queue in self._ready if queue not in budget.dry)
        self._to_ask.clear()
        self._ready = []

    def waiting(self, queue: int) -> int:
        """How many long polls wait on a queue."""
        return self._waiters.count(queue) + sum(wait.waiting for wait in self._waiters.hints(queue))

    @property
    def waiting_total(self) -> int:
        return self._waiters.total
