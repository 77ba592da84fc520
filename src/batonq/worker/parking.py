"""Received messages whose key has reached its rate limit: kept until their turn, or released with a delay."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Sequence

from batonq.errors import BatonError
from batonq.worker.heartbeat import Grip, Heartbeat, Held
from batonq.worker.limits import Limits
from batonq.worker.metrics import Counters
from batonq.worker.source import Message
from batonq.worker.task import VISIBILITY_MAX_S, Task


class Parking:
    """Holds up to as many messages as the task has slots. The heartbeat extends their leases; their deadlines start
    with their handlers. If it is full, messages are released with a delay of their waiting time.
    """

    def __init__(
        self,
        limits: Limits,
        task: Task,
        loop: asyncio.AbstractEventLoop,
        start: Callable[[Sequence[Message]], None],
        heartbeat: Heartbeat,
        counters: Counters,
    ) -> None:
        self._limits = limits
        self._task = task
        self._loop = loop
        self._start = start
        self._heartbeat = heartbeat
        self._counters = counters
        self._waiting: list[tuple[float, int, Held]] = []  # a heap, by due time
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def sort(self, messages: Sequence[Message]) -> list[Message]:
        """The messages that may start now. The others are parked or released."""
        now = time.monotonic()
        ready = []
        for message in messages:
            wait = self._limits.wait(message, now)
            if wait > 0 and (self._closed or len(self._waiting) >= self._task.capacity):
                self._heartbeat.postpone(message, min(wait, VISIBILITY_MAX_S))
                self._counters.released += 1
                continue
            self._limits.reserve(message, now)
            if wait > 0:
                grip = Grip(now, self._task.visibility, wait + self._task.deadline)
                self._number += 1
                heapq.heappush(self._waiting, (now + wait, self._number, (grip, message)))
            else:
                ready.append(message)
        self._arm()
        return ready

    def close(self) -> None:
        """Release all parked messages."""
        self._closed = True
        waiting, self._waiting = self._waiting, []
        self._counters.released += len(waiting)
        for _, _, (_, message) in waiting:
            self._heartbeat.postpone(message, 0.0)
        self._arm()

    # --- from the heartbeat's thread

    def held(self) -> list[Held]:
        return [held for _, _, held in list(self._waiting)]

    def extended(self, count: int) -> None:
        """Not counted: no handler is running for these."""

    def released(self, count: int) -> None:
        self._counters.released += count

    def lost(self, grip: Grip, message: Message, error: BatonError) -> None:
        """Recorded in the grip, where `_due` finds it."""

    def overdue(self, grip: Grip, message: Message) -> None:
        """Cannot happen: a parked message is due before its deadline."""

    # ---

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
            _, _, (grip, message) = heapq.heappop(self._waiting)
            if message.receipt not in grip.lost:
                ready.append(message)
        if ready:
            self._start(ready)
        self._arm()
