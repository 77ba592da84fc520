"""Topics on a server of several processes: any process changes them, and copies go from process to process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from batonq.core.commands import Accepted
from batonq.node.settings import Settings
from tests.node.nodes import ACCOUNT, receive
from tests.node.topics import make_queue, make_topic, publish, subscribe
from tests.processes.server import Processes
from tests.support import brokers


def test_any_process_publishes_to_queues_of_any_process(tmp_path: Path) -> None:
    async def work(processes: Processes) -> None:
        first, second = processes.nodes[0], processes.nodes[1]
        topic = await make_topic(second)
        for at in range(4):
            node = (first, second)[at % 2]
            await make_queue(node, f"q{at}")
            await subscribe(node, topic, f"q{at}", raw=at % 2 == 0)
        shards = {first.broker.queue(ACCOUNT, f"q{at}").shard for at in range(4)}
        assert shards == {0, 1}
        for node in (first, second):
            (sent,) = await publish(node, node.broker.topic(ACCOUNT, "news"), "hello")
            assert isinstance(sent, Accepted)
        for at in range(4):
            await expect(first, f"q{at}", 2)
        await second.broker.unsubscribe(second.broker.subscriptions(ACCOUNT, topic)[0])
        await first.broker.delete_topic(first.broker.topic(ACCOUNT, "news"))
        assert second.broker.topics(ACCOUNT) == []

    async def main() -> None:
        processes = Processes(Settings(data=str(tmp_path), processes=2, shards=2))
        await processes.start(0, 1)
        try:
            await work(processes)
        finally:
            await processes.stop()

    asyncio.run(main())


async def expect(node: Any, name: str, count: int) -> None:
    queue = node.broker.queue(ACCOUNT, name)
    found: list[bytes] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            got = await receive(node, queue, wait_ms=1_000)
            found += [delivery.body for delivery in got]
            await brokers.delete(node.broker, queue, [delivery.receipt for delivery in got])
    assert len(found) == count and all(b"hello" in body for body in found)
