"""Replay jobs: retained messages are sent again, each once, whatever dies and whatever the target refuses."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from batonq.core.commands import Accepted
from batonq.core.payload import Lineage
from batonq.core.records import SentFlag, Type
from batonq.errors import BatonError, InvalidInput, JobConflict, NotRetained, PositionInvalid
from batonq.node.broker import Queue
from batonq.node.jobs.job_control import JobStatus
from batonq.node.jobs.replay_control import Replay
from batonq.node.node import Node
from tests.node.nodes import ACCOUNT, Faults, drain, kill, open_node, receive, send
from tests.node.support import VirtualLoop, run_virtual, until
from tests.node.test_jobs import attributes, ended
from tests.node.topics import delivered, make_topic, publish, subscribe
from tests.node.wide import ids, make, make_fifo

FAST = 10_000


async def with_history(node: Node, count: int, shards: int = 1, **fields: Any) -> tuple[Queue, Queue]:
    """A queue whose messages were all deleted, and an empty one."""
    queue = await make(node, "orders", shards, Baton_RetainSeconds="86400")
    other = await make(node, "again", shards)
    for at in range(0, count, 10):
        await send(node, queue, *map(str, range(at, min(at + 10, count))), **fields)
    await drain(node, queue)
    return queue, other


async def replayed(node: Node, queue: Queue, **fields: Any) -> JobStatus:
    fields = {"rate_per_s": FAST, **fields}
    return await ended(node, await node.broker.start_replay(queue, Replay(**fields)))


async def numbers(node: Node, queue: Queue) -> list[int]:
    return sorted(map(int, await drain(node, queue)))


@pytest.mark.parametrize("shards", [1, 3])
def test_deleted_messages_are_delivered_again_in_the_same_queue_or_another(tmp_path: Path, shards: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=shards)
        queue, other = await with_history(node, 60, shards)
        for target in (other, None):
            status = await replayed(node, queue, target=target)
            assert (status.state, status.kind, status.moved, status.remaining) == ("COMPLETED", "replay", 60, 0)
            assert await numbers(node, target or queue) == [*range(60)]
        status = await replayed(node, queue)  # the messages that were replayed are retained too
        assert status.moved == 120
        parts = await node.broker.exact_counters(queue)
        assert all(part.entered == part.accounted for part in parts.values())
        await node.stop()

    run_virtual(main)


def test_what_a_replayed_message_keeps_and_what_is_new(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue, other = await with_history(node, 0)
        (first,) = await send(node, queue, "1", priority=7, group="red", trace="t", attributes=attributes(tier="paid"))
        (old,) = await receive(node, queue)
        await node.broker.advance_clock(5_000)
        await replayed(node, queue, target=other)
        (new,) = await receive(node, other)
        same = ("body", "group", "trace", "priority", "attributes")
        assert [getattr(new, name) for name in same] == [getattr(old, name) for name in same]
        assert new.sent_ms >= old.sent_ms + 5_000
        assert new.message_id != old.message_id
        assert new.lineage is not None
        assert isinstance(first, Accepted)
        assert (new.lineage.moved, new.lineage.first_id) == ("replay", first.message_id)
        host = node.shards[0].host()
        (slot, _), *_ = host.shard.newest(other.number, 1)
        position = host.shard.place(slot).position
        row = host.log.frame(position >> 16).words()[(position & 0xFFFF) << 3 :][:8]
        assert row[0] & 0xFF == Type.SENT and row[0] >> 8 & SentFlag.REPLAYED
        await node.stop()

    run_virtual(main)


def test_a_time_range_positions_a_filter_and_a_maximum(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue, other = await with_history(node, 0)
        times, cuts = [], []
        for at in range(6):
            times.append(node.broker.now_ms())
            cuts.append((await node.broker.exact_counters(queue))[queue.shard].position)
            sent = await send(node, queue, str(at), attributes=attributes(tier="paid" if at % 2 else "free"))
            await node.broker.advance_clock(300)

        async def chosen(**fields: Any) -> list[int]:
            await replayed(node, queue, target=other, **fields)
            return await numbers(node, other)

        assert await chosen(from_ms=times[2]) == [2, 3, 4, 5]
        assert await chosen(from_ms=times[2], until_ms=times[4]) == [2, 3]
        assert await chosen(until_ms=times[1]) == [0]
        assert await chosen(from_positions={queue.shard: cuts[3]}) == [3, 4, 5]
        assert await chosen(from_positions={queue.shard: cuts[1]}, until_positions={queue.shard: cuts[3]}) == [1, 2]
        assert await chosen(until_positions={queue.shard: 0}) == []
        assert await chosen(filter={"attributes": {"tier": "paid"}}) == [1, 3, 5]
        assert await chosen(filter={"bodyContains": "4"}) == [4]
        assert await chosen(filter={"messageIds": [ids(sent)[0]]}) == [5]
        assert await chosen(max_messages=2) == [0, 1]
        await node.stop()

    run_virtual(main)


def test_a_dry_run_counts_and_shows_examples(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=2)
        queue, other = await with_history(node, 30, 2)
        status = await node.broker.start_replay(queue, Replay(target=other, dry_run=True, filter={"bodyContains": "2"}))
        assert (status.dry_run, status.examined, status.matched, status.moved) == (True, 30, 12, 0)
        assert len(status.sample) <= 10 and all(b"2" in one.body for one in status.sample)
        assert await numbers(node, other) == []
        assert await node.broker.jobs(queue) == []
        await node.stop()

    run_virtual(main)


def test_a_full_target_makes_the_job_wait_and_say_so(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue, _ = await with_history(node, 30)
        small = await make(node, "small", 1, Baton_MaximumMessages="8")
        job = await node.broker.start_replay(queue, Replay(target=small, rate_per_s=FAST))
        got: list[int] = []

        async def waits() -> bool:
            return bool((await node.broker.job(ACCOUNT, job.id)).why)

        while len(got) < 30:
            if (await node.broker.job(ACCOUNT, job.id)).state == "RUNNING" and len(got) < 24:
                await until(waits)
                status = await node.broker.job(ACCOUNT, job.id)
                assert "small is full" in status.why and status.state == "RUNNING"
                assert (await node.broker.counters(small)).visible == 8
            else:
                await ended(node, job)
            got += map(int, await drain(node, small))
            await node.broker.advance_clock(60_000)
        status = await ended(node, job)
        assert (status.state, status.moved, status.why) == ("COMPLETED", 30, "")
        assert got == [*range(30)]
        await node.stop()

    run_virtual(main)


def test_pause_resume_and_cancel(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue, other = await with_history(node, 100)
        job = await node.broker.start_replay(queue, Replay(target=other, rate_per_s=10))
        with pytest.raises(JobConflict):
            await node.broker.start_replay(queue, Replay(target=other))
        await node.broker.advance_clock(1_000)
        paused = await node.broker.pause_job(ACCOUNT, job.id)
        await node.broker.advance_clock(60_000)
        assert paused.state == "PAUSED" and paused.moved < 100
        moved = (await node.broker.job(ACCOUNT, job.id)).moved
        assert (await node.broker.counters(other)).sent == moved
        await node.broker.resume_job(ACCOUNT, job.id)

        async def goes_on() -> bool:
            return (await node.broker.job(ACCOUNT, job.id)).moved > moved

        await until(goes_on)
        await node.broker.cancel_job(ACCOUNT, job.id)
        status = await ended(node, job)
        assert status.state == "CANCELLED"
        assert (await node.broker.counters(other)).sent == status.moved < 100
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("fifo", [False, True])
def test_each_message_is_sent_once_however_often_the_node_dies(tmp_path: Path, shards: int, fifo: bool) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=shards)
        if fifo:
            queue = await make_fifo(node, "orders.fifo", shards, Baton_RetainSeconds="86400")
            other = await make_fifo(node, "again.fifo", shards)
            for at in range(120):
                await send(node, queue, str(at), group=f"g{at % 7}", dedup_id=f"d{at}")
        else:
            queue, other = await with_history(node, 120, shards)
        job = await node.broker.start_replay(queue, Replay(target=other, rate_per_s=40))
        deaths = 0
        while (await node.broker.job(ACCOUNT, job.id)).state == "RUNNING":
            await node.broker.advance_clock(70)
            if deaths < 25:
                deaths += 1
                await kill(node)
                node = await open_node(loop, tmp_path, shards=shards)
        status = await node.broker.job(ACCOUNT, job.id)
        assert (status.state, status.moved, status.why) == ("COMPLETED", 120, "")
        assert deaths > 10
        queue, other = (node.broker.queue(ACCOUNT, one.name) for one in (queue, other))
        assert (await node.broker.counters(other)).sent == 120
        got = [*map(int, await drain(node, other))]
        assert sorted(got) == [*range(120)]
        if fifo:
            for group in range(7):
                assert [one for one in got if one % 7 == group] == [*range(group, 120, 7)]
        await node.stop()

    run_virtual(main)


def test_a_send_whose_progress_was_not_recorded_is_not_sent_twice(tmp_path: Path) -> None:
    """The node dies after the target has committed the messages, before the job's record is written."""

    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue, other = await with_history(node, 20)
        host = node.shards[0].host()
        host.shard.replayed = lambda *_: host.now_ms()
        job = await node.broker.start_replay(queue, Replay(target=other, rate_per_s=FAST))

        async def sent() -> bool:
            return (await node.broker.counters(other)).sent == 20

        await until(sent)
        assert (await node.broker.job(ACCOUNT, job.id)).moved == 0
        await kill(node)
        node = await open_node(loop, tmp_path)
        status = await ended(node, job)
        assert (status.state, status.moved) == ("COMPLETED", 20)
        counters = await node.broker.counters(node.broker.queue(ACCOUNT, "again"))
        assert (counters.sent, counters.visible) == (20, 20)
        await node.stop()

    run_virtual(main)


