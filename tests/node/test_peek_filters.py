"""Filters of a peek, and how many messages one page examines."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from batonq.core.payload import Attribute, encode_attributes
from batonq.core.records import State
from batonq.node.broker import Queue
from batonq.node.messages import peek as peeking
from batonq.node.messages.peek import PeekFilter
from batonq.node.node import Node
from tests.node.nodes import ACCOUNT, open_node, receive, send
from tests.node.support import VirtualLoop, run_virtual
from tests.node.test_ports import over_the_wire
from tests.support import brokers


async def bodies(node: Node, queue: Queue, wanted: PeekFilter) -> list[bytes]:
    page = await node.broker.peek(queue, 0, 100, wanted)
    assert page.complete
    return sorted(peeked.body for peeked in page.messages)


@pytest.mark.parametrize(("shards", "wired"), [(1, False), (3, False), (3, True)])
def test_each_filter(tmp_path: Path, shards: int, wired: bool) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=shards)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {"Baton.Spread": str(shards)}, {})
        if wired:
            over_the_wire(node.broker)
        red = encode_attributes([Attribute("colour", "String", b"crimson", False)])
        await send(node, queue, "poison")
        [poison] = await receive(node, queue)
        await brokers.nack(node.broker, queue, poison.receipt, 60_000, "no stock", "OutOfStock")
        await send(node, queue, "held")
        await brokers.receive(node.broker, queue, 1, 60_000, 0, "ann")
        await send(node, queue, "apple")
        await send(node, queue, "pear", attributes=red)
        await send(node, queue, "of a group", group="g")
        await send(node, queue, "later", delay_ms=60_000)
        every = sorted([b"poison", b"held", b"apple", b"pear", b"of a group", b"later"])
        assert await bodies(node, queue, PeekFilter()) == every
        assert await bodies(node, queue, PeekFilter(state=State.DELAYED)) == [b"later", b"poison"]
        assert await bodies(node, queue, PeekFilter(state=State.IN_FLIGHT)) == [b"held"]
        assert await bodies(node, queue, PeekFilter(text="pp")) == [b"apple"]
        assert await bodies(node, queue, PeekFilter(text="crimson")) == [b"pear"]
        assert await bodies(node, queue, PeekFilter(text="colour")) == [b"pear"]
        assert await bodies(node, queue, PeekFilter(group="g")) == [b"of a group"]
        assert await bodies(node, queue, PeekFilter(error_class="OutOfStock")) == [b"poison"]
        assert await bodies(node, queue, PeekFilter(holder="ann")) == [b"held"]
        assert await bodies(node, queue, PeekFilter(holder="ann", text="pear")) == []
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("shards", [1, 3])
def test_a_page_examines_a_limited_number_of_messages(tmp_path: Path, shards: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=shards)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {"Baton.Spread": str(shards)}, {})
        for number in range(200):
            await send(node, queue, f"body {number}")
        wanted = PeekFilter(text="body 1")
        found: list[bytes] = []
        after, complete, pages = 0, False, 0
        while not complete:
            page = await node.broker.peek(queue, after, 30, wanted, 40)
            assert page.examined <= 40 and len(page.messages) <= 30
            found += [peeked.body for peeked in page.messages]
            after, complete = page.after, page.complete
            pages += 1
        assert sorted(found) == sorted(b"body %d" % number for number in range(200) if str(number).startswith("1"))
        assert pages >= 5
        page = await node.broker.peek(queue, 0, 200)
        assert len(page.messages) == 200 and page.complete, "the last message is known to be the last"
        await node.stop()

    run_virtual(main)


def test_a_page_has_a_limited_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peeking, "FOUND_BYTES_MAX", 5_000)
    monkeypatch.setattr(peeking, "READ_BYTES_MAX", 20_000)
    monkeypatch.setattr(peeking, "READ_STEP_BYTES", 1_500)

    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        for _ in range(50):
            await send(node, queue, "x" * 1_000)
        page = await node.broker.peek(queue, 0, 50)
        assert len(page.messages) == page.examined == 5 and not page.complete
        page = await node.broker.peek(queue, 0, 50, PeekFilter(text="y"))
        assert page.examined < 21 and not page.messages and not page.complete
        others = 0

        async def count() -> None:
            nonlocal others
            while True:
                others += 1
                await asyncio.sleep(0)

        counting = loop.create_task(count())
        await node.broker.peek(queue, 0, 50, PeekFilter(text="y"))
        counting.cancel()
        assert others > 8, "other requests get their turns"
        await node.stop()

    run_virtual(main)
