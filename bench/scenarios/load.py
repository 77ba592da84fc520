"""Producers and consumers of one queue by REST in MessagePack, at a given rate, on one event loop.

A producer has a scheduled time for each of its requests, and latencies count from then, whether or not the previous one
was answered by then: a server that falls behind cannot hide it. A message's body begins with its number, its due time,
its level, its entity and the event's number there; the consumers use them to check what arrives.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec
from msgspec import Struct

from bench.clients import BenchError, Request
from bench.flows import Prepared
from bench.rest import RestQueue
from bench.scenarios.ledger import Ledger
from bench.scenarios.places import Place

DRAIN_S = 60  # how long after the last send messages may still arrive
_WAIT_S = 0.2
_AGAIN_S = 0.05
_READ_BYTES = 1 << 20
_BUSY = (429, 503)
_clock = time.perf_counter


@dataclass(slots=True, frozen=True)
class Level:
    name: str
    priority: str
    share: float  # of the messages


@dataclass(slots=True, frozen=True)
class Load:
    """A required load, and how it is created here."""

    name: str
    title: str
    rate: int  # messages per second, before scaling
    texts: Sequence[str]  # the bodies, used in turn
    settings: dict[str, Any] = field(default_factory=dict)  # of the queue
    batch: int = 100
    producers: int = 6
    consumers: int = 6
    entities: int = 0  # events of an entity are in order; 0: no order
    levels: Sequence[Level] = ()  # highest first
    backlog_s: float = 0.0  # how many seconds' worth of the lowest level wait at the start


class _Received(Struct, rename="camel", gc=False):
    receipt_handle: str
    body: str


class _Messages(Struct, gc=False):
    messages: list[_Received]


class _Result(Struct, gc=False):
    error: dict[str, Any] | None = None


class _Results(Struct, gc=False):
    results: list[_Result]


_decode_messages = msgspec.msgpack.Decoder(_Messages).decode
_decode_results = msgspec.msgpack.Decoder(_Results).decode
_encode = msgspec.msgpack.Encoder().encode


class _Line:
    """One connection, one request at a time."""

    def __init__(self, queue: RestQueue) -> None:
        self.queue = queue
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.queue.port, limit=_READ_BYTES)

    def close(self) -> None:
        self._writer.close()

    async def ask(self, request: Request) -> bytes:
        """The body of the response. If the server is busy, the request is retried, as by clients."""
        while True:
            self._writer.write(request[0])
            head = await self._reader.readuntil(b"\r\n\r\n")
            status = int(head[9:12])
            body = await self._reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]))
            if status in (200, 202):
                return body
            if status not in _BUSY:
                raise BenchError(f"{status}: {body[:500]!r}")
            await asyncio.sleep(_AGAIN_S)


class Run:
    """One run of a load on its own queue."""

    def __init__(self, load: Load, place: Place, queue: str, rate: float, seconds: float) -> None:
        """Without a rate (0) every client runs as fast as the server answers."""
        self.ledger = Ledger()
        self.seconds = 0.0  # from the first send until the last message was received
        self._load = load
        self._rate = rate
        self._for_s = seconds
        settings = load.settings | ({"spread": place.shards} if place.shards > 1 else {})
        self._queues = [RestQueue(port, queue, **settings) for port in place.ports]
        self._over = False
        self._last = 0.0  # when the last message arrived
        self._levels = _in_turn(load.levels)

    def go(self) -> None:
        asyncio.run(self._go())

    async def _go(self) -> None:
        load = self._load
        ways = itertools.cycle(self._queues)
        producers = [_Line(next(ways)) for _ in range(load.producers)]
        consumers = [_Line(next(ways)) for _ in range(load.consumers)]
        for line in producers + consumers:
            await line.open()
        try:
            await self._fill(producers)
            started = _clock()
            consuming = [asyncio.create_task(self._consume(line)) for line in consumers]
            await asyncio.gather(*(self._produce(line, place, started) for place, line in enumerate(producers)))
            await self._drain(consuming)
            self.seconds = self._last - started
        finally:
            for line in producers + consumers:
                line.close()

    async def _fill(self, lines: Sequence[_Line]) -> None:
        load = self._load
        count = int(load.backlog_s * self._rate) // load.batch
        texts = itertools.cycle(load.texts)
        for line in itertools.islice(itertools.cycle(lines), count):
            numbers = range(first := self.ledger.number(load.batch), first + load.batch)
            level = len(load.levels) - 1
            await self._send(line, [self._message(number, _clock(), level, 0, 0, next(texts)) for number in numbers])

    async def _drain(self, consuming: Sequence[asyncio.Task[None]]) -> None:
        """Wait until all sent messages have arrived, or until it is clear that some will not."""
        self._over = True
        _, late = await asyncio.wait(consuming, timeout=DRAIN_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*consuming, return_exceptions=bool(late))

    # --- producing ------------------------------------------------------------------------------

    async def _produce(self, line: _Line, place: int, started: float) -> None:
        load, ledger = self._load, self.ledger
        interval_s = load.batch * load.producers / self._rate if self._rate else 0.0
        texts = itertools.cycle(load.texts[place:] + load.texts[:place])  # type: ignore[operator]
        entities = range(place, load.entities, load.producers)
        events = dict.fromkeys(entities, 0)
        random = Random(place)
        due = started + interval_s * place / load.producers
        while due < started + self._for_s:
            if interval_s:
                await asyncio.sleep(max(due - _clock(), 0))
            else:
                due = _clock()
            number = ledger.number(load.batch)
            messages = []
            for entity in random.choices(entities, k=load.batch) if entities else itertools.repeat(0, load.batch):
                event = 0
                if entities:
                    event = events[entity]
                    events[entity] += 1
                level = next(self._levels) if load.levels else 0
                messages.append(self._message(number, due, level, entity, event, next(texts)))
                number += 1
            await self._send(line, messages)
            ledger.sends_s.append(_clock() - due)
            due += interval_s

    def _message(self, number: int, due: float, level: int, entity: int, event: int, text: str) -> dict[str, Any]:
        body = f"{number} {due:.6f} {level} {entity} {event} {text}"
        self.ledger.bytes += len(body)
        message: dict[str, Any] = {"body": body}
        if self._load.levels:
            message["priority"] = self._load.levels[level].priority
        if self._load.entities:
            message["messageGroupId"] = f"entity-{entity}"
            message["deduplicationKey"] = f"{entity}-{event}"
        return message

    async def _send(self, line: _Line, messages: list[dict[str, Any]]) -> None:
        while messages:
            data = _encode({"messages": messages})
            answer = await line.ask(line.queue.send(Prepared(data, len(messages), batch=True)))
            results = _decode_results(answer).results
            refused = [message for message, result in zip(messages, results, strict=True) if result.error]
            if len(refused) == len(messages):
                await asyncio.sleep(_AGAIN_S)
            self.ledger.sent += len(messages) - len(refused)
            messages = refused

    # --- consuming ------------------------------------------------------------------------------

    async def _consume(self, line: _Line) -> None:
        load, ledger = self._load, self.ledger
        while not (self._over and ledger.received >= ledger.sent):
            messages = _decode_messages(await line.ask(line.queue.receive(load.batch, _WAIT_S))).messages
            if not messages:
                continue
            now = self._last = _clock()
            for message in messages:
                number, due, level, entity, event, _ = message.body.split(" ", 5)
                first = ledger.take(int(number), int(level), now - float(due))
                if first and load.entities:
                    ledger.step(int(entity), int(event))
            await line.ask(line.queue.delete([message.receipt_handle.encode() for message in messages]))


def _in_turn(levels: Sequence[Level]) -> Iterator[int]:
    """Levels by their shares, well mixed."""
    random = Random(11)
    shares = [level.share for level in levels]
    while True:
        yield from random.choices(range(len(levels)), shares, k=1000)