def test_messages_that_leave_the_history_before_the_job_reaches_them_are_not_found(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await make(node, "orders", 1, Baton_RetainSeconds="3600")
        other = await make(node, "again", 1)
        await send(node, queue, *map(str, range(10)))
        await node.broker.advance_clock(1_800_000)
        await send(node, queue, *map(str, range(10, 20)))
        job = await node.broker.start_replay(queue, Replay(target=other, rate_per_s=1))
        await node.broker.pause_job(ACCOUNT, job.id)
        moved = (await node.broker.job(ACCOUNT, job.id)).moved
        await node.broker.advance_clock(1_900_000)
        await node.broker.resume_job(ACCOUNT, job.id)
        status = await ended(node, job)
        assert (status.state, status.moved, status.not_found) == ("COMPLETED", 10 + moved, 10 - moved)
        await node.stop()

    run_virtual(main)


def test_a_target_that_is_deleted_or_too_strict(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue, other = await with_history(node, 0)
        await send(node, queue, "x" * 5_000)
        strict = await make(node, "strict", 1, MaximumMessageSize="1024")
        job = await node.broker.start_replay(queue, Replay(target=strict, rate_per_s=FAST))

        async def is_paused() -> bool:
            return (await node.broker.job(ACCOUNT, job.id)).state == "PAUSED"

        await until(is_paused)
        assert "limit of the target queue is 1024" in (await node.broker.job(ACCOUNT, job.id)).why
        await node.broker.cancel_job(ACCOUNT, job.id)
        await ended(node, job)
        job = await node.broker.start_replay(queue, Replay(target=other, rate_per_s=1))
        await node.broker.delete_queue(other)
        status = await ended(node, job)
        if not status.moved:  # the first message may go at once
            assert (status.state, status.why) == ("FAILED", "The target queue was deleted.")
        await node.stop()

    run_virtual(main)


def test_what_is_refused(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue, other = await with_history(node, 3)
        fifo = await make_fifo(node, "line.fifo", 1)
        refused: list[tuple[Queue, dict[str, Any], type[Exception], str]] = [
            (other, {}, NotRetained, "RetainSeconds"),
            (queue, {"target": fifo}, InvalidInput, "of the same type"),
            (queue, {"rate_per_s": 0}, InvalidInput, "1 to 10000"),
            (queue, {"from_ms": 2_000, "until_ms": 1_000}, InvalidInput, "not after"),
            (queue, {"from_positions": {9: 1}}, PositionInvalid, "shard 9"),
            (queue, {"filter": {"messageIds": ["x"]}}, InvalidInput, "not a message id"),
        ]
        for source, fields, kind, said in refused:
            with pytest.raises(kind, match=said):
                await node.broker.start_replay(source, Replay(**fields))
        assert Counter(job.state for job in await node.broker.jobs(queue)) == {}
        await node.stop()

    run_virtual(main)


def test_a_replay_of_a_replay_names_the_first_message(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue, other = await with_history(node, 0)
        (first,) = await send(node, queue, "1")
        await drain(node, queue)
        await replayed(node, queue)
        await drain(node, queue)
        await replayed(node, queue, target=other)
        found = await receive(node, other)
        lineages = [delivery.lineage or Lineage() for delivery in found]
        assert [one.first_id for one in lineages] == ids([first]) * 2
        await node.stop()

    run_virtual(main)


def test_copies_of_published_messages_are_replayed_as_they_were_delivered(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue, other = await with_history(node, 0)
        topic = await make_topic(node)
        await subscribe(node, topic, queue.name, raw=False)
        await publish(node, topic, "in an envelope")
        await delivered(node)
        (old,) = await receive(node, queue)
        assert b'"Message":"in an envelope"' in old.body
        tried = await node.broker.start_replay(queue, Replay(dry_run=True, filter={"bodyContains": "in an envelope"}))
        assert tried.matched == 1
        await replayed(node, queue, target=other)
        (new,) = await receive(node, other)
        assert (new.body, new.attributes, new.content) == (old.body, old.attributes, old.content)
        await node.stop()

    run_virtual(main)


async def disturb(node: Node, other: Queue, random: Random) -> None:
    """Something that happens to the target of a replay."""
    what = random.choice(("grow", "pause", "resume", "limit", "unlimit", "later"))
    spread = min(4, len(other.shards) + 1)
    changes = {
        "grow": {"Baton.Spread": str(spread)},
        "pause": {"Baton.Paused": "sends"},
        "resume": {"Baton.Paused": "none"},
        "limit": {"Baton.MaximumMessages": str(random.randint(4, 40))},
        "unlimit": {"Baton.MaximumMessages": "0"},
    }
    if what in changes:
        await node.broker.set_attributes(other, changes[what])
    elif what == "later":
        await node.broker.advance_clock(random.randint(1, 5_000))


@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_each_message_is_sent_once_whatever_happens_to_the_target(tmp_path: Path, seed: int, fifo: bool) -> None:
    """Kills, appends that fail or whose answer is lost, and a target that grows, is full, is paused and is resumed."""

    async def main(loop: VirtualLoop) -> None:
        random = Random(seed)
        faults = Faults()
        settings: dict[str, Any] = {"shards": 4, "faults": faults, "reopen_first_s": 0.05, "reopen_max_s": 0.05}
        node = await open_node(loop, tmp_path, **settings)
        make_one, suffix = (make_fifo, ".fifo") if fifo else (make, "")
        queue = await make_one(node, f"orders{suffix}", 2, Baton_RetainSeconds="86400")
        other = await make_one(node, f"again{suffix}", 1)
        for at in range(100):
            await send(node, queue, str(at), group=f"g{at % 7}", dedup_id=f"d{at}" if fifo else "")
        job = await node.broker.start_replay(queue, Replay(target=other, rate_per_s=60))
        faults.random, faults.chance = random, 0.1
        for _ in range(40):
            try:
                await node.broker.advance_clock(random.randint(1, 300))
                if (found := node.broker.queue_by_number(other.number)) is not None:
                    await disturb(node, found, random)
            except BatonError:
                pass  # a shard is being opened again
            if random.random() < 0.25:
                await kill(node)
                faults.chance = 0.0
                node = await open_node(loop, tmp_path, **settings)
                faults.chance = 0.1
        faults.chance = 0.0

        async def is_served() -> bool:
            return not node.not_ready()

        await until(is_served)
        other = node.broker.queue(ACCOUNT, other.name)
        await node.broker.set_attributes(other, {"Baton.Paused": "none", "Baton.MaximumMessages": "0"})
        status = await ended(node, job)
        assert (status.state, status.moved, status.why) == ("COMPLETED", 100, "")
        other = node.broker.queue(ACCOUNT, other.name)
        parts = await node.broker.exact_counters(other)
        assert sum(part.counters.sent for part in parts.values()) == 100
        assert all(part.entered == part.accounted for part in parts.values())
        got = [*map(int, await drain(node, other))]
        assert sorted(got) == [*range(100)]
        if fifo:
            for group in range(7):
                assert [one for one in got if one % 7 == group] == [*range(group, 100, 7)]
        await node.stop()

    run_virtual(main)
