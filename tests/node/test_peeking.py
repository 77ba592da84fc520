"""Peek: what a node shows of a queue's messages, and the sentence that says why each is not being delivered."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from batonq.attribute_formats.arns import queue_arn
from batonq.core.commands import Failing, Nack
from batonq.core.payload import Attribute, encode_attributes
from batonq.core.records import State
from batonq.core.shard.state import queue_search as seeking
from batonq.errors import LogCorrupt, OverLimit
from batonq.node.broker import Queue
from batonq.node.clock import clock_time, iso_time
from batonq.node.messages import peek as peeking
from batonq.node.node import Node
from tests.node.nodes import ACCOUNT, open_node, receive, send
from tests.node.support import VirtualLoop, run_virtual, settle, until
from tests.support import brokers

DAY_MS = 86_400_000


async def reasons(node: Node, queue: Queue) -> list[tuple[str, str]]:
    situation = await node.broker.situation(queue)
    peeked = await brokers.peek(node.broker, queue, 0, 10)
    return [(State(one.view.state).name, peeking.why(one.view, situation)) for one in peeked]


def at(node: Node, later_ms: int = 0) -> str:
    now_ms = node.broker.now_ms()
    return clock_time(now_ms + later_ms, now_ms)


# --- what is shown ------------------------------------------------------------------------------


def test_a_message_as_it_stands(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        attributes = encode_attributes(
            [Attribute("kind", "String", b"fruit", False), Attribute("raw", "Binary", b"\xff\x00", True)]
        )
        sent_ms = node.broker.now_ms()
        [sent] = await send(node, queue, "apple", attributes=attributes, priority=7, group="g", trace="Root=1")
        await asyncio.sleep(3)
        [delivery] = await receive(node, queue)
        await brokers.nack(node.broker, queue, delivery.receipt, 0, "no stock", "OutOfStock")
        await asyncio.sleep(2)
        await receive(node, queue, visibility_ms=20_000)
        page = await node.broker.peek(queue, 0, 10)
        [shown] = page.messages
        view = shown.view
        assert (page.examined, page.after, page.complete) == (1, view.sequence, True)
        assert (shown.message_id, view.sequence) == (sent.message_id, sent.sequence)  # type: ignore[union-attr]
        assert (view.state, view.until_ms, view.holder) == (State.IN_FLIGHT, sent_ms + 25_000, "tester")
        assert (view.receive_count, view.sent_ms, view.first_received_ms) == (2, sent_ms, sent_ms + 3_000)
        assert view.expires_ms == -(-(sent_ms + 4 * DAY_MS) // 1000) * 1000
        assert (view.first_failure_ms, view.last_failure_ms) == (sent_ms + 3_000, sent_ms + 3_000)
        assert (view.error_class, view.reason, view.priority) == ("OutOfStock", "no stock", 7)
        assert (shown.group, shown.dedup_id, shown.sender, shown.trace) == ("g", "", "", "Root=1")
        assert (shown.attributes, shown.body, shown.lineage, shown.problem) == (attributes, b"apple", None, "")
        said = f"Held by tester until {at(node, 20_000)} (20 s left), attempt 2."
        assert await reasons(node, queue) == [("IN_FLIGHT", said)]
        before = await node.broker.counters(queue)
        await node.broker.peek(queue, 0, 10)
        assert await node.broker.counters(queue) == before, "peek touches nothing"
        await node.stop()

    run_virtual(main)


def test_a_message_that_cannot_be_read_is_shown_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await send(node, queue, "a", "b")

        def damaged(*_: object) -> Any:
            raise LogCorrupt("the segment is damaged")

        monkeypatch.setattr(peeking, "read_message", damaged)
        shown = await brokers.peek(node.broker, queue, 0, 10)
        assert [(one.problem, one.body) for one in shown] == [("the segment is damaged", b"")] * 2
        assert [one.view.state for one in shown] == [State.VISIBLE] * 2
        await node.stop()

    run_virtual(main)


# --- pages --------------------------------------------------------------------------------------


def test_pages_and_where_the_next_one_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeking, "SEEK_STEP", 2)
    monkeypatch.setattr(peeking, "READ_STEP_BYTES", 10)

    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await send(node, queue, *map(str, range(25)))
        bodies: list[bytes] = []
        after, complete, pages = 0, False, 0
        while not complete:
            page = await node.broker.peek(queue, after, 10)
            bodies += [one.body for one in page.messages]
            after, complete = page.after, page.complete
            pages += 1
        assert (bodies, pages) == ([b"%d" % number for number in range(25)], 3)
        assert await node.broker.peek(queue, 1 << 62, 10) == ([], 0, 1 << 62, True)
        await node.stop()

    run_virtual(main)


def test_others_come_in_between_the_steps_to_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeking, "SEEK_STEP", 2)

    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        sent = await send(node, queue, *map(str, range(50)))
        looking = loop.create_task(brokers.peek(node.broker, queue, sent[40].sequence, 3))  # type: ignore[union-attr]
        await settle(3)
        assert not looking.done()
        deliveries = await receive(node, queue)  # the places that the walk has come to go away
        await brokers.delete(node.broker, queue, [delivery.receipt for delivery in deliveries])
        assert [one.body for one in await looking] == [b"41", b"42", b"43"]
        monkeypatch.setattr(peeking, "SEEK_STEPS_MAX", 3)
        with pytest.raises(OverLimit):
            await brokers.peek(node.broker, queue, sent[40].sequence, 3)  # type: ignore[union-attr]
        await node.stop()

    run_virtual(main)


def test_a_message_that_goes_while_it_is_read_is_told(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, history_bytes=0)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await send(node, queue, "a")
        [seen] = await brokers.peek(node.broker, queue, 0, 1)
        await node.broker.purge_queue(queue)
        for number in range(200):
            await send(node, queue, f"{number} " + "x" * 2_000)
        await node.broker.purge_queue(queue)
        await node.maintenance.step()
        host = node.shards[0].host()
        assert host.log.first > seen.view.position >> 16
        assert peeking._read(host, seen.view).problem == peeking.GONE
        await node.stop()

    run_virtual(main)


# --- why ----------------------------------------------------------------------------------------


def test_why_a_message_waits_or_is_delayed(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {"Baton.MaximumInFlight": "1"}, {})
        await send(node, queue, "a")
        assert await reasons(node, queue) == [("VISIBLE", "Waiting to be received.")]
        [delivery] = await receive(node, queue)
        await send(node, queue, "b")
        assert await reasons(node, queue) == [
            ("IN_FLIGHT", f"Held by tester until {at(node, 30_000)} (30 s left), attempt 1."),
            ("VISIBLE", "Waiting: the queue has reached its limit of messages in flight, 1."),
        ]
        await brokers.nack(node.broker, queue, delivery.receipt, 18_000)
        await send(node, queue, "c", delay_ms=2 * DAY_MS)
        assert await reasons(node, queue) == [
            ("DELAYED", f"Delayed until {at(node, 18_000)} (18 s left), after attempt 1."),
            ("VISIBLE", "Waiting to be received."),
            ("DELAYED", f"Delayed until {at(node, 2 * DAY_MS)} (2 d left)."),
        ]
        await asyncio.sleep(18)
        assert (await reasons(node, queue))[0] == ("VISIBLE", "Waiting to be received again, after attempt 1.")
        await node.stop()

    run_virtual(main)


def test_why_a_message_of_a_group_waits(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders.fifo", {"FifoQueue": "true"}, {})
        await send(node, queue, "a", group="g", dedup_id="1")
        await send(node, queue, "b", group="g", dedup_id="2")
        assert (await reasons(node, queue))[1] == (
            "VISIBLE",
            "Waiting to be received, after earlier messages of its group.",
        )
        [delivery] = await receive(node, queue, 1)
        behind = "Behind an earlier message of its group that is "
        assert (await reasons(node, queue))[1] == ("VISIBLE", behind + "in flight.")
        await brokers.nack(node.broker, queue, delivery.receipt, 60_000)
        assert (await reasons(node, queue))[1] == ("VISIBLE", behind + "delayed.")
        [shown, _] = await brokers.peek(node.broker, queue, 0, 10)
        assert (shown.group, shown.dedup_id) == ("g", "1")
        await node.stop()

    run_virtual(main)


def test_why_a_message_is_dead(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {"Baton.MaxReceives": "2"}, {})
        await send(node, queue, "spent")
        await receive(node, queue, visibility_ms=0)
        await receive(node, queue, visibility_ms=0)
        assert await reasons(node, queue) == [
            ("VISIBLE", "Received 2 times of at most 2: the next receive makes it dead.")
        ]
        assert await receive(node, queue) == []
        await send(node, queue, "given up")
        [delivery] = await receive(node, queue)
        await brokers.nack(node.broker, queue, delivery.receipt, 0, "", "", True)
        assert await reasons(node, queue) == [
            ("DEAD", "Dead: received 2 times of at most 2, and the queue has no dead-letter queue."),
            ("DEAD", "Dead: given up after 1 receive, and the queue has no dead-letter queue."),
        ]
        await node.broker.create_queue(ACCOUNT, "dead", {}, {})
        policy = json.dumps({"deadLetterTargetArn": queue_arn(ACCOUNT, "dead"), "maxReceiveCount": 2})
        await node.broker.set_attributes(queue, {"RedrivePolicy": policy})
        queue = node.broker.queue(ACCOUNT, "orders")
        assert (await reasons(node, queue))[0][1].endswith("and the queue had no dead-letter queue.")
        await send(node, queue, "letter")
        await receive(node, queue, visibility_ms=0)
        await receive(node, queue, visibility_ms=0)
        said = "Received 2 times of at most 2: the next receive moves it to dead."
        assert (await reasons(node, queue))[2] == ("VISIBLE", said)
        await node.stop()

    run_virtual(main)


def test_why_a_dead_letter_is_on_its_way_or_refused(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=2)
        queue, dead = await pair_on_two_shards(node)
        await send(node, queue, "a")
        [delivery] = await receive(node, queue)
        host = node.shards[queue.shard].host()
        [problem] = host.run(host.shard.nack, make_nack(node, queue, delivery.receipt), host.admit())
        assert problem is None
        views = host.shard.peek(queue.number, 0, 1)
        situation = peeking.Situation(node.broker.now_ms(), queue.policy, host.counters(queue.number), lambda _: "dead")
        assert peeking.why(views[0], situation) == "Being moved to dead, as a dead letter."
        gone = situation._replace(name_of=lambda _: "")
        assert peeking.why(views[0], gone) == "Being moved to a deleted queue, as a dead letter."
        await node.broker.delete_queue(dead)
        await until(lambda: host.shard.peek(queue.number, 0, 1)[0].refusals > 0)
        [(state, sentence)] = await reasons(node, queue)
        assert state == "DELAYED"
        assert sentence.startswith("Its dead-letter queue, which does not exist, refused it once; next retry at ")
        await node.stop()

    run_virtual(main)


async def pair_on_two_shards(node: Node) -> tuple[Queue, Queue]:
    dead = await node.broker.create_queue(ACCOUNT, "dead", {}, {})
    policy = json.dumps({"deadLetterTargetArn": queue_arn(ACCOUNT, "dead"), "maxReceiveCount": 5})
    queue = await node.broker.create_queue(ACCOUNT, "orders", {"RedrivePolicy": policy}, {})
    assert queue.shard != dead.shard
    return queue, dead


def make_nack(node: Node, queue: Queue, receipt: str) -> Nack:
    claim = node.broker._receipts.open_at(ACCOUNT, queue.number, receipt)[1]
    return Nack(queue.number, [claim], [Failing(0, "no stock", "OutOfStock", True)])


# --- a dead letter's past -----------------------------------------------------------------------


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("shards", [1, 2])
def test_the_past_survives_dead_letters_redrive_and_dead_letters_again(
    tmp_path: Path, shards: int, truncated: bool
) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=shards, history_bytes=0)
        dead = await node.broker.create_queue(ACCOUNT, "dead", {}, {})
        policy = json.dumps({"deadLetterTargetArn": queue_arn(ACCOUNT, "dead"), "maxReceiveCount": 5})
        queue = await node.broker.create_queue(ACCOUNT, "orders", {"RedrivePolicy": policy}, {})
        others = [await node.broker.create_queue(ACCOUNT, f"other{number}", {}, {}) for number in range(shards)]
        assert len({queue.shard, dead.shard}) == len({other.shard for other in others}) == shards

        async def shorten() -> None:
            """The front of every log goes, so that what lives was carried."""
            if not truncated:
                return
            for other in others:
                before = node.shards[other.shard].host().log.next
                for _ in range(100):
                    await send(node, other, "x" * 2_000)
                await node.broker.purge_queue(other)
                await until(lambda: settled(node))
                await node.maintenance.step()
                assert node.shards[other.shard].host().log.first >= before

        first_ms = node.broker.now_ms()
        [sent] = await send(node, queue, "a", trace="Root=1-2-3", priority=9)
        [delivery] = await receive(node, queue)
        await brokers.nack(node.broker, queue, delivery.receipt, 0, "no stock", "OutOfStock", True)
        await until(lambda: settled(node))
        await shorten()
        await node.broker.start_move(dead, None, None)
        await until(lambda: node.shards[queue.shard].host().counters(queue.number).visible == 1)
        await shorten()
        [delivery] = await receive(node, queue)
        assert (delivery.receive_count, delivery.trace, delivery.priority) == (1, "Root=1-2-3", 9)
        second_id = delivery.message_id
        await asyncio.sleep(5)
        await brokers.nack(node.broker, queue, delivery.receipt, 0, "still none", "OutOfStock", True)
        last_ms = node.broker.now_ms()
        await until(lambda: settled(node))
        await shorten()
        [letter] = await receive(node, dead)
        past = letter.lineage
        assert past is not None
        first_id = sent.message_id  # type: ignore[union-attr]
        assert (past.first_queue, past.first_arn) == (queue.number, queue_arn(ACCOUNT, "orders"))
        assert (past.first_id, letter.message_id) == (first_id, second_id)
        assert (past.first_failure_ms, past.last_failure_ms) == (first_ms, last_ms)
        assert (past.error_class, past.reason, past.attempts) == ("OutOfStock", "still none", 1)
        assert (letter.trace, letter.priority) == ("Root=1-2-3", 9)
        [shown] = await brokers.peek(node.broker, dead, 0, 10)
        assert shown.lineage is not None
        assert (shown.lineage.first_id, shown.lineage.first_arn) == (first_id, queue_arn(ACCOUNT, "orders"))
        await node.stop()

    run_virtual(main)


def settled(node: Node) -> bool:
    return not any(keeper.host().shard.unsettled() for keeper in node.shards)


def test_times_that_no_calendar_has_are_still_shown() -> None:
    assert clock_time(1 << 62, 0) == iso_time(1 << 62) == f"{1 << 62} ms"
    assert clock_time(61_000, 0) == "00:01:01" and clock_time(DAY_MS, 0) == "1970-01-02 00:00:00"
