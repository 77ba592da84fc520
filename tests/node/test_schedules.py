"""Schedules as the broker offers them: firing, waiting, missed firings, changes, moves, kills and restarts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from batonq.core.payload import decode_attributes
from batonq.core.schedule import STAYS, Schedule
from batonq.errors import InvalidInput, QueueDoesNotExist, ScheduleExists, ScheduleNotFound, Unavailable
from batonq.node.broker import Queue
from batonq.node.node import Node
from batonq.node.routing.local_shard import LocalShard
from batonq.node.schedules.schedule_actions import move_schedules
from batonq.node.schedules.scheduled_message import ScheduledMessage, shown_time
from batonq.node.schedules.timing import cron_timing, rate_timing
from tests.node.nodes import ACCOUNT, Faults, drain, kill, open_node, receive, send
from tests.node.support import VirtualLoop, run_virtual

RATE = rate_timing(10_000, 0).text()


def schedule(queue: Queue, name: str = "every-10s", timing: str = RATE, body: str = "tick", **fields: Any) -> Schedule:
    message = ScheduledMessage(body.encode(), group=fields.get("group", ""))
    return Schedule(queue=queue.number, name=name, timing=timing, message=message.text(), **fields)


async def create(node: Node, queue: Queue, *given: Any, **fields: Any) -> Schedule:
    found, _ = await node.broker.schedules.create(queue, schedule(queue, *given, **fields))
    return found.schedule


async def shown(node: Node, queue: Queue, name: str = "every-10s") -> Schedule:
    return (await node.broker.schedules.find(queue, name)).schedule


async def times(node: Node, queue: Queue) -> list[str]:
    """The due times of the messages in a queue, in order of arrival."""
    page = await node.broker.peek(queue, 0, 10_000)
    return [_attributes(one.attributes)["scheduledTime"] for one in page.messages]


def _attributes(encoded: bytes) -> dict[str, str]:
    return {row.name: row.value.decode() for row in decode_attributes(encoded)}


def test_a_schedule_fires_at_its_times(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "jobs", {}, {})
        began_ms = node.broker.now_ms()
        made = await create(node, queue)
        assert made.next_ms == made.created_ms + 10_000
        minutely = await create(node, queue, "minutely", cron_timing("* * * * *", "UTC").text(), body="minute")
        await asyncio.sleep(65)
        found = await receive(node, queue)
        bodies = [delivery.body for delivery in found]
        assert sorted(bodies) == [b"minute"] + [b"tick"] * 6
        first = next(one for one in found if one.body == b"tick")
        attributes = _attributes(first.attributes)
        assert attributes == {"scheduleName": "every-10s", "scheduledTime": shown_time(made.next_ms)}
        assert 0 <= first.sent_ms - made.next_ms <= 5
        now = await shown(node, queue)
        assert (now.fired, now.late, now.skipped) == (6, 0, 0)
        assert now.last_due_ms == made.next_ms + 50_000 and now.next_ms == made.next_ms + 60_000
        assert minutely.next_ms == began_ms // 60_000 * 60_000 + 60_000
        await node.stop()

    run_virtual(main)


def test_definitions_are_compared_and_changed(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=2)
        queue = await node.broker.create_queue(ACCOUNT, "jobs", {}, {})
        other = await node.broker.create_queue(ACCOUNT, "others", {}, {})
        control = node.broker.schedules
        made = await create(node, queue)
        assert await control.create(queue, schedule(queue)) == (await control.find(queue, "every-10s"), False)
        with pytest.raises(ScheduleExists, match="different definition"):
            await create(node, queue, body="another")
        await create(node, other)
        found, complete = await control.of_account(ACCOUNT)
        assert [(one.queue.name, one.schedule.name) for one in found] == [
            ("jobs", "every-10s"),
            ("others", "every-10s"),
        ]
        assert complete and await control.of_account("111111111111") == ([], True)
        changed = (await control.change(queue, "every-10s", {"timing": rate_timing(60_000, 0).text()})).schedule
        assert changed.revision == made.revision + 1 and changed.next_ms == changed.changed_ms + 60_000
        with pytest.raises(InvalidInput, match="never due"):
            await control.change(queue, "every-10s", {"timing": rate_timing(60_000, 0, 5).text()})
        with pytest.raises(InvalidInput, match="never due"):
            await create(node, queue, "over", rate_timing(60_000, 0, 5).text())
        await control.delete(queue, "every-10s")
        for act in (
            control.find(queue, "every-10s"),
            control.delete(queue, "every-10s"),
            control.change(queue, "x", {}),
        ):
            with pytest.raises(ScheduleNotFound, match="Queue jobs has no schedule"):
                await act
        await node.broker.delete_queue(other)
        assert (await control.of_account(ACCOUNT))[0] == []
        with pytest.raises(QueueDoesNotExist):
            await create(node, other)
        await node.stop()

    run_virtual(main)


def test_a_paused_schedule_continues_with_the_next_due_time(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "jobs", {}, {})
        made = await create(node, queue, missed="all")
        await node.broker.schedules.change(queue, made.name, {"paused": True})
        await asyncio.sleep(35)
        assert await times(node, queue) == []
        resumed = (await node.broker.schedules.change(queue, made.name, {"paused": False})).schedule
        assert resumed.next_ms == made.next_ms + 30_000
        await asyncio.sleep(6)
        assert await times(node, queue) == [shown_time(resumed.next_ms)]
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize(("missed", "expected"), [("all", 6), ("last", 1), ("none", 0)])
def test_firings_missed_by_an_outage(tmp_path: Path, missed: str, expected: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "jobs", {}, {})
        made = await create(node, queue, "slow", rate_timing(100_000, 0).text(), missed=missed)
        await node.stop()
        await asyncio.sleep(690)
        node = await open_node(loop, tmp_path)
        await asyncio.sleep(1)
        now = await shown(node, queue, "slow")
        fired = await times(node, queue)
        assert len(fired) == expected and fired[-1:] == [shown_time(made.next_ms + 500_000)][:expected]
        assert (now.fired, now.skipped, now.late) == (expected, 6 - expected if missed != "all" else 0, expected)
        assert now.next_ms == made.next_ms + 600_000
        await asyncio.sleep(12)
        assert len(await times(node, queue)) == expected + 1
        await node.stop()

    run_virtual(main)


def test_a_full_queue_makes_the_firing_wait(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "small", {"Baton.MaximumMessages": "1"}, {})
        await send(node, queue, "in the way")
        made = await create(node, queue)
        await asyncio.sleep(15)
        now = await shown(node, queue)
        assert "small is full" in now.why and now.next_ms == made.next_ms and now.waiting_ms
        assert not node.alarms.active()
        await asyncio.sleep(90)
        (alarm,) = [one for one in node.alarms.active() if one.kind == "schedule-waiting"]
        assert "every-10s cannot fire" in alarm.text and alarm.queue == "small"
        frames = node.shards[queue.shard].host().log.next
        await asyncio.sleep(300)
        assert node.shards[queue.shard].host().log.next <= frames + 1, "waiting writes nothing"
        await drain(node, queue)
        await asyncio.sleep(31)
        now = await shown(node, queue)
        assert not now.why and now.fired == 1 and now.skipped > 30
        assert not [one for one in node.alarms.active() if one.kind == "schedule-waiting"]
        await node.stop()

    run_virtual(main)


def test_the_clock_can_be_moved(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "jobs", {}, {})
        await create(node, queue, missed="all")
        await node.broker.advance_clock(3_600_000)
        assert (await node.broker.counters(queue)).visible == 360
        await node.stop()

    run_virtual(main)


def test_what_a_node_cannot_read_stops_one_schedule_only(tmp_path: Path) -> None:
    """Another node knew the zone, or is newer: the schedule waits and says so, and fires once it is mended."""

    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "jobs", {}, {})
        made = await create(node, queue, "odd", cron_timing("* * * * *", "Europe/Berlin").text())
        await create(node, queue)
        host = node.shards[queue.shard].host()
        odd = json.dumps({"cron": "* * * * *", "zone": "Mars/Olympus"})
        host.run(host.shard.schedules.change, made, host.admit(), timing=odd)
        newer = await create(node, queue, "newer", cron_timing("* * * * *", "UTC").text())
        host.run(host.shard.schedules.change, newer, host.admit(), timing=json.dumps({"moon": "full"}))
        await asyncio.sleep(200)
        now = await shown(node, queue, "odd")
        assert "Mars/Olympus" in now.why and now.fired == 0 and (await shown(node, queue)).fired >= 19
        assert "cannot read the schedule" in (await shown(node, queue, "newer")).why
        assert [alarm.kind for alarm in node.alarms.active()] == ["schedule-waiting"] * 2
        await node.broker.schedules.delete(queue, "newer")
        await node.broker.schedules.change(queue, "odd", {"timing": made.timing})
        assert node.alarms.active() == []
        await asyncio.sleep(61)
        assert (await shown(node, queue, "odd")).fired == 1
        await node.stop()

    run_virtual(main)


def test_a_schedule_follows_its_queue_to_other_shards(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=4, maintenance_every_s=1)
        attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true", "DeduplicationScope": "messageGroup"}
        queue = await node.broker.create_queue(ACCOUNT, "line.fifo", attributes, {})
        groups = [f"g{number}" for number in range(12)]
        for group in groups:
            await create(node, queue, group, group=group, missed="all")
        await asyncio.sleep(25)
        await node.broker.set_attributes(queue, {"Baton.Spread": "3"})
        queue = node.broker.queue(ACCOUNT, "line.fifo")
        assert len(queue.shards) == 3
        for _ in range(10):
            await drain(node, queue)
            await asyncio.sleep(10)
        found = await node.broker.schedules.of_queue(queue)
        assert sorted(one.schedule.name for one in found) == sorted(groups)
        for one in found:
            assert one.shard == queue.spread.of_key(one.schedule.group)
            assert one.schedule.fired == (node.broker.now_ms() - one.schedule.created_ms) // 10_000
        assert len({one.shard for one in found}) == 3
        await node.stop()

    run_virtual(main)


def test_a_schedule_that_is_deleted_while_it_is_moved_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrives = asyncio.Event()
    adopt = LocalShard.adopt_schedule

    async def adopt_late(shard: LocalShard, schedule: Schedule) -> None:
        await arrives.wait()
        await adopt(shard, schedule)

    monkeypatch.setattr(LocalShard, "adopt_schedule", adopt_late)

    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3, maintenance_every_s=1)
        attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true", "DeduplicationScope": "messageGroup"}
        queue = await node.broker.create_queue(ACCOUNT, "line.fifo", attributes, {})
        groups = [f"g{number}" for number in range(6)]
        for group in groups:
            await create(node, queue, group, group=group)
        await node.broker.set_attributes(queue, {"Baton.Spread": "3"})
        queue = node.broker.queue(ACCOUNT, "line.fifo")
        await asyncio.sleep(5)
        control = node.broker.schedules
        name = next(one.schedule.name for one in await control.of_queue(queue) if one.schedule.moving_to != STAYS)
        with pytest.raises(Unavailable, match="being moved"):
            await control.delete(queue, name)
        with pytest.raises(Unavailable, match="being moved"):
            await control.change(queue, name, {"missed": "all"})
        arrives.set()
        await asyncio.sleep(5)
        await control.delete(queue, name)
        await asyncio.sleep(30)
        found = await node.broker.schedules.of_queue(queue)
        assert sorted(one.schedule.name for one in found) == sorted({*groups} - {name})
        await node.stop()

    run_virtual(main)


def test_a_queue_that_is_deleted_while_its_schedules_are_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adopt = LocalShard.adopt_schedule

    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3, maintenance_every_s=1000)
        attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true", "DeduplicationScope": "messageGroup"}
        queue = await node.broker.create_queue(ACCOUNT, "line.fifo", attributes, {})
        for number in range(6):
            await create(node, queue, f"g{number}", group=f"g{number}")
        await node.broker.set_attributes(queue, {"Baton.Spread": "3"})
        adopted = []

        async def adopt_then_delete(shard: LocalShard, schedule: Schedule) -> None:
            await adopt(shard, schedule)
            adopted.append(schedule.name)
            await node.broker.delete_queue(queue)

        monkeypatch.setattr(LocalShard, "adopt_schedule", adopt_then_delete)
        await move_schedules(node.shards[queue.shard].host(), node.broker.port)
        assert len(adopted) == 1
        assert not any(keeper.host().shard.schedules for keeper in node.shards)
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("seed", range(6))
def test_no_firing_is_lost_or_doubled_by_kills(tmp_path: Path, seed: int) -> None:
    """The node is killed again and again, and its log fails before or after writing. Every due time is one message."""

    async def main(loop: VirtualLoop) -> None:
        random = Random(seed)
        faults = Faults()
        node = await open_node(loop, tmp_path, faults=faults, shards=2)
        names = [f"s{number}" for number in range(4)]
        queues = [await node.broker.create_queue(ACCOUNT, name, {}, {}) for name in ("one", "two")]
        made = {}
        for at, name in enumerate(names):
            queue = queues[at % 2]
            rate = rate_timing(1_000 * random.randint(1, 9), 0).text()
            made[name] = (await create(node, queue, name, rate, missed="all"), queue)
        faults.random, faults.chance = random, 0.2
        for _ in range(12):
            await asyncio.sleep(random.random() * 8)
            await kill(node)
            await asyncio.sleep(random.random() * 5)
            faults.random = None
            node = await open_node(loop, tmp_path, faults=faults, shards=2)
            faults.random = random
        faults.random = None
        await asyncio.sleep(5)
        for name, (first, queue) in made.items():
            now = await shown(node, queue, name)
            page = await node.broker.peek(queue, 0, 10_000)
            mine = [one for one in page.messages if _attributes(one.attributes)["scheduleName"] == name]
            rate_ms = json.loads(now.timing)["rate_ms"]
            due = [shown_time(time) for time in range(first.next_ms, node.broker.now_ms() + 1, rate_ms)]
            assert [_attributes(one.attributes)["scheduledTime"] for one in mine] == due
            assert now.fired == len(due) and now.skipped == 0
            assert now.next_ms == first.next_ms + len(due) * rate_ms
        await node.stop()

    run_virtual(main)


def test_a_frame_that_was_not_committed_fires_again(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        node = await open_node(loop, tmp_path, faults=faults)
        queue = await node.broker.create_queue(ACCOUNT, "jobs", {}, {})
        made = await create(node, queue)
        faults.planned[queue.shard] = ["refuse", "fail after writing"]
        await asyncio.sleep(9.9)
        assert faults.planned[queue.shard] == ["refuse", "fail after writing"]
        await asyncio.sleep(25)
        assert faults.planned[queue.shard] == []
        assert await times(node, queue) == [shown_time(made.next_ms + step) for step in (0, 10_000, 20_000)]
        await node.stop()

    run_virtual(main)


def test_schedules_survive_truncation_and_snapshots(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, history_hours=0, history_bytes=0, maintenance_every_s=1)
        queue = await node.broker.create_queue(ACCOUNT, "jobs", {}, {})
        await create(node, queue, timing=rate_timing(100_000, 0).text())
        for _ in range(30):
            await send(node, queue, "x" * 20_000)
            await drain(node, queue)
            await asyncio.sleep(2)
        assert node.shards[queue.shard].host().log.first > 1, "the front of the log is gone"
        await kill(node)
        node = await open_node(loop, tmp_path, maintenance_every_s=1)
        now = await shown(node, queue)
        await asyncio.sleep(max(0, now.next_ms - node.broker.now_ms()) / 1000 + 1)
        assert (await shown(node, queue)).fired == now.fired + 1
        await node.stop()

    run_virtual(main)
