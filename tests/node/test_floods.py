"""More requests than a shard can write, and long polls over many queues among them: all are answered, it recovers."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from batonq.core.catalog.machine import Catalog
from batonq.core.commands import Accepted
from batonq.core.limits import ShardLimits
from batonq.errors import BatonError, DiskFull, OverLimit, Unavailable
from batonq.log.interface import Room
from batonq.log.layout import CATALOG_SHARD
from batonq.node.broker import Queue
from batonq.node.node import Node
from batonq.node.shard_host.host import committed
from tests.node.nodes import ACCOUNT, Faults, kill, make_node, make_send, send
from tests.node.support import VirtualLoop, put, run_virtual, settle, until
from tests.support import brokers

LONG_S = 300.0  # of virtual time: by then everything has been answered, or never will be


async def start(loop: VirtualLoop, directory: Path, faults: Faults | None = None, **settings: Any) -> Node:
    node = make_node(loop, directory, faults=faults or Faults(), **settings)
    await node.start()
    return node


async def make_queue(node: Node, name: str, **attributes: str) -> Queue:
    return await node.broker.create_queue(ACCOUNT, name, attributes, {})


async def watch(node: Node, pattern: str, count: int = 10, wait_ms: int = 20_000) -> list[str]:
    found = await node.broker.receive_any(node.broker.select(ACCOUNT, [pattern]), count, None, wait_ms, "tester")
    return [delivery.body.decode() for _, delivery in found]


async def poll(node: Node, queue: Queue, count: int = 10, wait_ms: int = 20_000) -> list[str]:
    return [
        delivery.body.decode() for delivery in await brokers.receive(node.broker, queue, count, None, wait_ms, "tester")
    ]


async def send_batch(node: Node, queue: Queue, size: int = 10) -> str:
    """What became of one request: `sent`, or the name of its error."""
    try:
        results = await brokers.send(node.broker, queue, [make_send("x") for _ in range(size)])
    except BatonError as problem:
        return type(problem).__name__
    assert all(isinstance(result, Accepted) for result in results)
    return "sent"


async def answered(tasks: list[asyncio.Task[Any]]) -> None:
    _, waiting = await asyncio.wait(tasks, timeout=LONG_S)
    for task in waiting:
        task.cancel()
    assert not waiting, f"{len(waiting)} of {len(tasks)} requests were never answered"


@pytest.mark.parametrize(
    ("requests", "settings"),
    [(2_000, {}), (60, {"frame_rows_max": 20}), (60, {"frame_bytes_max": 500}), (60, {"pending_max": 3})],
    ids=["as in production", "few records", "few bytes", "few requests"],
)
def test_a_disk_that_stalls_in_a_flood_beside_a_poll_over_many_queues(
    tmp_path: Path, requests: int, settings: dict[str, Any]
) -> None:
    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        node = await start(loop, tmp_path, faults, **settings)
        queue = await make_queue(node, "jobs-a")
        polling = loop.create_task(watch(node, "jobs-*"))
        await settle()
        faults.planned[queue.shard] = ["stall"]
        first = loop.create_task(send_batch(node, await make_queue(node, "other")))
        await settle()
        flood = [loop.create_task(send_batch(node, queue)) for _ in range(requests)]
        await answered([polling, first, *flood])
        assert polling.result() == ["x"] * 10 and first.result() == "sent"
        outcomes = Counter(task.result() for task in flood)
        assert set(outcomes) == {"sent", "OverLimit"}
        assert await send_batch(node, queue) == "sent"
        counters = await node.broker.counters(queue)
        assert counters.visible + counters.in_flight == 10 * (outcomes["sent"] + 1)
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize(("requests", "frame_rows_max"), [(2_000, 16_384), (60, 20), (60, 1)])
def test_more_records_in_one_turn_than_a_frame_takes(tmp_path: Path, requests: int, frame_rows_max: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await start(loop, tmp_path, frame_rows_max=frame_rows_max)
        queue = await make_queue(node, "jobs-a")
        polls = [loop.create_task(watch(node, "jobs-*", 1)) for _ in range(5)]
        polls += [loop.create_task(poll(node, queue, 1)) for _ in range(5)]
        await settle()
        flood = [loop.create_task(send_batch(node, queue)) for _ in range(requests)]
        await answered([*polls, *flood])
        assert [task.result() for task in polls] == [["x"]] * 10
        assert set(Counter(task.result() for task in flood)) == {"sent", "OverLimit"}
        assert await send_batch(node, queue) == "sent"
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("frame_rows_max", [1, 2, 3, 16_384])
@pytest.mark.parametrize("by_pattern", [False, True])
def test_whoever_waits_is_served_although_nothing_else_happens(
    tmp_path: Path, frame_rows_max: int, by_pattern: bool
) -> None:
    """One frame has room for few of them: serving goes on after the commit, without another client's request."""

    async def main(loop: VirtualLoop) -> None:
        node = await start(loop, tmp_path, frame_rows_max=frame_rows_max)
        queues = [await make_queue(node, f"jobs-{name}") for name in "abc"]
        polls = [
            loop.create_task(watch(node, "jobs-*", 2) if by_pattern else poll(node, queues[at % 3], 2))
            for at in range(30)
        ]
        await settle()
        asked_s = loop.time()
        for queue in queues:
            await send(node, queue, *["x"] * 20)
        await answered(polls)
        assert all(task.result() for task in polls), "less than was asked for, perhaps, but something"
        assert loop.time() - asked_s < 1
        await node.stop()

    run_virtual(main)


