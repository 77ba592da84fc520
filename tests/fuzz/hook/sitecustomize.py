"""Measures the event loop of a server under test. Python imports this module when PYTHONPATH names its folder.

A timer fires every BEAT_S seconds. The CPU time that the loop's thread spent between two beats is at most BEAT_S more
than the longest turn of the loop between them. CPU time is measured, and not the time of day: a machine that is busy
with other processes delays a turn, but does not make it longer. Lines of JSON go to the file that
BATON_FUZZ_WATCHDOG names: one per long turn, and one per `kill -USR2`, which also collects garbage. `kill -USR1` does
the same, and has the C library give the memory back that it keeps for later.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any

VARIABLE = "BATON_FUZZ_WATCHDOG"
BEAT_S = 0.002
NOTED_MS = 10.0  # a shorter turn is not written down
SAMPLED_MS = 30.0  # the stack of a turn is taken when it has lasted this long
SAMPLE_S = 0.01


class Watchdog:
    def __init__(self, loop: asyncio.AbstractEventLoop, path: str) -> None:
        self._loop = loop
        self._file = open(path, "a", buffering=1)  # noqa: SIM115 - until the process ends
        self._thread_id = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._thread_id)
        self._cpu_ns = time.thread_time_ns()
        self._process_ns = time.process_time_ns()
        self._wall_ns = time.monotonic_ns()
        self._gc_ns = 0
        self._gc_began_ns = 0
        self._stack: list[str] = []
        self._longest_ms = 0.0
        self._turns = 0

    def start(self) -> None:
        gc.callbacks.append(self._on_garbage)
        threading.Thread(target=self._sample, name="fuzz watchdog", daemon=True).start()
        self._loop.add_signal_handler(signal.SIGUSR1, self._trim)
        self._loop.add_signal_handler(signal.SIGUSR2, self._report)
        self._beat()

    def _beat(self) -> None:
        cpu_ns, process_ns, wall_ns = time.thread_time_ns(), time.process_time_ns(), time.monotonic_ns()
        cpu_ms = (cpu_ns - self._cpu_ns) / 1e6
        process_ms = (process_ns - self._process_ns) / 1e6
        if max(cpu_ms, process_ms) >= NOTED_MS:
            self._say(
                what="turn",
                cpu_ms=round(cpu_ms, 1),
                process_ms=round(process_ms, 1),
                wall_ms=round((wall_ns - self._wall_ns) / 1e6, 1),
                garbage_ms=round(self._gc_ns / 1e6, 1),
                began_s=self._wall_ns / 1e9,
                ended_s=wall_ns / 1e9,
                stack=self._stack,
            )
            process_ns = time.process_time_ns()
        self._longest_ms = max(self._longest_ms, cpu_ms)
        self._turns += 1
        self._stack = []
        self._gc_ns = 0
        self._cpu_ns, self._process_ns, self._wall_ns = time.thread_time_ns(), process_ns, wall_ns
        self._loop.call_later(BEAT_S, self._beat)

    def _report(self) -> None:
        gc.collect()
        self._say(what="report", longest_ms=round(self._longest_ms, 1), turns=self._turns)
        self._longest_ms = 0.0
        self._cpu_ns, self._process_ns = time.thread_time_ns(), time.process_time_ns()

    def _trim(self) -> None:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        self._report()

    def _say(self, **line: Any) -> None:
        self._file.write(json.dumps({"pid": os.getpid(), **line}) + "\n")

    def _on_garbage(self, phase: str, details: dict[str, int]) -> None:
        if threading.get_ident() == self._thread_id:
            if phase == "start":
                self._gc_began_ns = time.thread_time_ns()
            else:
                self._gc_ns += time.thread_time_ns() - self._gc_began_ns

    def _sample(self) -> None:
        """On a thread of its own: where the loop's thread is during a long turn."""
        while True:
            time.sleep(SAMPLE_S)
            spent_ms = (time.clock_gettime(self._clock) - self._cpu_ns / 1e9) * 1e3
            frame = sys._current_frames().get(self._thread_id) if spent_ms > SAMPLED_MS else None
            if frame is not None:
                self._stack = traceback.format_stack(frame, limit=6)
            del frame


def install(path: str) -> None:
    """Every loop that asyncio.Runner runs in this process gets a watchdog, uvloop's as well."""
    run = asyncio.Runner.run

    def watched(self: asyncio.Runner, coro: Any, **options: Any) -> Any:
        async def main() -> Any:
            Watchdog(asyncio.get_running_loop(), path).start()
            return await coro

        return run(self, main(), **options)

    asyncio.Runner.run = watched  # type: ignore[method-assign]


if VARIABLE in os.environ:
    install(os.environ[VARIABLE])
