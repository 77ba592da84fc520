"""What fan-out costs the server: a publish to ten queues of one shard, compared with one send of the same body."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from batonq.client.aio.baton import Baton
from bench import bodies
from bench.context import Context, Meter
from bench.report import Sample

QUEUES = 10
LIMIT = 3.0  # times the server's CPU time of one send
CLIENTS = 8
_CPU = "server µs/message"


@dataclass(slots=True)
class _Way:
    name: str
    send: Callable[[Baton, list[str]], Coroutine[Any, Any, Any]]


async def _set_up(url: str) -> None:
    async with Baton(url) as baton:
        await baton.create_queue("fan-single")
        for kind in ("raw", "enveloped"):
            topic = await baton.create_topic(f"fan-{kind}")
            for number in range(QUEUES):
                queue = await baton.create_queue(f"fan-{kind}-{number}")
                await topic.subscribe(queue.name, raw=kind == "raw")


def topics(context: Context) -> None:
    """Documents of 1 KiB, in single requests and in batches of ten, from several clients at once."""
    (server,) = context.servers.contestants("Baton")
    url = f"http://127.0.0.1:{server.port}"
    asyncio.run(_set_up(url))
    texts = bodies.documents(1000)
    ways = [
        _Way("one send", lambda baton, some: baton.queue("fan-single").send_many(some)),
        _Way("publish to ten queues, raw", lambda baton, some: baton.topic("fan-raw").publish_many(some)),
        _Way("publish to ten queues", lambda baton, some: baton.topic("fan-enveloped").publish_many(some)),
    ]
    for batch in (1, 10):
        count = context.size(10_000, 1_000) * (3 if batch > 1 else 1)
        share = count // CLIENTS // batch

        async def client(way: _Way, batch: int = batch, share: int = share) -> None:
            async with Baton(url) as baton:
                for at in range(share):
                    start = at * batch % (len(texts) - batch)
                    await way.send(baton, texts[start : start + batch])

        async def clients(way: _Way) -> None:
            await asyncio.gather(*(client(way) for _ in range(CLIENTS)))

        def measure(way: _Way, share: int = share, batch: int = batch) -> Sample:
            meter, started = Meter(server), time.perf_counter()
            asyncio.run(clients(way))
            return meter.sample(share * CLIENTS * batch, time.perf_counter() - started)

        samples = context.interleave(ways, measure)
        title = f"{CLIENTS} clients, batches of {batch}: one queue, or a topic with {QUEUES} queues on one shard"
        table = context.report.table("topics", title, samples, _CPU)
        for way in ways[1:]:
            ratio = table.ratio(way.name, ways[0].name, _CPU)
            text = f"{way.name} ÷ one send, server CPU, batches of {batch}"
            context.report.bar("topics", text, ratio, LIMIT, at_least=False)
