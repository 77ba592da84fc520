"""Lock files: the operating system's lock counts, and ends with its process. The text names the holder."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from batonq.errors import OwnershipHeld

_LOOK_AGAIN_S = 0.1


@contextmanager
def alone(path: Path, what: str, *, wait_s: float = 0.0) -> Iterator[None]:
    """Hold the lock exclusively. Raises OwnershipHeld if another process still has it after `wait_s`; `what` begins its
    sentence.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _lock_or_raise(lock, what, time.monotonic() + wait_s)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


def _lock_or_raise(lock: int, what: str, until: float) -> None:
    while not taken(lock):
        if time.monotonic() >= until:
            holder = os.pread(lock, 256, 0).decode(errors="replace").strip() or "another process"
            raise OwnershipHeld(
                f"{what} by {holder}; only one process at a time can use it. Try again when it has finished."
            )
        time.sleep(_LOOK_AGAIN_S)


def taken(lock: int) -> bool:
    """Whether the lock could be taken at once."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def shared(lock: int) -> None:
    """Hold it shared; waits while another process holds it exclusively."""
    fcntl.flock(lock, fcntl.LOCK_SH)
