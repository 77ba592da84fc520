"""Information from /proc about the machine and a server's processes."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_TICK_US = 1_000_000 / os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command's name, which may contain spaces and brackets."""
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def process_tree(pid: int) -> list[int]:
    """A process and its running descendants."""
    parents: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                parents.setdefault(int(_stat_fields(int(entry.name))[1]), []).append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    tree = [pid]
    for member in tree:
        tree.extend(parents.get(member, ()))
    return tree


def cpu_us(pid: int) -> float:
    """User and system time of a process, its running descendants and the children that it has waited for.

    The CPU clock of a running process counts nanoseconds. Only the time of exited children is rounded to ticks.
    """
    total = 0.0
    for member in process_tree(pid):
        try:
            waited_for = sum(int(ticks) for ticks in _stat_fields(member)[13:15]) * _TICK_US
            total += time.clock_gettime_ns(_cpu_clock(member)) / 1_000 + waited_for
        except OSError:  # it has exited
            continue
    return total


def _cpu_clock(pid: int) -> int:
    """The clock of a process's CPU time, as clock_getcpuclockid(3) numbers it; Python has no function for it."""
    return ~pid << 3 | 2


def rss_bytes(pid: int) -> int:
    """Resident memory of the server process itself."""
    for line in (_PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def peak_rss_bytes(pid: int) -> int:
    """The peak memory of a process; 0 if it has exited."""
    try:
        lines = (_PROC / str(pid) / "status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def command_line(pid: int) -> str:
    """The command line of a process, separated by spaces; empty if it has exited."""
    try:
        return (_PROC / str(pid) / "cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


@dataclass(slots=True)
class CpuTimes:
    """The machine's CPU time so far, in ticks."""

    total: int
    idle: int
    steal: int

    @classmethod
    def now(cls) -> CpuTimes:
        ticks = [int(field) for field in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
        return cls(sum(ticks), ticks[3] + ticks[4], ticks[7])

    def steal_percent_since(self, earlier: CpuTimes) -> float:
        """The share of the requested CPU time that other guests of the host took."""
        wanted = (self.total - self.idle) - (earlier.total - earlier.idle)
        return 100.0 * (self.steal - earlier.steal) / wanted if wanted > 0 else 0.0


def filesystem_type(path: Path) -> str:
    """The type of the file system of `path`: on a tmpfs a sync costs nothing and proves nothing."""
    best = ("", "unknown")
    target = str(path.resolve())
    for line in (_PROC / "self" / "mounts").read_text().splitlines():
        _, mount, kind = line.split()[:3]
        inside = target == mount or target.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best[1]


def describe() -> dict[str, str | int]:
    model = "unknown"
    for line in (_PROC / "cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {"processors": os.cpu_count() or 0, "processor": model, "kernel": os.uname().release}
