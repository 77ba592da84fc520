"""A NATS client for long messages: frames are sent and taken in without being copied again and again.

nats-py puts every command together as one text and takes messages apart in one growing buffer, 32 KiB at a time, which
is right for messages of a few hundred bytes. A frame of a megabyte is copied eight times by that. Here its parts are
handed to the socket as they are, and what arrives of it is joined once. Everything else is nats-py's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import ParseResult

from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.protocol.parser import AWAITING_CONTROL_LINE, AWAITING_MSG_PAYLOAD, Parser

READ_BYTES = 1 << 20
LONG_BYTES = 32 << 10  # of a message, from which on it pays
_END = b"\r\n"


class Parts:
    """What a message consists of; nats-py asks for nothing but its length."""

    __slots__ = ("_length", "parts")

    def __init__(self, parts: Sequence[bytes]) -> None:
        self.parts = parts
        self._length = sum(map(len, parts))

    def __len__(self) -> int:
        return self._length


class LongClient(Client):
    """Use it like nats.aio.client.Client; `publish` and `request` take Parts as well."""

    def __init__(self) -> None:
        super().__init__()
        self._ps = LongParser(self)
        self._transport = LongTransport()  # type: ignore[no-untyped-call]

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
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()


class LongTransport(TcpTransport):
    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        await super().connect(uri, READ_BYTES, connect_timeout)

    async def read(self, buffer_size: int) -> bytes:
        data: bytes = await super().read(READ_BYTES)
        return data

    def __bool__(self) -> bool:
        return True  # else the client takes one of its own


class LongParser(Parser):
    """Gathers what arrives of a long message apart from the rest."""

    def reset(self) -> None:
        super().reset()
        self._header: bytes | None = None
        self._pieces: list[bytes | memoryview] = []
        self._missing = 0  # bytes of the message that is being gathered, its end included; 0: none is

    async def parse(self, data: bytes = b"") -> None:
        if self._missing:
            if len(data) < self._missing:
                self._missing -= len(data)
                self._pieces.append(data)
                return
            cut, self._missing = self._missing, 0
            self._pieces.append(memoryview(data)[:cut])
            data = data[cut:]
            await self._finish()
        await super().parse(data)
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
    """The pieces without what is behind `length`: the line's end, which may be a part of the last two."""
    over = sum(map(len, pieces)) - length
    while over and len(pieces[-1]) <= over:
        over -= len(pieces.pop())
    if over:
        pieces[-1] = memoryview(pieces[-1])[:-over]
    return b"".join(pieces)
