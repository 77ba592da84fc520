"""Alarms of a cluster: one node evaluates, every node shows them, and they move with the catalog."""

from __future__ import annotations

import asyncio
from pathlib import Path

from batonq.log.layout import CATALOG_SHARD
from batonq.node.alarms.rules import MOVES
from batonq.node.cluster.moves import MOVES_MAX, Move, Moves, joined
from batonq.node.cluster.node import ClusterNode
from tests.cluster.memory import Nodes, run_nodes
from tests.node.nodes import ACCOUNT, make_send
from tests.support import brokers

DEAD = {"RedrivePolicy": f'{{"maxReceiveCount":1,"deadLetterTargetArn":"arn:aws:sqs:us-east-1:{ACCOUNT}:dead"}}'}


async def ids(node: ClusterNode) -> list[str]:
    return [alarm.id for alarm in (await node.alarm_desk.listed(False)).active if alarm.kind == "dead-letters"]


async def dead_letter(nodes: Nodes) -> None:
    """The queue `dead` is a dead-letter queue, and has a message."""
    broker = nodes["a"].broker
    dead = await broker.create_queue(ACCOUNT, "dead", {}, {})
    await broker.create_queue(ACCOUNT, "orders", DEAD, {})
    await brokers.send(broker, dead, [make_send("x")])


def known_owners(nodes: Nodes) -> set[str]:
    """The owner of shard 0, as the nodes have heard."""
    leases = [node.ownership_loop.owners.get(0) for node in nodes.hub.nodes.values()]
    return {lease.node if lease is not None else "" for lease in leases}


def evaluator(nodes: Nodes) -> ClusterNode:
    (owner,) = [node for node in nodes.hub.nodes.values() if node.catalog.owned]
    return owner


