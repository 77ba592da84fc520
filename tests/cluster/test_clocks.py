"""A node's clock that jumps an hour: no lease ends, no delay is over, and the node takes nothing until it is right."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from batonq.errors import Unavailable
from batonq.log.layout import CATALOG_SHARD
from batonq.node.broker import Queue
from batonq.node.cluster import balance
from batonq.node.cluster.node import ClusterNode
from tests.cluster.memory import Nodes, run_nodes, wall_s
from tests.node.nodes import ACCOUNT, make_send
from tests.support import brokers

HOUR_S = 3_600.0


def off_s(node: ClusterNode) -> float:
    """How far the time of its shards is from the real one."""
    return node.clock.now_ms() / 1000 - wall_s()


async def look(node: ClusterNode, queue: Queue) -> tuple[int, int, int]:
    counters = await node.broker.counters(queue)
    return counters.visible, counters.delayed, counters.in_flight


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
def test_an_owners_clock_jumps(tmp_path: Path, jump_s: float) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
        owner = await nodes.owned(queue.shard)
        name = owner.settings.node
        await nodes.until(lambda: len(owner.ownership_loop.members) == 3)
        await brokers.send(owner.broker, queue, [make_send("held"), make_send("later", delay_ms=900_000)])
        (held,) = await brokers.receive(owner.broker, queue, 1, 60_000, 0, "tester")
        assert await look(owner, queue) == (0, 1, 1)

        nodes.ahead_s[name] = jump_s
        assert abs(owner.time_s() - wall_s()) < 1, "signatures are judged by the others' time at once"
        await nodes.until(lambda: any(alarm.kind == "clock-off" for alarm in owner.alarms.active()))
        assert abs(off_s(owner)) < 1
        assert await look(owner, queue) == (0, 1, 1)
        others = [node for node in nodes.hub.nodes.values() if node is not owner]
        await nodes.until(lambda: all(node.ownership_loop.members[name].draining for node in others))

        target = others[0].settings.node
        await owner.ownership_loop.move(queue.shard, target)
        await nodes.until(lambda: nodes.owner(queue.shard) is others[0])
        assert abs(off_s(others[0])) < 1 and await look(others[0], queue) == (0, 1, 1)
        with pytest.raises(Unavailable, match="clock of node"):
            await owner.ownership_loop.take_now(queue.shard, 0)
        assert await brokers.delete(others[0].broker, queue, [held.receipt], strict=True) == [None]

    run_nodes(tmp_path, main, "a", "b", "c", shards=1)


def test_a_node_that_starts_with_a_wrong_clock_takes_nothing_until_it_is_right(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
        nodes.ahead_s["c"] = HOUR_S
        await nodes.start("c")
        wrong = nodes["c"]
        await nodes.until(lambda: wrong.ownership_loop.others.clock_is_off())
        owner = await nodes.owned(queue.shard)
        await brokers.send(owner.broker, queue, [make_send("later", delay_ms=900_000)])
        with pytest.raises(Unavailable):
            await owner.ownership_loop.move(queue.shard, "c")
        await nodes.owned(queue.shard)
        assert wrong.ownership_loop.serving() == []

        nodes.ahead_s["c"] = 0.0
        await nodes.until(lambda: not wrong.ownership_loop.others.clock_is_off())
        for shard in (queue.shard, CATALOG_SHARD):
            await (await nodes.owned(shard)).ownership_loop.move(shard, "c")
        assert abs(off_s(wrong)) < 1, "an hour that no shard has seen is not worked off for ten"
        assert await look(wrong, queue) == (0, 1, 0)

    run_nodes(tmp_path, main, "a", "b", shards=1)


def test_all_nodes_come_back_after_a_while_and_one_has_a_wrong_clock(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
        await brokers.send(nodes["a"].broker, queue, [make_send("later", delay_ms=900_000)])
        await nodes.stop()
        nodes.hub.owners.clear()  # all of them have ended by then
        nodes.ahead_s = {"a": HOUR_S, "b": 300.0, "c": 300.0}  # it is five minutes later

        def could_take() -> bool:
            """The wrong one is there alone, and would have taken what is free if it were right."""
            loop = getattr(nodes["a"], "ownership_loop", None)
            free_s = loop._free_since.get(CATALOG_SHARD) if loop is not None else None
            return free_s is not None and asyncio.get_running_loop().time() > free_s + 2 * balance.BACKOFF_FIRST_S

        first = asyncio.create_task(nodes.start("a"))
        await nodes.until(lambda: "http://a" in nodes.hub.nodes and could_take())
        await nodes.start("b", "c")
        await first
        for shard in (queue.shard, CATALOG_SHARD):
            owner = await nodes.owned(shard)
            assert owner is not nodes["a"] and abs(off_s(owner) - 300) < 1
        assert await look(owner, queue) == (0, 1, 0)

    small = 1 << 20
    run_nodes(tmp_path, main, *"abc", shards=1, lease_s=3.0, segment_bytes=small, catalog_segment_bytes=small)
