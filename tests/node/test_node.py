"""A whole node: queues, messages and move tasks through the broker, and what is left of them after a restart."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from batonq.attribute_formats.arns import queue_arn
from batonq.core.catalog.machine import Catalog
from batonq.core.shard.machine import Shard
from batonq.errors import (
    BatonError,
    DiskFull,
    InvalidInput,
    JobConflict,
    JobNotFound,
    LeaseLost,
    LogError,
    MessageGone,
    OverLimit,
    PurgeInProgress,
    QueueDeletedRecently,
    QueueDoesNotExist,
    QueueExists,
    ReceiptInvalid,
    Unavailable,
)
from batonq.log.frames import Frame
from batonq.log.interface import Done, Room
from batonq.log.layout import log_directory
from batonq.node.broker import Queue
from batonq.node.node import Node
from batonq.node.settings import Settings
from batonq.node.shard_host.host import ShardHost
from batonq.node.shard_host.recovery import replay_log
from tests.node.nodes import ACCOUNT, Faults, drain, kill, make_send, open_node, receive, send
from tests.node.support import VirtualLoop, put, run_virtual, settle, until
from tests.support import brokers
from tests.support.ask import batch


async def with_dead_letters(node: Node, name: str = "orders", maximum: int = 1) -> tuple[Queue, Queue]:
    dead = await node.broker.create_queue(ACCOUNT, f"{name}-dead", {}, {})
    policy = json.dumps({"deadLetterTargetArn": queue_arn(ACCOUNT, dead.name), "maxReceiveCount": maximum})
    queue = await node.broker.create_queue(ACCOUNT, name, {"RedrivePolicy": policy}, {})
    return queue, dead


# --- queues -----------------------------------------------------------------------------------


def test_a_queue_that_was_created_is_there_after_a_restart(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        created = await node.broker.create_queue(ACCOUNT, "orders", {"VisibilityTimeout": "7"}, {"team": "shop"})
        await kill(node)
        node = await open_node(loop, tmp_path)
        queue = node.broker.queue(ACCOUNT, "orders")
        assert queue == created and queue.policy.visibility_ms == 7_000
        await send(node, queue, "a")
        assert await drain(node, queue) == ["a"]
        await node.stop()

    run_virtual(main)


def test_creating_a_queue_again_gives_the_same_one_or_says_what_differs(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        first = await node.broker.create_queue(ACCOUNT, "orders", {"VisibilityTimeout": "7"}, {})
        assert await node.broker.create_queue(ACCOUNT, "orders", {}, {}) == first
        with pytest.raises(QueueExists, match="VisibilityTimeout"):
            await node.broker.create_queue(ACCOUNT, "orders", {"VisibilityTimeout": "8"}, {})
        await node.stop()

    run_virtual(main)


def test_a_new_attribute_holds_for_the_next_receive(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await node.broker.set_attributes(queue, {"VisibilityTimeout": "3"})
        await send(node, queue, "a")
        delivery = (await receive(node, queue))[0]
        assert delivery.deadline_ms == node.broker.now_ms() + 3_000
        await node.stop()

    run_virtual(main)


def test_a_deleted_queue_is_gone_and_its_messages_with_it(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await send(node, queue, "a")
        old = (await receive(node, queue))[0]
        await node.broker.delete_queue(queue)
        with pytest.raises(QueueDoesNotExist):
            node.broker.queue(ACCOUNT, "orders")
        with pytest.raises(QueueDoesNotExist):
            await send(node, queue, "b")
        await node.maintenance.step()
        assert not node.shards[0].host().shard.queues
        again = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        assert again.number != queue.number
        await send(node, again, "new")
        await receive(node, again)
        assert isinstance((await brokers.delete(node.broker, again, [old.receipt]))[0], ReceiptInvalid)
        await node.stop()

    run_virtual(main)


def test_a_queue_deleted_right_before_a_crash_stays_deleted(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await send(node, queue, *map(str, range(20)))
        # The catalog knows, the shard was never told.
        await node.catalog.change(Catalog.delete_queue, queue.number)
        await kill(node)
        node = await open_node(loop, tmp_path)
        await node.maintenance.step()
        assert not node.shards[0].host().shard.queues
        await node.stop()

    run_virtual(main)


def test_a_policy_that_the_shard_missed_is_told_when_it_opens(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await node.catalog.change(Catalog.set_attributes, queue.number, {"VisibilityTimeout": "9"})
        await node.catalog.change(Catalog.create_queue, ACCOUNT, "late", {}, {})
        await kill(node)
        node = await open_node(loop, tmp_path)
        state = node.shards[0].host().shard.queues
        assert state[queue.number].policy.visibility_ms == 9_000
        assert {one.policy.name for one in state.values()} == {"orders", "late"}
        await node.stop()

    run_virtual(main)


def test_a_shard_that_missed_more_policies_than_a_frame_takes_is_opened_and_told(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        names = {f"queue-{number}" for number in range(30)}
        for name in names:
            await node.broker.create_queue(ACCOUNT, name, {}, {})
        await kill(node)
        shutil.rmtree(log_directory(str(tmp_path), 0))
        node = await open_node(loop, tmp_path, frame_rows_max=3)
        assert {state.policy.name for state in node.shards[0].host().shard.queues.values()} == names
        await send(node, node.broker.queue(ACCOUNT, "queue-7"), "a")
        await node.stop()

    run_virtual(main)


def test_changes_reach_a_shard_whose_frame_is_full(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, frame_rows_max=3)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        gone = await node.broker.create_queue(ACCOUNT, "gone", {}, {})
        host = node.shards[0].host()
        put(host, queue.number, [make_send(str(number)) for number in range(10)])  # and no commit yet
        with pytest.raises(OverLimit):
            put(host, queue.number, [make_send("refused")])
        await node.broker.set_attributes(queue, {"VisibilityTimeout": "3"})
        await node.broker.delete_queue(gone)
        assert host.shard.queues[queue.number].policy.visibility_ms == 3_000
        await node.maintenance.step()
        assert gone.number not in host.shard.queues
        await node.stop()

    run_virtual(main)


def test_changes_that_a_full_disk_kept_from_a_shard_reach_it_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        gone = await node.broker.create_queue(ACCOUNT, "gone", {}, {})
        host = node.shards[0].host()
        with monkeypatch.context() as full:
            full.setattr(host.log, "room", lambda: Room.NONE)
            with pytest.raises(DiskFull):
                await node.broker.set_attributes(queue, {"VisibilityTimeout": "3"})
            await node.broker.delete_queue(gone)
        assert host.shard.queues[queue.number].policy.visibility_ms == 30_000
        await until(lambda: host.shard.queues[queue.number].policy.visibility_ms == 3_000)
        await until(lambda: gone.number not in host.shard.queues)
        await node.stop()

    run_virtual(main)


def test_the_waits_after_delete_and_purge_are_off_in_development_and_on_when_secured(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path / "dev")
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        for _ in range(2):
            await node.broker.purge_queue(queue)
        await node.broker.delete_queue(queue)
        await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await node.stop()

        node = await open_node(loop, tmp_path / "secured", secure=True)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await node.broker.purge_queue(queue)
        with pytest.raises(PurgeInProgress):
            await node.broker.purge_queue(queue)
        await node.broker.delete_queue(queue)
        with pytest.raises(QueueDeletedRecently):
            await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await asyncio.sleep(61)
        await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await node.stop()

    run_virtual(main)


def test_a_purge_removes_everything_that_was_there_in_steps(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        for _ in range(120):
            await brokers.send(node.broker, queue, [make_send("x") for _ in range(100)])
        await receive(node, queue)
        await node.broker.purge_queue(queue)
        counters = await node.broker.counters(queue)
        assert (counters.visible, counters.in_flight, counters.deleted) == (0, 0, 12_000)
        await node.stop()

    run_virtual(main)


# --- messages ---------------------------------------------------------------------------------


def test_a_delivery_has_all_that_was_sent(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        sent = await send(node, queue, "héllo", sender="me", trace="Root=1", priority=7, attributes=b"")
        assert not isinstance(sent[0], BatonError)
        await asyncio.sleep(2)
        delivery = (await receive(node, queue))[0]
        assert delivery.message_id == sent[0].message_id
        assert delivery.body.decode() == "héllo"
        assert (delivery.sender, delivery.trace, delivery.priority) == ("me", "Root=1", 7)
        assert delivery.first_received_ms - delivery.sent_ms == 2_000
        assert (delivery.receive_count, delivery.lineage) == (1, None)
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("fifo", [False, True])
def test_receives_of_one_turn_get_their_own_messages(tmp_path: Path, fifo: bool) -> None:
    """Their messages are read and sealed together, first leases and leases of returned messages alike."""

    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        name, attributes = ("orders.fifo", {"FifoQueue": "true"}) if fifo else ("orders", {})
        queue = await node.broker.create_queue(ACCOUNT, name, attributes, {})
        keys: dict[str, str] = {}
        for at in range(12):
            if fifo:
                keys = {"group": f"g{at % 5}", "dedup_id": f"d{at}"}
            await send(node, queue, f"message {at}", attributes=b"", trace=f"t{at}", **keys)
        for delivery in await receive(node, queue, 3):
            await brokers.nack(node.broker, queue, delivery.receipt)
        seen: list[str] = []
        for _ in range(12):
            found = await asyncio.gather(*[receive(node, queue, 2) for _ in range(3)])
            for delivery in [one for some in found for one in some]:
                number = delivery.body.decode().split()[1]
                assert delivery.trace == f"t{number}"
                assert delivery.group == (f"g{int(number) % 5}" if fifo else "")
                seen.append(number)
            results = [await brokers.delete(node.broker, queue, [one.receipt for one in some]) for some in found]
            assert not any(problem for some in results for problem in some)
        counters = await node.broker.counters(queue)
        assert len(seen) == len(set(seen)) == counters.deleted == 12
        await node.stop()

    run_virtual(main)


def test_each_receipt_of_a_batch_gets_its_own_answer(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        other = await node.broker.create_queue(ACCOUNT, "other", {}, {})
        await send(node, queue, "a", "b")
        await send(node, other, "c")
        mine = await receive(node, queue)
        foreign = (await receive(node, other))[0].receipt
        answers = await brokers.delete(node.broker, queue, [mine[0].receipt, "garbage", foreign, mine[1].receipt])
        assert answers[0] is answers[3] is None
        assert isinstance(answers[1], ReceiptInvalid) and isinstance(answers[2], ReceiptInvalid)
        changes = await brokers.change_visibility(node.broker, other, [("garbage", 5_000), (foreign, 0)])
        assert isinstance(changes[0], ReceiptInvalid) and changes[1] is None
        assert [one.body for one in await receive(node, other)] == [b"c"]
        await node.stop()

    run_virtual(main)


def test_a_queue_says_whether_a_lapsed_receipt_deletes(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        for strict in ("false", "true"):
            queue = await node.broker.create_queue(ACCOUNT, f"q-{strict}", {"Baton.StrictReceipts": strict}, {})
            await send(node, queue, "held", "lapsed")
            held = (await receive(node, queue, 1))[0].receipt
            lapsed = (await receive(node, queue, 1, visibility_ms=1_000))[0].receipt
            await asyncio.sleep(2)
            found = await brokers.delete(node.broker, queue, [held, lapsed])
            assert [type(answer) for answer in found] == [type(None), LeaseLost if strict == "true" else type(None)]
            found = await brokers.delete(node.broker, queue, [held, "garbage"])
            assert [type(answer) for answer in found] == [
                MessageGone if strict == "true" else type(None),
                ReceiptInvalid,
            ]
        await node.stop()

    run_virtual(main)


def test_the_retry_of_one_request_makes_no_second_message(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        first = await brokers.send(node.broker, queue, [make_send("a")], "invocation-1")
        await kill(node)
        node = await open_node(loop, tmp_path)
        again = await brokers.send(node.broker, queue, [make_send("a")], "invocation-1")
        other = await brokers.send(node.broker, queue, [make_send("a")], "invocation-2")
        assert again[0].message_id == first[0].message_id != other[0].message_id  # type: ignore[union-attr]
        assert len(await receive(node, queue)) == 2
        await node.stop()

    run_virtual(main)


def test_a_nack_gives_the_message_back_with_its_reason(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue, dead = await with_dead_letters(node, maximum=5)
        await send(node, queue, "a")
        delivery = (await receive(node, queue))[0]
        await brokers.nack(node.broker, queue, delivery.receipt, 10_000, "no stock", "OutOfStock")
        with pytest.raises(LeaseLost):
            await brokers.nack(node.broker, queue, delivery.receipt)
        peeked = await brokers.peek(node.broker, queue, 0, 10)
        assert (peeked[0].view.reason, peeked[0].body) == ("no stock", b"a")
        assert await receive(node, queue) == []
        again = (await receive(node, queue, wait_ms=20_000))[0]
        await brokers.nack(node.broker, queue, again.receipt, dead_letter=True)
        letter = (await receive(node, dead))[0]
        assert letter.lineage is not None
        assert (letter.lineage.error_class, letter.lineage.reason) == ("OutOfStock", "no stock")
        assert letter.message_id == delivery.message_id
        await node.stop()

    run_virtual(main)


def test_receipts_outlive_a_restart_and_the_rotation_of_their_key(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, key_rotation_hours=1.0)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await send(node, queue, "a")
        receipt = (await receive(node, queue, visibility_ms=43_000_000))[0].receipt
        await asyncio.sleep(3_700)
        assert len(node.catalog.current().receipt_keys) == 2
        await kill(node)
        node = await open_node(loop, tmp_path)
        assert await brokers.delete(node.broker, queue, [receipt]) == [None]
        assert await drain(node, queue) == []
        await node.stop()

    run_virtual(main)


# --- move tasks -------------------------------------------------------------------------------


def test_a_move_task_brings_dead_letters_back_at_its_rate(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue, dead = await with_dead_letters(node)
        await send(node, queue, *map(str, range(30)))
        for _ in range(4):
            await receive(node, queue, visibility_ms=0)
        assert (await node.broker.counters(dead)).visible == 30
        with pytest.raises(InvalidInput, match="is not a dead-letter queue"):
            await node.broker.start_move(queue, None, None)
        with pytest.raises(InvalidInput):
            await node.broker.start_move(dead, None, 501)
        began_s = loop.time()
        job = await node.broker.start_move(dead, None, None)
        with pytest.raises(JobConflict):
            await node.broker.start_move(dead, None, None)
        await until(lambda: node.shards[0].host().shard.jobs[job.id].state != "RUNNING")
        assert 2.5 < loop.time() - began_s < 4  # 30 messages at 10 a second
        done = (await node.broker.moves(dead))[0]
        assert (done.id, done.state, done.moved) == (job.id, "COMPLETED", 30)
        assert sorted(map(int, await drain(node, queue))) == list(range(30))
        with pytest.raises(JobNotFound):
            await node.broker.cancel_move(queue, job.id)
        await node.stop()

    run_virtual(main)


def test_a_move_task_can_be_cancelled_and_survives_a_restart(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue, dead = await with_dead_letters(node)
        await send(node, queue, *map(str, range(20)))
        for _ in range(3):
            await receive(node, queue, visibility_ms=0)
        job = await node.broker.start_move(dead, None, 2)
        await asyncio.sleep(2)
        await kill(node)
        node = await open_node(loop, tmp_path)
        await asyncio.sleep(2)
        moved = (await node.broker.counters(queue)).visible
        assert 5 <= moved <= 11
        await node.broker.cancel_move(dead, job.id)
        await asyncio.sleep(1)
        assert (await node.broker.moves(dead))[0].state == "CANCELLED"
        left = (await node.broker.counters(dead)).visible
        await asyncio.sleep(5)
        assert (await node.broker.counters(dead)).visible == left
        assert left + (await node.broker.counters(queue)).visible == 20
        await node.stop()

    run_virtual(main)


# --- the clock --------------------------------------------------------------------------------


def test_moving_the_clock_does_what_is_due_and_wakes_those_who_wait(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await send(node, queue, *map(str, range(5_000)))
        for _ in range(500):
            await receive(node, queue, visibility_ms=600_000)
        waiting = loop.create_task(receive(node, queue, wait_ms=20_000))
        await settle()
        assert not waiting.done()
        before_s = loop.time()
        await node.broker.advance_clock(601_000)
        assert len(await waiting) == 10 and loop.time() == before_s
        counters = await node.broker.counters(queue)
        assert (counters.visible, counters.expired_leases) == (4_990, 5_000)
        await node.stop()

    run_virtual(main)


def test_the_clock_stays_where_a_test_moved_it_after_a_restart(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await node.broker.advance_clock(86_400_000)
        await send(node, queue, "a")
        moved_ms = node.broker.now_ms()
        await kill(node)
        node = await open_node(loop, tmp_path)
        assert node.broker.now_ms() == moved_ms
        await asyncio.sleep(100)
        assert node.broker.now_ms() == moved_ms + 100_000
        await node.stop()

    run_virtual(main)


def test_the_clock_of_a_secured_node_cannot_be_moved(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, secure=True)
        with pytest.raises(InvalidInput):
            await node.broker.advance_clock(1_000)
        await node.stop()

    run_virtual(main)


# --- life -------------------------------------------------------------------------------------


def test_a_clean_stop_leaves_a_snapshot_and_the_same_state(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await send(node, queue, *map(str, range(50)))
        await receive(node, queue)
        before = node.shards[0].host().shard
        dump = before.dump(node.broker.now_ms())
        frames = node.shards[0].host().log.next - 1
        await node.stop()
        saved = list((tmp_path / "shard-0000" / "snapshots").iterdir())
        assert [path.name for path in saved] == [f"snapshot-{frames:020}.bin"]
        node = await open_node(loop, tmp_path, grace_max_s=0)
        shard = node.shards[0].host().shard
        shard.validate()
        shard.journal.epoch = before.epoch
        assert shard.dump(node.broker.now_ms()) == dump
        await node.stop()

    run_virtual(main)


def test_a_log_that_fails_while_the_node_stops_leaves_no_snapshot_of_what_it_does_not_have(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        node = await open_node(loop, tmp_path, faults=faults)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        faults.planned[0] = ["stall", "refuse"]
        first = loop.create_task(send(node, queue, "first"))
        await settle()
        second = loop.create_task(send(node, queue, "second"))
        await settle()
        await node.stop()
        assert not any(isinstance(answer, BatonError) for answer in await first)
        with pytest.raises(Unavailable):
            await second
        node = await open_node(loop, tmp_path)
        host = node.shards[0].host()
        replayed = Shard(0)
        replay_log(replayed, host.log)
        assert host.shard.dump(host.now_ms()) == replayed.dump(host.now_ms())
        assert await drain(node, queue) == ["first"]
        await node.stop()

    run_virtual(main)


def test_stopping_answers_long_polls(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        polling = loop.create_task(receive(node, queue, wait_ms=20_000))
        await settle()
        await node.stop()
        assert await polling == []
        with pytest.raises(Unavailable):
            await send(node, queue, "late")

    run_virtual(main)


def test_a_node_that_cannot_start_lets_go_of_its_directory(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        await node.stop()
        segment = tmp_path / "shard-0000" / "segment-00000000000000000001.log"
        sound = segment.read_bytes()
        for saved in (tmp_path / "shard-0000" / "snapshots").iterdir():
            saved.unlink()
        segment.write_bytes(sound[:20] + b"\xff" + sound[21:])
        with pytest.raises(BatonError, match="baton log verify"):
            await open_node(loop, tmp_path)
        segment.write_bytes(sound)
        node = await open_node(loop, tmp_path)
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (Settings(host="0.0.0.0"), "--secure"),
        (Settings(account="123"), "twelve digits"),
        (Settings(shards=0), "shards"),
        (Settings(port=70_000), "port"),
        (Settings(log_level="loud"), "--log-level"),
        (Settings(public_url="example.com"), "http"),
        (Settings(move_rate_per_s=0), "--move-rate-per-s"),
        (Settings(window_entries=0), "window"),
        (Settings(window_entries=20_000), "--window-entries must be 1 to 2558"),
    ],
)
def test_settings_that_cannot_be_served_say_what_to_do(settings: Settings, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        settings.check()


def test_every_address_may_be_listened_on_when_secured() -> None:
    Settings(host="0.0.0.0", secure=True).check()
    Settings(host="::1").check()


def test_strict_calls_take_only_the_current_leases_receipt(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        broker = node.broker
        queue = await broker.create_queue(ACCOUNT, "orders", {}, {})
        await send(node, queue, "a")
        (old,) = await receive(node, queue, visibility_ms=1_000)
        (new,) = await receive(node, queue, wait_ms=5_000, visibility_ms=60_000)
        receipts = [old.receipt, new.receipt, "rubbish"]
        changed = await brokers.change_visibility_until(
            broker, queue, [(receipt, 90_000) for receipt in receipts], strict=True
        )
        assert isinstance(changed[0], LeaseLost) and isinstance(changed[2], ReceiptInvalid)
        assert changed[1] == (await brokers.peek(broker, queue, 0, 1))[0].view.until_ms == broker.now_ms() + 90_000
        assert await brokers.change_visibility_until(broker, queue, [(new.receipt, 0)], strict=True) == [0]
        (last,) = await receive(node, queue)
        refused = await brokers.delete(broker, queue, [new.receipt, last.receipt, last.receipt], strict=True)
        assert [getattr(problem, "code", None) for problem in refused] == ["lease_lost", None, "message_gone"]
        await node.stop()

    run_virtual(main)


def test_many_nacks_have_a_result_each(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        retry = '{"kind":"schedule","delaysSeconds":[60]}'
        queue = await node.broker.create_queue(
            ACCOUNT, "jobs", {"FifoQueue": "true", "Baton.RetryPolicy": retry}, {}, True
        )
        for group in "abc":
            await send(node, queue, group, group=group, dedup_id=group)
        one, two, three = await receive(node, queue)
        results = await brokers.nack_many(
            node.broker,
            queue,
            [
                (one.receipt, None, "no stock", "OutOfStock", False, False),
                ("rubbish", None, "", "", False, False),
                (two.receipt, 5_000, "x" * 501, "", False, False),
                (three.receipt, 5_000, "", "", False, False),
            ],
        )
        codes = [getattr(problem, "code", None) for problem in results]
        assert codes == [None, "receipt_invalid", "invalid_input", None]
        waits = {
            peeked.body: peeked.view.until_ms - node.broker.now_ms()
            for peeked in await brokers.peek(node.broker, queue, 0, 9)
        }
        assert waits == {b"a": 60_000, b"b": 30_000, b"c": 5_000}
        await node.stop()

    run_virtual(main)


def test_a_shard_is_told_only_what_the_catalog_has_committed(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        known = await node.broker.create_queue(ACCOUNT, "known", {}, {})
        held: list[Done] = []
        log = node.catalog._log
        assert log is not None
        append = log.append

        def hold(frame: Frame, done: Done, *, in_thread: bool = False) -> None:
            append(frame, lambda problem: held.append(lambda late: done(late or problem)))

        log.append = hold  # type: ignore[method-assign]
        creating = loop.create_task(node.broker.create_queue(ACCOUNT, "new", {}, {}))
        await settle()
        keeper = node.keeper(0)
        node.broker.reconcile(keeper)
        await settle()
        assert list(keeper.host().shard.queues) == [known.number], "the catalog may still lose it"
        held.pop()(None)
        new = await creating
        await settle()
        assert sorted(keeper.host().shard.queues) == [known.number, new.number]
        deleting = loop.create_task(node.broker.delete_queue(known))
        await settle()
        node.broker.reconcile(keeper)
        await settle()
        assert not keeper.host().shard.queues[known.number].closed
        held.pop()(LogError("refused by the test"))
        with pytest.raises(Unavailable):
            await deleting
        await until(lambda: node.catalog.serving)
        await settle()
        state = keeper.host().shard.queues.get(known.number)
        deleted = known.number not in node.catalog.current().queues
        assert (state is None or state.closed) == deleted, "the shard has what the catalog's log has"
        await node.stop()

    run_virtual(main)


def test_a_shard_is_not_told_what_was_decided_behind_the_frame_that_is_committed(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        held: list[Done] = []
        log = node.catalog._log
        assert log is not None

        def hold(frame: Frame, done: Done, *, in_thread: bool = False) -> None:
            held.append(done if held else lambda problem: append(frame, done))

        append, log.append = log.append, hold  # type: ignore[method-assign]
        first = loop.create_task(node.broker.set_attributes(queue, {"VisibilityTimeout": "7"}))
        await settle()
        second = loop.create_task(node.broker.set_attributes(queue, {"VisibilityTimeout": "9"}))
        await settle()
        held[0](None)
        await first
        assert node.keeper(0).host().shard.queues[queue.number].policy.visibility_ms == 7_000
        held[1](LogError("refused by the test"))
        with pytest.raises(Unavailable):
            await second
        await until(lambda: node.catalog.serving)
        await settle()
        assert node.keeper(0).host().shard.queues[queue.number].policy.visibility_ms == 7_000
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("how_often", [1, 3, 1_000])
def test_a_snapshot_at_the_stop_has_nothing_that_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how_often: int
) -> None:
    """Something is decided right after the stop has waited for all commits: a lease ends, or a late request comes."""
    drain_all = ShardHost.drain
    late: list[int] = []

    async def drain_and_decide(self: ShardHost) -> None:
        await drain_all(self)
        if len(late) < how_often:
            late.append(len(late))
            queue = next(iter(self.shard.queues))
            loop = asyncio.get_running_loop()
            command = batch(queue, [make_send("late")])
            loop.call_soon(lambda: self.shard.send([command], self.now_ms()))

    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path / "data", shards=1)
        queue = await node.broker.create_queue(ACCOUNT, "q", {}, {})
        await send(node, queue, "early")
        monkeypatch.setattr(ShardHost, "drain", drain_and_decide)
        await node.stop()
        monkeypatch.setattr(ShardHost, "drain", drain_all)
        assert late
        shutil.copytree(tmp_path / "data", tmp_path / "log-only")
        for snapshot in (tmp_path / "log-only").rglob("snapshot-*"):
            snapshot.unlink()
        found = []
        for name in ("data", "log-only"):
            node = await open_node(loop, tmp_path / name, shards=1)
            counters = await node.broker.counters(queue)
            found.append((counters.sent, counters.visible, await drain(node, queue)))
            await kill(node)
        assert found[0] == found[1]
        assert found[0][2][0] == "early" and found[0][0] == found[0][1] == len(found[0][2])

    run_virtual(main)
