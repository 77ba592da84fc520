"""Long polls that wait: first come, first served on each queue, and nothing to do while nothing comes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, KeysView
from typing import Any, Protocol

from batonq.core.commands import Lease
from batonq.errors import OverLimit


class Waiter:
    """One long poll. `leases` and `decided_ms` are set when it is served; `future` is released by the commit."""

    __slots__ = (
        "attempt",
        "decided_ms",
        "future",
        "holder",
        "leases",
        "max_messages",
        "queue",
        "timer",
        "visibility_ms",
    )

    def __init__(
        self,
        queue: int,
        max_messages: int,
        visibility_ms: int | None,
        holder: str,
        attempt: str,
        future: asyncio.Future[None],
    ) -> None:
        self.queue = queue
        self.max_messages = max_messages
        self.visibility_ms = visibility_ms
        self.holder = holder
        self.attempt = attempt
        self.future = future
        self.leases: list[Lease] = []
        self.decided_ms = 0
        self.timer: asyncio.TimerHandle | None = None


class Watcher(Protocol):
    """Somebody who waits on many queues at once, see watching.py."""

    def wants(self, queue: int) -> bool: ...

    def serve(self, host: Any, queues: Iterable[int], now_ms: int) -> bool:
        """Something may have come into these queues. Returns whether the wait is over."""

    def end(self) -> None: ...


class HintWait:
    """Somebody who wants to know when a queue has something to give, for so many who wait. See rooms.py."""

    __slots__ = ("future", "queue", "waiting")

    def __init__(self, queue: int, waiting: int, future: asyncio.Future[None]) -> None:
        self.queue = queue
        self.waiting = waiting
        self.future = future

    def wants(self, queue: int) -> bool:
        return queue == self.queue

    def serve(self, host: Any, queues: Iterable[int], now_ms: int) -> bool:
        """It takes nothing, so the others go on waiting for the same."""
        if host.shard.hint(self.queue).visible:
            self.end()
        return False

    def end(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class Waiters:
    """All long polls of one shard. A dict of a queue's waiters keeps their order and lets any of them leave."""

    def __init__(self, per_queue_max: int, total_max: int) -> None:
        self._per_queue_max = per_queue_max
        self._total_max = total_max
        self._queues: dict[int, dict[Waiter, None]] = {}
        self.total = 0

    def add(self, waiter: Waiter) -> None:
        line = self._queues.get(waiter.queue)
        if self.total >= self._total_max or (line is not None and len(line) >= self._per_queue_max):
            raise OverLimit("Too many long polls are waiting; try again, or use fewer connections.")
        if line is None:
            line = self._queues[waiter.queue] = {}
        line[waiter] = None
        self.total += 1

    def remove(self, waiter: Waiter) -> bool:
        """Take a waiter out, and stop its clock; False if it was not waiting any more."""
        line = self._queues.get(waiter.queue)
        if line is None or waiter not in line:
            return False
        del line[waiter]
        if not line:
            del self._queues[waiter.queue]
        self.total -= 1
        if waiter.timer is not None:
            waiter.timer.cancel()
            waiter.timer = None
        return True

    def first(self, queue: int) -> Waiter | None:
        line = self._queues.get(queue)
        return next(iter(line)) if line else None

    def queues(self) -> KeysView[int]:
        """The queues that somebody waits on."""
        return self._queues.keys()

    def count(self, queue: int) -> int:
        return len(self._queues.get(queue, ()))

    def all(self) -> Iterator[Waiter]:
        """Every waiter at the time of the call."""
        return iter([waiter for line in self._queues.values() for waiter in line])
