"""Real worker processes, and what they wrote down."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
TIMEOUT_S = 300.0  # on a machine that has much else to do
LOOK_S = 0.01


def wait_until(condition: Callable[[], Any], what: str = "what was waited for") -> None:
    ends = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < ends, f"{what} did not happen"
        time.sleep(LOOK_S)


class Stage:
    """A directory with the events that workers write, and the workers; a context manager that ends them."""

    def __init__(self, directory: Path, url: str) -> None:
        self.directory = directory
        self.url = url
        self.go = directory / "go"
        self.effects = directory / "effects.sqlite"
        self.workers: list[subprocess.Popen[bytes]] = []

    def worker(self, *options: str, app: str = "tests.worker.apps:app", **environment: str) -> subprocess.Popen[bytes]:
        log = (self.directory / f"worker-{len(self.workers)}.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "batonq", "worker", app, "--url", self.url, *options],
            cwd=ROOT,
            stderr=log,
            env={**os.environ, **self.environment(), **environment},
        )
        log.close()
        self.workers.append(process)
        return process

    def environment(self) -> dict[str, str]:
        return {"EVENTS": str(self.directory / "events"), "GO": str(self.go), "EFFECTS": str(self.effects)}

    def events(self, what: str = "") -> list[tuple[str, str, int]]:
        """(what, body, process) in the order in which they happened."""
        path = self.directory / "events"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [(name, body, int(pid)) for name, body, pid in (line.split() for line in lines)]
        return [event for event in found if event[0].startswith(what)]

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.directory.glob("worker-*.log")))

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self.workers:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait(TIMEOUT_S)
        if error is not None:
            print(self.events(), self.logs(), sep="\n")


def finish(process: subprocess.Popen[bytes]) -> int:
    """SIGTERM, and the exit code."""
    process.send_signal(signal.SIGTERM)
    return process.wait(TIMEOUT_S)
