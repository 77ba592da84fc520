"""Receives at one shard: long polls that wait on a queue or on many, and leases that are handed over in time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from batonq.core.commands import Claim, Lease
from batonq.core.spread import Hint
from batonq.errors import BatonError, OverLimit, QueueDoesNotExist, Unavailable
from batonq.node.hosting import Hosting
from batonq.node.settings import Settings
from batonq.node.waiters import HintWait, Waiter, Waiters, Watcher

EXTENSIONS_MAX = 3  # a reply that is late again after so many extensions leaves as it is


class Polling(Hosting):
    """A host whose queues can be waited on."""

    def __init__(self, *arguments: Any, settings: Settings, **named: Any) -> None:
        super().__init__(*arguments, settings=settings, **named)
        self._waiters = Waiters(settings.waiters_per_queue_max, settings.waiters_max)
        self._watchers: dict[Watcher, None] = {}  # receives over many queues, first come first
        self._watchers_max = settings.waiters_max
        self.answers_at_once = False  # while stopping, long polls do not wait

    def stop_waiting(self) -> None:
        """Answer every long poll now, let no other wait, and let jobs rest: the node is stopping."""
        self.answers_at_once = True
        self.jobs.end()  # they go on when the shard is opened again
        for waiter in self._waiters.all():
            self._time_over(waiter)
        for watcher in list(self._watchers):
            watcher.end()

    def _end_waits(self, why: str) -> None:
        for waiter in self._waiters.all():
            self._waiters.remove(waiter)
            if not waiter.future.done():
                waiter.future.set_exception(Unavailable(why))
        for watcher in list(self._watchers):
            watcher.end()

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
            if self.shard.frame.filled:
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

    def hint(self, queue: int) -> Hint:
        """What a receive would find there."""
        self.run(self.shard.advance, self.begin())
        return self.run(self.shard.hint, queue)

    async def until_filled(self, queue: int, wait_ms: int, waiting: int) -> None:
        """Until the queue has something to give, this host ends, or the time is over."""
        wait = HintWait(queue, waiting, self._loop.create_future())
        self.watch(wait)
        timer = self._loop.call_later(wait_ms / 1000, wait.end)
        try:
            await wait.future
        finally:
            timer.cancel()
            self.unwatch(wait)

    def watch(self, watcher: Watcher) -> None:
        if self.waiting_total >= self._watchers_max:
            raise OverLimit("Too many long polls are waiting; try again, or use fewer connections.")
        if self.shard.frame.filled:
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

    def give_back(self, queue: int, leases: Sequence[Lease] | Sequence[Claim]) -> None:
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

    def change_visibility(
        self, queue: int, changes: Sequence[tuple[Claim, int]], strict: bool = False, by_attempt: bool = False
    ) -> list[BatonError | None]:
        now_ms = self.begin()
        results = self.run(self.shard.change_visibility, queue, changes, now_ms, strict, by_attempt)
        if self.shard.woken:
            self._woken()
        return results

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

    def _serve_waits(self) -> None:
        """Try every queue that somebody waits on and in which something happened: by a record, or by time alone."""
        if not self._waiters.total and not self._watchers:
            return
        touched = {word >> 32 for word in self.shard.frame.heads()} | self.shard.woken
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

    def waiting(self, queue: int) -> int:
        """How many long polls wait on a queue."""
        hints = sum(wait.waiting for wait in self._watchers if isinstance(wait, HintWait) and wait.queue == queue)
        return self._waiters.count(queue) + hints

    @property
    def waiting_total(self) -> int:
        return self._waiters.total + len(self._watchers)
