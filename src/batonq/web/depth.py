"""A queue's depth, polled in the background so that no request waits for it."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from batonq.errors import InvalidInput

REFRESH_S = 5.0
STALE_REFRESHES = 4  # number of failed refreshes after which the depth counts as unknown
FIRST_WAIT_S = 1.0  # how long the first request waits for the first reading
_log = logging.getLogger("batonq.web")


class _Cached:
    """The last depth and the time of its reading."""

    def __init__(self, refresh: float, stale: float | None, clock: Callable[[], float]) -> None:
        if refresh <= 0:
            raise InvalidInput(f"refresh must be greater than 0 seconds, not {refresh:g}")
        self._refresh_s = refresh
        self._stale_s = stale if stale is not None else refresh * STALE_REFRESHES
        self._clock = clock
        self._depth: int | None = None
        self._at_s = 0.0
        self._failing = False
        self.reads = 0
        self.failures = 0

    def known(self) -> int | None:
        """The depth; None if the last reading is too old."""
        if self._depth is None or self._clock() - self._at_s > self._stale_s:
            return None
        return self._depth

    def _read_well(self, depth: int) -> None:
        self._depth, self._at_s, self._failing = int(depth), self._clock(), False
        self.reads += 1

    def _read_badly(self, problem: Exception) -> None:
        self.failures += 1
        if not self._failing:
            _log.warning("The queue's depth cannot be read: %s", str(problem) or repr(problem))
        self._failing = True


class Depth(_Cached):
    """For WSGI: `Depth.of(queue)`, or with a function that returns a number. A thread polls it from the first request
    on; a forked process starts its own thread.
    """

    def __init__(
        self,
        read: Callable[[], int],
        *,
        refresh: float = REFRESH_S,
        stale: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(refresh, stale, clock)
        self._read = read
        self._start = threading.Lock()
        self._pid = 0
        self._first = threading.Event()
        self._stop = threading.Event()

    @classmethod
    def of(cls, *queues: Any, **settings: Any) -> Depth:
        """The depth of these queues of a `batonq.sync.Baton`: visible and in-flight messages."""
        return cls(lambda: sum(_work(queue.stats()) for queue in queues), **settings)

    def current(self) -> int | None:
        """The last depth; None if it is unknown."""
        if self._pid != os.getpid():
            self._begin()
        if not self._first.is_set():
            self._first.wait(FIRST_WAIT_S)
        return self.known()

    def close(self) -> None:
        self._stop.set()

    def _begin(self) -> None:
        with self._start:
            if self._pid == os.getpid():
                return
            self._first, self._stop = threading.Event(), threading.Event()
            self._pid = os.getpid()
            threading.Thread(target=self._run, args=(self._stop,), name="queue depth", daemon=True).start()

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self._read_well(self._read())
            except Exception as problem:  # whatever the error is, requests must be answered
                self._read_badly(problem)
            self._first.set()
            stop.wait(self._refresh_s)


class AsyncDepth(_Cached):
    """For ASGI: `AsyncDepth.of(queue)`, or with an async function that returns a number. A task polls it from the first
    request on.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[int]],
        *,
        refresh: float = REFRESH_S,
        stale: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(refresh, stale, clock)
        self._read = read
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._first = asyncio.Event()

    @classmethod
    def of(cls, *queues: Any, **settings: Any) -> AsyncDepth:
        """The depth of these queues of a `batonq.Baton`: visible and in-flight messages."""

        async def read() -> int:
            return sum(_work(stats) for stats in await asyncio.gather(*(queue.stats() for queue in queues)))

        return cls(read, **settings)

    async def current(self) -> int | None:
        """The last depth; None if it is unknown."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop or self._task is None or self._task.done():
            self._loop, self._first = loop, asyncio.Event()
            self._task = loop.create_task(self._run())
        if not self._first.is_set():
            try:
                await asyncio.wait_for(self._first.wait(), FIRST_WAIT_S)
            except TimeoutError:
                pass
        return self.known()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                self._read_well(await self._read())
            except Exception as problem:  # whatever the error is, requests must be answered
                self._read_badly(problem)
            self._first.set()
            await asyncio.sleep(self._refresh_s)


def _work(stats: Any) -> int:
    """Visible and in-flight messages. Delayed messages do not count, because no worker is busy with them."""
    return int(stats.visible + stats.in_flight)
