"""Messages that were received but whose key has used up its rate: kept for their turn, or given back until then."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Sequence

from batonq.errors import BatonError
from batonq.worker.heartbeat import Grip, Heartbeat, Holder
from batonq.worker.limits import Limits
from batonq.worker.source import Message
from batonq.worker.task import VISIBILITY_MAX_S, Task


class Parking(Holder):
    """Holds as many messages as the task has slots. The heartbeat keeps their leases; their deadlines begin when their
    handlers do. What finds no place goes back to its queue for as long as it would have to wait."""

    def __init__(
        self,
        limits: Limits,
        task: Task,
        loop: asyncio.AbstractEventLoop,
        start: Callable[[Sequence[Message]], None],
        heartbeat: Heartbeat,
    ) -> None:
        self._limits = limits
        self._task = task
        self._loop = loop
        self._start = start
        self._heartbeat = heartbeat
        self._waiting: list[tuple[float, int, Message, Grip]] = []
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def sort(self, messages: Sequence[Message]) -> list[Message]:
        """Those that may begin now; the others are parked or given back."""
        now = time.monotonic()
        ready: list[Message] = []
        parked: list[tuple[float, Message]] = []
        for message in messages:
            wait = self._limits.wait(message, now)
            if wait <= 0:
                self._limits.reserve(message, now)
                ready.append(message)
            elif self._closed or len(self._waiting) + len(parked) >= self._task.capacity:
                self._heartbeat.postpone(message, min(wait, VISIBILITY_MAX_S))
            else:
                self._limits.reserve(message, now)
                parked.append((now + wait, message))
        for due, message in parked:
            grip = Grip([message], self, now, self._task.visibility, due - now + self._task.deadline)
            self._heartbeat.hold(grip)
            self._number += 1
            heapq.heappush(self._waiting, (due, self._number, message, grip))
        self._arm()
        return ready

    def close(self) -> None:
        """Give everything back."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for _, _, message, grip in self._waiting:
            if grip.open.pop(message.receipt, None) is not None:
                self._heartbeat.postpone(message, 0.0)
        self._waiting.clear()

    def lost(self, grip: Grip, message: Message, error: BatonError) -> None:
        """It is not in its grip any more, which is how `_due` knows."""

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            wait = max(0.0, self._waiting[0][0] - time.monotonic())
            self._timer = self._loop.call_later(wait, self._due)

    def _due(self) -> None:
        now = time.monotonic()
        ready = []
        while self._waiting and self._waiting[0][0] <= now:
            _, _, message, grip = heapq.heappop(self._waiting)
            if grip.open.pop(message.receipt, None) is not None:  # else its lease was lost
                ready.append(message)
        if ready:
            self._start(ready)
        self._arm()
