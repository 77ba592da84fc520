"""The control loop: read, decide, resize the pool, wait, repeat. A failed reading does not change the number."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from batonq.scaling.autoscale import INTERVAL_S
from batonq.scaling.scaler import Decision, Scaler
from batonq.scaling.sources import Readings

READ_TIMEOUT_S = 30.0
_log = logging.getLogger("batonq.scaling")


class Pool(Protocol):
    """Runs the workers: local processes, or anything else that can be resized."""

    @property
    def size(self) -> int:
        """The target number of workers, not counting those that are finishing their last messages."""
        ...

    async def resize(self, workers: int) -> None:
        """Start or stop workers. Stopped workers finish the messages that they hold."""
        ...


async def run_autoscaled(
    pool: Pool,
    readings: Readings,
    scaler: Scaler,
    *,
    interval: float = INTERVAL_S,
    stop: asyncio.Event | None = None,
    on_decision: Callable[[Decision], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Keep the pool at the scaler's number until `stop` is set or the task is cancelled. The caller closes the pool. It
    starts with the minimum before the first reading, so that there are workers even if the statistics are unavailable.
    """
    stop = stop or asyncio.Event()
    if pool.size < scaler.minimum:
        await pool.resize(scaler.minimum)
    failing = False
    while not stop.is_set():
        try:
            reading = await asyncio.wait_for(readings(), READ_TIMEOUT_S)
        except Exception as problem:  # whatever the error is, the workers continue
            if not failing:
                _log.warning("No reading, the number of workers stays %d: %s", pool.size, str(problem) or repr(problem))
            failing = True
        else:
            failing = False
            decision = scaler.decide(reading, clock(), pool.size)
            if on_decision is not None:
                on_decision(decision)
            if decision.changes:
                _log.info("From %d to %d workers: %s", decision.before, decision.workers, decision.why)
                await pool.resize(decision.workers)
        try:
            await asyncio.wait_for(stop.wait(), interval)
        except TimeoutError:
            pass
