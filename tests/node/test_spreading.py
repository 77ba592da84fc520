"""A queue on several shards of one node: sends, receives, long polls, receipts, counters, jobs, as if it were one."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from batonq.core.catalog.machine import Catalog
from batonq.core.commands import Accepted
from batonq.core.ids import key_hash, parse_message_id
from batonq.errors import (
    BatonError,
    IdempotencyConflict,
    JobConflict,
    OverLimit,
    QueueDoesNotExist,
    ReceiptInvalid,
    Unavailable,
)
from batonq.node.broker import Queue
from batonq.node.jobs import Redrive
from batonq.node.node import Node
from tests.node.nodes import ACCOUNT, Faults, drain, kill, make_node, make_send, open_node, receive, send
from tests.node.support import VirtualLoop, run_virtual, settle, until

ARN = f"arn:aws:sqs:us-east-1:{ACCOUNT}:"


async def make(node: Node, name: str = "wide", spread: int = 3, **attributes: str) -> Queue:
    own = {"Baton.Spread": str(spread), **attributes}
    return await node.broker.create_queue(ACCOUNT, name, {key.replace("_", "."): own[key] for key in own}, {})


async def make_fifo(node: Node, name: str = "wide.fifo", spread: int = 3, **attributes: str) -> Queue:
    return await make(node, name, spread, FifoQueue="true", DeduplicationScope="messageGroup", **attributes)


def shards_of(results: list[Any]) -> list[int]:
    places = [parse_message_id(result.message_id) for result in results]
    return [place[0] for place in places if place is not None]


def ids(results: list[Any]) -> list[str]:
    return [result.message_id for result in results]


def counts(node: Node, queue: Queue) -> list[int]:
    return [node.shards[shard].host().counters(queue.number).visible for shard in queue.shards]


def grown(node: Node, queue: Queue) -> Queue:
    found = node.broker.queue_by_number(queue.number)
    assert found is not None
    return found


def written(node: Node) -> list[int]:
    return [keeper.host().shard.frame.number + bool(keeper.host().shard.frame.filled) for keeper in node.shards]


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
        results = await node.broker.send(queue, sends)
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
            first = await broker.send(queue, numbered)
            again = await broker.send(queue, numbered)
            assert ids(again) == ids(first)
            assert [one.duplicate for one in again] == [True, True]  # type: ignore[union-attr]
        for at in range(5):
            sends = [make_send("y"), make_send("z", dedup_id=f"z{at}")]
            first, again = [await broker.send(queue, sends, f"request-{at}") for _ in range(2)]
            assert ids(again) == ids(first) and [one.duplicate for one in again] == [True, True]  # type: ignore[union-attr]
        named = [make_send("n"), make_send("m", dedup_id="m"), make_send("o", dedup_id="o")]
        results, known = await broker.send_once(queue, named, "name", "content")
        assert not known
        again, known = await broker.send_once(queue, named, "name", "content")
        assert known and ids(again) == ids(results)
        for others in (named, [make_send("q", dedup_id=f"q{at}") for at in range(9)]):
            refused, known = await broker.send_once(queue, others, "name", "another content")
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
        with pytest.raises(BatonError):
            await send(node, queue, "lost", dedup_id=keys[down])
        assert not node.shards[down].serving
        for number in range(6):
            (result,) = await send(node, queue, f"{number}")
            assert isinstance(result, Accepted)
        name = next(f"n{at}" for at in range(99) if queue.spread.of_hash(key_hash(queue.number, f"n{at}")) == down)
        (result,) = await node.broker.send(queue, [make_send("named")], name, first_try=True)
        assert isinstance(result, Accepted)
        with pytest.raises(Unavailable):  # it may have been taken there before
            await node.broker.send(queue, [make_send("another")], name)
        with pytest.raises(Unavailable):
            await send(node, queue, "keyed", dedup_id=keys[down])
        mixed = [make_send(key, dedup_id=key) for key in keys.values()]
        outcomes = dict(zip(keys, await node.broker.send(queue, mixed), strict=True))
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
        assert not any(await node.broker.delete(queue, [delivery.receipt for delivery in held]))
        assert len(await receive(node, queue)) == 3
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
        assert isinstance((await node.broker.delete(other, receipts[:1]))[0], ReceiptInvalid)
        ends = await node.broker.change_visibility_until(queue, [(receipt, 90_000) for receipt in receipts])
        assert all(isinstance(end, int) and end > 0 for end in ends)
        results = await node.broker.delete(queue, [receipts[0], "garbage", *receipts[1:4]])
        assert [type(result) for result in results] == [type(None), ReceiptInvalid, *[type(None)] * 3]
        nacks = [(receipt, 0, "why", "Oops", False, False) for receipt in receipts[4:]]
        assert await node.broker.nack_many(queue, nacks) == [None, None]
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
            assert all(isinstance(result, Accepted) for result in await node.broker.send(queue, sends))
            assert all(result.duplicate for result in await node.broker.send(queue, sends))  # type: ignore[union-attr]
        assert min(counts(node, queue)) > 0
        first = await node.broker.receive(queue, 5, None, 0, "tester", "attempt")
        again = await node.broker.receive(queue, 5, None, 0, "tester", "attempt")
        assert first and [one.message_id for one in again] == [one.message_id for one in first]
        assert not any(await node.broker.change_visibility(queue, [(one.receipt, 0) for one in again]))
        seen: dict[str, list[int]] = {}
        while found := await receive(node, queue):
            for delivery in found:
                group, _, number_text = delivery.body.decode().partition(":")
                seen.setdefault(group, []).append(int(number_text))
            assert not any(await node.broker.delete(queue, [delivery.receipt for delivery in found]))
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
        await node.broker.delete(queue, [held.receipt])
        assert [delivery.body for delivery in await poll] == [b"second"]
        await node.stop()

    run_virtual(main)


# --- growing ---------------------------------------------------------------------------------------


def test_a_queue_grows_while_in_use_and_keys_stay(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=4)
        queue = await make(node, spread=1)
        await send(node, queue, "before", dedup_id="key")
        poll_before = await receive(node, queue, 1)
        poll = loop.create_task(receive(node, queue, 1, wait_ms=20_000))
        await settle()
        await node.broker.set_attributes(queue, {"Baton.Spread": "3"})
        wide = grown(node, queue)
        assert len(wide.shards) == 3
        (again,) = await send(node, wide, "again", dedup_id="key")
        assert again.duplicate  # type: ignore[union-attr]
        for number in range(4):
            await send(node, wide, str(number))
        assert not any(await node.broker.delete(wide, [poll_before[0].receipt]))
        held = await poll
        assert held, "who waited at the first shard is served there"
        await node.broker.delete(wide, [held[0].receipt])
        await drain(node, wide)
        assert (await node.broker.counters(wide)).deleted == 5
        await send(node, queue, "by one who knows the old spread")
        assert await drain(node, wide) == ["by one who knows the old spread"]
        assert (await node.broker.counters(wide)).sent == 6
        poll = loop.create_task(receive(node, wide, 1, wait_ms=20_000))
        await settle()
        await node.broker.set_attributes(queue, {"Baton.Spread": "4"})
        widest = grown(node, queue)
        newest = node.shards[widest.shards[3]].host()
        newest.send(queue.number, [make_send("on the newest")])
        newest.commit.kick()
        second = loop.create_task(receive(node, widest, 1, wait_ms=20_000))
        done, pending = await asyncio.wait((poll, second), return_when=asyncio.FIRST_COMPLETED)
        assert [delivery.body for task in done for delivery in task.result()] == [b"on the newest"]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        await node.stop()

    run_virtual(main)


def test_a_spread_queue_is_the_same_after_a_crash(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=4)
        queue = await make(node)
        for number in range(9):
            await send(node, queue, str(number), dedup_id=f"{number}" if number % 2 else "")
        (held,) = await receive(node, queue, 1)
        await kill(node)
        node = await open_node(loop, tmp_path, shards=4)
        again = node.broker.queue(ACCOUNT, "wide")
        assert again == queue
        assert not any(await node.broker.delete(again, [held.receipt]))
        (result,) = await send(node, again, "3", dedup_id="3")
        assert result.duplicate  # type: ignore[union-attr]
        assert len(await drain(node, again)) == 8
        await node.stop()

    run_virtual(main)


def test_keys_and_producers_of_a_standard_queue_move_and_what_was_sent_before_is_known(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=4)
        queue = await make(node, spread=1)
        keys = [make_send(f"key {at}", dedup_id=f"k{at}") for at in range(40)]
        before = await node.broker.send(queue, keys)
        producers = [f"p{at}" for at in range(12)]
        firsts = {}
        for producer in producers:
            sends = [make_send(f"{producer} {at}", producer=producer, producer_sequence=at) for at in (1, 2)]
            firsts[producer] = await node.broker.send(queue, sends)
        named = [make_send("named"), make_send("keyed", dedup_id="by name")]
        by_name = await node.broker.send_once(queue, named, "name", "content")
        for spread in ("2", "4"):
            await node.broker.set_attributes(queue, {"Baton.Spread": spread})
        wide = grown(node, queue)
        for known in (wide, queue):  # and who has not heard of it
            again = await node.broker.send(known, keys)
            assert ids(again) == ids(before) and all(one.duplicate for one in again)  # type: ignore[union-attr]
            results, was_known = await node.broker.send_once(known, named, "name", "content")
            assert was_known and ids(results) == ids(by_name[0])
        used = set()
        for producer in producers:
            for numbers in ((2, 3), (3, 4)):
                sends = [make_send(f"{producer} {at}", producer=producer, producer_sequence=at) for at in numbers]
                results = await node.broker.send(wide, sends)
                assert [one.duplicate for one in results] == [True, False]  # type: ignore[union-attr]
            used |= {*shards_of(results)}
        fresh = await node.broker.send(wide, [make_send(f"new {at}", dedup_id=f"n{at}") for at in range(60)])
        assert {*shards_of(fresh)} == {*wide.shards} and len(used) == 4, "the new shards have their part of the keys"
        bodies = Counter(await drain(node, wide))
        assert bodies == Counter(
            [f"key {at}" for at in range(40)]
            + [f"new {at}" for at in range(60)]
            + [f"{producer} {at}" for producer in producers for at in (1, 2, 3, 4)]
            + ["named", "keyed"]
        )
        await node.stop()

    run_virtual(main)


async def grow_fifo(node: Node, queue: Queue, spread: int) -> Queue:
    await node.broker.set_attributes(queue, {"Baton.Spread": str(spread)})
    return grown(node, queue)


def group_of(queue: Queue, shard: int, start: int = 0) -> str:
    """A group that belongs to a shard."""
    return next(f"g{at}" for at in range(start, start + 999) if queue.spread.of_key(f"g{at}") == shard)


def test_a_group_that_has_messages_stays_until_it_is_empty_and_then_moves(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=2)
        queue = await make_fifo(node, spread=1)
        old, new = queue.shard, 1 - queue.shard
        probe = queue.spread.grown([new])
        busy, idle = [f"g{at}" for at in range(99) if probe.of_key(f"g{at}") == new][:2]
        await send(node, queue, "1", group=busy, dedup_id="1")
        await send(node, queue, "x", group=idle, dedup_id="x")
        (held,) = [one for one in await receive(node, queue) if one.group == idle]
        await node.broker.delete(queue, [held.receipt])
        wide = await grow_fifo(node, queue, 2)
        assert wide.spread == probe
        stays = await send(node, wide, "2", group=busy, dedup_id="2")
        moves = await send(node, wide, "y", group=idle, dedup_id="y")
        assert (shards_of(stays), shards_of(moves)) == ([old], [new])
        again = await send(node, wide, "x", group=idle, dedup_id="x")
        assert again[0].duplicate and shards_of(again) == [old], "the old shard still knows what it was sent"  # type: ignore[union-attr]
        again = await send(node, wide, "y", group=idle, dedup_id="y")
        assert again[0].duplicate and shards_of(again) == [new]  # type: ignore[union-attr]
        by_old = await send(node, queue, "z", group=idle, dedup_id="z")  # who knows the old spread only
        assert shards_of(by_old) == [new]
        await node.broker.advance_clock(31_000)
        order: list[str] = []
        while found := await receive(node, wide):
            order += [one.body.decode() for one in found if one.group == busy]
            assert not any(await node.broker.delete(wide, [one.receipt for one in found]))
        assert order == ["1", "2"]
        assert shards_of(await send(node, wide, "3", group=busy, dedup_id="3")) == [new]
        assert shards_of(await send(node, wide, "4", group=busy, dedup_id="4")) == [new]
        mixed = [make_send(f"{group}", group=group, dedup_id="m") for group in (busy, idle, group_of(wide, old))]
        named = await node.broker.send(wide, mixed, "an invocation")
        assert ids(await node.broker.send(wide, mixed, "an invocation")) == ids(named)
        once = [make_send(f"{group}", group=group, dedup_id="o") for group in (busy, idle, group_of(wide, old))]
        first, known = await node.broker.send_once(wide, once, "name", "content")
        assert not known and all(isinstance(result, Accepted) for result in first)
        second, known = await node.broker.send_once(wide, once, "name", "content")
        assert known and ids(second) == ids(first)
        await node.stop()

    run_virtual(main)


def test_a_growth_is_over_when_nothing_that_was_sent_before_counts_any_more(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        hours = {"idempotency_hours": 1.0, "producer_idle_hours": 2.0, "maintenance_every_s": 1e6}
        node = await open_node(loop, tmp_path, shards=2, **hours)
        queue = await make_fifo(node, spread=1)
        for at in range(20):
            await send(node, queue, str(at), group=f"g{at}", dedup_id="1")
        wide = await grow_fifo(node, queue, 2)
        await node.maintenance.step()
        await node.broker.advance_clock(3 * 3_600_000)
        await node.maintenance.step()
        assert grown(node, queue).before, "it has messages of groups that belong to the other"
        assert len(await drain(node, wide)) == 20
        await node.maintenance.step()
        await node.broker.advance_clock(3_600_000)
        await node.maintenance.step()
        assert grown(node, queue).before
        await node.broker.advance_clock(3_600_000)
        await node.maintenance.step()
        assert not grown(node, queue).before
        sent = await send(node, grown(node, queue), "later", group=group_of(wide, wide.shards[1]), dedup_id="2")
        assert shards_of(sent) == [wide.shards[1]]
        await node.stop()

    run_virtual(main)


def test_fifo_order_holds_while_the_spread_grows_under_load_and_through_a_crash(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=4)
        await make_fifo(node, spread=1)
        groups = [f"group-{at}" for at in range(30)]
        sent = dict.fromkeys(groups, 0)
        got: dict[str, list[int]] = {group: [] for group in groups}
        held: list[tuple[Any, str]] = []
        numbers: dict[str, list[int]] = {group: [] for group in groups}

        async def work(rounds: int) -> None:
            for turn in range(rounds):
                queue = node.broker.queue(ACCOUNT, "wide.fifo")
                chosen = [group for at, group in enumerate(groups) if (at + turn) % 3 == 0]
                sends = [make_send(f"{sent[group]}", group=group, dedup_id=f"{sent[group]}") for group in chosen]
                results = await node.broker.send(queue, sends)
                assert all(isinstance(result, Accepted) and not result.duplicate for result in results)
                for group, result in zip(chosen, results, strict=True):
                    sent[group] += 1
                    numbers[group].append(result.sequence)  # type: ignore[union-attr]
                again = await node.broker.send(queue, sends)
                assert all(result.duplicate for result in again)  # type: ignore[union-attr]
                assert [one.sequence for one in again] == [one.sequence for one in results]  # type: ignore[union-attr]
                found = await node.broker.receive(queue, 7, None, 0, "tester")
                holders = {group for _, group in held}
                for delivery in found:
                    assert delivery.group not in holders, "a group is in two hands"
                    assert delivery.sequence == numbers[delivery.group][int(delivery.body)]
                    got[delivery.group].append(int(delivery.body))
                held.extend((delivery, delivery.group) for delivery in found)
                if turn % 2:
                    assert not any(await node.broker.delete(queue, [delivery.receipt for delivery, _ in held]))
                    held.clear()

        await work(20)
        for spread in (2, 4):
            await node.broker.set_attributes(node.broker.queue(ACCOUNT, "wide.fifo"), {"Baton.Spread": str(spread)})
            await work(20)
            await kill(node)
            node = await open_node(loop, tmp_path, shards=4)
            await work(20)
            queue = node.broker.queue(ACCOUNT, "wide.fifo")
            for shard in queue.shards:  # as if nothing counted any more: none of what is sent is sent again
                if not node.shards[shard].host().shard.holds_moved(queue.number):
                    await node.catalog.change(Catalog.settle_spread, queue.number, shard)
            while queue.before:
                for shard in queue.shards:
                    await drained(node, queue, got, held)
                    await node.catalog.change(Catalog.settle_spread, queue.number, shard)
                queue = node.broker.queue(ACCOUNT, "wide.fifo")
        await drained(node, node.broker.queue(ACCOUNT, "wide.fifo"), got, held)
        assert got == {group: list(range(count)) for group, count in sent.items()}
        assert min(keeper.host().shard.next_sequence for keeper in node.shards) > 1, "all shards were used"
        for group in groups:
            assert numbers[group] == sorted(set(numbers[group])), "numbers rise, wherever the group lies"
        await node.stop()

    run_virtual(main)


class Unsteady:
    """A port that now and then fails, before or after it did what it was asked for."""

    def __init__(self, port: Any, random: Random) -> None:
        self._port = port
        self._random = random

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    async def send(self, *arguments: Any) -> Any:
        fate = self._random.random()
        if fate < 0.1:
            raise Unavailable
        results = await self._port.send(*arguments)
        if fate > 0.9:
            raise Unavailable
        return results


@pytest.mark.parametrize("seed", range(6))
def test_numbered_messages_are_taken_once_while_their_groups_move_and_shards_fail(tmp_path: Path, seed: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        random = Random(seed)
        node = await open_node(loop, tmp_path, shards=4)
        await make_fifo(node, spread=1)
        spreading = node.broker._spreading
        port = spreading._port
        spreading._port = lambda shard: Unsteady(port(shard), random)
        groups = [f"group-{at}" for at in range(9)]
        numbers = dict.fromkeys(("p", "q"), 0)
        sent: dict[str, list[str]] = {group: [] for group in groups}
        got: dict[str, list[str]] = {group: [] for group in groups}

        async def numbered(producer: str) -> None:
            """Until all of them are taken, as a client does."""
            first = numbers[producer] + 1
            chosen = [random.choice(groups[producer == "q" :: 2]) for _ in range(random.randint(1, 6))]
            texts = [f"{producer}{first + at}" for at in range(len(chosen))]
            sends = [
                make_send(text, group=group, producer=producer, producer_sequence=first + at)
                for at, (text, group) in enumerate(zip(texts, chosen, strict=True))
            ]
            numbers[producer] += len(sends)
            for group, text in zip(chosen, texts, strict=True):
                sent[group].append(text)
            for _ in range(200):
                queue = node.broker.queue(ACCOUNT, "wide.fifo") if random.random() < 0.7 else known
                try:
                    if all(isinstance(result, Accepted) for result in await node.broker.send(queue, sends)):
                        return
                except Unavailable:
                    continue
            raise AssertionError("they are never taken")

        for turn in range(40):
            known = node.broker.queue(ACCOUNT, "wide.fifo")
            if turn % 10 == 9 and len(known.shards) < 4:
                await node.broker.set_attributes(known, {"Baton.Spread": str(len(known.shards) + 1)})
            for producer in numbers:
                await numbered(producer)
            for delivery in await receive(node, known, random.randint(1, 6)):
                got[delivery.group].append(delivery.body.decode())
                await node.broker.delete(known, [delivery.receipt])
        while found := await receive(node, node.broker.queue(ACCOUNT, "wide.fifo")):
            for delivery in found:
                got[delivery.group].append(delivery.body.decode())
                await node.broker.delete(known, [delivery.receipt])
        assert got == sent
        await node.stop()

    run_virtual(main)


async def drained(node: Node, queue: Queue, got: dict[str, list[int]], held: list[tuple[Any, str]]) -> None:
    assert not any(await node.broker.delete(queue, [delivery.receipt for delivery, _ in held]))
    held.clear()
    while found := await receive(node, queue):
        for delivery in found:
            got[delivery.group].append(int(delivery.body))
        assert not any(await node.broker.delete(queue, [delivery.receipt for delivery in found]))


def test_dead_letters_of_a_queue_that_grew_come_back_to_where_their_group_is(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3)
        await make_fifo(node, "morgue.fifo", 1)
        policy = json.dumps({"deadLetterTargetArn": ARN + "morgue.fifo", "maxReceiveCount": 1})
        queue = await make_fifo(node, "orders.fifo", 1, RedrivePolicy=policy, Baton_DeadLetterOn="failure")
        groups = [f"g{at}" for at in range(12)]
        for group in groups:
            await send(node, queue, group, group=group, dedup_id="1")
        for _ in groups:
            (held,) = await receive(node, queue, 1)
            await node.broker.nack(queue, held.receipt, 0)
        morgue = node.broker.queue(ACCOUNT, "morgue.fifo")

        async def arrived() -> bool:
            return (await node.broker.counters(morgue)).visible == len(groups)

        await until(arrived)
        busy = next(group for group in groups if queue.spread.grown((7, 8)).of_key(group) != queue.shard)
        await send(node, queue, "waits", group=busy, dedup_id="2")
        wide = await grow_fifo(node, queue, 3)
        job = await node.broker.start_job(morgue, Redrive(rate_per_s=1_000, ramp_s=0))
        status = await ended(node, job.id)
        assert (status.state, status.moved) == ("COMPLETED", len(groups))
        found = await node.broker.peek(wide, 0, 100)
        assert len(found) == len(groups) + 1
        for peeked in found:
            place = parse_message_id(peeked.current_id)
            stays = peeked.group == busy  # behind the message that waits there
            assert place is not None and place[0] == (queue.shard if stays else wide.spread.of_key(peeked.group))
        assert [peeked.body.decode() for peeked in found if peeked.group == busy] == ["waits", busy]
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
        while page := await node.broker.peek(queue, after, 2):
            seen += [peeked.body.decode() for peeked in page]
            after = page[-1].view.sequence
        assert sorted(seen) == [str(number) for number in range(7)]
        await node.broker.purge_queue(queue)
        counters = await node.broker.counters(queue)
        assert (counters.visible, counters.in_flight, counters.delayed) == (0, 0, 0)
        await node.stop()

    run_virtual(main)


# --- dead letters and jobs -------------------------------------------------------------------------


async def with_morgue(node: Node, spread: int, morgue_spread: int) -> tuple[Queue, Queue]:
    morgue = await make(node, "morgue", morgue_spread)
    policy = json.dumps({"deadLetterTargetArn": ARN + "morgue", "maxReceiveCount": 1})
    return await make(node, "orders", spread, RedrivePolicy=policy, Baton_DeadLetterOn="failure"), morgue


async def die(node: Node, queue: Queue, morgue: Queue, count: int) -> None:
    dead = (await node.broker.counters(morgue)).visible
    for number in range(count):
        await send(node, queue, str(number))
    while held := await receive(node, queue):
        for delivery in held:
            await node.broker.nack(queue, delivery.receipt, 0, "no", "Oops")

    async def arrived() -> bool:
        return (await node.broker.counters(morgue)).visible == dead + count

    await until(arrived)


async def ended(node: Node, job_id: str) -> Any:
    async def over() -> bool:
        return (await node.broker.job(ACCOUNT, job_id)).state not in ("RUNNING", "CANCELLING")

    await until(over)
    return await node.broker.job(ACCOUNT, job_id)


@pytest.mark.parametrize(("spread", "morgue_spread"), [(3, 3), (3, 1), (1, 3), (2, 4)])
def test_dead_letters_go_and_come_back_between_spread_queues(tmp_path: Path, spread: int, morgue_spread: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=4)
        queue, morgue = await with_morgue(node, spread, morgue_spread)
        await die(node, queue, morgue, 12)
        job = await node.broker.start_job(morgue, Redrive(rate_per_s=1_000, ramp_s=0))
        status = await ended(node, job.id)
        assert (status.state, status.moved, status.examined, status.remaining) == ("COMPLETED", 12, 12, 0)
        assert (await node.broker.jobs(morgue))[0] == status
        assert sorted(map(int, await drain(node, queue))) == list(range(12))
        assert (await node.broker.counters(morgue)).visible == 0
        await node.stop()

    run_virtual(main)


def test_a_dead_letter_goes_to_another_shard_when_one_has_no_room(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3)
        await make(node, "morgue", 3, Baton_MaximumMessages="6")
        policy = json.dumps({"deadLetterTargetArn": ARN + "morgue", "maxReceiveCount": 1})
        queue = await make(node, "orders", 1, RedrivePolicy=policy, Baton_DeadLetterOn="failure")
        await die(node, queue, node.broker.queue(ACCOUNT, "morgue"), 6)
        assert counts(node, node.broker.queue(ACCOUNT, "morgue")) == [2, 2, 2]
        await node.stop()

    run_virtual(main)


def test_a_job_over_several_shards_has_one_rate_one_progress_and_one_limit(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=4)
        queue, morgue = await with_morgue(node, 3, 3)
        await die(node, queue, morgue, 40)
        look = await node.broker.start_job(morgue, Redrive(dry_run=True))
        assert (look.matched, look.dry_run) == (40, True)
        job = await node.broker.start_job(morgue, Redrive(rate_per_s=4, ramp_s=0))
        began_s = loop.time()
        with pytest.raises(JobConflict):
            await node.broker.start_job(morgue, Redrive(rate_per_s=4, ramp_s=0))
        assert (await node.broker.job(ACCOUNT, job.id)).current_rate == pytest.approx(4)
        await asyncio.sleep(4)
        status = await node.broker.pause_job(ACCOUNT, job.id)
        assert status.state == "PAUSED" and 8 <= status.moved <= 18 and status.remaining == 40 - status.examined
        await kill(node)
        node = await open_node(loop, tmp_path, shards=4)
        morgue = node.broker.queue(ACCOUNT, "morgue")
        assert (await node.broker.job(ACCOUNT, job.id)).state == "PAUSED"
        await node.broker.resume_job(ACCOUNT, job.id)
        status = await ended(node, job.id)
        assert (status.state, status.moved) == ("COMPLETED", 40) and loop.time() - began_s > 9
        await node.stop()

    run_virtual(main)


def test_a_job_moves_no_more_than_it_may_and_those_that_it_was_given_by_id(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=4)
        queue, morgue = await with_morgue(node, 3, 3)
        await die(node, queue, morgue, 12)
        job = await node.broker.start_job(morgue, Redrive(rate_per_s=1_000, ramp_s=0, max_messages=5))
        assert (await ended(node, job.id)).moved == 5
        left = [peeked.current_id for peeked in await node.broker.peek(morgue, 0, 100)]
        given = [*left[::2], left[0]]
        job = await node.broker.start_job(morgue, Redrive(rate_per_s=1_000, ramp_s=0, filter={"messageIds": given}))
        status = await ended(node, job.id)
        assert (status.moved, status.not_found) == (len(left[::2]), 0)
        job = await node.broker.start_job(morgue, Redrive(rate_per_s=1, ramp_s=0))
        assert (await node.broker.cancel_job(ACCOUNT, job.id)).state == "CANCELLING"
        assert (await ended(node, job.id)).state == "CANCELLED"
        moved = (await node.broker.counters(queue)).arrived
        assert moved == 12 - (await node.broker.counters(morgue)).visible
        await asyncio.sleep(1)
        task = await node.broker.start_move(morgue, None, 500)
        assert (await node.broker.moves(morgue))[0].id == task.id
        await ended(node, task.id)
        assert (await node.broker.counters(queue)).visible == 12
        await node.stop()

    run_virtual(main)


def test_fifo_dead_letters_find_the_shard_of_their_group(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=4)
        morgue = await make_fifo(node, "morgue.fifo", 4)
        policy = json.dumps({"deadLetterTargetArn": ARN + "morgue.fifo", "maxReceiveCount": 1})
        queue = await make_fifo(node, "orders.fifo", 2, RedrivePolicy=policy, Baton_DeadLetterOn="failure")
        groups = [f"g{at}" for at in range(8)]
        for group in groups:
            await send(node, queue, f"{group}", group=group, dedup_id="1")
        for _ in groups:
            (held,) = await receive(node, queue, 1)
            await node.broker.nack(queue, held.receipt, 0)

        async def arrived() -> bool:
            return (await node.broker.counters(morgue)).visible == len(groups)

        await until(arrived)
        for peeked in await node.broker.peek(morgue, 0, 100):
            place = parse_message_id(peeked.current_id)
            assert place is not None and place[0] == morgue.spread.of_key(peeked.group)
        job = await node.broker.start_job(morgue, Redrive(target=queue, rate_per_s=1_000, ramp_s=0))
        assert (await ended(node, job.id)).moved == len(groups)
        for peeked in await node.broker.peek(queue, 0, 100):
            place = parse_message_id(peeked.current_id)
            assert place is not None and place[0] == queue.spread.of_key(peeked.group)
        await node.stop()

    run_virtual(main)
