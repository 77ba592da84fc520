"""The cost of the worker compared with a bare loop of receive and acknowledge with the
same client: the client's CPU.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from batonq.client.aio.baton import Baton
from batonq.client.aio.message import Message
from batonq.worker import Worker
from bench import bodies
from bench.context import Context
from bench.machine import CpuTimes
from bench.report import Sample

_CONCURRENCY = 64
_LOOK_S = 0.05
_OVERHEAD_MAX = 1.1


@dataclass(slots=True)
class _Way:
    """One way to process a queue."""

    name: str
    consume: Callable[[str, str, int], Coroutine[Any, Any, None]]


async def _handle(message: Message) -> None:
    """Does nothing: only the code around it is measured."""


async def _bare(url: str, name: str, count: int) -> None:
    done = 0
    async with Baton(url) as baton:
        queue = baton.queue(name)
        while done < count:
            messages = await queue.receive(_CONCURRENCY, visibility=30)
            for message in messages:
                await _handle(message)
            assert not any(await queue.ack_many([message.receipt for message in messages]))
            done += len(messages)


async def _worker(url: str, name: str, count: int) -> None:
    app = Worker(url)
    app.task(queue=name, concurrency=_CONCURRENCY, visibility=30, name="bench")(_handle)
    serving = asyncio.create_task(app.serve())
    while not app.counters or app.counters["bench"].acked < count:  # noqa: ASYNC110 - it counts, and rings no bell
        await asyncio.sleep(_LOOK_S)
    app.stop()
    await serving


async def _fill(url: str, name: str, texts: list[str], count: int) -> None:
    async with Baton(url) as baton:
        queue = await baton.create_queue(name)
        for _ in range(0, count, len(texts)):
            sent = await queue.send_many(texts)
            assert not any(isinstance(one, Exception) for one in sent)


def worker(context: Context) -> None:
    """The same messages of 1 KiB, received in batches of 64 and acknowledged, by a bare loop and by a worker of 64
    slots.
    """
    (server,) = context.servers.contestants("Baton")
    url = f"http://127.0.0.1:{server.port}"
    texts = bodies.documents(1000)
    count = context.size(50_000, 10_000)
    number = 0

    def measure(way: _Way) -> Sample:
        nonlocal number
        number += 1
        name = f"worker-{number}"
        asyncio.run(_fill(url, name, texts, count))
        gc.collect()
        times, cpu, started = CpuTimes.now(), time.process_time(), time.perf_counter()
        asyncio.run(way.consume(url, name, count))
        return {
            "messages/s": count / (time.perf_counter() - started),
            "client µs/message": (time.process_time() - cpu) * 1e6 / count,
            "steal %": CpuTimes.now().steal_percent_since(times),
        }

    samples = context.interleave([_Way("bare loop", _bare), _Way("worker", _worker)], measure)
    table = context.report.table("worker", "receive by 64 and acknowledge", samples, "client µs/message")
    ratio = table.ratio("worker", "bare loop", "client µs/message")
    context.report.bar("worker", "client CPU, worker ÷ bare loop", ratio, _OVERHEAD_MAX, at_least=False)
