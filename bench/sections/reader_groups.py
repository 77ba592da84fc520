"""Reading retained history through a reader group, compared with receiving and deleting the same messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from batonq.client.aio.baton import Baton
from batonq.client.aio.reader import RetainedMessage
from bench import bodies
from bench.context import Context
from bench.machine import CpuTimes
from bench.report import Sample

BATCH = 500
RATIO_MIN = 2.0


@dataclass(slots=True)
class _Way:
    name: str
    consume: Callable[[str, str, int], Coroutine[Any, Any, None]]


async def receive_and_delete(url: str, name: str, count: int) -> None:
    done = 0
    async with Baton(url) as baton:
        queue = baton.queue(name)
        while done < count:
            messages = await queue.receive(BATCH, visibility=600)
            assert not any(await queue.ack_many([message.receipt for message in messages]))
            done += len(messages)


async def read_and_commit(url: str, name: str, count: int) -> None:
    done = 0
    async with Baton(url) as baton:
        reader = baton.queue(name).reader("bench")
        messages: list[RetainedMessage] = []
        while done < count:
            messages = await reader.fetch(BATCH, done=messages[-1:])  # commits the batch before
            done += len(messages)
        await reader.commit(messages[-1])
        assert (await reader.info()).lag_messages == 0


async def fill(url: str, name: str, texts: list[str], count: int) -> None:
    async with Baton(url) as baton:
        queue = await baton.create_queue(name, retain=3600)
        await queue.reader("bench").create()
        for _ in range(0, count, len(texts)):
            sent = await queue.send_many(texts)
            assert not any(isinstance(one, Exception) for one in sent)


def reader_groups(context: Context) -> None:
    """The same messages of 1 KiB: each batch of 500 is deleted before the next one is asked for, or committed with the
    request for it.
    """
    (server,) = context.servers.contestants("Baton")
    url = f"http://127.0.0.1:{server.port}"
    texts = bodies.documents(1000)
    count = context.size(50_000, 10_000)
    number = 0

    def measure(way: _Way) -> Sample:
        nonlocal number
        number += 1
        name = f"group-{number}"
        asyncio.run(fill(url, name, texts, count))
        times, started = CpuTimes.now(), time.perf_counter()
        asyncio.run(way.consume(url, name, count))
        return {
            "messages/s": count / (time.perf_counter() - started),
            "steal %": CpuTimes.now().steal_percent_since(times),
        }

    received, read = _Way("receive and delete", receive_and_delete), _Way("reader group", read_and_commit)
    samples = context.interleave([received, read], measure)
    title = f"1 client, batches of {BATCH}: receive and delete, or fetch from retained history and commit"
    table = context.report.table("reader_groups", title, samples, "messages/s")
    ratio = table.ratio(read.name, received.name, "messages/s")
    context.report.bar("reader_groups", "reader group ÷ receive and delete", ratio, RATIO_MIN, at_least=True)
