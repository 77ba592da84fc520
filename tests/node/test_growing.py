"""A queue on several shards grows while it is in use: keys, groups and producers move, and nothing is sent twice."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from batonq.core.catalog.machine import Catalog
from batonq.core.commands import Accepted, Command, Send
from batonq.core.ids import parse_message_id
from batonq.errors import (
    Unavailable,
)
from batonq.node.broker import Queue
from batonq.node.jobs.job_control import Redrive
from batonq.node.node import Node
from batonq.node.routing.submission import Done, Waiting
from tests.node.nodes import ACCOUNT, drain, kill, make_send, open_node, receive, send
from tests.node.support import VirtualLoop, put, run_virtual, settle, until
from tests.node.test_jobs import ended
from tests.node.wide import grown, ids, make, make_fifo, shards_of
from tests.support import brokers

ARN = f"arn:aws:sqs:us-east-1:{ACCOUNT}:"


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
        assert not any(await brokers.delete(node.broker, wide, [poll_before[0].receipt]))
        held = await poll
        assert held, "who waited at the first shard is served there"
        await brokers.delete(node.broker, wide, [held[0].receipt])
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
        put(newest, queue.number, [make_send("on the newest")])
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
        assert not any(await brokers.delete(node.broker, again, [held.receipt]))
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
        before = await brokers.send(node.broker, queue, keys)
        producers = [f"p{at}" for at in range(12)]
        firsts = {}
        for producer in producers:
            sends = [make_send(f"{producer} {at}", producer=producer, producer_sequence=at) for at in (1, 2)]
            firsts[producer] = await brokers.send(node.broker, queue, sends)
        named = [make_send("named"), make_send("keyed", dedup_id="by name")]
        by_name = await brokers.send_once(node.broker, queue, named, "name", "content")
        for spread in ("2", "4"):
            await node.broker.set_attributes(queue, {"Baton.Spread": spread})
        wide = grown(node, queue)
        for known in (wide, queue):  # and who has not heard of it
            again = await brokers.send(node.broker, known, keys)
            assert ids(again) == ids(before) and all(one.duplicate for one in again)  # type: ignore[union-attr]
            results, was_known = await brokers.send_once(node.broker, known, named, "name", "content")
            assert was_known and ids(results) == ids(by_name[0])
        used = set()
        for producer in producers:
            for numbers in ((2, 3), (3, 4)):
                sends = [make_send(f"{producer} {at}", producer=producer, producer_sequence=at) for at in numbers]
                results = await brokers.send(node.broker, wide, sends)
                assert [one.duplicate for one in results] == [True, False]  # type: ignore[union-attr]
            used |= {*shards_of(results)}
        fresh = await brokers.send(node.broker, wide, [make_send(f"new {at}", dedup_id=f"n{at}") for at in range(60)])
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
        await brokers.delete(node.broker, queue, [held.receipt])
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
            assert not any(await brokers.delete(node.broker, wide, [one.receipt for one in found]))
        assert order == ["1", "2"]
        assert shards_of(await send(node, wide, "3", group=busy, dedup_id="3")) == [new]
        assert shards_of(await send(node, wide, "4", group=busy, dedup_id="4")) == [new]
        mixed = [make_send(f"{group}", group=group, dedup_id="m") for group in (busy, idle, group_of(wide, old))]
        named = await brokers.send(node.broker, wide, mixed, "an invocation")
        assert ids(await brokers.send(node.broker, wide, mixed, "an invocation")) == ids(named)
        once = [make_send(f"{group}", group=group, dedup_id="o") for group in (busy, idle, group_of(wide, old))]
        first, known = await brokers.send_once(node.broker, wide, once, "name", "content")
        assert not known and all(isinstance(result, Accepted) for result in first)
        second, known = await brokers.send_once(node.broker, wide, once, "name", "content")
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
                results = await brokers.send(node.broker, queue, sends)
                assert all(isinstance(result, Accepted) and not result.duplicate for result in results)
                for group, result in zip(chosen, results, strict=True):
                    sent[group] += 1
                    numbers[group].append(result.sequence)  # type: ignore[union-attr]
                again = await brokers.send(node.broker, queue, sends)
                assert all(result.duplicate for result in again)  # type: ignore[union-attr]
                assert [one.sequence for one in again] == [one.sequence for one in results]  # type: ignore[union-attr]
                found = await brokers.receive(node.broker, queue, 7, None, 0, "tester")
                holders = {group for _, group in held}
                for delivery in found:
                    assert delivery.group not in holders, "a group is in two hands"
                    assert delivery.sequence == numbers[delivery.group][int(delivery.body)]
                    got[delivery.group].append(int(delivery.body))
                held.extend((delivery, delivery.group) for delivery in found)
                if turn % 2:
                    assert not any(await brokers.delete(node.broker, queue, [delivery.receipt for delivery, _ in held]))
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
                if not node.shards[shard].host().shard.holds_moved(queue.number, node.broker.now_ms()):
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

    def submit(self, command: Command, done: Done) -> Waiting | None:
        fate = self._random.random() if isinstance(command, Send) else 0.5
        if fate < 0.1:
            done(Unavailable())
            return None
        waiting: Waiting | None = self._port.submit(
            command, lambda outcome: done(Unavailable() if fate > 0.9 else outcome)
        )
        return waiting


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
                    if all(isinstance(result, Accepted) for result in await brokers.send(node.broker, queue, sends)):
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
                await brokers.delete(node.broker, known, [delivery.receipt])
        while found := await receive(node, node.broker.queue(ACCOUNT, "wide.fifo")):
            for delivery in found:
                got[delivery.group].append(delivery.body.decode())
                await brokers.delete(node.broker, known, [delivery.receipt])
        assert got == sent
        await node.stop()

    run_virtual(main)


async def drained(node: Node, queue: Queue, got: dict[str, list[int]], held: list[tuple[Any, str]]) -> None:
    assert not any(await brokers.delete(node.broker, queue, [delivery.receipt for delivery, _ in held]))
    held.clear()
    while found := await receive(node, queue):
        for delivery in found:
            got[delivery.group].append(int(delivery.body))
        assert not any(await brokers.delete(node.broker, queue, [delivery.receipt for delivery in found]))


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
            await brokers.nack(node.broker, queue, held.receipt, 0)
        morgue = node.broker.queue(ACCOUNT, "morgue.fifo")

        async def arrived() -> bool:
            return (await node.broker.counters(morgue)).visible == len(groups)

        await until(arrived)
        busy = next(group for group in groups if queue.spread.grown((7, 8)).of_key(group) != queue.shard)
        await send(node, queue, "waits", group=busy, dedup_id="2")
        wide = await grow_fifo(node, queue, 3)
        job = await node.broker.start_job(morgue, Redrive(rate_per_s=1_000, ramp_s=0))
        status = await ended(node, job)
        assert (status.state, status.moved) == ("COMPLETED", len(groups))
        found = await brokers.peek(node.broker, wide, 0, 100)
        assert len(found) == len(groups) + 1
        for peeked in found:
            place = parse_message_id(peeked.current_id)
            stays = peeked.group == busy  # behind the message that waits there
            assert place is not None and place[0] == (queue.shard if stays else wide.spread.of_key(peeked.group))
        assert [peeked.body.decode() for peeked in found if peeked.group == busy] == ["waits", busy]
        await node.stop()

    run_virtual(main)
