"""Pausing and pacing on whole nodes: long polls wait and wake, and a cap holds on average wherever the shards are."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from batonq.errors import QueuePaused
from batonq.node.broker import Queue
from batonq.node.node import Node
from tests.cluster.memory import Nodes, run_nodes
from tests.node.nodes import ACCOUNT, drain, open_node, receive, send
from tests.node.support import VirtualLoop, run_virtual


async def change(node: Node, queue: Queue, **attributes: str) -> Queue:
    """Change attributes, which are given without their prefix."""
    await node.broker.set_attributes(queue, {f"Baton.{name}": value for name, value in attributes.items()})
    found = node.broker.queue_by_number(queue.number)
    assert found is not None
    return found


async def make(node: Node, **attributes: str) -> Queue:
    return await node.broker.create_queue(ACCOUNT, "orders", {f"Baton.{k}": v for k, v in attributes.items()}, {})


@pytest.mark.parametrize("spread", ["1", "3"])
@pytest.mark.parametrize("paused", ["delivery", "both"])
def test_a_long_poll_on_a_paused_queue_waits_and_wakes_on_resume(tmp_path: Path, spread: str, paused: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3)
        queue = await make(node, Spread=spread)
        await send(node, queue, "a")
        queue = await change(node, queue, Paused=paused)
        poll = asyncio.ensure_future(receive(node, queue, wait_ms=20_000))
        await asyncio.sleep(10)
        assert not poll.done(), "a receive on a paused queue waits"
        resumed_s = loop.time()
        queue = await change(node, queue, Paused="none")
        assert [one.body for one in await poll] == [b"a"]
        assert loop.time() - resumed_s < 0.1
        await node.stop()

    run_virtual(main)


def test_a_receive_over_many_queues_wakes_when_one_of_them_is_resumed(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await make(node, Paused="delivery")
        await send(node, queue, "a")
        selection = node.broker.select(ACCOUNT, ["ord*"])
        poll = asyncio.ensure_future(node.broker.receive_any(selection, 10, None, 20_000, "tester"))
        await asyncio.sleep(5)
        assert not poll.done()
        await change(node, queue, Paused="none")
        assert [one.body for _, one in await poll] == [b"a"]
        await node.stop()

    run_virtual(main)


def test_a_long_poll_wakes_when_another_group_or_priority_is_let_through(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await make(node, OnlyGroup="vip")
        await send(node, queue, "a", group="other", priority=10)
        poll = asyncio.ensure_future(receive(node, queue, wait_ms=20_000))
        await asyncio.sleep(5)
        queue = await change(node, queue, OnlyGroup="", MinimumPriority="200")
        await asyncio.sleep(5)
        assert not poll.done()
        await change(node, queue, MinimumPriority="0")
        assert [one.body for one in await poll] == [b"a"]
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("spread", ["1", "3"])
def test_a_paused_queue_refuses_sends_also_on_several_shards(tmp_path: Path, spread: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3)
        queue = await make(node, Spread=spread, Paused="sends")
        for text in "abc":
            (refused,) = await send(node, queue, text)
            assert isinstance(refused, QueuePaused) and "orders" in refused.message
        queue = await change(node, queue, Paused="none")
        await send(node, queue, "d")
        assert await drain(node, queue) == ["d"]
        await node.stop()

    run_virtual(main)


def test_a_pause_survives_a_restart(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await make(node, DeliveriesPerSecond="2")
        await send(node, queue, "a", "b", "c")
        await change(node, queue, Paused="delivery")
        await node.stop()
        node = await open_node(loop, tmp_path)
        queue = node.broker.queue(ACCOUNT, "orders")
        assert (queue.policy.paused, queue.policy.deliveries_per_s) == ("delivery", 2)
        assert not await receive(node, queue)
        await change(node, queue, Paused="none")
        assert len(await receive(node, queue)) == 1
        await node.stop()

    run_virtual(main)


# --- pacing ----------------------------------------------------------------------------------------


async def consume(loop: Any, node: Node, queue: Queue, seconds: float, count: int) -> list[float]:
    """When messages came to a consumer that does nothing but long polls."""
    times: list[float] = []
    end_s = loop.time() + seconds
    while (left_s := end_s - loop.time()) > 0:
        found = await receive(node, queue, count, wait_ms=int(min(left_s, 20) * 1000), visibility_ms=3_600_000)
        times += [loop.time()] * len(found)
        if not found:
            await asyncio.sleep(0.001)
    return times


def check_smooth(times: list[float], rate: float, seconds: float, burst: float) -> None:
    """As many messages as the rate allows, and never many more than that in any second."""
    assert abs(len(times) - rate * seconds) <= burst + 1, f"{len(times)} in {seconds} s at {rate} per second"
    for at, start in enumerate(times):
        within = sum(start <= other < start + 1 for other in times[at : at + int(3 * rate + burst) + 3])
        assert within <= rate + burst + 1, "a burst above the cap"


@pytest.mark.parametrize(
    ("rate", "spread", "consumers", "seconds"),
    [(3, 1, 1, 60), (3, 3, 5, 60), (40, 1, 5, 20), (40, 3, 1, 20), (600, 1, 5, 4), (600, 3, 5, 4)],
)
def test_a_cap_is_exact_on_average_and_smooth(
    tmp_path: Path, rate: int, spread: int, consumers: int, seconds: int
) -> None:

    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3)
        queue = await make(node, Spread=str(spread), DeliveriesPerSecond=str(rate))
        for _ in range(0, rate * seconds * 3 // 2 + 100, 100):
            await send(node, queue, *["x"] * 100)
        parts = await asyncio.gather(*(consume(loop, node, queue, seconds, 10) for _ in range(consumers)))
        times = sorted(time_s for part in parts for time_s in part)
        # Each shard may be ahead by a tenth of a second, and by one message.
        check_smooth(times, rate, seconds, rate * 0.1 + 2 * spread)
        await node.stop()

    run_virtual(main)


def test_a_receive_over_many_queues_obeys_the_cap(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await make(node, DeliveriesPerSecond="10")
        await send(node, queue, *["x"] * 100)
        selection = node.broker.select(ACCOUNT, ["ord*"])
        start_s, count = loop.time(), 0
        while loop.time() < start_s + 5:
            count += len(await node.broker.receive_any(selection, 10, None, 1_000, "tester"))
        assert 50 <= count <= 53
        await node.stop()

    run_virtual(main)


def test_a_queue_without_a_cap_is_not_delayed_by_another_one_with_a_cap(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=1)
        await make(node, DeliveriesPerSecond="1")
        free = await node.broker.create_queue(ACCOUNT, "free", {}, {})
        await send(node, free, *["x"] * 100)
        assert len(await drain(node, free)) == 100
        assert loop.time() < 1
        await node.stop()

    run_virtual(main)


# --- a cluster -------------------------------------------------------------------------------------


def test_a_cap_and_a_pause_hold_in_a_cluster_whichever_node_is_asked(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        first, second = nodes["a"], nodes["b"]
        loop = asyncio.get_running_loop()
        queue = await make(first, Spread="3", DeliveriesPerSecond="20")
        for _ in range(10):
            await send(first, queue, *["x"] * 50)
        parts = await asyncio.gather(
            *(consume(loop, node, queue, 10, 10) for node in (first, second) for _ in range(2))
        )
        times = sorted(time_s for part in parts for time_s in part)
        check_smooth(times, 20, 10, 20 * 0.1 + 6)
        queue = await change(first, queue, DeliveriesPerSecond="0", Paused="both")
        poll = asyncio.ensure_future(receive(second, queue, wait_ms=20_000))
        await asyncio.sleep(3)
        assert not poll.done()
        assert isinstance((await send(second, queue, "y"))[0], QueuePaused)
        await change(second, queue, Paused="none")
        assert await poll

    run_nodes(tmp_path, main, "a", "b")
