"""A connection to a NATS server whose long messages are received right where they are to be.

Whoever knows that so many bytes of a message are still to come asks for them by `fill`; the socket is then read into
that place, and not by way of buffers in between.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import Any, cast
from urllib.parse import ParseResult

from nats.aio.transport import TcpTransport

READ_BYTES = 256 << 10
QUEUED_BYTES_MAX = 1 << 20  # that arrived and nobody has read; then the server has to wait


class Pipe(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.ended = False
        self._loop = asyncio.get_running_loop()
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._queued: deque[bytes] = deque()
        self._queued_bytes = 0
        self._place: memoryview | None = None  # what is to be filled next
        self.missing = 0  # bytes of it that have not come; when the connection has ended, they never will
        self._reader: asyncio.Future[None] | None = None
        self._paused = False  # reading
        self._writers: list[asyncio.Future[None]] | None = None  # those who wait; None: there is room
        self._closed: asyncio.Future[None] = self._loop.create_future()

    # --- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is not of that class

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer if self._place is None else self._place

    def buffer_updated(self, nbytes: int) -> None:
        if self._place is not None:
            self._place = self._place[nbytes:]
            self.missing -= nbytes
            if not self.missing:
                self._place = None
                self._wake()
            return
        self._queued.append(bytes(self._buffer[:nbytes]))
        self._queued_bytes += nbytes
        if self._queued_bytes > QUEUED_BYTES_MAX and not self._paused:
            self._paused = True
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        self._end()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        if not self._closed.done():
            self._closed.set_result(None)
        self.resume_writing()

    def pause_writing(self) -> None:
        self._writers = self._writers or []

    def resume_writing(self) -> None:
        writers, self._writers = self._writers or [], None
        for writer in writers:
            if not writer.done():
                writer.set_result(None)

    def _end(self) -> None:
        self.ended = True
        self._place = None
        self._wake()

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and not reader.done():
            reader.set_result(None)

    # --- what the client calls

    @property
    def at_end(self) -> bool:
        return self.ended and not self._queued

    def fill(self, place: memoryview) -> None:
        """The bytes that come next belong there; `read` gives nothing until all of them are."""
        while self._queued and place:
            data = self._queued.popleft()
            taken = min(len(data), len(place))
            place[:taken] = data[:taken]
            place = place[taken:]
            self._queued_bytes -= taken
            if taken < len(data):
                self._queued.appendleft(data[taken:])
        self._make_room()
        self.missing = len(place)
        if place and not self.ended:
            self._place = place

    async def read(self) -> bytes:
        """What has arrived; nothing when a place was filled, or it is the end."""
        if not self._queued:
            filling = self._place is not None
            while not self._queued and not self.ended and (not filling or self._place is not None):
                self._reader = self._loop.create_future()
                await self._reader
            if not self._queued:
                return b""
        data = self._queued.popleft()
        self._queued_bytes -= len(data)
        self._make_room()
        return data

    async def readline(self) -> bytes:
        line = b""
        while b"\n" not in line:
            data = await self.read()
            if not data:
                return line
            line += data
        line, _, rest = line.partition(b"\n")
        if rest:
            self._queued.appendleft(rest)
            self._queued_bytes += len(rest)
        return line + b"\n"

    def _make_room(self) -> None:
        if self._paused and self._queued_bytes <= QUEUED_BYTES_MAX and not self.ended:
            self._paused = False
            self.transport.resume_reading()

    async def drain(self) -> None:
        if self._closed.done():
            raise ConnectionResetError("the connection is lost")
        if self._writers is not None:
            writer: asyncio.Future[None] = self._loop.create_future()
            self._writers.append(writer)
            await writer

    async def wait_closed(self) -> None:
        await asyncio.wait((self._closed,))


class PipeTransport(TcpTransport):
    """What nats-py writes to and reads from. With TLS it is nats-py's own."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._pipe: Pipe | None = None

    @property
    def missing(self) -> int:
        return 0 if self._pipe is None else self._pipe.missing

    def fill(self, place: memoryview) -> bool:
        """See Pipe.fill. False: this connection cannot."""
        if self._pipe is None:
            return False
        self._pipe.fill(place)
        return True

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        loop = asyncio.get_running_loop()
        connecting = loop.create_connection(Pipe, uri.hostname or "", uri.port or 0)
        _, self._pipe = await asyncio.wait_for(connecting, connect_timeout)

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        assert self._pipe is not None
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        name = uri if isinstance(uri, str) else uri.hostname
        upgrading = loop.start_tls(self._pipe.transport, protocol, ssl_context, server_hostname=name)
        transport = await asyncio.wait_for(upgrading, connect_timeout)
        assert transport is not None
        self._io_reader, self._io_writer = reader, asyncio.StreamWriter(transport, protocol, reader, loop)
        self._pipe = None

    @property
    def _own(self) -> Any:
        """nats-py's part, which has no types."""
        return super()

    def write(self, payload: bytes) -> None:
        if self._pipe is None:
            self._own.write(payload)
        else:
            self._pipe.transport.write(payload)

    def writelines(self, payload: list[bytes]) -> None:
        if self._pipe is None:
            self._own.writelines(payload)
        else:
            self._pipe.transport.writelines(payload)

    async def read(self, buffer_size: int) -> bytes:
        if self._pipe is None:
            data: bytes = await self._own.read(READ_BYTES)
            return data
        return await self._pipe.read()

    async def readline(self) -> bytes:
        if self._pipe is None:
            line: bytes = await self._own.readline()
            return line
        return await self._pipe.readline()

    async def drain(self) -> None:
        await (self._own if self._pipe is None else self._pipe).drain()

    async def wait_closed(self) -> None:
        await (self._own if self._pipe is None else self._pipe).wait_closed()

    def close(self) -> None:
        (self._own if self._pipe is None else self._pipe.transport).close()

    def at_eof(self) -> bool:
        return bool(self._own.at_eof()) if self._pipe is None else self._pipe.at_end

    def __bool__(self) -> bool:
        return True  # else the client takes one of its own
