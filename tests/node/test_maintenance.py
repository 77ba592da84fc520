"""Housekeeping: the log is shortened and loses nothing, snapshots are made apart and used, keys are rotated."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from batonq.core.shard.machine import Shard
from batonq.errors import DiskFull, Unavailable
from batonq.log.interface import Room
from batonq.node.node import Node
from batonq.node.shard_host.recovery import replay_log
from batonq.node.shard_host.snapshot_process import main as make_snapshot_main
from batonq.node.shard_host.snapshot_process import make_snapshot
from batonq.node.shard_host.truncation import living_bytes
from tests.node.nodes import (
    ACCOUNT,
    SEGMENT_BYTES,
    Faults,
    UnsyncedDisk,
    drain,
    kill,
    make_node,
    make_send,
    open_node,
    receive,
    send,
)
from tests.node.support import VirtualLoop, run_virtual
from tests.node.test_channels import make_pair
from tests.support import brokers


async def churn(node: Node, random: Random, rounds: int, keep: float = 0.1) -> set[str]:
    """Send a lot, delete most of it; the bodies that stay."""
    queue = node.broker.queue(ACCOUNT, "orders")
    kept: set[str] = set()
    for _ in range(rounds):
        texts = [f"{random.randrange(10**12)} {'x' * random.randrange(2_000)}" for _ in range(10)]
        await send(node, queue, *texts)
        for delivery in await receive(node, queue, visibility_ms=43_200_000):
            if random.random() < keep:
                kept.add(delivery.body.decode())
            else:
                assert await brokers.delete(node.broker, queue, [delivery.receipt]) == [None]
    return kept


def log_bytes(node: Node) -> int:
    return node.shards[0].host().log.bytes_retained()


@pytest.mark.parametrize("seed", range(3))
def test_the_log_stays_in_bounds_and_loses_nothing(tmp_path: Path, seed: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        random = Random(seed)
        history = 3 * SEGMENT_BYTES
        node = await open_node(loop, tmp_path, history_bytes=history, carry_rows=7)
        await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        kept: set[str] = set()
        for _ in range(6):
            kept |= await churn(node, random, 40)
            await node.maintenance.step()
            await node.maintenance.step()
            host = node.shards[0].host()
            host.shard.validate()
            assert host.log.bytes_retained() <= 2 * living_bytes(host) + history + 2 * SEGMENT_BYTES
        assert node.shards[0].host().log.first > 1
        await kill(node)
        for saved in (tmp_path / "shard-0000").glob("snapshots/*"):
            saved.unlink()
        node = await open_node(loop, tmp_path)
        node.shards[0].host().shard.validate()
        await node.broker.advance_clock(43_300_000)
        assert set(await drain(node, node.broker.queue(ACCOUNT, "orders"))) == kept
        await node.stop()

    run_virtual(main)


def test_clients_go_on_while_the_log_is_shortened(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        random = Random(5)
        node = await open_node(loop, tmp_path, history_bytes=0, carry_rows=3)
        queue, dead = await make_pair_on_one_shard(node)
        kept = await churn(node, random, 60, keep=0.3)
        step = loop.create_task(node.maintenance.step())
        sent: set[str] = set()
        moved = 0
        while not step.done():
            text = f"meanwhile {len(sent)}"
            await send(node, queue, text)
            sent.add(text)
            for delivery in await receive(node, queue, 2):
                to_the_dead = random.random() < 0.5
                await brokers.nack(node.broker, queue, delivery.receipt, dead_letter=to_the_dead)
                moved += to_the_dead
            node.shards[0].host().shard.validate()
        await step
        assert node.shards[0].host().log.first > 1 and sent and moved
        again = Shard(0)
        replay_log(again, node.shards[0].host().log)
        again.validate()
        now_ms = node.broker.now_ms()
        assert again.dump(now_ms) == node.shards[0].host().shard.dump(now_ms)
        await node.broker.advance_clock(43_300_000)
        assert set(await drain(node, queue)) | set(await drain(node, dead)) == kept | sent
        await node.stop()

    async def make_pair_on_one_shard(node: Node):  # type: ignore[no-untyped-def]
        dead = await node.broker.create_queue(ACCOUNT, "dead", {}, {})
        arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:dead"
        policy = f'{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": 1000}}'
        return await node.broker.create_queue(ACCOUNT, "orders", {"RedrivePolicy": policy}, {}), dead

    run_virtual(main)


def test_dead_letters_under_a_lineage_are_carried_with_it(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, history_bytes=0)
        dead = await node.broker.create_queue(ACCOUNT, "dead", {}, {})
        policy = f'{{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:{ACCOUNT}:dead", "maxReceiveCount": 5}}'
        queue = await node.broker.create_queue(ACCOUNT, "orders", {"RedrivePolicy": policy}, {})
        sent = await send(node, queue, "to keep")
        delivery = (await receive(node, queue))[0]
        await brokers.nack(node.broker, queue, delivery.receipt, 0, "why", "Kind", True)
        await churn(node, Random(1), 60, keep=0)
        await node.maintenance.step()
        assert node.shards[0].host().log.first > 1
        letter = (await receive(node, dead, visibility_ms=0))[0]
        await kill(node)
        node = await open_node(loop, tmp_path)
        again = (await receive(node, dead))[0]
        assert letter.lineage == again.lineage and again.lineage is not None
        assert (again.lineage.reason, again.message_id) == ("why", sent[0].message_id)  # type: ignore[union-attr]
        await node.stop()

    run_virtual(main)


def test_entries_between_shards_are_carried_while_they_wait(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        node = await open_node(loop, tmp_path, shards=2, faults=faults, reopen_first_s=10_000.0, history_bytes=0)
        queue, dead = await make_pair(node)
        faults.planned[dead.shard] = ["refuse"]
        with pytest.raises(Unavailable, match="refused by the test"):
            await send(node, dead, "lost")
        await send(node, queue, "owed")
        for _ in range(2):
            await receive(node, queue, visibility_ms=0)
        for _ in range(200):
            await send(node, queue, "y" * 1_000)
            delivery = (await receive(node, queue))[0]
            await brokers.delete(node.broker, queue, [delivery.receipt])
        await node.maintenance.step()
        assert node.shards[queue.shard].host().log.first > 1
        await kill(node)
        node = await open_node(loop, tmp_path, shards=2)
        await asyncio.sleep(1)
        assert await drain(node, dead) == ["owed"]
        assert (await node.broker.counters(queue)).owed == 0
        await node.stop()

    run_virtual(main)


def test_a_crash_between_base_and_drop_is_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(loop: VirtualLoop) -> None:
        random = Random(9)
        node = await open_node(loop, tmp_path, history_bytes=0)
        await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        kept = await churn(node, random, 60)
        host = node.shards[0].host()
        monkeypatch.setattr(host.log, "drop_front", lambda before: None)
        await node.maintenance.step()
        assert host.log.first == 1
        await kill(node)
        node = await open_node(loop, tmp_path, history_bytes=0)
        kept |= await churn(node, random, 20)
        await node.maintenance.step()
        assert node.shards[0].host().log.first > 1
        await kill(node)
        node = await open_node(loop, tmp_path)
        await node.broker.advance_clock(43_300_000)
        assert set(await drain(node, node.broker.queue(ACCOUNT, "orders"))) == kept
        await node.stop()

    run_virtual(main)


def test_old_history_goes_by_time(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, history_hours=1.0, maintenance_every_s=3_600.0)
        await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await churn(node, Random(2), 60, keep=0)
        await node.maintenance.step()
        assert node.shards[0].host().log.first == 1
        before = log_bytes(node)
        await node.broker.advance_clock(2 * 3_600_000)
        for _ in range(2):
            await node.maintenance.step()
        assert log_bytes(node) < before
        assert log_bytes(node) <= 3 * SEGMENT_BYTES
        await node.stop()

    run_virtual(main)


def test_a_log_of_living_messages_is_left_alone(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, history_bytes=0, history_hours=0.0)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        for _ in range(40):
            await brokers.send(node.broker, queue, [make_send("z" * 1_000) for _ in range(10)])
        await asyncio.sleep(10)
        frame = node.shards[0].host().log.next
        await node.maintenance.step()
        assert node.shards[0].host().log.first == 1 and node.shards[0].host().log.next == frame
        await node.stop()

    run_virtual(main)


# --- snapshots --------------------------------------------------------------------------------


def test_a_snapshot_of_sealed_segments_saves_folding_them(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        random = Random(3)
        node = await open_node(loop, tmp_path)
        await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        kept = await churn(node, random, 60)
        first = make_snapshot(str(tmp_path), 0)
        assert first is not None and make_snapshot(str(tmp_path), 0) is None
        kept |= await churn(node, random, 60)
        second = make_snapshot(str(tmp_path), 0)
        assert second is not None and second > first
        dump = node.shards[0].host().shard.dump(node.broker.now_ms())
        await kill(node)
        node = await open_node(loop, tmp_path, grace_max_s=0)
        shard = node.shards[0].host().shard
        shard.validate()
        old_epoch, shard.journal.epoch = shard.epoch, 2
        assert shard.dump(node.broker.now_ms()) == dump
        shard.journal.epoch = old_epoch
        await node.broker.advance_clock(43_300_000)
        assert set(await drain(node, node.broker.queue(ACCOUNT, "orders"))) == kept
        await node.stop()

    run_virtual(main)


def test_a_snapshot_goes_up_to_what_is_known_to_be_committed_in_the_last_segment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        log = node.shards[0].host().log
        texts = [f"short {number}" for number in range(30)]
        for text in texts[:20]:
            await send(node, queue, text)
        log.note()
        noted = log.next - 1
        for text in texts[20:]:
            await send(node, queue, text)
        assert len(log.segments()) == 1
        assert make_snapshot(str(tmp_path), 0) == noted, "what came after the note is left alone"
        assert make_snapshot(str(tmp_path), 0) is None
        await kill(node)
        caplog.clear()
        node = await open_node(loop, tmp_path)
        (opened,) = (record for record in caplog.records if getattr(record, "event", "") == "shard_opened")
        assert opened.__dict__["fields"]["snapshot_frame"] == noted
        assert opened.__dict__["fields"]["frames_folded"] == 10
        assert await drain(node, queue) == texts
        await node.stop()

    caplog.set_level("DEBUG", "batonq")
    run_virtual(main)


@pytest.mark.parametrize(("living", "made"), [(40, True), (1_600, False)])
def test_many_short_frames_are_worth_a_snapshot_unless_it_is_much_larger(
    tmp_path: Path, living: int, made: bool
) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = make_node(loop, tmp_path, snapshot_frames=50, snapshot_every_s=100)
        asked: list[int] = []

        async def make(shard: int) -> None:
            asked.append(shard)
            assert make_snapshot(str(tmp_path), shard) is not None

        node.world = replace(node.world, make_snapshot=make)
        await node.start()
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        for _ in range(living // 40):
            await send(node, queue, *["x"] * 40)
        await node.maintenance.step()
        assert not asked, "too few frames"
        while node.shards[0].host().log.next <= 52:
            await send(node, queue, "one more")
            deliveries = await receive(node, queue, 1)
            await brokers.delete(node.broker, queue, [deliveries[0].receipt])
        await node.maintenance.step()
        assert not asked, "too early"
        await asyncio.sleep(100)
        for _ in range(2):
            await node.maintenance.step()
            await asyncio.sleep(1)
        assert asked == ([0] if made else []), "once, and not again without new frames"
        await node.stop()

    run_virtual(main)


def test_a_snapshot_after_a_dropped_front_starts_from_the_base(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, history_bytes=0)
        await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        kept = await churn(node, Random(4), 60)
        await node.maintenance.step()
        kept |= await churn(node, Random(5), 30)
        assert node.shards[0].host().log.first > 1
        assert make_snapshot(str(tmp_path), 0) is not None
        await kill(node)
        node = await open_node(loop, tmp_path)
        node.shards[0].host().shard.validate()
        await node.broker.advance_clock(43_300_000)
        assert set(await drain(node, node.broker.queue(ACCOUNT, "orders"))) == kept
        await node.stop()

    run_virtual(main)


def test_a_snapshot_older_than_the_log_s_front_is_passed_over(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, history_bytes=0)
        await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        kept = await churn(node, Random(6), 15)
        assert make_snapshot(str(tmp_path), 0) is not None
        kept |= await churn(node, Random(7), 60)
        for _ in range(3):
            await node.maintenance.step()
        await kill(node)
        node = await open_node(loop, tmp_path)
        await node.broker.advance_clock(43_300_000)
        assert set(await drain(node, node.broker.queue(ACCOUNT, "orders"))) == kept
        await node.stop()

    run_virtual(main)


def test_a_damaged_snapshot_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await send(node, queue, "a")
        await node.stop()
        saved = next((tmp_path / "shard-0000" / "snapshots").iterdir())
        content = bytearray(saved.read_bytes())
        content[len(content) // 2] ^= 1
        saved.write_bytes(bytes(content))
        node = await open_node(loop, tmp_path)
        assert await drain(node, queue) == ["a"]
        assert "cannot be used" in caplog.text
        await node.stop()

    run_virtual(main)


def test_the_snapshot_process_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shard-0000").mkdir()
    for first in (1, 2):
        (tmp_path / "shard-0000" / f"segment-{first:020}.log").write_bytes(b"nonsense" * 100)
    assert make_snapshot_main([str(tmp_path), "0"]) == 1
    assert "segment-00000000000000000001.log" in capsys.readouterr().err


# --- the catalog ------------------------------------------------------------------------------


def test_the_catalog_s_log_is_shortened_too(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        for number in range(600):
            queue = await node.broker.create_queue(ACCOUNT, f"queue-{number}", {}, {})
            await node.broker.set_tags(queue, {"round": str(number)}, [])
            if number % 2:
                await node.broker.delete_queue(queue)
        await node.maintenance.step()
        version = node.catalog.current().version
        names = [queue.name for queue in node.broker.queues(ACCOUNT)]
        await kill(node)
        node = await open_node(loop, tmp_path)
        assert node.catalog.current().version == version
        assert [queue.name for queue in node.broker.queues(ACCOUNT)] == names and len(names) == 300
        await node.stop()

    run_virtual(main)


# --- a full disk ------------------------------------------------------------------------------


def test_a_full_disk_refuses_sends_takes_deletes_and_recovers(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        disk = SmallDisk(12 * SEGMENT_BYTES)
        node = await open_node(loop, tmp_path, disk=disk, history_bytes=0)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {"VisibilityTimeout": "36000"}, {})
        sent = 0
        while node.shards[0].host().log.room() is Room.PLENTY:
            await brokers.send(node.broker, queue, [make_send(f"{sent + at} {'x' * 900}") for at in range(10)])
            sent += 10
            await node.maintenance.step()
        assert sent > 300
        with pytest.raises(DiskFull):
            await send(node, queue, "refused")
        await node.maintenance.step()
        assert any(alarm.id == "disk-full.0" for alarm in node.alarms.active())
        frame = node.shards[0].host().log.next
        await node.maintenance.step()
        assert node.shards[0].host().log.next == frame  # the reserve is not spent on copying
        gone = 0
        while gone < sent - 20:
            deliveries = await receive(node, queue)
            await brokers.delete(node.broker, queue, [delivery.receipt for delivery in deliveries])
            gone += len(deliveries)
            await asyncio.sleep(2)  # the node's own housekeeping goes on
        assert not any(alarm.kind == "disk-full" for alarm in node.alarms.active())
        await send(node, queue, "room again")
        await kill(node)
        node = await open_node(loop, tmp_path, disk=disk)
        assert len(await drain(node, queue)) == 21
        await node.stop()

    run_virtual(main)


class SmallDisk(UnsyncedDisk):
    """A disk with only so much room for the segments of shards."""

    def __init__(self, room_bytes: int) -> None:
        self.room_bytes = room_bytes

    def free(self, path: str) -> int:
        if "shard" not in path:
            return 1 << 40
        return self.room_bytes - sum(file.stat().st_size for file in Path(path).glob("*.log"))
