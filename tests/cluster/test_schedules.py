"""Schedules in a cluster: made and listed through any node, fired by the owner of their shard, over takeovers."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from batonq.core.payload import decode_attributes
from batonq.core.schedule import Schedule
from batonq.errors import BatonError, ScheduleNotFound
from batonq.node.broker import Queue
from batonq.node.cluster.node import ClusterNode
from batonq.node.schedules.schedule_control import Found
from batonq.node.schedules.scheduled_message import ScheduledMessage, shown_time
from batonq.node.schedules.timing import rate_timing
from tests.cluster.memory import Nodes, known, run_nodes
from tests.node.nodes import ACCOUNT

PATIENCE = 200


def schedule(queue: Queue, name: str, seconds: int, group: str = "") -> Schedule:
    message = ScheduledMessage(b"tick", group=group).text()
    timing = rate_timing(seconds * 1_000, 0).text()
    return Schedule(queue=queue.number, name=name, timing=timing, message=message, group=group, missed="all")


async def found(node: ClusterNode, queue: Queue, name: str) -> Found:
    """The schedule, once its shard has an owner."""
    for _ in range(PATIENCE):
        with suppress(BatonError):
            return await node.broker.schedules.find(queue, name)
        await asyncio.sleep(0.1)
    raise AssertionError("no owner")


async def due_times(node: ClusterNode, queue: Queue) -> dict[str, list[str]]:
    page = await node.broker.peek(queue, 0, 10_000)
    times: dict[str, list[str]] = {}
    for one in page.messages:
        attributes = {row.name: row.value.decode() for row in decode_attributes(one.attributes)}
        times.setdefault(attributes["scheduleName"], []).append(attributes["scheduledTime"])
    return times


def test_any_node_manages_the_schedules_of_all(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        a, b, c = nodes["a"], nodes["b"], nodes["c"]
        names = [f"q{number}" for number in range(6)]
        for name in names:
            await a.broker.create_queue(ACCOUNT, name, {}, {})
            await nodes.until(lambda name=name: any(queue.name == name for queue in b.broker.queues(ACCOUNT)))  # type: ignore[misc]
            queue = known(b, name)
            made, is_new = await b.broker.schedules.create(queue, schedule(queue, "often", 5))
            assert is_new and made.shard == queue.shard
        assert len({known(a, name).shard for name in names}) == 3
        for node in (a, b, c):
            listed, complete = await node.broker.schedules.of_account(ACCOUNT)
            assert complete and [one.queue.name for one in listed] == names
        await c.broker.schedules.change(known(c, "q0"), "often", {"paused": True})
        await a.broker.schedules.delete(known(a, "q1"), "often")
        await asyncio.sleep(6)
        for node in (a, b, c):
            paused = await node.broker.schedules.find(known(node, "q0"), "often")
            assert paused.schedule.paused and not paused.schedule.fired
            with pytest.raises(ScheduleNotFound):
                await node.broker.schedules.find(known(node, "q1"), "often")
            fired = await node.broker.schedules.find(known(node, "q2"), "often")
            assert fired.schedule.fired == 1

    run_nodes(tmp_path, main, "a", "b", "c", shards=3)


@pytest.mark.parametrize("seed", range(2))
def test_takeovers_lose_and_double_no_firing(tmp_path: Path, seed: int) -> None:
    """Owners die without a word, and come back. Every due time becomes one message."""

    async def main(nodes: Nodes) -> None:
        random = Random(seed)
        kept = nodes["a"]
        queues = [await kept.broker.create_queue(ACCOUNT, f"q{number}", {}, {}) for number in range(3)]
        made = {}
        for at, queue in enumerate(queues):
            for number in range(2):
                name = f"s{at}{number}"
                one = schedule(queue, name, random.randint(1, 4))
                made[name] = ((await kept.broker.schedules.create(queue, one))[0].schedule, queue)
        for _ in range(6):
            await asyncio.sleep(random.random() * 6)
            victim = random.choice(("b", "c"))
            await nodes.crash(victim)
            await asyncio.sleep(random.random() * 8)
            await nodes.start(victim)
        await asyncio.sleep(10)
        for name, (first, queue) in made.items():
            now = (await found(kept, queue, name)).schedule
            rate_ms = json.loads(now.timing)["rate_ms"]
            due = [shown_time(first.next_ms + step * rate_ms) for step in range(now.fired)]
            assert (await due_times(kept, queue))[name][: now.fired] == due
            assert now.next_ms == first.next_ms + now.fired * rate_ms and not now.skipped
            assert now.next_ms >= kept.broker.now_ms() - 100, "a firing is missing"

    run_nodes(tmp_path, main, "a", "b", "c", shards=3)


def test_a_schedule_moves_with_its_group_to_a_shard_of_another_node(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        kept = nodes["a"]
        attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true", "DeduplicationScope": "messageGroup"}
        queue = await kept.broker.create_queue(ACCOUNT, "line.fifo", attributes, {})
        groups = [f"g{number}" for number in range(9)]
        for group in groups:
            await kept.broker.schedules.create(queue, schedule(queue, group, 30, group))
        await kept.broker.set_attributes(queue, {"Baton.Spread": "3"})
        queue = known(kept, "line.fifo")
        for _ in range(PATIENCE):
            placed = await kept.broker.schedules.of_queue(queue)
            if all(one.shard == queue.spread.of_key(one.schedule.group) for one in placed):
                break
            await asyncio.sleep(0.2)
        assert len({one.shard for one in placed}) == 3 and sorted(one.schedule.name for one in placed) == groups
        await asyncio.sleep(61)
        for group in groups:
            assert (await found(kept, queue, group)).schedule.fired == 2
        assert {name: len(times) for name, times in (await due_times(kept, queue)).items()} == dict.fromkeys(groups, 2)

    run_nodes(tmp_path, main, "a", "b", "c", shards=3, maintenance_every_s=0.5)
