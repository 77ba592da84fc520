"""A NATS client for large messages: frames are sent and received without repeated copies.

nats-py builds every command as one byte string and parses messages in one growing buffer, 32 KiB at a time, which is
right for messages of a few hundred bytes. It copies a frame of one megabyte eight times. Here its parts are passed to
the socket as they are, and the received parts are joined once. Everything else is nats-py's own code.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import ParseResult

from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.errors import StaleConnectionError
from nats.protocol.parser import AWAITING_CONTROL_LINE, AWAITING_MSG_PAYLOAD, Parser

READ_BYTES = 1 << 20  # kept until they are read
STEP_BYTES = 4 << 10  # passed to nats-py's parser at a time: it looks for the beginnings of messages
SILENT_S = 4.0  # without an answer to any request
AGAIN_S = 0.5  # after a connection attempt failed in a way that nats-py does not expect
LONG_BYTES = 32 << 10  # size of a message from which on it pays
_END = b"\r\n"


class Parts:
    """The parts of a message; nats-py only needs its length."""

    __slots__ = ("_length", "parts")

    def __init__(self, parts: Sequence[bytes]) -> None:
        self.parts = parts
        self._length = sum(map(len, parts))

    def __len__(self) -> int:
        return self._length


class Expecting:
    """An `asyncio.timeout` that also ends when the connection is lost, because its requests will not be answered."""

    __slots__ = ("_all", "_timeout")

    def __init__(self, expecting: dict[Expecting, None], timeout_s: float) -> None:
        self._all = expecting
        self._timeout = asyncio.timeout(timeout_s)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._all[self] = None

    async def __aexit__(self, *raised: Any) -> None:
        self._all.pop(self, None)
        await self._timeout.__aexit__(*raised)

    def end(self) -> None:
        if not self._timeout.expired():  # otherwise the waiter is about to get the error
            self._timeout.reschedule(0.0)


class LongClient(Client):
    """Use it like nats.aio.client.Client; `publish` and `request` also accept Parts."""

    def __init__(self) -> None:
        super().__init__()
        self._ps = LongParser(self)
        self._transport = LongTransport()  # type: ignore[no-untyped-call]
        self._expecting: dict[Expecting, None] = {}
        self._answered_s = 0.0  # time of the last answer, or of the connection

    @property
    def server(self) -> str:
        """The name of the server that it is, or was last, connected to."""
        return str(self._server_info.get("server_name", ""))

    def expect(self, timeout_s: float) -> Expecting:
        """For as long as an answer may take. Raises TimeoutError, also if the connection is lost meanwhile."""
        return Expecting(self._expecting, timeout_s)

    def answered(self) -> None:
        """A request was answered, whatever the answer."""
        self._answered_s = asyncio.get_running_loop().time()

    async def unanswered(self) -> None:
        """A request was not answered. A connected server that has not answered for long may be cut off from the others,
        so the client moves on to the next one.
        """
        if self.is_connected and asyncio.get_running_loop().time() - self._answered_s > SILENT_S:
            self.answered()
            await self._process_op_err(StaleConnectionError())

    async def _process_connect_init(self) -> None:
        await super()._process_connect_init()
        self.answered()

    async def _attempt_reconnect(self) -> None:
        expecting, self._expecting = self._expecting, {}
        for each in expecting:
            each.end()
        while not self.is_closed:
            try:
                await super()._attempt_reconnect()
                return
            except Exception as problem:  # whatever it is: nobody else would retry
                await self._error_cb(problem)
                await asyncio.sleep(AGAIN_S)

    async def _send_publish(
        self, subject: str, reply: str, payload: Any, payload_size: int, headers: dict[str, Any] | None
    ) -> None:
        if not isinstance(payload, Parts):
            await super()._send_publish(subject, reply, payload, payload_size, headers)
            return
        lines = "".join([f"{name}: {value}\r\n" for name, value in (headers or {}).items()])
        head = f"NATS/1.0\r\n{lines}\r\n".encode()
        command = f"HPUB {subject} {reply} {len(head)} {len(head) + payload_size}\r\n".encode() + head
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += payload_size
        self._pending += [command, *payload.parts]
        self._pending_data_size += len(command) + payload_size
        await self._send_command(_END)
        if not self._write_pending() and self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()

    def _write_pending(self) -> bool:
        """At once, not in the flusher's turn, which comes only after all received data is processed. An error here
        happens to the flusher as well.
        """
        if not self.is_connected or self._transport is None:
            return False
        try:
            self._transport.writelines(self._pending)
        except (OSError, RuntimeError):
            return False
        self._pending = []
        self._pending_data_size = 0
        return True


class Pieces:
    """The received data in pieces, in place of a StreamReader, which copies it into one buffer and out again."""

    _source_traceback = None  # required by asyncio

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._problem: BaseException | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._transport: asyncio.ReadTransport | None = None
        self._paused = False

    # --- asyncio's side

    def set_transport(self, transport: asyncio.ReadTransport) -> None:
        self._transport = transport

    def feed_data(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)
        self._wake()
        if self._size > READ_BYTES and not self._paused and self._transport is not None:
            self._transport.pause_reading()
            self._paused = True

    def feed_eof(self) -> None:
        self._ended = True
        self._wake()

    def set_exception(self, problem: BaseException) -> None:
        self._problem = problem
        self._wake()

    def exception(self) -> BaseException | None:
        return self._problem

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    # --- nats-py's side

    def at_eof(self) -> bool:
        return self._ended and not self._pieces

    async def read(self, most: int = -1) -> bytes:
        """The next piece, whatever its length; empty at the end."""
        while not self._pieces:
            if self._problem is not None:
                raise self._problem
            if self._ended:
                return b""
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        piece = self._pieces.popleft()
        self._size -= len(piece)
        if self._paused and self._size <= READ_BYTES // 2 and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return piece

    async def readline(self) -> bytes:
        line = b""
        while piece := await self.read():
            head, end, rest = piece.partition(b"\n")
            line += head + end
            if end:
                if rest:
                    self._pieces.appendleft(rest)
                    self._size += len(rest)
                break
        return line


class LongTransport(TcpTransport):
    """TLS, if requested, is nats-py's own."""

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        assert uri.hostname is not None and uri.port is not None
        loop = asyncio.get_running_loop()
        reader = cast(asyncio.StreamReader, Pieces())
        protocol = asyncio.StreamReaderProtocol(reader)
        async with asyncio.timeout(connect_timeout):
            transport, _ = await loop.create_connection(lambda: protocol, uri.hostname, uri.port)
        self._bare_io_reader = self._io_reader = reader
        self._bare_io_writer = self._io_writer = asyncio.StreamWriter(transport, protocol, None, loop)

    async def read(self, buffer_size: int) -> bytes:
        data: bytes = await super().read(READ_BYTES)
        return data

    def __bool__(self) -> bool:
        return True  # otherwise the client creates one of its own


