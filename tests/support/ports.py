"""Ports that nobody else takes between the moment when a test chooses one and the moment when its server listens there.

They lie below those that the system gives to connections and to servers on port 0, and each is locked for as long as
this process lives, so that suites that run side by side never choose the same one. A server that is killed finds its
port free when it comes back.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from itertools import chain
from pathlib import Path

FIRST, LAST = 10_000, 19_999  # the benchmarks choose theirs above
_LOCKS = Path(tempfile.gettempdir()) / f"baton-test-ports-{os.getuid()}"
_SYSTEMS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_held: dict[int, int] = {}  # the lock of each port that this process has


def reserve_port(host: str = "127.0.0.1") -> int:
    """A port of this host that is this process's alone."""
    return reserve_ports(1, host)


def reserve_ports(count: int, host: str = "127.0.0.1") -> int:
    """The first of so many ports in a row."""
    last = _below_the_systems() - count + 1
    start = FIRST + os.getpid() * 37 % (last - FIRST)  # processes begin at different places
    for first in chain(range(start, last), range(FIRST, start)):
        ports = range(first, first + count)
        taken = [port for port in ports if _lock(port)]
        if len(taken) == count and all(_is_free(host, port) for port in ports):
            return first
        for port in taken:
            os.close(_held.pop(port))
    raise AssertionError(f"{host} has no {count} free ports in a row")


def _below_the_systems() -> int:
    """The last port that the system gives to nobody by itself."""
    try:
        lowest = int(_SYSTEMS.read_text().split()[0])
    except OSError:
        return LAST
    return min(lowest - 1, LAST) if lowest > FIRST + 1_000 else LAST


def _lock(port: int) -> bool:
    if port in _held:
        return False
    _LOCKS.mkdir(exist_ok=True)
    handle = os.open(_LOCKS / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return False
    _held[port] = handle
    return True


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as servers do: connections that ended do not count
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
