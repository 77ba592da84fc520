"""Topics in a cluster: any node creates, subscribes and publishes; copies go from node to node, also over crashes."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from batonq.core.commands import Accepted
from batonq.errors import BatonError, InvalidInput
from batonq.node.cluster.node import ClusterNode
from tests.cluster.memory import Nodes, other, run_nodes
from tests.node.nodes import ACCOUNT
from tests.node.topics import make_queue, make_topic, publish, subscribe
from tests.support import brokers

PATIENCE_S = 60


async def refresh(nodes: Nodes) -> None:
    for node in nodes.hub.nodes.values():
        await node.broker.refresh()


async def take_all(node: ClusterNode, name: str, wanted: int) -> list[str]:
    """Receive and delete until this many messages have come, and then those that are too many."""
    queue = node.broker.queue(ACCOUNT, name)
    found: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < wanted:
            found += await take(node, name, 500)
    del queue
    return found + await take(node, name, 500)


async def take(node: ClusterNode, name: str, wait_ms: int) -> list[str]:
    queue = node.broker.queue(ACCOUNT, name)
    try:
        got = await brokers.receive(node.broker, queue, 10, 60_000, wait_ms, "tester")
        assert not any(await brokers.delete(node.broker, queue, [delivery.receipt for delivery in got]))
    except BatonError:
        await asyncio.sleep(0.05)
        return []
    return [delivery.body.decode() for delivery in got]


def test_any_node_publishes_to_queues_of_any_node(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        topic = await make_topic(nodes["a"])
        names = [f"q{number}" for number in range(6)]
        for at, name in enumerate(names):
            node = nodes["abc"[at % 3]]
            await make_queue(node, name)
            await subscribe(node, topic, name)
        await refresh(nodes)
        assert len({nodes["a"].broker.queue(ACCOUNT, name).shard for name in names}) == 3
        for name in "abc":
            (sent,) = await publish(nodes[name], nodes[name].broker.topic(ACCOUNT, "news"), f"from {name}")
            assert isinstance(sent, Accepted)
        for name in names:
            assert sorted(await take_all(nodes["b"], name, 3)) == ["from a", "from b", "from c"]
        arrivals = [path for path in nodes.hub.calls if path.endswith("/arrive")]
        assert arrivals, "copies went from node to node"
        subscription = nodes["c"].broker.subscriptions(ACCOUNT, topic)[0]
        await nodes["c"].broker.unsubscribe(subscription)
        await nodes["b"].broker.delete_topic(topic)
        await refresh(nodes)
        assert nodes["a"].broker.topics(ACCOUNT) == []

    run_nodes(tmp_path, main, "a", "b", "c")


def test_an_owner_that_crashes_in_the_middle_loses_and_doubles_no_copy(tmp_path: Path) -> None:
    """The owner of the topic's shard dies, then that of a subscribed queue, while publishes go on."""

    async def main(nodes: Nodes) -> None:
        topic = await make_topic(nodes["a"], "news.fifo")
        names = [f"q{number}.fifo" for number in range(4)]
        for name in names:
            await make_queue(nodes["a"], name)
            await subscribe(nodes["a"], topic, name)
        await refresh(nodes)

        async def send(number: int) -> None:
            """Again and again until it is answered, as clients do; the deduplication id tells a repetition."""
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    node = list(nodes.hub.nodes.values())[number % len(nodes.hub.nodes)]
                    try:
                        (sent,) = await publish(node, topic, str(number), group=f"g{number % 2}", dedup_id=str(number))
                        assert isinstance(sent, Accepted)
                        return
                    except BatonError:
                        await asyncio.sleep(0.05)

        for number in range(40):
            await send(number)
            if number == 10:
                nodes.hub.unanswered = ["/arrive"] * 3
            if number == 15:
                await nodes.crash((await nodes.owned(topic.shard)).settings.node)
            if number == 25:
                owner = await nodes.owned(topic.shard)
                await owner.ownership_loop.move(topic.shard, other(nodes, owner).settings.node)
        node = next(iter(nodes.hub.nodes.values()))
        for name in names:
            found = await take_all(node, name, 40)
            assert Counter(found) == Counter(map(str, range(40)))
            for group in range(2):
                line = [int(body) for body in found if int(body) % 2 == group]
                assert line == sorted(line)

    run_nodes(tmp_path, main, "a", "b", "c")


def test_topics_need_nodes_that_can_read_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(nodes: Nodes) -> None:
        async def too_old(version: int) -> str:
            return "Node b reads the log format up to 5." if version > 5 else ""

        monkeypatch.setattr(nodes["a"].catalog, "too_old", too_old)
        with pytest.raises(InvalidInput, match="Node b"):
            await make_topic(nodes["a"])

    run_nodes(tmp_path, main, "a", "b")
