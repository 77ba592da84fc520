"""A queue on several shards of one node: sends, receives, long polls, receipts, counters, as if it were one."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from batonq.core.catalog.machine import Catalog
from batonq.core.commands import Accepted, Receive
from batonq.core.ids import key_hash
from batonq.errors import (
    DiskFull,
    IdempotencyConflict,
    OverLimit,
    QueueDoesNotExist,
    ReceiptInvalid,
    Unavailable,
)
from batonq.log.interface import Room
from tests.node.nodes import ACCOUNT, Faults, drain, kill, make_node, make_send, open_node, receive, send
from tests.node.support import VirtualLoop, run_virtual, settle, until
from tests.node.wide import counts, ids, make, make_fifo, shards_of, written
from tests.support import brokers

# --- sending ---------------------------------------------------------------------------------------


def test_what_has_no_key_takes_turns_and_a_batch_stays_together(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=4)
        queue = await make(node)
        for number in range(6):
            await send(node, queue, f"{number}")
        assert counts(node, queue) == [2, 2, 2]
        batch = await send(node, queue, "a", "b", "c")
        assert len(set(shards_of(batch))) == 1
        assert sorted(await drain(node, queue)) == ["0", "1", "2", "3", "4", "5", "a", "b", "c"]
        await node.stop()

    run_virtual(main)


def test_what_has_a_key_goes_to_its_shard_and_results_stand_in_order(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=4)
        queue = await make(node)
        sends = [make_send(str(number), dedup_id=f"key-{number % 9}" if number % 3 else "") for number in range(30)]
        results = await brokers.send(node.broker, queue, sends)
        assert len(set(shards_of(results))) > 1
        for number, result in enumerate(results):
            assert isinstance(result, Accepted)
            if number % 3:
                assert shards_of([result]) == [queue.spread.of_key(f"key-{number % 9}")]
                assert result.duplicate == (number >= 9)
                assert result.message_id == results[number % 9].message_id  # type: ignore[union-attr]
        bodies = await drain(node, queue)
        assert sorted(map(int, bodies)) == [number for number in range(30) if number % 3 == 0 or number < 9]
        await node.stop()

    run_virtual(main)


def test_producers_invocations_and_named_requests_are_told_again_on_any_shard(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=4)
        queue = await make(node)
        broker = node.broker
        for producer in ("p1", "p2", "p3"):
            numbered = [make_send("x", producer=producer, producer_sequence=1 + at) for at in range(2)]
            first = await brokers.send(broker, queue, numbered)
            again = await brokers.send(broker, queue, numbered)
            assert ids(again) == ids(first)
            assert [one.duplicate for one in again] == [True, True]  # type: ignore[union-attr]
        for at in range(5):
            sends = [make_send("y"), make_send("z", dedup_id=f"z{at}")]
            first, again = [await brokers.send(broker, queue, sends, f"request-{at}") for _ in range(2)]
            assert ids(again) == ids(first) and [one.duplicate for one in again] == [True, True]  # type: ignore[union-attr]
        named = [make_send("n"), make_send("m", dedup_id="m"), make_send("o", dedup_id="o")]
        results, known = await brokers.send_once(broker, queue, named, "name", "content")
        assert not known
        again, known = await brokers.send_once(broker, queue, named, "name", "content")
        assert known and ids(again) == ids(results)
        for others in (named, [make_send("q", dedup_id=f"q{at}") for at in range(9)]):
            refused, known = await brokers.send_once(broker, queue, others, "name", "another content")
            assert not known and all(isinstance(result, IdempotencyConflict) for result in refused)
        assert Counter(await drain(node, queue)) == {"x": 6, "y": 5, "z": 5, "n": 1, "m": 1, "o": 1}
        await node.stop()

    run_virtual(main)


def test_a_shard_that_is_down_gets_no_unkeyed_sends_and_keyed_ones_say_so(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        node = make_node(loop, tmp_path, shards=3, faults=faults, reopen_first_s=1000.0, reopen_max_s=1000.0)
        await node.start()
        queue = await make(node)
        down = queue.shards[1]
        faults.planned[down] = ["refuse"]
        keys = {queue.spread.of_key(f"k{at}"): f"k{at}" for at in range(50)}
        with pytest.raises(Unavailable, match="refused by the test"):
            await send(node, queue, "lost", dedup_id=keys[down])
        assert not node.shards[down].serving
        for number in range(6):
            (result,) = await send(node, queue, f"{number}")
            assert isinstance(result, Accepted)
        name = next(f"n{at}" for at in range(99) if queue.spread.of_hash(key_hash(queue.number, f"n{at}")) == down)
        (result,) = await brokers.send(node.broker, queue, [make_send("named")], name, first_try=True)
        assert isinstance(result, Accepted)
        with pytest.raises(Unavailable):  # it may have been taken there before
            await brokers.send(node.broker, queue, [make_send("another")], name)
        with pytest.raises(Unavailable):
            await send(node, queue, "keyed", dedup_id=keys[down])
        mixed = [make_send(key, dedup_id=key) for key in keys.values()]
        outcomes = dict(zip(keys, await brokers.send(node.broker, queue, mixed), strict=True))
        assert isinstance(outcomes.pop(down), Unavailable)
        assert all(isinstance(outcome, Accepted) for outcome in outcomes.values())
        found = await drain(node, queue)
        assert {f"{number}" for number in range(6)} | {"named"} <= set(found)
        with pytest.raises(Unavailable):
            await node.broker.counters(queue)
        await kill(node)

    run_virtual(main)


def test_limits_hold_for_the_whole_queue_and_a_full_shard_sends_on(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3)
        queue = await make(node, Baton_MaximumMessages="9", Baton_MaximumInFlight="6")
        results = await send(node, queue, *(str(number) for number in range(12)))
        assert [isinstance(result, OverLimit) for result in results] == [False] * 9 + [True] * 3
        assert counts(node, queue) == [3, 3, 3]
        held = await receive(node, queue)
        assert len(held) == 6
        with pytest.raises(OverLimit):
            await receive(node, queue)
        assert not any(await brokers.delete(node.broker, queue, [delivery.receipt for delivery in held]))
        assert len(await receive(node, queue)) == 3
        await node.stop()

    run_virtual(main)


def test_what_one_shard_took_is_told_although_the_next_one_refuses_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3)
        queue = await make(node, Baton_MaximumMessages="9")
        (first,) = shards_of(await send(node, queue, "first"))
        shards = queue.spread.taking
        second = shards[(shards.index(first) + 2) % 3]  # the one after the one whose turn it is
        monkeypatch.setattr(node.shards[second].host().log, "room", lambda: Room.NONE)
        results = await send(node, queue, *(str(number) for number in range(12)))
        taken = [number for number, result in enumerate(results) if isinstance(result, Accepted)]
        assert taken == [0, 1, 2]
        assert {type(result) for result in results[3:]} == {DiskFull}
        assert sorted(await drain(node, queue)) == ["0", "1", "2", "first"]
        monkeypatch.undo()
        await node.stop()

    run_virtual(main)


# --- receiving -------------------------------------------------------------------------------------


def test_priority_and_age_decide_and_one_receive_fills_up_from_several_shards(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3)
        queue = await make(node, Baton_PriorityAgeingSeconds="0")
        for text, priority in (("low", 0), ("middle", 3), ("high", 7), ("low again", 0)):
            await send(node, queue, text, priority=priority)
            await asyncio.sleep(1)
        firsts = [(await receive(node, queue, 1))[0].body for _ in range(4)]
        assert firsts == [b"high", b"middle", b"low", b"low again"]
        for number in range(9):
            await send(node, queue, str(number))
        assert len(await receive(node, queue, 7)) == 7
        await node.stop()

    run_virtual(main)


def test_receipts_name_their_shard(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3)
        queue, other = await make(node), await make(node, "other")
        for number in range(6):
            await send(node, queue, str(number))
        held = await receive(node, queue)
        receipts = [delivery.receipt for delivery in held]
        assert isinstance((await brokers.delete(node.broker, other, receipts[:1]))[0], ReceiptInvalid)
        ends = await brokers.change_visibility_until(node.broker, queue, [(receipt, 90_000) for receipt in receipts])
        assert all(isinstance(end, int) and end > 0 for end in ends)
        results = await brokers.delete(node.broker, queue, [receipts[0], "garbage", *receipts[1:4]])
        assert [type(result) for result in results] == [type(None), ReceiptInvalid, *[type(None)] * 3]
        nacks = [(receipt, 0, "why", "Oops", False, False) for receipt in receipts[4:]]
        assert await brokers.nack_many(node.broker, queue, nacks) == [None, None]
        again = await receive(node, queue)
        assert sorted(delivery.body for delivery in again) == sorted(delivery.body for delivery in held[4:])
        assert {delivery.receive_count for delivery in again} == {2}
        await node.stop()

    run_virtual(main)


def test_an_empty_short_poll_writes_nothing(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=4)
        queue = await make(node, spread=4)
        before = written(node)
        for _ in range(10):
            assert await receive(node, queue) == []
        assert written(node) == before
        await node.stop()

    run_virtual(main)


def test_a_long_poll_wakes_for_any_shard_and_those_who_came_first_are_served_first(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3)
        queue = await make(node)
        assert await receive(node, queue, wait_ms=2_000) == []
        assert loop.time() >= 2
        polls = [loop.create_task(receive(node, queue, 1, wait_ms=20_000)) for _ in range(4)]
        await settle()
        assert await node.broker.waiting(queue) == 4
        for at in range(3):
            await send(node, queue, f"{at}")
            await until(polls[at].done, 0.01)
            assert [delivery.body for delivery in polls[at].result()] == [b"%d" % at]
            assert not polls[at + 1].done()
        await send(node, queue, "later", delay_ms=5_000)
        sent_s = loop.time()
        assert [delivery.body for delivery in await polls[3]] == [b"later"]
        assert 5 <= loop.time() - sent_s < 5.5
        assert await node.broker.waiting(queue) == 0
        await node.stop()

    run_virtual(main)


def test_who_leaves_takes_nothing_and_a_stopping_node_answers(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3)
        queue = await make(node)
        poll = loop.create_task(receive(node, queue, wait_ms=20_000))
        await settle()
        poll.cancel()
        await asyncio.gather(poll, return_exceptions=True)
        await send(node, queue, "a")
        (held,) = await receive(node, queue)
        assert held.receive_count == 1
        poll = loop.create_task(receive(node, queue, wait_ms=20_000))
        await settle()
        await node.broker.delete_queue(queue)
        with pytest.raises(QueueDoesNotExist):
            await poll
        second = await make(node, "second")
        poll = loop.create_task(receive(node, second, wait_ms=20_000))
        await settle()
        before_s = loop.time()
        node.stop_waiting()
        assert await poll == [] and loop.time() - before_s < 1
        await node.stop()

    run_virtual(main)


def test_many_long_polls_and_many_messages_meet(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3)
        queue = await make(node)
        polls = [loop.create_task(receive(node, queue, 3, wait_ms=20_000)) for _ in range(20)]
        await settle()
        for start in range(0, 60, 4):
            await send(node, queue, *(str(number) for number in range(start, start + 4)))
        found = [delivery for poll in polls for delivery in await poll]
        found += await receive(node, queue, 60)
        assert sorted(int(delivery.body) for delivery in found) == list(range(60))
        assert {delivery.receive_count for delivery in found} == {1}
        await node.stop()

    run_virtual(main)


def test_one_receive_over_many_queues_sees_all_shards(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3)
        queue, narrow = await make(node), await make(node, "narrow", 1)
        for number in range(5):
            await send(node, queue, str(number))
        await send(node, narrow, "n")
        selection = node.broker.select(ACCOUNT, ["wide", "narrow"])
        found = await node.broker.receive_any(selection, 10, None, 0, "tester")
        assert sorted(delivery.body for _, delivery in found) == [b"0", b"1", b"2", b"3", b"4", b"n"]
        waiting = loop.create_task(node.broker.receive_any(selection, 10, None, 20_000, "tester"))
        for _ in range(3):
            await settle()
            await send(node, queue, "more")
            assert [delivery.body for _, delivery in await waiting] == [b"more"]
            waiting = loop.create_task(node.broker.receive_any(selection, 10, None, 20_000, "tester"))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await node.stop()

    run_virtual(main)


# --- FIFO ------------------------------------------------------------------------------------------


def test_fifo_groups_keep_their_order_and_attempts_are_repeated(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3)
        queue = await make_fifo(node)
        groups = [f"group-{at}" for at in range(12)]
        for number in range(4):
            sends = [make_send(f"{group}:{number}", group=group, dedup_id=f"{number}") for group in groups]
            assert all(isinstance(result, Accepted) for result in await brokers.send(node.broker, queue, sends))
            assert all(result.duplicate for result in await brokers.send(node.broker, queue, sends))  # type: ignore[union-attr]
        assert min(counts(node, queue)) > 0
        first = await brokers.receive(node.broker, queue, 5, None, 0, "tester", "attempt")
        again = await brokers.receive(node.broker, queue, 5, None, 0, "tester", "attempt")
        assert first and [one.message_id for one in again] == [one.message_id for one in first]
        assert not any(await brokers.change_visibility(node.broker, queue, [(one.receipt, 0) for one in again]))
        seen: dict[str, list[int]] = {}
        while found := await receive(node, queue):
            for delivery in found:
                group, _, number_text = delivery.body.decode().partition(":")
                seen.setdefault(group, []).append(int(number_text))
            assert not any(await brokers.delete(node.broker, queue, [delivery.receipt for delivery in found]))
        assert seen == {group: [0, 1, 2, 3] for group in groups}
        await node.stop()

    run_virtual(main)


def test_a_long_poll_of_a_fifo_queue_waits_for_a_group_that_is_free(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3)
        queue = await make_fifo(node)
        for text in ("first", "second"):
            await send(node, queue, text, group="g", dedup_id=text)
        (held,) = await receive(node, queue, 1)
        poll = loop.create_task(receive(node, queue, 1, wait_ms=20_000))
        await asyncio.sleep(3)
        assert not poll.done()
        await brokers.delete(node.broker, queue, [held.receipt])
        assert [delivery.body for delivery in await poll] == [b"second"]
        await node.stop()

    run_virtual(main)


# --- looking and purging ---------------------------------------------------------------------------


def test_counters_peeks_and_purges_are_of_the_whole_queue(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3)
        queue = await make(node)
        first_ms = node.broker.now_ms()
        for number in range(7):
            await send(node, queue, str(number), delay_ms=60_000 if number == 6 else None)
            await asyncio.sleep(1)
        await receive(node, queue, 2)
        counters = await node.broker.counters(queue)
        assert (counters.visible, counters.in_flight, counters.delayed, counters.sent) == (4, 2, 1, 7)
        assert counters.oldest_sent_ms == first_ms
        overview = await node.overview()
        assert [reading.counters.visible for reading in overview.queues] == [4]
        seen: list[str] = []
        after = 0
        while page := await brokers.peek(node.broker, queue, after, 2):
            seen += [peeked.body.decode() for peeked in page]
            after = page[-1].view.sequence
        assert sorted(seen) == [str(number) for number in range(7)]
        await node.broker.purge_queue(queue)
        counters = await node.broker.counters(queue)
        assert (counters.visible, counters.in_flight, counters.delayed) == (0, 0, 0)
        await node.stop()

    run_virtual(main)


# --- a catalog that is away for a moment -------------------------------------------------------------


def test_long_polls_go_on_after_the_catalog_was_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those that came meanwhile nor those that had been waiting keep later ones from being served."""

    def away() -> Catalog:
        raise Unavailable("The catalog is being opened again.")

    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=4)
        queue = await make(node)
        waiting = loop.create_task(brokers.receive(node.broker, queue, 1, None, 20_000, "early"))
        await settle()
        with monkeypatch.context() as patched:
            patched.setattr(node.catalog, "current", away)
            for _ in range(3):
                with pytest.raises(Unavailable):
                    await brokers.receive(node.broker, queue, 1, None, 20_000, "meanwhile")
            await asyncio.sleep(8)  # the one that waits looks again at what there is
        started_s = loop.time()
        await send(node, queue, "for the early one")
        (delivery,) = await waiting
        assert delivery.body == b"for the early one"
        for _ in range(8):  # wherever the messages are
            late = loop.create_task(brokers.receive(node.broker, queue, 1, None, 20_000, "late"))
            await settle()
            await send(node, queue, "for a late one")
            assert len(await late) == 1
        assert loop.time() - started_s < 2
        await node.stop()

    run_virtual(main)


def test_a_receive_over_several_shards_can_be_abandoned_at_any_time(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3)
        queue = await node.broker.create_queue(ACCOUNT, "wide", {"Baton.Spread": "3"}, {})
        await brokers.send(node.broker, queue, [make_send("x")])
        for turns in range(12):
            told: list[Any] = []
            command = Receive(queue.number, 1, None, "tester", wait_ms=20_000 if turns % 2 else 0)
            waiting = node.broker.receive(queue, command, told.append)
            assert waiting is not None
            await settle(turns)
            waiting.abandon()
            await settle()
            for outcome in told:  # it came before
                outcome.give_back()
            await settle()
            counters = await node.broker.counters(queue)
            assert (counters.visible, counters.in_flight) == (1, 0), turns
        (found,) = await receive(node, queue)
        assert found.receive_count == 1 and await node.broker.waiting(queue) == 0
        await node.stop()

    run_virtual(main)
