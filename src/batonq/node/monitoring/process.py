"""What the operating system says about this process and the disk of its data directory."""

from __future__ import annotations

import os
import resource
import time
from typing import NamedTuple

_PAGE_BYTES = resource.getpagesize()


class ProcessReading(NamedTuple):
    cpu_seconds: float = 0.0
    resident_bytes: int = 0
    open_files: int = 0
    open_files_max: int = 0
    disk_free_bytes: int = 0
    disk_total_bytes: int = 0


def read_process(data: str) -> ProcessReading:
    """The state of this process, and of the disk that has the directory `data`."""
    return ProcessReading(time.process_time(), _resident_bytes(), _open_files(), _open_files_max(), *_disk(data))


def _disk(data: str) -> tuple[int, int]:
    """Free and total bytes of the file system of a directory; zeros if it cannot be read."""
    try:
        found = os.statvfs(data)
    except OSError:
        return 0, 0
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):  # not on Linux: the highest value so far, in kilobytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def _open_files_max() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
