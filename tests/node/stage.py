"""A whole server in this loop for tests of what it shows of itself: real HTTP, a clock that only tests move."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from batonq.api.http import HttpServer
from batonq.cli.serve import compose
from batonq.node.broker import Queue
from batonq.node.messages.received import Delivery
from batonq.node.node import Node, World
from batonq.node.settings import Settings
from tests.node.nodes import ACCOUNT, UnsyncedDisk, make_send
from tests.support import brokers

START_S = 1_700_000_000.0


class Answer(NamedTuple):
    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Shown:
    """What /metrics showed, as an independent parser read it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.kinds: dict[str, str] = {}
        self.samples: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(text):
            self.kinds[family.name] = family.type
            for sample in family.samples:
                self.samples.setdefault(sample.name, []).append((sample.labels, sample.value))

    def sum(self, name: str, labels: Mapping[str, str] | None = None) -> float:
        """The sum of all samples that have these labels."""
        wanted = (labels or {}).items()
        return sum(value for own, value in self.samples.get(name, []) if wanted <= own.items())


class Stage:
    def __init__(self, node: Node, server: HttpServer) -> None:
        self.node = node
        self.server = server
        self._kept: list[Any] = []

    def keep(self, *things: Any) -> None:
        """Keep connections open, or tasks running, until the end."""
        self._kept += things

    async def end(self) -> None:
        for thing in self._kept:
            if isinstance(thing, asyncio.Task):
                thing.cancel()
                await asyncio.gather(thing, return_exceptions=True)
            elif isinstance(thing, socket.socket):
                thing.close()

    async def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        def ask() -> Answer:
            connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
            try:
                connection.request(method, path, body, headers)
                answer = connection.getresponse()
                return Answer(answer.status, answer.read())
            finally:
                connection.close()

        return await asyncio.to_thread(ask)

    async def sqs(self, operation: str, **fields: Any) -> Answer:
        headers = {"X-Amz-Target": f"AmazonSQS.{operation}", "Content-Type": "application/x-amz-json-1.0"}
        return await self.request("POST", "/", json.dumps(fields).encode(), **headers)

    async def rest(self, method: str, path: str, fields: Any = None) -> Answer:
        body = b"" if fields is None else json.dumps(fields).encode()
        return await self.request(method, path, body, **{"Content-Type": "application/json"})

    async def shown(self) -> Shown:
        answer = await self.request("GET", "/metrics")
        assert answer.status == 200
        return Shown(answer.body.decode())

    async def queue(self, name: str = "orders", **attributes: str) -> Queue:
        return await self.node.broker.create_queue(ACCOUNT, name, attributes, {})

    async def send(self, queue: Queue, *texts: str, **fields: Any) -> None:
        for outcome in await brokers.send(self.node.broker, queue, [make_send(text, **fields) for text in texts]):
            assert not isinstance(outcome, Exception), outcome

    async def receive(self, queue: Queue, count: int = 10, **fields: Any) -> list[Delivery]:
        return await brokers.receive(
            self.node.broker, queue, count, fields.get("visibility_ms"), fields.get("wait_ms", 0), "tester"
        )

    async def delete(self, queue: Queue, deliveries: list[Delivery]) -> None:
        receipts = [delivery.receipt for delivery in deliveries]
        assert not any(await brokers.delete(self.node.broker, queue, receipts))

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not condition():  # noqa: ASYNC110 - any condition
                await asyncio.sleep(0.01)

    async def later(self, seconds: float) -> None:
        """Let time pass, and take a sample at its end."""
        await self.node.advance_clock(int(seconds * 1000))
        await self.node.sampler.sample()


@asynccontextmanager
async def on_stage(directory: Path, **settings: Any) -> AsyncIterator[Stage]:
    began_s = time.monotonic()
    # Time passes by `later` only, but for a thousandth of what really passes: so that what takes time can be measured.
    world = World(
        monotonic=lambda: began_s + (time.monotonic() - began_s) / 1000, wall=lambda: START_S, disk=UnsyncedDisk()
    )
    node = Node(Settings(data=str(directory / "data"), port=0, **settings), world)
    await node.start()
    try:
        server = compose(node)
        await server.start("127.0.0.1", 0)
        try:
            stage = Stage(node, server)
            await stage.until(lambda: node._keeping_series is not None and node._keeping_series.begun)
            yield stage
            await stage.end()
        finally:
            node.stop_waiting()
            await server.stop(1)
    finally:
        await node.stop()
