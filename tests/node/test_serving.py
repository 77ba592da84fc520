"""Serving whoever waits is bounded work: it fits into a frame, loses nothing, and goes on until nothing is left."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from batonq.api.rest.shapes import BATCH_MAX
from batonq.core.limits import (
    COMMAND_ROWS_MAX,
    DEFAULT_LIMITS,
    MOVE_ROWS,
    REQUEST_MESSAGES_MAX,
    ROLL_ROWS,
    STEP_ROWS,
    ShardLimits,
)
from batonq.core.records import FRAME_ROWS_MAX
from batonq.errors import InvalidInput, OverLimit, QueueDoesNotExist, Unavailable
from batonq.node.broker import Queue
from batonq.node.jobs.redrive_scan import CHOSEN_MAX
from batonq.node.node import Node
from batonq.node.settings import Settings
from batonq.node.shard_host.command_groups import TOGETHER_MAX
from tests.node import wide
from tests.node.nodes import ACCOUNT, Faults, make_node, make_send, open_node, send
from tests.node.support import (
    FIFO,
    ORDERS,
    Bench,
    VirtualLoop,
    open_bench,
    policies,
    put,
    run_virtual,
    settle,
    until,
)
from tests.support import brokers
from tests.support.memory_log import MemoryLog


async def watch(node: Node, *patterns: str, count: int = 10, wait_ms: int = 20_000) -> list[str]:
    found = await node.broker.receive_any(node.broker.select(ACCOUNT, patterns), count, None, wait_ms, "tester")
    return [delivery.body.decode() for _, delivery in found]


def rows_max(log: MemoryLog) -> int:
    return max(len(frame.rows) >> 6 for frame in log.frames(1))


# --- many leases that end together -----------------------------------------------------------------


async def lease_many(bench: Bench, count: int) -> None:
    for start in range(0, count, 1_000):
        await bench.send(*["x"] * min(1_000, count - start))
    while await bench.receive(1_000, visibility_ms=10_000):
        pass


@pytest.mark.parametrize(
    ("messages", "settings"),
    [
        (70_000, Settings()),
        (300, Settings(frame_rows_max=3, shard_limits=ShardLimits(timer_records_max=7, given_up_max=1))),
    ],
    ids=["as in production", "tiny limits"],
)
def test_many_leases_that_end_together_beside_many_long_polls(messages: int, settings: Settings) -> None:
    async def main(loop: VirtualLoop) -> None:
        log = MemoryLog(0, segment_bytes=1 << 30)
        bench = Bench(loop, loop.clock(), log, settings)
        bench.validates = messages < 1_000
        await bench.host.start()
        for policy in policies(in_flight_max=1_000_000):
            bench.host.set_policy(policy)
        await lease_many(bench, messages)
        assert bench.shard.counters(ORDERS).in_flight == messages
        polls = [loop.create_task(bench.receive(10, 20_000)) for _ in range(40)]
        found = [len(leases) for leases in await asyncio.gather(*polls)]
        assert min(found) > 0 and not bench.failures
        assert loop.time() == pytest.approx(10, abs=0.5)
        await until(lambda: bench.shard.counters(ORDERS).in_flight == sum(found))
        assert bench.shard.counters(ORDERS).visible == messages - sum(found)
        assert rows_max(log) <= settings.frame_rows_max + COMMAND_ROWS_MAX
        bench.shard.validate()

    run_virtual(main)


def test_a_frame_has_room_for_what_is_in_it_and_for_one_command() -> None:
    """The arithmetic behind the limits; Settings.check sees to those that can be set."""
    assert ROLL_ROWS + COMMAND_ROWS_MAX == FRAME_ROWS_MAX
    assert DEFAULT_LIMITS.command_rows <= COMMAND_ROWS_MAX
    assert BATCH_MAX <= REQUEST_MESSAGES_MAX, "what a request by REST brings"
    assert TOGETHER_MAX * (10 + 1) <= COMMAND_ROWS_MAX - STEP_ROWS, "requests by SQS that are run together"
    assert CHOSEN_MAX * (MOVE_ROWS + 2) <= COMMAND_ROWS_MAX - STEP_ROWS, "a step of a job that was fed"
    Settings().check()
    for settings in (
        Settings(frame_rows_max=ROLL_ROWS + 1),
        Settings(frame_rows_max=0),
        Settings(pending_max=0),
        Settings(frame_bytes_max=0),
        Settings(shard_limits=ShardLimits(given_up_max=COMMAND_ROWS_MAX)),
    ):
        with pytest.raises(InvalidInput):
            settings.check()
    Settings(frame_rows_max=1, pending_max=1, shard_limits=ShardLimits(given_up_max=1)).check()


# --- messages that nobody gets any more stand in front ----------------------------------------------


def redrive_to(name: str, receives: int = 1) -> str:
    arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{name}"
    return json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": receives})


async def use_up(node: Node, queue: Queue, count: int) -> None:
    """Messages of as many groups that have been received as often as they may."""
    for start in range(0, count, 10):
        sends = [make_send("old", group=f"{at}", dedup_id=f"{at}") for at in range(start, min(start + 10, count))]
        await brokers.send(node.broker, queue, sends)
    left = count
    while left:
        left -= len(await brokers.receive(node.broker, queue, 1_000, 60_000, 0, "tester"))
    await asyncio.sleep(60)
    await until(lambda: _idle(node))


def _idle(node: Node) -> bool:
    return all(
        keeper.host().commit.idle and (keeper.host().shard.next_due() or 1 << 62) > node.clock.now_ms()
        for keeper in node.shards
    )


@pytest.mark.parametrize(("count", "given_up_max"), [(2_500, 1_000), (9, 2), (9, 1)])
@pytest.mark.parametrize("by", ["queue", "pattern", "hint"])
def test_a_long_poll_is_answered_although_used_up_messages_stand_in_front(
    tmp_path: Path, count: int, given_up_max: int, by: str
) -> None:
    async def main(loop: VirtualLoop) -> None:
        limits = ShardLimits(given_up_max=given_up_max)
        node = await open_node(loop, tmp_path, shards=2 if by == "hint" else 1, shard_limits=limits)
        attributes = {"FifoQueue": "true", "RedrivePolicy": redrive_to("dead.fifo")}
        await node.broker.create_queue(ACCOUNT, "dead.fifo", {"FifoQueue": "true"}, {})
        if by == "hint":
            queue = await wide.make_fifo(node, "jobs.fifo", 2, RedrivePolicy=redrive_to("dead.fifo"))
        else:
            queue = await node.broker.create_queue(ACCOUNT, "jobs.fifo", attributes, {})
        await use_up(node, queue, count)
        await brokers.send(node.broker, queue, [make_send("new", group="new", dedup_id="new")])
        began_s = loop.time()
        if by == "pattern":
            assert await watch(node, "jobs*", wait_ms=20_000) == ["new"]
        else:
            found = await brokers.receive(node.broker, queue, 10, None, 20_000, "tester")
            assert [delivery.body for delivery in found] == [b"new"]
        assert loop.time() - began_s < 1
        await node.stop()

    run_virtual(main)


def test_a_dead_letter_that_serving_makes_wakes_who_waits_for_dead_letters(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        await node.broker.create_queue(ACCOUNT, "dead.fifo", {"FifoQueue": "true"}, {})
        attributes = {"FifoQueue": "true", "RedrivePolicy": redrive_to("dead.fifo")}
        queue = await node.broker.create_queue(ACCOUNT, "jobs.fifo", attributes, {})
        await use_up(node, queue, 1)
        dead = loop.create_task(watch(node, "dead.fifo", wait_ms=60_000))
        await settle()
        began_s = loop.time()
        assert await watch(node, "jobs.fifo", wait_ms=5_000) == []
        assert await dead == ["old"]
        assert loop.time() - began_s < 6
        await node.stop()

    run_virtual(main)


# --- nothing is told that is not committed, and no lease is lost ------------------------------------


def test_a_poll_over_many_queues_whose_time_ends_before_the_commit_waits_for_the_commit(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        node = make_node(loop, tmp_path, faults=faults)
        await node.start()
        queue = await node.broker.create_queue(ACCOUNT, "jobs-a", {}, {})
        polling = loop.create_task(watch(node, "jobs-*", wait_ms=1_000))
        await settle()
        faults.planned[0] = ["stall"]
        sending = loop.create_task(send(node, queue, "x"))
        await asyncio.sleep(1.5)
        assert not polling.done() and not sending.done(), "neither the message nor its lease is committed"
        assert await polling == ["x"]
        await sending
        faults.planned[0] = ["refuse"]
        polling = loop.create_task(watch(node, "jobs-*", wait_ms=1_000))
        await settle()
        with pytest.raises(Unavailable):
            await send(node, queue, "lost")
        with pytest.raises(Unavailable):
            await polling
        await node.stop()

    run_virtual(main)


def test_a_poll_that_finds_no_place_at_one_shard_waits_at_none(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=2, waiters_max=1)
        queues = [await node.broker.create_queue(ACCOUNT, f"jobs-{at}", {}, {}) for at in range(4)]
        there = next(queue for queue in queues if queue.shard == 1)
        here = next(queue for queue in queues if queue.shard == 0)
        taken = loop.create_task(brokers.receive(node.broker, there, 1, None, 20_000, "tester"))
        await settle()
        with pytest.raises(OverLimit):
            await watch(node, "jobs-*")
        assert node.keeper(0).host().polls.total == 0
        await send(node, here, "x")
        assert (await node.broker.counters(here)).visible == 1, "nobody who has gone was given it"
        taken.cancel()
        await node.stop()

    run_virtual(main)


def test_what_was_taken_from_one_shard_is_kept_when_another_refuses(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3, frame_rows_max=3)
        queues = [await node.broker.create_queue(ACCOUNT, f"jobs-{at}", {}, {}) for at in range(6)]
        by_shard = {queue.shard: queue for queue in queues}
        for queue in by_shard.values():
            await send(node, queue, "x")
        busy = node.keeper(1).host()
        await asyncio.sleep(0)
        for _ in range(4):
            put(busy, by_shard[1].number, [make_send("filled")])
        with pytest.raises(OverLimit):
            put(busy, by_shard[1].number, [make_send("one more")])
        assert sorted(await watch(node, "jobs-*", wait_ms=0)) == ["x", "x"]
        assert "x" in await watch(node, "jobs-*")
        await node.stop()

    run_virtual(main)


def test_what_was_taken_before_a_shard_breaks_off_is_handed_over(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=2)
        queues = [await node.broker.create_queue(ACCOUNT, f"jobs-{at}", {}, {}) for at in range(4)]
        first, second = (next(queue for queue in queues if queue.shard == shard) for shard in (0, 1))
        await send(node, first, "kept")
        await send(node, second, "x")
        broken = node.keeper(1).host().shard

        def break_off(*_: Any) -> Any:
            raise RuntimeError("broken by the test")

        broken.runs.on_first_leases = break_off  # type: ignore[assignment,method-assign]
        selection = node.broker.select(ACCOUNT, ["jobs-*"])
        selection.turn = first.number
        found = await node.broker.receive_any(selection, 10, None, 20_000, "tester")
        assert [delivery.body for _, delivery in found] == [b"kept"]
        await until(lambda: node.keeper(1).serving)
        assert await watch(node, "jobs-*") == ["x"]
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("by_pattern", [False, True])
def test_leases_that_cannot_be_extended_are_handed_over_as_they_are(tmp_path: Path, by_pattern: bool) -> None:
    """Their commit took long, and the shard takes nothing more: they are committed, and the client is told of them."""

    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        node = make_node(loop, tmp_path, faults=faults, frame_rows_max=2)
        await node.start()
        queue = await node.broker.create_queue(ACCOUNT, "jobs-a", {"VisibilityTimeout": "10"}, {})
        await send(node, queue, "x")
        faults.planned[0] = ["stall", "refuse"]
        polling: asyncio.Task[Any] = loop.create_task(
            watch(node, "jobs-*") if by_pattern else brokers.receive(node.broker, queue, 1, None, 20_000, "tester")
        )
        await settle()
        sends = [loop.create_task(send(node, queue, "later")) for _ in range(5)]
        found = await polling
        assert [one if by_pattern else one.body.decode() for one in found] == ["x"]
        await asyncio.gather(*sends, return_exceptions=True)
        await node.stop()

    run_virtual(main)


# --- queues that go ---------------------------------------------------------------------------------


def test_whoever_waits_on_a_queue_that_is_deleted_hears_of_it(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=2, frame_rows_max=1)
        plain = await node.broker.create_queue(ACCOUNT, "plain", {}, {})
        spread = await wide.make_fifo(node, "wide.fifo", 2, Baton_MaximumInFlight="2")
        await brokers.send(
            node.broker, spread, [make_send(f"{at}", group=f"{at}", dedup_id=f"{at}") for at in range(8)]
        )
        for _ in range(2):
            assert len(await brokers.receive(node.broker, spread, 1, None, 0, "tester")) == 1
        polls = [
            loop.create_task(brokers.receive(node.broker, queue, 1, None, 20_000, "tester"))
            for queue in (plain, plain, spread, spread)
        ]
        await settle()
        assert not any(task.done() for task in polls)
        for queue in (plain, spread):
            await node.broker.delete_queue(queue)
        ended, _ = await asyncio.wait(polls, timeout=8)
        assert [type(task.exception()) for task in ended] == [QueueDoesNotExist] * 4
        other = await node.broker.create_queue(ACCOUNT, "other", {}, {})
        await send(node, other, "x")
        await node.stop()

    run_virtual(main)


def test_a_fifo_group_that_is_free_again_is_served_to_whoever_waits() -> None:
    async def main(loop: VirtualLoop) -> None:
        bench = await open_bench(loop, settings=Settings(frame_rows_max=1))
        await bench.send(*"abc", queue=FIFO, group="g")
        (lease,) = await bench.receive(1, queue=FIFO)
        waiting = [loop.create_task(bench.receive(1, 20_000, queue=FIFO)) for _ in range(3)]
        await settle()
        assert not any(task.done() for task in waiting)
        assert await bench.delete(lease, queue=FIFO) == [None]
        await settle()
        assert [task.done() for task in waiting] == [True, False, False]
        for task in waiting[1:]:
            task.cancel()
        await settle()
        assert await bench.send("x")

    run_virtual(main)
