"""The alarm desk of a node: it goes on after a failure, keeps alarms while a shard is away, and evaluates by itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from batonq.errors import Unavailable
from batonq.node.alarms.desk import EVERY_S
from batonq.node.monitoring.overview import Overview
from batonq.node.node import Node
from tests.node.nodes import ACCOUNT, Faults, open_node, send
from tests.node.support import VirtualLoop, run_virtual, until

DEAD = {"RedrivePolicy": f'{{"maxReceiveCount":1,"deadLetterTargetArn":"arn:aws:sqs:us-east-1:{ACCOUNT}:dead"}}'}


async def with_dead_letter(loop: VirtualLoop, directory: Path, faults: Faults | None = None) -> Node:
    node = await open_node(loop, directory, faults=faults, alarm_disk_share=0.9999)
    dead = await node.broker.create_queue(ACCOUNT, "dead", {}, {})
    await node.broker.create_queue(ACCOUNT, "orders", DEAD, {})
    await send(node, dead, "x")
    return node


def ids(node: Node) -> list[str]:
    return [alarm.id for alarm in node.alarms.active()]


def test_the_rules_are_evaluated_every_few_seconds(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await with_dead_letter(loop, tmp_path)
        began_s = loop.time()
        await until(lambda: ids(node) == ["dead-letters.dead"])
        assert 60 <= loop.time() - began_s <= 60 + 3 * EVERY_S
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("problem", [Unavailable("not now"), ZeroDivisionError("a bug")])
def test_a_failure_does_not_end_the_watch(tmp_path: Path, problem: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await with_dead_letter(loop, tmp_path)
        failures = 0

        async def fail() -> Overview:
            nonlocal failures
            failures += 1
            raise problem

        with monkeypatch.context() as patch:
            patch.setattr(node.monitor, "fresh_overview", fail)
            await asyncio.sleep(100)
        assert failures > 10 and ids(node) == []
        await until(lambda: ids(node) == ["dead-letters.dead"])
        await node.stop()

    run_virtual(main)


def test_the_alarms_of_queues_stay_while_their_shard_is_away(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        node = await with_dead_letter(loop, tmp_path, faults)
        await until(lambda: ids(node) == ["dead-letters.dead"])
        raised_ms = node.alarms.active()[0].raised_ms
        faults.planned[0] = ["refuse"] * 50
        orders = node.broker.queue(ACCOUNT, "orders")
        with pytest.raises(Unavailable):
            await send(node, orders, "y")
        await asyncio.sleep(60)
        assert ids(node) == ["shard-stopped.0", "dead-letters.dead"]  # once: the rule about shards is silent
        faults.planned[0] = []
        await until(lambda: "shard-stopped.0" not in ids(node))
        await asyncio.sleep(60)
        (alarm,) = node.alarms.active()
        assert (alarm.id, alarm.raised_ms) == ("dead-letters.dead", raised_ms)
        await node.stop()

    run_virtual(main)


def test_a_stopped_shard_does_not_hide_another_whose_number_it_begins_with(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=11, alarm_disk_share=0.9999)
        node.alarms.put("shard-stopped", "Shard 10 stopped.", of=10)
        await node.shards[1].close()
        await asyncio.sleep(120)
        assert sorted(ids(node)) == ["shard-stopped.10", "shard-unserved.1"]
        await node.stop()

    run_virtual(main)


def test_a_message_that_was_delayed_for_long_is_not_late(tmp_path: Path) -> None:
    """Neither while it is delayed nor when it becomes visible; only when it then waits for longer than the SLA."""

    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, alarm_disk_share=0.9999, alarm_no_consumer_s=1e9)
        attributes = {"Baton.SLASeconds": "300", "MessageRetentionPeriod": "86400"}
        queue = await node.broker.create_queue(ACCOUNT, "orders", attributes, {})
        await send(node, queue, "in 100 days", delay_ms=100 * 86_400_000)
        await node.broker.advance_clock(100 * 86_400_000 - 60_000)
        await asyncio.sleep(30)
        assert ids(node) == []
        await asyncio.sleep(90)
        assert (await node.broker.counters(queue)).visible == 1 and ids(node) == []
        await asyncio.sleep(400)
        assert ids(node) == ["sla-age.orders"]
        await node.stop()

    run_virtual(main)
