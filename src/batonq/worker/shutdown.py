"""Signals: the first one drains the worker, the second one releases all leases at once.

The handlers are plain signal handlers, not the event loop's, so that they run while a handler blocks the loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

POOL_VARIABLE = "BATON_WORKER_POOL"  # process id of the pool, in the environment of its workers
ORPHAN_LOOK_S = 0.5
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_GRACE_S = 5.0  # time for the loop to end by itself after the drain time, before the process is ended
_log = logging.getLogger("batonq.worker")


async def stop_when_orphaned(stop: Callable[[], None]) -> None:
    """If the pool was killed, its workers stop as after a signal: a restarted pool starts new workers."""
    pool = os.environ.get(POOL_VARIABLE)
    while pool is not None:
        if os.getppid() != int(pool):
            _log.warning("the pool of this worker has exited")
            stop()
            return
        await asyncio.sleep(ORPHAN_LOOK_S)


class Signals:
    """In the main thread: `stop` is called on the loop at the first signal, `abandon` on a thread at the second."""

    def __init__(self, stop: Callable[[], None], abandon: Callable[[], int], drain_seconds: float) -> None:
        self._stop = stop
        self._abandon = abandon
        self._drain_seconds = drain_seconds
        self._count = 0
        self._before: dict[int, Any] = {}
        self._timer: threading.Timer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Signals:
        self._loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._signalled)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for number, before in self._before.items():
            signal.signal(number, before)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        assert self._loop is not None
        if self._count == 1:
            self._loop.call_soon_threadsafe(self._stop)
            # If the loop is blocked it cannot drain, and only this timer ends the process.
            self._timer = threading.Timer(self._drain_seconds + _GRACE_S, self._end, (1,))
            self._timer.daemon = True
            self._timer.start()
        elif self._count == 2:
            threading.Thread(target=self._end, args=(128 + number,), daemon=True).start()

    def _end(self, code: int) -> None:
        try:
            released = self._abandon()
            _log.warning("released %d leases at once, and exited", released)
        finally:
            logging.shutdown()
            os._exit(code)
