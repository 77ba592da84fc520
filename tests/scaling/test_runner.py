"""The runner: it follows the scaler, begins with the minimum, and outlives readings that fail."""

from __future__ import annotations

import asyncio
import logging

import pytest

from batonq.errors import Unavailable
from batonq.scaling import Autoscale, Decision, Reading, run_autoscaled


class RecordingPool:
    """A pool that does as it is told, and remembers what that was."""

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self.told: list[int] = []

    async def resize(self, workers: int) -> None:
        self.told.append(workers)
        self.size = workers


class Script:
    """Readings, one after another, and a clock that moves by ten seconds with each; stops the runner at its end."""

    def __init__(self, *seen: int | Exception) -> None:
        self._seen = list(seen)
        self.stop = asyncio.Event()
        self.now = 0.0

    async def __call__(self) -> Reading:
        self.now += 10
        seen = self._seen.pop(0)
        if not self._seen:
            self.stop.set()
        if isinstance(seen, Exception):
            raise seen
        return Reading(visible=seen)


def run(pool: RecordingPool, *seen: int | Exception, text: str = "2:50,window=30,down=10") -> list[Decision]:
    decisions: list[Decision] = []

    async def main() -> None:
        script = Script(*seen)
        await run_autoscaled(
            pool,
            script,
            Autoscale.parse(text).scaler(),
            interval=0,
            stop=script.stop,
            on_decision=decisions.append,
            clock=lambda: script.now,
        )

    asyncio.run(main())
    return decisions


def test_it_follows_the_scaler() -> None:
    pool = RecordingPool()
    decisions = run(pool, 0, 3_000, 0, 0, 0, 0, 0, 0, 0)
    assert pool.told == [2, 30, 15, 8, 4, 2]
    assert [decision.workers for decision in decisions][-1] == 2


def test_the_minimum_runs_before_the_first_reading() -> None:
    pool = RecordingPool()
    run(pool, Unavailable())
    assert pool.told == [2]


def test_a_reading_that_fails_leaves_the_number_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    pool = RecordingPool()
    with caplog.at_level(logging.WARNING, "batonq.scaling"):
        run(pool, 3_000, Unavailable("no server answers"), OSError(), Unavailable(), 4_000)
    assert pool.told == [2, 30, 40]
    assert [record.getMessage() for record in caplog.records] == [
        "No reading, the number of workers stays 30: no server answers"
    ]


def test_a_pool_that_has_workers_keeps_them() -> None:
    pool = RecordingPool(10)
    run(pool, 900)
    assert pool.told == []
