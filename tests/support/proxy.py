"""A TCP proxy whose link can be cut, or go silent in one direction or both: faults of a network, without root."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

CHUNK_BYTES = 1 << 16
Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class Proxy:
    """`async with Proxy(connect) as proxy:` listens on `proxy.port`.

    While `requests` or `answers` is False, what goes that way is swallowed for ever: the connection stays open, and its
    bytes never arrive. `cut` ends every connection there is.
    """

    def __init__(self, connect: Connect) -> None:
        self.requests = True
        self.answers = True
        self.port = 0
        self._connect = connect
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await self._connect()
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        for pump in (
            self._pump(reader, far_writer, lambda: self.requests),
            self._pump(far_reader, writer, lambda: self.answers),
        ):
            task = asyncio.get_running_loop().create_task(pump)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: Callable[[], bool]
    ) -> None:
        lost = False  # a stream with a hole in it must not go on
        try:
            while data := await reader.read(CHUNK_BYTES):
                lost = lost or not passes()
                if not lost:
                    writer.write(data)
                    await writer.drain()
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()
