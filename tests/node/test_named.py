"""Requests that their SDK named, to queues on several shards: made again, they make no second message."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from batonq.core.commands import Accepted, Command, Send
from batonq.core.ids import request_hash
from batonq.errors import OverLimit, Unavailable
from batonq.node.broker import Queue
from batonq.node.node import Node
from batonq.node.routing.submission import Done, Waiting, submitted
from tests.node.nodes import drain, make_send, open_node
from tests.node.support import VirtualLoop, run_virtual, settle
from tests.node.wide import grown, make
from tests.support import brokers


def name_of(queue: Queue, fits: Callable[[int], bool]) -> str:
    return next(name for name in map(str, range(9999)) if fits(request_hash(queue.number, name)))


def rows(node: Node) -> list[int]:
    return [keeper.statistics.rows for keeper in node.shards]


class Ways:
    """The ways to all shards of a node: some can be closed, and a send can arrive late."""

    def __init__(self, node: Node) -> None:
        self.closed: set[int] = set()
        self.fate: Callable[[], str] = lambda: "goes well"
        self.late: list[asyncio.Task[Any]] = []
        self.sends: list[tuple[int, int]] = []  # shard, messages
        self.told: list[int] = []  # shards
        self._ports = node.broker._port
        spreading = node.broker._spreading
        node.broker._port = spreading._port = self.port
        spreading._port_at_once = lambda shard: None if shard in self.closed else self.port(shard)

    def port(self, shard: int) -> Any:
        return Way(self, shard, self._ports(shard))


class Way:
    def __init__(self, ways: Ways, shard: int, port: Any) -> None:
        self._ways = ways
        self._shard = shard
        self._port = port

    def __getattr__(self, name: str) -> Any:
        if self._shard in self._ways.closed:
            raise Unavailable
        return getattr(self._port, name)

    async def reach(self, queue: int, version: int) -> None:
        self._ways.told.append(self._shard)
        await self._port.reach(queue, version)

    def submit(self, command: Command, done: Done) -> Waiting | None:
        if self._shard in self._ways.closed:
            done(Unavailable())
            return None
        if not isinstance(command, Send):
            waiting: Waiting | None = self._port.submit(command, done)
            return waiting
        self._ways.sends.append((self._shard, len(command.bodies)))
        fate = self._ways.fate()
        if fate in ("is lost", "comes late"):
            if fate == "comes late":
                self._ways.late.append(asyncio.ensure_future(self._later(command)))
            done(Unavailable())
            return None
        self._port.submit(command, lambda outcome: done(Unavailable() if fate == "is not answered" else outcome))
        return None

    async def _later(self, command: Command) -> None:
        await asyncio.sleep(0.2)
        await submitted(self._port.submit, command)


def fates(*ones: str) -> Callable[[], str]:
    """These, and then all goes well."""
    left = list(ones)
    return lambda: left.pop(0) if left else "goes well"


async def twice(node: Node, queue: Queue, name: str, ways: Ways, fate: str, between: Callable[[], Any]) -> list[str]:
    """One request whose first try has no answer, made again; the bodies that are there in the end."""
    ways.fate = fates(fate)
    with pytest.raises(Unavailable):
        await brokers.send(node.broker, queue, [make_send("one"), make_send("two")], name, first_try=True)
    if (waits := between()) is not None:
        await waits
    first, second = await brokers.send(node.broker, grown(node, queue), [make_send("one"), make_send("two")], name)
    assert isinstance(first, Accepted) and isinstance(second, Accepted)
    await asyncio.gather(*ways.late, return_exceptions=True)
    return sorted(await drain(node, grown(node, queue)))


@pytest.mark.parametrize("fate", ["is lost", "comes late", "is not answered"])
@pytest.mark.parametrize("spread", [1, 2])
def test_while_the_spread_grows(tmp_path: Path, spread: int, fate: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=4)
        queue = await make(node, spread=spread)
        wide = queue.spread.grown([one for one in range(4) if one not in queue.shards][:1])
        name = name_of(queue, lambda hashed: queue.spread.of_hash(hashed) != wide.of_hash(hashed))
        ways = Ways(node)
        grow = {"Baton.Spread": str(spread + 1)}
        found = await twice(node, queue, name, ways, fate, lambda: node.broker.set_attributes(queue, grow))
        assert grown(node, queue).spread == wide
        assert found == ["one", "two"]
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("fate", ["is lost", "comes late", "is not answered"])
def test_when_its_home_had_no_owner_at_first(tmp_path: Path, fate: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3)
        queue = await make(node, spread=3)
        ways = Ways(node)
        ways.closed = {queue.shards[0]}
        name = name_of(queue, lambda hashed: queue.spread.of_hash(hashed) in ways.closed)
        found = await twice(node, queue, name, ways, fate, ways.closed.clear)
        assert found == ["one", "two"]
        assert ways.sends[0] == (queue.shards[1], 2), "another shard is asked at once"
        await node.stop()

    run_virtual(main)


def test_a_retry_that_may_be_at_a_shard_without_an_owner_waits_for_it(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3)
        queue = await make(node, spread=3)
        ways = Ways(node)
        ways.closed = {queue.shards[0]}
        name = name_of(queue, lambda hashed: queue.spread.of_hash(hashed) == queue.shards[1])
        with pytest.raises(Unavailable):
            await brokers.send(node.broker, queue, [make_send("one")], name)
        ways.closed.clear()
        (taken,) = await brokers.send(node.broker, queue, [make_send("one")], name)
        ways.closed = {queue.shards[0]}
        (again,) = await brokers.send(node.broker, queue, [make_send("one")], name)
        assert isinstance(taken, Accepted) and taken._replace(duplicate=True) == again, "its home knows it"
        await node.stop()

    run_virtual(main)


def test_what_a_try_costs(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3)
        queue = await make(node, spread=3)
        ways = Ways(node)
        before = rows(node)
        await brokers.send(node.broker, queue, [make_send("one")], "name", first_try=True)
        assert len(ways.sends) == 1
        assert sum(rows(node)) - sum(before) == 2  # the message, and its request
        del ways.sends[:]
        await brokers.send(node.broker, queue, [make_send("one")], "name")
        assert [messages for _, messages in ways.sends] == [0, 1], "its home is asked, and knows it"
        before = rows(node)
        del ways.sends[:]
        await brokers.send(node.broker, queue, [make_send("two")], "another")
        assert [messages for _, messages in ways.sends] == [0, 0, 0, 0, 1], "its home, all, its home"
        assert sum(rows(node)) - sum(before) == 5
        await node.stop()

    run_virtual(main)


def test_homes_from_before_a_growth_hear_of_it_once(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3)
        queue = await make(node, spread=2)
        await node.broker.set_attributes(queue, {"Baton.Spread": "3"})
        wide = grown(node, queue)
        moved = [name for name in map(str, range(200)) if len(wide.spread.asked(request_hash(wide.number, name))) == 2]
        ways = Ways(node)
        for name in moved:
            (sent,) = await brokers.send(node.broker, wide, [make_send(name)], name, first_try=True)
            assert isinstance(sent, Accepted)
        assert sorted(ways.told) == [0, 1, 2]
        assert {shard for shard, _ in ways.sends} == {wide.shards[2]}
        for name in moved:
            (again,) = await brokers.send(
                node.broker, queue, [make_send(name)], name
            )  # by a node that has not heard of it
            assert isinstance(again, Accepted) and again.duplicate
        await node.stop()

    run_virtual(main)


def test_a_batch_that_finds_room_in_part(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=3)
        queue = await make(node, spread=3, Baton_MaximumMessages="9")
        batch = [make_send(str(number)) for number in range(10)]
        first = await brokers.send(node.broker, queue, batch, "name", first_try=True)
        assert sum(isinstance(result, OverLimit) for result in first) == 1
        await node.broker.set_attributes(queue, {"Baton.MaximumMessages": "900"})
        again = await brokers.send(node.broker, queue, batch, "name")
        for one, other in zip(first, again, strict=True):
            if isinstance(one, Accepted):
                assert other == one._replace(duplicate=True)
        assert sorted(await drain(node, queue)) == [str(number) for number in range(10)]
        await node.stop()

    run_virtual(main)


def test_one_shard_answers_a_batch_that_it_took_in_part_as_before(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=1)
        queue = await make(node, spread=1, Baton_MaximumMessages="3")
        batch = [make_send(str(number)) for number in range(4)]
        first = await brokers.send(node.broker, queue, batch, "name", first_try=True)
        await node.broker.set_attributes(queue, {"Baton.MaximumMessages": "900"})
        again = await brokers.send(node.broker, grown(node, queue), batch, "name")
        assert [result._replace(duplicate=True) for result in first if isinstance(result, Accepted)] == again[:3]
        assert isinstance(first[3], OverLimit) and isinstance(again[3], OverLimit)
        assert sorted(await drain(node, queue)) == ["0", "1", "2"]
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("seed", range(12))
def test_there_is_no_second_message_whatever_happens(tmp_path: Path, seed: int) -> None:
    """Requests and answers get lost or come late, shards are away for a while and have no room, the queue grows."""

    async def main(loop: VirtualLoop) -> None:
        random = Random(seed)
        node = await open_node(loop, tmp_path, shards=5)
        limit = {"Baton_MaximumMessages": "30"} if seed % 3 == 0 else {}
        queue = await make(node, spread=1 + seed % 2, **limit)
        ways = Ways(node)
        unsteady = ("is lost", "comes late", "is not answered", *["goes well"] * 20)
        taken: set[str] = set()
        views = [queue]

        async def request(number: int) -> None:
            texts = [f"{number}-{at}" for at in range(random.choice((1, 1, 2, 5)))]
            first_try = True
            await asyncio.sleep(30 * random.random())
            for _ in range(100):
                try:
                    sends = [make_send(text) for text in texts]
                    results = await brokers.send(node.broker, random.choice(views[-2:]), sends, str(number), first_try)
                except Unavailable:
                    results = [Unavailable()]
                if all(isinstance(result, Accepted | OverLimit) for result in results):
                    answers = zip(texts, results, strict=True)
                    taken.update(text for text, result in answers if isinstance(result, Accepted))
                    return
                first_try = False
                await asyncio.sleep(random.random())
            raise AssertionError("it never has an answer")

        async def disturb() -> None:
            for turn in range(60):
                await asyncio.sleep(random.random())
                ways.closed = {shard for shard in range(5) if random.random() < 0.15}
                if turn % 15 == 7 and len(views[-1].shards) < 5:
                    ways.closed = set()
                    await node.broker.set_attributes(views[-1], {"Baton.Spread": str(len(views[-1].shards) + 1)})
                    views.append(grown(node, queue))
            ways.closed = set()

        ways.fate = lambda: random.choice(unsteady)
        disturbing = loop.create_task(disturb())
        await asyncio.gather(disturbing, *(request(number) for number in range(150)))
        ways.fate = lambda: "goes well"
        await asyncio.gather(*ways.late, return_exceptions=True)
        await settle()
        found = Counter(await drain(node, grown(node, queue)))
        assert len(views) > 2
        assert set(found.values()) == {1}
        assert taken <= found.keys()
        await node.stop()

    run_virtual(main)
