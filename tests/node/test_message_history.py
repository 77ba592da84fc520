"""A single message: how it is found by its id, and its history from the log."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from batonq.attribute_formats.arns import queue_arn
from batonq.core.ids import message_id
from batonq.core.records import State
from batonq.errors import MessageNotFound
from batonq.node.broker import Queue
from batonq.node.messages import message_history
from batonq.node.messages.message_history import MessageFound
from batonq.node.node import Node
from tests.node.nodes import ACCOUNT, open_node, receive, send
from tests.node.support import VirtualLoop, run_virtual, until
from tests.node.test_ports import over_the_wire
from tests.support import brokers


def events(found: MessageFound) -> list[str]:
    return [event.event for event in found.events]


async def pair(node: Node) -> tuple[Queue, Queue]:
    dead = await node.broker.create_queue(ACCOUNT, "dead", {}, {})
    policy = json.dumps({"deadLetterTargetArn": queue_arn(ACCOUNT, "dead"), "maxReceiveCount": 5})
    return await node.broker.create_queue(ACCOUNT, "orders", {"RedrivePolicy": policy}, {}), dead


def settled(node: Node) -> bool:
    return not any(keeper.host().shard.unsettled() for keeper in node.shards)


def test_the_history_of_a_message_that_exists(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        began_ms = node.broker.now_ms()
        sent = await send(node, queue, *map(str, range(30)))
        deliveries = await receive(node, queue, 10)
        [delivery] = [one for one in deliveries if one.body == b"3"]
        await brokers.change_visibility_until(node.broker, queue, [(delivery.receipt, 90_000)])
        await asyncio.sleep(2)
        await brokers.nack(node.broker, queue, delivery.receipt, 5_000, "no stock", "OutOfStock")
        await asyncio.sleep(40)
        await receive(node, queue, 30)
        found = await node.broker.messages.find(queue, sent[3].message_id)  # type: ignore[union-attr]
        assert found.peeked.body == b"3" and found.complete and not found.note
        assert events(found)[:4] == ["sent", "leased", "extended", "nacked"]
        assert [event.at_ms - began_ms for event in found.events][:4] == [0, 0, 0, 2_000]
        lease, longer, nack = found.events[1:4]
        assert (lease.holder, lease.receive_count, lease.until_ms - began_ms) == ("tester", 1, 30_000)
        assert longer.until_ms - began_ms == 90_000
        assert (nack.reason, nack.error_class, nack.until_ms - began_ms) == ("no stock", "OutOfStock", 7_000)
        other = await node.broker.messages.find(queue, sent[5].message_id)  # type: ignore[union-attr]
        assert events(other) == ["sent", "leased", "leaseExpired", "leased"]
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("wired", [False, True])
@pytest.mark.parametrize("shards", [1, 2])
def test_the_history_goes_on_in_the_dead_letter_queue(tmp_path: Path, shards: int, wired: bool) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=shards)
        queue, dead = await pair(node)
        if wired:
            over_the_wire(node.broker)
        [sent] = await send(node, queue, "a")
        original = sent.message_id  # type: ignore[union-attr]
        [delivery] = await receive(node, queue)
        await brokers.nack(node.broker, queue, delivery.receipt, 0, "no stock", "OutOfStock", True)
        await until(lambda: settled(node))
        [letter] = await brokers.peek(node.broker, dead, 0, 1)
        assert letter.current_id != original == letter.message_id
        for name in (original, letter.current_id):
            found = await node.broker.messages.find(dead, name)
            assert found.peeked.current_id == letter.current_id
            before = ["sent", "leased", "nacked", "moving"]
            assert events(found) == [*before, *(["moved"] if shards == 2 else []), "arrived"]
            assert found.complete
            assert [event.queue for event in found.events[:4]] == [queue.number] * 4
            assert found.events[3].to_queue == found.events[-1].queue == dead.number
            assert found.events[-1].reason == "dead letter"
        gone = await node.broker.messages.find(queue, original)
        assert gone.peeked.view.state == State.DELETED and events(gone)[-2:] == ["moving", "moved"]
        assert gone.peeked.body == b"a"
        assert gone.moved_as == letter.current_id
        # redriven: it has a new id, and the first one finds it too; what it was in the dead-letter queue is still told
        await node.broker.start_move(dead, None, None)
        await until(lambda: node.shards[queue.shard].host().counters(queue.number).visible == 1)
        await until(lambda: settled(node))
        back = await node.broker.messages.find(queue, original)
        assert back.peeked.view.state == State.VISIBLE and back.peeked.current_id != original
        assert events(back)[-1] == "arrived" and back.events[-1].reason == "redrive"
        assert back.complete == (shards == 1) and bool(back.note) == (shards == 2)
        left = await node.broker.messages.find(dead, letter.current_id)
        assert left.peeked.view.state == State.DELETED and left.peeked.body == b"a" and not left.peeked.problem
        assert left.moved_as == back.peeked.current_id
        assert events(left)[:4] == before and events(left)[-3:] == ["arrived", "moving", "moved"] and left.complete
        assert left.peeked.message_id == original and left.events[-2].to_queue == queue.number
        if shards == 1:
            passed = await node.broker.messages.find(dead, original)
            assert passed.peeked.current_id == letter.current_id and passed.moved_as == back.peeked.current_id
        else:
            with pytest.raises(MessageNotFound):
                await node.broker.messages.find(dead, original)
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("wired", [False, True])
def test_what_became_of_a_message_that_is_gone(tmp_path: Path, wired: bool) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {"MessageRetentionPeriod": "60"}, {})
        other = await node.broker.create_queue(ACCOUNT, "other", {}, {})
        if wired:
            over_the_wire(node.broker)
        ids: list[str] = []
        for number in range(40):
            [sent] = await send(node, queue, f"{number}")
            ids.append(sent.message_id)  # type: ignore[union-attr]
            await send(node, other, "x")
        deliveries = await receive(node, queue, 1)
        await brokers.delete(node.broker, queue, [delivery.receipt for delivery in deliveries])
        found = await node.broker.messages.find(queue, ids[0])
        assert events(found) == ["sent", "leased", "acknowledged"] and found.complete
        view = found.peeked.view
        assert (view.state, view.receive_count, found.peeked.body) == (State.DELETED, 1, b"0")
        assert found.peeked.current_id == ids[0]
        await asyncio.sleep(100)
        assert events(await node.broker.messages.find(queue, ids[20])) == ["sent", "expired"]
        [sent] = await send(node, other, "y")
        await node.broker.purge_queue(other)
        purged = await node.broker.messages.find(other, sent.message_id)  # type: ignore[union-attr]
        assert events(purged) == ["sent", "purged"]
        for wrong in ("nonsense", message_id(0, 10_000), message_id(77, 1), sent.message_id):  # type: ignore[union-attr]
            with pytest.raises(MessageNotFound, match="orders"):
                await node.broker.messages.find(queue, wrong)
        await node.stop()

    run_virtual(main)


def test_a_history_whose_beginning_was_dropped(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, history_bytes=0)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        other = await node.broker.create_queue(ACCOUNT, "other", {}, {})
        sent = await send(node, queue, "kept", "gone")
        [_, delivery] = await receive(node, queue)
        await brokers.delete(node.broker, queue, [delivery.receipt])
        for _ in range(200):
            await send(node, other, "x" * 2_000)
        await node.broker.purge_queue(other)
        await node.maintenance.step()
        assert node.shards[0].host().log.first > 2
        await receive(node, queue)
        found = await node.broker.messages.find(queue, sent[0].message_id)  # type: ignore[union-attr]
        assert found.peeked.body == b"kept" and not found.complete and found.note == message_history.DROPPED
        with pytest.raises(MessageNotFound, match="retained log"):
            await node.broker.messages.find(queue, sent[1].message_id)  # type: ignore[union-attr]
        await node.stop()

    run_virtual(main)


def test_a_long_history_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        other = await node.broker.create_queue(ACCOUNT, "other", {}, {})
        [sent] = await send(node, queue, "a")
        for _ in range(message_history.EVENTS_MAX):
            await receive(node, queue, visibility_ms=0)
            await send(node, other, "b")
        found = await node.broker.messages.find(queue, sent.message_id)  # type: ignore[union-attr]
        assert len(found.events) == message_history.EVENTS_MAX
        assert not found.complete and found.note == message_history.CUT
        await brokers.delete(node.broker, queue, [(await receive(node, queue))[0].receipt])
        monkeypatch.setattr(message_history, "FRAMES_MAX", 50)
        monkeypatch.setattr(message_history, "TURN_BYTES", 1)
        found = await node.broker.messages.find(queue, sent.message_id)  # type: ignore[union-attr]
        assert found.peeked.view.state == State.DELETED
        assert not found.complete and found.note == message_history.TOO_FAR
        await node.stop()

    run_virtual(main)
