"""Whatever way messages come to a queue, they obey its pause: redrives, replays, schedules and copies of publishes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from batonq.core.commands import Accepted
from batonq.node.broker import Queue
from batonq.node.jobs.replay_control import Replay
from batonq.node.node import Node
from tests.node.nodes import ACCOUNT, drain, open_node, receive, send
from tests.node.support import VirtualLoop, run_virtual, until
from tests.node.test_jobs import ended
from tests.node.test_replays import with_history
from tests.node.test_schedules import create, shown
from tests.node.topics import delivered, make_queue, make_topic, publish, subscribe


async def pause(node: Node, queue: Queue, what: str) -> None:
    await node.broker.set_attributes(queue, {"Baton.Paused": what})


@pytest.mark.parametrize("shards", [1, 2])
def test_a_replay_waits_for_a_paused_queue(tmp_path: Path, shards: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=shards)
        queue, other = await with_history(node, 20, shards)
        await pause(node, other, "sends")
        job = await node.broker.start_replay(queue, Replay(target=other, rate_per_s=1_000))

        async def waits() -> bool:
            return "paused" in (await node.broker.job(ACCOUNT, job.id)).why

        await until(waits)
        assert (await node.broker.counters(other)).sent == 0
        await pause(node, other, "none")
        status = await ended(node, job)
        assert (status.state, status.moved) == ("COMPLETED", 20)
        assert sorted(map(int, await drain(node, other))) == [*range(20)]
        await node.stop()

    run_virtual(main)


def test_a_schedule_waits_for_a_paused_queue_and_misses_nothing(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "jobs", {}, {})
        await pause(node, queue, "sends")
        await create(node, queue)
        await asyncio.sleep(15)
        waiting = await shown(node, queue)
        assert waiting.fired == 0 and "paused" in waiting.why
        assert (await node.broker.counters(queue)).visible == 0
        await pause(node, queue, "none")
        await asyncio.sleep(65)
        assert (await shown(node, queue)).fired >= 7 and not (await shown(node, queue)).why
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("paused", ["sends", "both"])
def test_copies_of_a_publish_wait_for_a_paused_queue_and_others_do_not(tmp_path: Path, paused: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=2)
        topic = await make_topic(node)
        queues = [await make_queue(node, f"q{number}") for number in range(4)]
        for queue in queues:
            await subscribe(node, topic, queue.name)
        for held in queues[:2]:
            await pause(node, held, paused)
        (sent,) = await publish(node, topic, "news")
        assert isinstance(sent, Accepted)
        for free in queues[2:]:
            assert [one.body for one in await receive(node, free, wait_ms=5_000)] == [b"news"]
        assert [(await node.broker.counters(held)).visible for held in queues[:2]] == [0, 0]
        for held in queues[:2]:
            await pause(node, held, "none")
        await delivered(node)
        for held in queues[:2]:
            assert await drain(node, held) == ["news"]
        await node.stop()

    run_virtual(main)


def test_a_paced_queue_delivers_copies_and_schedules_at_its_rate(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        topic = await make_topic(node)
        queue = await make_queue(node, "slow", {"Baton.DeliveriesPerSecond": "5"})
        await subscribe(node, topic, queue.name)
        await publish(node, topic, *map(str, range(10)))
        await send(node, queue, *map(str, range(10)))
        await delivered(node)
        start_s, count = loop.time(), 0
        while count < 20:
            count += len(await receive(node, queue, wait_ms=5_000))
        assert loop.time() - start_s == pytest.approx(19 / 5, abs=0.3)
        await node.stop()

    run_virtual(main)
