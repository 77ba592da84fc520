"""Alarms when a value stays above its limit for some time. Dead-lettered messages must alert an operator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

from batonq import Baton
from examples.transcode.plan import DEAD, LANES, THUMBNAIL_SLO_S

EVERY_S = 0.25


class Alarm:
    """Pure: takes values and times, and returns `raised` or `cleared` when the state changes."""

    def __init__(self, limit: float, for_s: float) -> None:
        self._limit = limit
        self._for_s = for_s
        self._above_since_s: float | None = None
        self.is_raised = False

    def observe(self, value: float, now_s: float) -> Literal["raised", "cleared"] | None:
        if value <= self._limit:
            self._above_since_s = None
            if not self.is_raised:
                return None
            self.is_raised = False
            return "cleared"
        if self._above_since_s is None:
            self._above_since_s = now_s
        if self.is_raised or now_s - self._above_since_s < self._for_s:
            return None
        self.is_raised = True
        return "raised"


class Watch:
    """Checks the queues and reports changes. `for_s` should be a minute in production; the demo uses less."""

    def __init__(self, baton: Baton, tell: Callable[[str], None], for_s: float = 60.0) -> None:
        self._baton = baton
        self._tell = tell
        self._dead = Alarm(0, for_s)
        self._age = Alarm(THUMBNAIL_SLO_S, for_s)
        self._stopped = asyncio.Event()
        self.dead_letters_raised = asyncio.Event()
        self.dead_letters_cleared = asyncio.Event()

    async def run(self) -> None:
        """Run until `stop` is called."""
        clock = asyncio.get_running_loop().time
        while not self._stopped.is_set():
            await self._look(clock())
            try:
                await asyncio.wait_for(self._stopped.wait(), EVERY_S)
            except TimeoutError:
                continue

    def stop(self) -> None:
        self._stopped.set()

    async def _look(self, now_s: float) -> None:
        depth = (await self._baton.queue(DEAD).stats()).visible
        change = self._dead.observe(depth, now_s)
        if change == "raised":
            self._tell(f"ALARM: {depth} messages in {DEAD}")
            self.dead_letters_raised.set()
        elif change == "cleared":
            self._tell(f"alarm cleared: no messages in {DEAD}")
            self.dead_letters_cleared.set()
        ages: list[Awaitable[float]] = [self._age_of(lane) for lane in LANES]
        oldest_s = max(await asyncio.gather(*ages))
        if change := self._age.observe(oldest_s, now_s):
            self._tell(f"age alarm {change}: the oldest image has waited {oldest_s:.0f} s")

    async def _age_of(self, lane: str) -> float:
        return (await self._baton.queue(lane).stats()).oldest_age_seconds
