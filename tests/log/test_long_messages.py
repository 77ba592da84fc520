"""Long messages by the NATS client of log/jetstream: received in their place, however they are cut up on the way."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from random import Random
from typing import Any

import pytest
from nats.js.api import StreamConfig

from batonq.log.jetstream.client import LONG_BYTES, LongClient, LongParser, Parts
from batonq.log.jetstream.pipe import QUEUED_BYTES_MAX, Pipe, PipeTransport
from tests.support.nats import NatsServers, nats_servers

SIZES = (0, 1, LONG_BYTES - 3, LONG_BYTES, LONG_BYTES + 1, 3 * LONG_BYTES, QUEUED_BYTES_MAX + 17)


class Socket:
    """What a Pipe has for a transport, and a server's side of it."""

    def __init__(self, pipe: Pipe) -> None:
        self.reading = True
        self._pipe = pipe
        pipe.connection_made(self)  # type: ignore[arg-type]

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def arrive(self, data: bytes) -> None:
        """As the event loop does it: as much as there is room for, again and again."""
        while data:
            room = self._pipe.get_buffer(-1)
            count = min(len(room), len(data))
            room[:count] = data[:count]
            self._pipe.buffer_updated(count)
            data = data[count:]


class Heard:
    """A client, as far as the parser knows it."""

    def __init__(self) -> None:
        self._transport = PipeTransport()
        self._transport._pipe = Pipe()
        self.messages: list[tuple[int, bytes, bytes | None]] = []

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, header: bytes | None) -> None:
        self.messages.append((sid, data, header))


def _message(sid: int, header: bytes, payload: bytes) -> bytes:
    if header:
        head = b"HMSG a.b %d r %d %d\r\n" % (sid, len(header), len(header) + len(payload))
    else:
        head = b"MSG a.b %d %d\r\n" % (sid, len(payload))
    return head + header + payload + b"\r\n"


@pytest.mark.parametrize("seed", range(20))
def test_messages_are_whole_however_they_arrive(seed: int) -> None:
    random = Random(seed)
    expected: list[tuple[int, bytes, bytes | None]] = []
    stream = b""
    for sid in range(1, 6):
        payload = random.randbytes(random.choice(SIZES))
        header = b"NATS/1.0\r\nA: b\r\n\r\n" if random.random() < 0.5 else b""
        expected.append((sid, payload, header or None))
        stream += _message(sid, header, payload)

    async def run() -> list[Any]:
        heard = Heard()
        pipe = heard._transport._pipe
        assert pipe is not None
        socket = Socket(pipe)
        parser = LongParser(heard)
        at = 0
        while at < len(stream) or not pipe.at_end:
            while at < len(stream) and (socket.reading and random.random() < 0.7):
                cut = random.choice((1, 2, 100, LONG_BYTES, 10 * LONG_BYTES))
                socket.arrive(stream[at : at + cut])
                at += cut
            if at >= len(stream):
                pipe.eof_received()
            if pipe._queued or pipe.ended or (parser._message is not None and not pipe.missing):
                await parser.parse(await pipe.read())
        await parser.parse()
        return heard.messages

    assert asyncio.run(run()) == expected


def test_a_message_that_was_cut_off_is_none() -> None:
    async def run() -> list[Any]:
        heard = Heard()
        pipe = heard._transport._pipe
        assert pipe is not None
        socket = Socket(pipe)
        parser = LongParser(heard)
        socket.arrive(_message(1, b"", bytes(3 * LONG_BYTES))[:-LONG_BYTES])
        await parser.parse(await pipe.read())
        pipe.connection_lost(None)
        await parser.parse(await pipe.read())
        assert pipe.at_end
        return heard.messages

    assert asyncio.run(run()) == []


def test_parts_are_stored_as_one_message(tmp_path: Path) -> None:
    with nats_servers(1) as servers:
        asyncio.run(_there_and_back(servers))


async def _there_and_back(servers: NatsServers) -> None:
    client = LongClient()
    await client.connect([f"nats://{server}" for server in servers.servers])
    context = client.jetstream()
    await context.add_stream(StreamConfig(name="long", subjects=["long"]))
    sent = []
    for size in (1, LONG_BYTES, 5 * LONG_BYTES, 4 << 20):
        pieces = (b"head", secrets.token_bytes(size), b"", b"tail")
        sent.append(b"".join(pieces))
        parts: Any = Parts(pieces)
        await context.publish("long", parts, headers={"Nats-Expected-Last-Sequence": str(len(sent) - 1)})
    inbox = await context.subscribe("long", ordered_consumer=True)
    assert [(await inbox.next_msg(10)).data for _ in sent] == sent
    assert [(await context.get_msg("long", seq=place + 1)).data for place in range(len(sent))] == sent
    await client.close()
