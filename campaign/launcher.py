"""Starts a node like `baton serve`, in a process that the campaign has modified.

    python -m campaign.launcher --address 127.0.0.2 --clock FILE [--bug NAME] -- serve …

Its wall clock is ahead by the seconds in FILE, which may change at any time. Its connections come from its own address,
so that the proxy can identify them. A bug can be planted. The product contains none of this.
"""

from __future__ import annotations

import argparse
import asyncio
import mmap
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

CLOCK = struct.Struct("<d")


def move_clock(path: str) -> None:
    """Set the wall clock ahead by the value in the file. The monotonic clock does not change."""
    with open(path, "rb") as file:
        ahead = mmap.mmap(file.fileno(), CLOCK.size, access=mmap.ACCESS_READ)
    wall: Callable[[], float] = time.time

    def moved() -> float:
        return wall() + float(CLOCK.unpack_from(ahead)[0])

    time.time = moved
    time.time_ns = lambda: int(moved() * 1_000_000_000)


def come_from(address: str) -> None:
    """Use this source address for connections to this machine, on every kind of event loop."""
    kinds: list[Any] = [asyncio.BaseEventLoop]
    with suppress(ImportError):
        import uvloop

        kinds.append(uvloop.Loop)
    for kind in kinds:
        _bind_connections(kind, address)


def _bind_connections(kind: Any, address: str) -> None:
    connect = kind.create_connection

    async def create_connection(loop: Any, factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        if host is not None and host.startswith("127."):
            options.setdefault("local_addr", (address, 0))
        return await connect(loop, factory, host, port, **options)

    kind.create_connection = create_connection


def main() -> int:
    at = sys.argv.index("--")
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--clock", required=True)
    parser.add_argument("--bug", default="")
    options = parser.parse_args(sys.argv[1:at])
    move_clock(options.clock)
    come_from(options.address)
    if options.bug:
        from campaign.bugs import plant

        plant(options.bug)
    from batonq.cli.main import main as baton

    return baton(sys.argv[at + 1 :])


if __name__ == "__main__":
    sys.exit(main())
