"""The memory of a running Spark job: of its Python workers and of its JVM, from /proc."""

from __future__ import annotations

import subprocess
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType

from bench import machine
from bench.clients import BenchError

_LOOK_S = 0.2
_WORKER = "pyspark.daemon"  # workers are forks of the daemon, and keep its command line


@dataclass(slots=True)
class Peaks:
    """The peak of any single process of its kind, in bytes."""

    worker: int = 0
    jvm: int = 0


@dataclass
class Watch:
    """Polls the processes under `pid` while it is open."""

    pid: int
    peaks: Peaks = field(default_factory=Peaks)

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_LOOK_S):
            self._look()

    def _look(self) -> None:
        """The kernel records each process's peak, so nothing between two polls is missed."""
        for member in machine.process_tree(self.pid):
            command = machine.command_line(member)
            if _WORKER in command:
                self.peaks.worker = max(self.peaks.worker, machine.peak_rss_bytes(member))
            elif "/java " in command:
                self.peaks.jvm = max(self.peaks.jvm, machine.peak_rss_bytes(member))


def run_watched(command: list[str]) -> tuple[float, Peaks]:
    """Run a command to its end. Returns the elapsed seconds, and the peaks of its processes."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        with Watch(process.pid) as watch:
            _, errors = process.communicate()
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        raise BenchError(f"{' '.join(command)} ended with {process.returncode}: {errors[-2000:]}")
    return time.perf_counter() - started, watch.peaks