def test_senders_who_keep_the_frame_full_do_not_keep_others_waiting(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        node = await start(loop, tmp_path, faults, frame_rows_max=20)
        queue, other = await make_queue(node, "jobs-a"), await make_queue(node, "other")
        polls = [loop.create_task(watch(node, "jobs-*", 1)), loop.create_task(poll(node, queue, 1))]
        await settle()
        faults.planned[0] = ["stall"] * 5
        asked_s = loop.time()

        async def flood() -> None:
            while loop.time() < asked_s + 10:
                await send_batch(node, other, 5)
                await asyncio.sleep(0.01)

        floods = [loop.create_task(flood()) for _ in range(20)]
        await asyncio.sleep(1)
        assert await send_batch(node, queue, 2) in ("sent", "OverLimit")
        while not all(task.done() for task in polls) and loop.time() < asked_s + 10:
            await send_batch(node, queue, 2)
            await asyncio.sleep(0.1)
        assert [task.done() for task in polls] == [True, True]
        await asyncio.gather(*floods)
        await node.stop()

    run_virtual(main)


def test_a_queue_is_changed_while_its_shard_is_full(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        node = await start(loop, tmp_path, faults, frame_rows_max=20)
        queue, doomed = await make_queue(node, "orders"), await make_queue(node, "doomed")
        faults.planned[0] = ["stall"]
        requests = [loop.create_task(send_batch(node, queue))]
        await settle()
        requests += [loop.create_task(send_batch(node, queue)) for _ in range(10)]
        await settle()
        assert await send_batch(node, queue) == "OverLimit"
        changes = [
            loop.create_task(node.broker.set_attributes(queue, {"VisibilityTimeout": "7"})),
            loop.create_task(node.broker.delete_queue(doomed)),
            loop.create_task(make_queue(node, "new")),
        ]
        await answered([*requests, *changes])
        assert [task.exception() for task in changes] == [None, None, None]
        await poll(node, queue, 1)
        shard = node.keeper(0).host().shard
        assert shard.next_due() == node.clock.now_ms() + 7_000
        assert doomed.number not in [number for number, state in shard.queues.items() if not state.closed]
        await node.stop()

    run_virtual(main)


def test_a_shard_that_was_away_is_told_of_more_queues_than_a_frame_takes(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        node = await start(loop, tmp_path, faults, frame_rows_max=5, reopen_first_s=5.0)
        orders = await make_queue(node, "orders")
        faults.planned[0] = ["refuse"]
        with pytest.raises(Unavailable):
            await send(node, orders, "lost")
        for at in range(30):
            with pytest.raises(Unavailable):
                await make_queue(node, f"new-{at}")
        await until(lambda: node.keeper(0).serving)
        for at in range(30):
            queue = await make_queue(node, f"new-{at}")
            await send(node, queue, "x")
        found: list[str] = []
        while some := await watch(node, "new-*", 100, 0):
            found += some
        assert found == ["x"] * 30
        await node.stop()

    run_virtual(main)


def test_a_disk_without_room_holds_up_polls_over_many_queues_and_nothing_else(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await start(loop, tmp_path)
        queue = await make_queue(node, "jobs-a")
        polling = loop.create_task(watch(node, "jobs-*", wait_ms=60_000))
        await settle()
        host = node.keeper(0).host()
        log = host.log
        put(host, queue.number, [make_send("x") for _ in range(10)])
        room = log.room
        log.room = lambda: Room.NONE  # type: ignore[method-assign]
        await asyncio.wait_for(committed(host), LONG_S)  # it was decided before
        with pytest.raises(DiskFull):
            await send(node, queue, "refused")
        assert not polling.done()
        await asyncio.sleep(10)
        log.room = room  # type: ignore[method-assign]
        await answered([polling])
        assert polling.result() == ["x"] * 10
        await node.stop()

    run_virtual(main)


def test_a_catalog_that_is_away_ends_polls_by_pattern_and_holds_up_nothing(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await start(loop, tmp_path)
        queue = await make_queue(node, "jobs-a")
        host = node.keeper(0).host()
        polling = loop.create_task(watch(node, "jobs-*", wait_ms=60_000))
        await settle()
        catalog, node.catalog._catalog = node.catalog._catalog, None
        put(host, queue.number, [make_send("x")])
        point = host.point()
        assert point is not None
        await asyncio.wait_for(point, LONG_S)
        with pytest.raises(Unavailable):
            await polling
        node.catalog._catalog = catalog
        assert await watch(node, "jobs-*") == ["x"]
        await node.stop()

    run_virtual(main)


def test_a_purge_goes_through_although_the_shard_is_busy(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        limits = ShardLimits(purge_step_max=5)
        node = await start(loop, tmp_path, faults, frame_rows_max=5, shard_limits=limits)
        queue = await make_queue(node, "orders")
        for _ in range(4):
            assert await send_batch(node, queue) == "sent"
        purge = loop.create_task(node.broker.purge_queue(queue))
        await asyncio.sleep(0)
        faults.planned[0] = ["stall", "stall"]
        flood = [loop.create_task(send_batch(node, await make_queue(node, "other"))) for _ in range(5)]
        await answered([purge, *flood])
        assert purge.exception() is None
        assert (await node.broker.counters(queue)).visible == 0
        await node.stop()

    run_virtual(main)


def test_a_command_that_breaks_off_while_a_poll_is_served_ends_the_poll_and_tells_no_lease(tmp_path: Path) -> None:
    """The leases that were made for it before are never committed."""

    async def main(loop: VirtualLoop) -> None:
        node = await start(loop, tmp_path)
        queues = [await make_queue(node, f"jobs-{name}") for name in "abc"]
        polling = loop.create_task(watch(node, "jobs-*", 9, wait_ms=60_000))
        await settle()
        shard = node.keeper(0).host().shard
        lease = shard.runs.on_first_leases
        leased: list[int] = []

        def break_off(queue: Any, *arguments: Any) -> None:
            leased.append(queue.number)
            if len(leased) == 2:
                raise RuntimeError("broken by the test")
            lease(queue, *arguments)

        shard.runs.on_first_leases = break_off  # type: ignore[assignment,method-assign]
        for queue in queues:
            put(node.keeper(0).host(), queue.number, [make_send("x")])
        point = node.keeper(0).host().point()
        assert point is not None
        with pytest.raises(Unavailable):
            await point
        assert await polling == [] and len(leased) == 2
        await until(lambda: node.keeper(0).serving)
        assert await watch(node, "jobs-*", 9) == []
        await kill(node)

    run_virtual(main)


def test_the_refusal_of_a_full_frame_sees_to_it_that_the_frame_is_written(tmp_path: Path) -> None:
    """Also when nobody waits for what is in it."""

    async def main(loop: VirtualLoop) -> None:
        node = await start(loop, tmp_path, frame_rows_max=5)
        queue = await make_queue(node, "orders")
        host = node.keeper(0).host()
        for _ in range(6):
            put(host, queue.number, [make_send("x")])
        with pytest.raises(OverLimit):
            put(host, queue.number, [make_send("one more")])
        await settle()
        assert await send_batch(node, queue) == "sent"
        await node.stop()

    run_virtual(main)


def test_many_changes_of_queues_while_the_catalog_s_disk_stalls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go into several frames, each of which its log takes."""
    monkeypatch.setattr("batonq.node.catalog.catalog_host.ROLL_ROWS", 20)

    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        node = await start(loop, tmp_path, faults)
        faults.planned[CATALOG_SHARD] = ["stall"]
        made = [loop.create_task(make_queue(node, f"jobs-{at}")) for at in range(200)]
        await answered(made)
        assert {task.exception() for task in made} == {None}
        log = node.catalog._log
        assert log is not None and max(len(frame.rows) >> 6 for frame in log.frames(1)) <= 30
        for task in made:
            await send(node, task.result(), "x")
        await node.stop()

    run_virtual(main)


def test_a_change_that_breaks_off_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await start(loop, tmp_path)
        queue = await make_queue(node, "orders")
        add, calls = Catalog._write, [0]

        def break_off(self: Catalog, *arguments: Any) -> None:
            add(self, *arguments)
            calls[0] += 1
            raise RuntimeError("broken by the test")

        monkeypatch.setattr(Catalog, "_write", break_off)
        with pytest.raises(RuntimeError, match="broken by the test"):
            await node.broker.set_tags(queue, {"a": "b"}, [])
        monkeypatch.undo()
        await until(lambda: node.catalog.serving)
        assert calls == [1] and node.broker.queue(ACCOUNT, "orders").tags == {}
        await node.broker.set_tags(queue, {"c": "d"}, [])
        assert node.broker.queue(ACCOUNT, "orders").tags == {"c": "d"}
        await node.stop()

    run_virtual(main)
