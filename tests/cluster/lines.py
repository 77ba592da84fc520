"""A relay on the line between nodes: it records what passes, and can lose an answer at a chosen moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Loss:
    """The next answer to a call whose path ends so is not passed on. `then` runs instead, and the connection ends."""

    path_end: str | tuple[str, ...]
    then: Callable[[], Awaitable[None]]


class Relay:
    """Listens on a port of its own, and passes every connection on to a node's."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []  # each with its head and its body, as it was sent
        self.connections = 0
        self.loss: Loss | None = None
        self.port = 0
        self._target = ("", 0)
        self._server: asyncio.Server
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, host: str = "127.0.0.1") -> None:
        self._server = await asyncio.start_server(self._accept, host, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def lead_to(self, host: str, port: int) -> None:
        self._target = (host, port)

    def refuse(self) -> None:
        """Nobody listens here any more: as where a process has died."""
        self._server.close()

    async def close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def requests_to(self, path_end: str | tuple[str, ...]) -> list[bytes]:
        return [request for request in self.requests if path_of(request).endswith(path_end)]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._pass_on(reader, writer)
        except (OSError, EOFError):
            pass  # one side has gone: so does the other
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        their_reader, their_writer = await asyncio.open_connection(*self._target)
        self.connections += 1
        try:
            while True:
                request = await read_while(reader, their_reader)
                self.requests.append(request)
                their_writer.write(request)
                answer = await read_while(their_reader, reader)
                loss = self.loss
                if loss is not None and path_of(request).endswith(loss.path_end):
                    self.loss = None
                    await loss.then()
                    return
                writer.write(answer)
        finally:
            their_writer.close()


async def read_while(reader: asyncio.StreamReader, other: asyncio.StreamReader) -> bytes:
    """A message of one side, while the other one is silent. Raises EOFError when either goes first."""
    reading = asyncio.ensure_future(read_message(reader))
    leaving = asyncio.ensure_future(other.read(1))
    try:
        await asyncio.wait((reading, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            raise EOFError
        return reading.result()
    finally:
        leaving.cancel()
        reading.cancel()
        await asyncio.gather(reading, leaving, return_exceptions=True)


def path_of(request: bytes) -> str:
    return request.split(b" ", 2)[1].decode()


async def read_message(reader: asyncio.StreamReader) -> bytes:
    """A request or an answer, with its head and its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return head + await reader.readexactly(length)


async def say(address: str, data: bytes) -> bytes:
    """Send these bytes on a connection of their own, and return the whole answer."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        return await read_message(reader)
    finally:
        writer.close()


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])
