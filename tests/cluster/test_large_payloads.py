"""A payload store that all nodes of a cluster share: owners die, shards are away, and no body that is needed goes."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

from batonq.client import Outgoing
from batonq.client.payloads import SIZE, Payloads
from batonq.core.payload import Attribute, encode_attributes
from batonq.errors import BatonError, Unavailable
from batonq.node.cluster.node import ClusterNode
from tests.cluster.memory import Nodes, bodies, other, run_nodes
from tests.node.nodes import ACCOUNT, make_send
from tests.support import brokers
from tests.support.ask import Message

LARGE = "x" * 5000
HOUR_MS = 3_600_000


def settings(tmp_path: Path) -> dict[str, object]:
    return {"payload_store": f"file://{tmp_path / 'store'}", "payload_threshold": 2048, "shards": 2}


def objects(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "store").glob("[0-9]*/*")}


def stored_by_client(tmp_path: Path, node: ClusterNode) -> Message:
    """A message whose body a client has put into the store."""
    payloads = Payloads(f"file://{tmp_path / 'store'}", 2048, lambda: node.clock.now_ms() / 1000)
    outgoing = payloads.offload(Outgoing(LARGE))
    size = Attribute(SIZE, "Number", str(len(LARGE)).encode(), False)
    return make_send(outgoing.body, attributes=encode_attributes([size]))


def client_objects(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "store").glob("client/*/*/*")}


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def sweeping(nodes: Nodes) -> ClusterNode:
    """The one node that sweeps."""
    (found,) = [node for node in nodes.hub.nodes.values() if node.broker.serves(0)]
    return found


async def sweep(node: ClusterNode) -> int:
    assert node.sweeper is not None
    return await node.sweeper.sweep()


async def later(nodes: Nodes, hours: int) -> None:
    for node in nodes.hub.nodes.values():
        await node.broker.advance_clock(hours * HOUR_MS)


def test_bodies_outlive_their_owners_and_go_with_their_last_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batonq.node.cluster.routing.OWNER_WAIT_S", 30.0)

    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {"MessageRetentionPeriod": "1209600"}, {})
        victim = await nodes.owned(queue.shard)
        sender = other(nodes, victim)
        await brokers.send(sender.broker, queue, [make_send(LARGE), make_send(LARGE + "2"), make_send("small")])
        own = stored_by_client(tmp_path, sender)
        await brokers.send(sender.broker, queue, [own])
        assert objects(tmp_path) == {digest(LARGE), digest(LARGE + "2")} and client_objects(tmp_path) == {digest(LARGE)}
        await nodes.crash(victim.settings.node)
        await nodes.owned(queue.shard)
        await nodes.owned(0)
        await later(nodes, 3)
        assert await sweep(sweeping(nodes)) == 0
        reader = next(iter(nodes.hub.nodes.values()))
        assert await bodies(reader, queue) == sorted([LARGE, LARGE + "2", "small", own.body.decode()])
        assert await sweep(sweeping(nodes)) == 3 and objects(tmp_path) == client_objects(tmp_path) == set()

    run_nodes(tmp_path, main, "a", "b", "c", **settings(tmp_path))


def test_a_dead_letter_on_another_node_keeps_its_body_through_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batonq.node.cluster.routing.OWNER_WAIT_S", 30.0)

    async def main(nodes: Nodes) -> None:
        broker = nodes["a"].broker
        dead = await broker.create_queue(ACCOUNT, "dead", {}, {})
        for number in range(8):  # until one is on the other shard
            policy = f'{{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:{ACCOUNT}:dead","maxReceiveCount":1}}'
            attributes = {"RedrivePolicy": policy, "Baton.DeadLetterOn": "failure"}
            work = await broker.create_queue(ACCOUNT, f"work-{number}", attributes, {})
            if work.shard != dead.shard:
                break
        assert work.shard != dead.shard
        own = stored_by_client(tmp_path, nodes["a"])
        await brokers.send(broker, work, [make_send(LARGE), own])
        held = await brokers.receive(broker, work, 2, 60_000, 0, "h")
        assert [one.body.decode() for one in held] == [LARGE, own.body.decode()]
        for one in held:
            await brokers.nack(broker, work, one.receipt)
        victim = await nodes.owned(dead.shard)
        await nodes.crash(victim.settings.node)
        await nodes.owned(dead.shard)
        await nodes.owned(0)
        node = sweeping(nodes)

        async def arrived() -> bool:
            try:
                return (await node.broker.counters(dead)).visible == 2
            except BatonError:
                return False

        for _ in range(600):
            if await arrived():
                break
            await asyncio.sleep(0.1)
        await later(nodes, 4)
        assert await sweep(node) == 0
        assert client_objects(tmp_path) == {digest(LARGE)}
        assert await bodies(node, dead) == sorted([LARGE, own.body.decode()])
        await later(nodes, 2)
        assert await sweep(node) == 2

    run_nodes(tmp_path, main, "a", "b", "c", **settings(tmp_path))


def test_while_a_shard_has_no_owner_nothing_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batonq.node.cluster.routing.OWNER_WAIT_S", 0.3)

    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
        await brokers.send(nodes["a"].broker, queue, [make_send(LARGE)])
        assert await bodies(nodes["a"], queue) == [LARGE]
        await later(nodes, 3)
        away = 1
        await nodes.until(lambda: len({lease.node for shard in (0, away) if (lease := nodes.hub.lease(shard))}) == 2)
        node, victim = sweeping(nodes), await nodes.owned(away)
        for each in nodes.hub.nodes.values():
            each.ownership_loop.draining = True  # nobody takes it
        await nodes.crash(victim.settings.node)
        await nodes.until(lambda: nodes.hub.lease(away) is None)
        with pytest.raises(Unavailable):
            await sweep(node)
        assert objects(tmp_path) == {digest(LARGE)}

    run_nodes(tmp_path, main, "a", "b", **settings(tmp_path))
