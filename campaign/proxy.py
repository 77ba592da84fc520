"""A TCP proxy whose links can be cut silently, in both directions or in one; a separate process.

It is started with a list of doors as JSON, prints the port of each, and then reads lines from its standard input:

    {"cut": [["n0", "s1"], …]}     nothing from n0 reaches s1 any more
    {"heal": true}                 everything passes again

A cut drops nothing and resets nothing: data waits, as with lost and retransmitted packets, and arrives late when the
link is healed, if both ends still exist. A new connection over a cut link leads nowhere, and is closed when the link is
healed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Coroutine
from typing import Any, NamedTuple

CHUNK_BYTES = 256 << 10
CONNECT_S = 5.0


class Door(NamedTuple):
    """The entrance to one destination. Without a source, the source address of a connection identifies it."""

    destination: str
    host: str  # to listen on
    target_host: str
    target_port: int  # 0: it leads nowhere, and clients wait
    source: str = ""


class Links:
    """The directions that are cut."""

    def __init__(self) -> None:
        self._cut: set[tuple[str, str]] = set()
        self._open: dict[tuple[str, str], asyncio.Event] = {}

    def cut(self, pairs: list[list[str]]) -> None:
        for source, destination in pairs:
            self._cut.add((source, destination))
            self._event(source, destination).clear()

    def heal(self) -> None:
        self._cut.clear()
        for event in self._open.values():
            event.set()

    def is_cut(self, source: str, destination: str) -> bool:
        return (source, destination) in self._cut

    async def open(self, source: str, destination: str) -> None:
        """Wait until the direction is not cut."""
        await self._event(source, destination).wait()

    def _event(self, source: str, destination: str) -> asyncio.Event:
        event = self._open.get((source, destination))
        if event is None:
            event = self._open[source, destination] = asyncio.Event()
            event.set()
        return event


class Proxy:
    def __init__(self, doors: list[Door], names: dict[str, str]) -> None:
        self.links = Links()
        self._doors = doors
        self._names = names  # address → its name
        self._servers: list[asyncio.Server] = []
        self._inside: set[asyncio.Task[Any]] = set()  # one per connection

    async def start(self) -> list[int]:
        """The port of each door."""
        for door in self._doors:
            self._servers.append(await asyncio.start_server(self._accepter(door), door.host, 0, limit=CHUNK_BYTES))
        return [int(server.sockets[0].getsockname()[1]) for server in self._servers]

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._inside:
            task.cancel()
        await asyncio.gather(*self._inside, return_exceptions=True)

    def _accepter(self, door: Door) -> Any:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._inside.add(task)
            address = writer.get_extra_info("peername")[0]
            source = door.source or self._names.get(address, "")
            try:
                if not source:
                    end(f"the source address {address} of a connection to {door.destination} is unknown")
                await self._carry(source, door, reader, writer)
            finally:
                writer.transport.abort()
                self._inside.discard(task)

        return accept

    async def _carry(self, source: str, door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        links, destination = self.links, door.destination
        if not door.target_port:
            while await reader.read(CHUNK_BYTES):
                pass
            return
        if links.is_cut(source, destination) or links.is_cut(destination, source):
            await links.open(source, destination)
            await links.open(destination, source)
            return
        try:
            async with asyncio.timeout(CONNECT_S):
                there = await asyncio.open_connection(door.target_host, door.target_port, limit=CHUNK_BYTES)
        except (OSError, TimeoutError):
            return
        try:
            await self._both(
                self._pump(reader, there[1], source, destination), self._pump(there[0], writer, destination, source)
            )
        finally:
            there[1].transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: str, to: str) -> None:
        try:
            while data := await reader.read(CHUNK_BYTES):
                await self.links.open(source, to)
                writer.write(data)
                await writer.drain()
            await self.links.open(source, to)
        except OSError:
            return

    @staticmethod
    async def _both(*pumps: Coroutine[Any, Any, None]) -> None:
        """Run until one of the two directions has ended."""
        tasks = [asyncio.ensure_future(pump) for pump in pumps]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def run() -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    told = json.loads(await lines.readline())
    proxy = Proxy([Door(*door) for door in told["doors"]], told["names"])
    answer({"ports": await proxy.start()})
    while line := await lines.readline():
        order = json.loads(line)
        if "cut" in order:
            proxy.links.cut(order["cut"])
        else:
            proxy.links.heal()
        answer({})


def end(why: str) -> None:
    """Exit: without its proxy the cluster cannot communicate, which is better than cuts without effect."""
    print(f"the proxy exits: {why}", file=sys.stderr, flush=True)
    os._exit(1)


def answer(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    try:
        import uvloop

        uvloop.run(run())
    except ImportError:
        asyncio.run(run())


if __name__ == "__main__":
    main()
