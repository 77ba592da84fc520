"""What the operating system and the interpreter say about this process, and about the disk of its data directory."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import time
from collections.abc import Callable
from typing import NamedTuple

from batonq.node.monitoring import metrics
from batonq.node.monitoring.exposition import Families, HistogramSample, histograms, many, one
from batonq.node.monitoring.histogram import Histogram

LAG_EVERY_S = 0.25
_PAGE_BYTES = resource.getpagesize()


class ProcessReading(NamedTuple):
    cpu_seconds: float = 0.0
    resident_bytes: int = 0
    virtual_bytes: int = 0
    open_files: int = 0
    open_files_max: int = 0
    disk_free_bytes: int = 0
    disk_total_bytes: int = 0


def read_process(data: str) -> ProcessReading:
    """The state of this process, and of the disk that has the directory `data`."""
    return ProcessReading(time.process_time(), *_memory(), _open_files(), _open_files_max(), *_disk(data))


def _disk(data: str) -> tuple[int, int]:
    """Free and total bytes of the file system of a directory; zeros if it cannot be read."""
    try:
        found = os.statvfs(data)
    except OSError:
        return 0, 0
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def _memory() -> tuple[int, int]:
    """Resident and virtual memory in bytes."""
    try:
        with open("/proc/self/statm", "rb") as file:
            virtual, resident, *_ = map(int, file.read().split())
            return resident * _PAGE_BYTES, virtual * _PAGE_BYTES
    except (OSError, ValueError):  # not on Linux: the highest value so far, in kilobytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, 0


def _open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def _open_files_max() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class GarbageTimer:
    """Measures how long garbage collections stop the process. One for all nodes in a process."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began_s = 0.0

    def __call__(self, phase: str, information: dict[str, int]) -> None:
        if phase == "start":
            self._began_s = time.perf_counter()
        else:
            self.seconds += time.perf_counter() - self._began_s


GARBAGE = GarbageTimer()


def watch_garbage() -> None:
    """Measure garbage collections from now on."""
    if GARBAGE not in gc.callbacks:
        gc.callbacks.append(GARBAGE)


class LagMeter:
    """Measures how late the event loop runs a timer."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.histogram = Histogram()
        self._monotonic = monotonic

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            due_s = self._monotonic() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            self.histogram.observe(max(0.0, self._monotonic() - due_s))


def families(data: str, started_ms: int, lag: LagMeter) -> Families:
    reading = read_process(data)
    collections = [(f'generation="{at}"', counted) for at, counted in enumerate(gc.get_stats())]
    return [
        one(metrics.DISK_FREE, reading.disk_free_bytes),
        one(metrics.DISK_SIZE, reading.disk_total_bytes),
        histograms(metrics.LOOP_LAG, [HistogramSample("", lag.histogram.counts, lag.histogram.seconds)]),
        many(metrics.GC_COLLECTIONS, [(labels, counted["collections"]) for labels, counted in collections]),
        many(metrics.GC_COLLECTED, [(labels, counted["collected"]) for labels, counted in collections]),
        one(metrics.GC_SECONDS, GARBAGE.seconds),
        one(metrics.CPU_SECONDS, reading.cpu_seconds),
        one(metrics.RESIDENT, reading.resident_bytes),
        one(metrics.VIRTUAL, reading.virtual_bytes),
        one(metrics.OPEN_FILES, reading.open_files),
        one(metrics.OPEN_FILES_MAX, reading.open_files_max),
        one(metrics.START_TIME, started_ms / 1000),
    ]