class LongParser(Parser):
    """Collects the parts of a large message separately."""

    def reset(self) -> None:
        super().reset()
        self._header: bytes | None = None
        self._pieces: list[bytes | memoryview] = []
        self._missing = 0  # bytes of the message that is being collected, including its end; 0: none

    async def parse(self, data: bytes = b"") -> None:
        view = memoryview(data)
        while view:
            if self._missing:
                piece, view = view[: self._missing], view[self._missing :]
                self._pieces.append(piece)
                self._missing -= len(piece)
                if not self._missing:
                    await self._finish()
                continue
            step, view = bytes(view[:STEP_BYTES]), view[STEP_BYTES:]
            await super().parse(step)
            if self.state == AWAITING_MSG_PAYLOAD and self.needed >= LONG_BYTES and len(self.buf) >= self.header_needed:
                self._begin()

    def _begin(self) -> None:
        """The rest of the parser has read the beginning of a message, and waits for more."""
        head = self.header_needed
        self._header = bytes(self.buf[:head]) if head else None
        self._missing = self.needed + len(_END) - len(self.buf)
        self._pieces = [bytes(self.buf[head:])]
        self.buf = bytearray()

    async def _finish(self) -> None:
        pieces, self._pieces = self._pieces, []
        length = self.needed - self.header_needed
        payload = _joined(pieces, length)
        header, self._header = self._header, None
        self.header_needed = 0
        self.state = AWAITING_CONTROL_LINE
        known = self.msg_arg
        await self.nc._process_msg(known["sid"], known["subject"], known["reply"], payload, header)


def _joined(pieces: list[bytes | memoryview], length: int) -> bytes:
    """The pieces without the bytes after `length`: the line end, which may be in the last two."""
    over = sum(map(len, pieces)) - length
    while over and len(pieces[-1]) <= over:
        over -= len(pieces.pop())
    if over:
        pieces[-1] = memoryview(pieces[-1])[:-over]
    return b"".join(pieces)
