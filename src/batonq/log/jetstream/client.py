"""A NATS client for long messages: frames are sent and taken in without being copied again and again.

nats-py puts every command together as one text and takes messages apart in one growing buffer, 32 KiB at a time, which
is right for messages of a few hundred bytes. A frame of a megabyte is copied eight times by that. Here its parts are
handed to the socket as they are, and the socket is read into the place of one that arrives (pipe.py). The rest is
nats-py's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nats.aio.client import Client
from nats.protocol.parser import AWAITING_CONTROL_LINE, AWAITING_MSG_PAYLOAD, Parser

from batonq.log.jetstream.pipe import PipeTransport

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
        self._transport = PipeTransport()

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


class LongParser(Parser):
    """Has what is missing of a long message received in its place."""

    def reset(self) -> None:
        super().reset()
        self._message: bytearray | None = None  # header, payload and the line's end, as far as they are there

    async def parse(self, data: bytes = b"") -> None:
        if self._message is not None:
            if self.nc._transport.missing:
                return  # the connection ended
            await self._finish()
        await super().parse(data)
        while self.state == AWAITING_MSG_PAYLOAD and self.needed - len(self.buf) >= LONG_BYTES and self._begin():
            if self.nc._transport.missing:
                return
            await self._finish()

    def _begin(self) -> bool:
        """The rest of the parser has read the beginning of a message, and waits for more."""
        have = len(self.buf)
        message = bytearray(self.needed + len(_END))
        place = memoryview(message)
        place[:have] = self.buf
        if not self.nc._transport.fill(place[have:]):
            return False
        self._message = message
        self.buf = bytearray()
        return True

    async def _finish(self) -> None:
        assert self._message is not None
        whole, self._message = memoryview(self._message), None
        head, self.header_needed = self.header_needed, 0
        payload = bytes(whole[head : self.needed])
        self.state = AWAITING_CONTROL_LINE
        known = self.msg_arg
        header = bytes(whole[:head]) if head else None
        await self.nc._process_msg(known["sid"], known["subject"], known["reply"], payload, header)