def test_one_node_evaluates_and_every_node_shows_and_acknowledges(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        await dead_letter(nodes)
        for _ in range(15):
            await asyncio.sleep(5)
        for node in nodes.hub.nodes.values():
            assert await ids(node) == ["dead-letters.dead"]
        owner = evaluator(nodes)
        others = [node for node in nodes.hub.nodes.values() if node is not owner]
        assert [len(node.alarms.ruled()) for node in others] == [0, 0]
        alarm = await others[0].alarm_desk.acknowledge("dead-letters.dead", "ann", "on it")
        assert alarm.note == "on it" and owner.alarms.ruled()[0].acknowledged_by == "ann"

        # The catalog moves: the next node continues where this one was.
        target = others[1].settings.node
        await owner.ownership_loop.move(CATALOG_SHARD, target)
        await nodes.until(lambda: others[1].catalog.owned)
        await asyncio.sleep(6)
        (moved,) = others[1].alarms.ruled()
        assert (moved.id, moved.acknowledged_by, moved.raised_ms) == ("dead-letters.dead", "ann", alarm.raised_ms)
        for node in nodes.hub.nodes.values():
            assert await ids(node) == ["dead-letters.dead"]

        # And back: what the first node knew is old, and the second one's word counts.
        await others[1].alarm_desk.acknowledge("dead-letters.dead", "bob", "")
        await others[1].ownership_loop.move(CATALOG_SHARD, owner.settings.node)
        await nodes.until(lambda: owner.catalog.owned)
        await asyncio.sleep(6)
        assert [alarm.acknowledged_by for alarm in owner.alarms.active() if alarm.ruled] == ["bob"]

    run_nodes(tmp_path, main, "a", "b", "c", shards=1)


def test_the_view_of_a_cluster(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        await dead_letter(nodes)
        owner = await nodes.owned(0)
        (target, *_) = [name for name in "abc" if name != owner.settings.node]
        await nodes.until(lambda: len(owner.ownership_loop.members) == 3)
        await owner.ownership_loop.move(0, target)
        await nodes.until(lambda: nodes.owner(0) is nodes[target])
        await asyncio.sleep(2)
        for name in "abc":
            view = await nodes[name].cluster_view()
            assert view.clustered and sorted(node.reading.name for node in view.nodes) == ["a", "b", "c"]
            assert {node.state for node in view.nodes} == {"up"} and all(node.url for node in view.nodes)
            assert view.catalog_owner == evaluator(nodes).settings.node
            (shard,) = view.shards
            assert shard.reading.owner == target and shard.reading.epoch > 0 and shard.since_ms
            followers = {follower.node: follower.lag_frames for follower in shard.followers}
            assert followers == dict.fromkeys({*"abc"} - {target}, 0)
            move = view.moves[0]
            assert (move.shard, move.source, move.target) == (0, owner.settings.node, target)
            assert move.reason == "an operator moved it" and move.certain
            offsets = [node.clock_offset_ms for node in view.nodes if node.reading.name != name]
            assert all(offset is not None and abs(offset) < 5_000 for offset in offsets)
        nodes[target].ownership_loop.draining = True
        view = await nodes[target].cluster_view()
        assert next(node.state for node in view.nodes if node.reading.name == target) == "draining"

    run_nodes(tmp_path, main, "a", "b", "c", shards=1)


def test_a_shard_that_moves_often_is_flapping(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        await nodes["a"].broker.create_queue(ACCOUNT, "orders", {}, {})
        for _ in range(MOVES):
            owner = await nodes.owned(0)
            target = next(name for name in "ab" if name != owner.settings.node)
            await nodes.until(lambda owner=owner: len(owner.ownership_loop.members) == 2)  # type: ignore[misc]
            await owner.ownership_loop.move(0, target)
            await nodes.until(lambda target=target: known_owners(nodes) == {target})  # type: ignore[misc]
        await asyncio.sleep(11)
        found = {alarm.id for alarm in (await nodes["b"].alarm_desk.listed(False)).active}
        assert "ownership-flapping.0" in found

    run_nodes(tmp_path, main, "a", "b", shards=1)


def test_a_node_that_is_gone_is_missed_until_it_is_back(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        await nodes["a"].broker.create_queue(ACCOUNT, "orders", {}, {})
        await nodes.owned(0)
        await nodes.until(lambda: all(len(node.ownership_loop.members) == 3 for node in nodes.hub.nodes.values()))
        (lost, *_) = [name for name in "abc" if not nodes[name].catalog.owned]
        await nodes.crash(lost)
        others = [nodes[name] for name in "abc" if name != lost]
        await asyncio.sleep(45)
        for node in others:
            found = {alarm.id: alarm.text for alarm in (await node.alarm_desk.listed(False)).active}
            assert f"Node {lost} does not answer: it left the cluster" in found[f"node-silent.{lost}"]
            assert (await node.cluster_view()).expected == 3
        await nodes.start(lost)
        await asyncio.sleep(30)
        assert (await others[0].alarm_desk.listed(False)).active == []
        assert (await others[0].cluster_view()).expected == 3

    run_nodes(tmp_path, main, "a", "b", "c", shards=1, alarm_disk_share=0.9999)


# --- moves


def test_the_reason_of_a_move_is_inferred_where_it_is_not_known() -> None:
    now_ms, alive = 1_000, {"a", "b"}
    moves = Moves(lambda: now_ms, lambda: alive)
    moves.note(0, "a", 1)
    moves.note(0, "a", 1)  # a renewal
    assert not moves.latest  # how it was when the node started
    moves.note(0, "b", 2)
    alive.discard("b")
    moves.note(0, "a", 3)
    moves.note(0, "a", 4)
    moves.hands_over(0, "to balance the load")
    moves.note(0, "b", 5)
    moves.note(0, "x", 4)  # old news
    assert [(move.source, move.target, move.reason, move.certain) for move in moves.latest] == [
        ("a", "b", "handed over by a, or its lease was lost", False),
        ("b", "a", "b stopped or was not reachable", False),
        ("a", "a", "its owner lost it and took it again", False),
        ("a", "b", "to balance the load", True),
    ]
    for epoch in range(10, 500):
        moves.note(0, "a", epoch)
    assert len(moves.latest) == MOVES_MAX


def test_one_move_that_several_nodes_saw_is_told_once() -> None:
    guess, sure = Move(5, 0, "a", "b", 2, "perhaps", False), Move(6, 0, "a", "b", 2, "drained", True)
    other = Move(9, 1, "b", "c", 7, "perhaps", False)
    assert joined([[guess, other], [sure], [guess]]) == [other, sure]
