"""What a node reads of itself and of others: parts from everywhere, queues, rates, the oldest visible message."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from batonq.core.catalog.machine import Catalog
from batonq.errors import BatonError, InvalidInput, Unavailable
from batonq.node.monitoring.everywhere import Everywhere, Part
from batonq.node.monitoring.overview import Overview, OverviewReader, QueueReading
from batonq.node.node import Node
from tests.node.nodes import ACCOUNT, open_node, receive, send
from tests.node.support import VirtualLoop, run_virtual
from tests.support import brokers

# --- everywhere -------------------------------------------------------------------------------


class Linked:
    """Other nodes that are asked at once."""

    def __init__(self, *others: Everywhere) -> None:
        self._others = {other.name: other for other in others}
        self.away: set[str] = set()

    def names(self) -> list[str]:
        return sorted(self._others)

    async def ask(self, name: str, command: str, body: bytes, timeout_s: float) -> bytes:
        if name in self.away:
            raise Unavailable(f"{name} is away")
        assert command == "read"
        return await self._others[name].answer(body)


def offering(name: str, value: object) -> Everywhere:
    everywhere = Everywhere(name)

    async def read(arguments: dict[str, Any]) -> Any:
        if isinstance(value, Exception):
            raise value
        return [value, arguments]

    everywhere.provide("things", read)
    return everywhere


def test_each_part_is_read_where_it_is() -> None:
    first, second, third = offering("a", 1), offering("b", 2), offering("c", 3)
    first.others = linked = Linked(second, third)
    linked.away.add("c")
    parts = asyncio.run(first.read("things", limit=5))
    assert parts == [Part("a", [1, {"limit": 5}], ""), Part("b", [2, {"limit": 5}], ""), Part("c", None, "c is away")]


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (Unavailable("its disk is gone"), "its disk is gone"),
        (ValueError("a bug"), "An internal error occurred while 'things' was read; see the log of the node."),
    ],
)
def test_a_part_that_fails_names_its_problem(there: Exception, said: str) -> None:
    for at in (0, 1):
        nodes = [offering("a", there if at == 0 else 1), offering("b", there if at == 1 else 1)]
        nodes[0].others = Linked(nodes[1])
        parts = asyncio.run(nodes[0].read("things"))
        assert (parts[at].value, parts[at].problem) == (None, said)
        assert not parts[1 - at].problem


def test_what_a_node_does_not_have_or_cannot_read_is_a_problem() -> None:
    everywhere = offering("a", 1)
    everywhere.others = Linked(Everywhere("old"))
    parts = asyncio.run(everywhere.read("things"))
    assert parts[1].value is None and "no monitoring data with the name 'things'" in parts[1].problem
    with pytest.raises(InvalidInput, match="cannot be read"):
        asyncio.run(everywhere.answer(b"\xc1"))
    everywhere.others = Linked(offering("b", 2))
    typed = asyncio.run(everywhere.read_as(msgspec.msgpack.Decoder(int), "things"))
    assert typed[0].value == [1, {}], "its own is as it is"
    assert typed[1].value is None and "The answer of b cannot be read" in typed[1].problem


# --- what is read -----------------------------------------------------------------------------


async def read(node: Node, name: str) -> tuple[Overview, QueueReading]:
    overview = await node.overview()
    return overview, next(queue for queue in overview.queues if queue.name == name)


def test_the_policy_of_a_queue_is_read(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        dead = await node.broker.create_queue(ACCOUNT, "dead", {}, {})
        arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{dead.name}"
        attributes = {
            "RedrivePolicy": f'{{"deadLetterTargetArn":"{arn}","maxReceiveCount":4}}',
            "MessageRetentionPeriod": "3600",
        }
        await node.broker.create_queue(ACCOUNT, "orders", attributes, {})
        overview, orders = await read(node, "orders")
        _, target = await read(node, "dead")
        assert (orders.dead_letter_queue, orders.max_receives, orders.retention_seconds) == ("dead", 4, 3600)
        assert target.dead_letters and target.sources == ("orders",) and not target.dead_letter_queue
        assert orders.created_ms == target.created_ms == node.clock.now_ms()
        (told,) = overview.nodes
        assert (told.name, told.problem, told.started_ms) == (node.everywhere.name, "", overview.started_ms)
        assert told.process.resident_bytes > 1_000_000 and told.process.disk_total_bytes > told.process.disk_free_bytes
        await node.stop()

    run_virtual(main)


def test_the_oldest_visible_message_is_not_the_oldest(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await send(node, queue, "delayed", delay_ms=600_000)
        await asyncio.sleep(10)
        await send(node, queue, "in flight")
        await receive(node, queue)
        await asyncio.sleep(5)
        assert (await read(node, "orders"))[1].counters.oldest_visible_ms == 0
        await send(node, queue, "visible")
        await asyncio.sleep(3)
        overview, orders = await read(node, "orders")
        assert (overview.age_ms(orders), overview.visible_age_ms(orders)) == (18_000, 3_000)
        await node.stop()

    run_virtual(main)


def test_a_visible_message_behind_many_others_is_found(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        for _ in range(10):
            await send(node, queue, *"0123456789", delay_ms=600_000)
        await asyncio.sleep(10)
        await send(node, queue, "visible")
        await asyncio.sleep(2)
        overview, orders = await read(node, "orders")
        assert (overview.age_ms(orders), overview.visible_age_ms(orders)) == (12_000, 2_000)
        await node.stop()

    run_virtual(main)


def test_groups_that_wait_for_their_first_message_are_counted(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders.fifo", {"FifoQueue": "true"}, {})
        for group, texts in (("a", ("1", "2")), ("b", ("3", "4", "5")), ("c", ("6",))):
            for text in texts:
                await send(node, queue, text, group=group, dedup_id=text)
        assert (await read(node, "orders.fifo"))[1].blocked_groups == 0
        held = [(await receive(node, queue, 1))[0] for _ in range(3)]
        assert (await read(node, "orders.fifo"))[1].blocked_groups == 2, "nothing waits in the third"
        await brokers.delete(node.broker, queue, [delivery.receipt for delivery in held])
        assert (await read(node, "orders.fifo"))[1].blocked_groups == 0
        await node.stop()

    run_virtual(main)


def test_rates_are_over_the_last_half_minute(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await node.broker.create_queue(ACCOUNT, "idle", {}, {})
        await asyncio.sleep(6)
        for _ in range(60):
            await send(node, queue, "a", "b")
            for delivery in await receive(node, queue, 1):
                await brokers.delete(node.broker, queue, [delivery.receipt])
            await asyncio.sleep(1)
        rates = (await read(node, "orders"))[1].rates
        assert rates.sent == pytest.approx(2, rel=0.1) and rates.received == pytest.approx(1, rel=0.1)
        assert rates.acked == pytest.approx(1, rel=0.1) and rates.retried == rates.dead_lettered == 0
        assert sum((await read(node, "idle"))[1].rates) == 0
        await asyncio.sleep(60)
        assert sum((await read(node, "orders"))[1].rates) == 0
        await node.stop()

    run_virtual(main)


def test_an_unknown_node_cannot_be_asked() -> None:
    with pytest.raises(BatonError, match="Unknown node 'b'"):
        asyncio.run(Everywhere("a").others.ask("b", "read", b"", 1))


@pytest.mark.parametrize("seed", range(3))
def test_what_is_not_read_again_has_not_changed(tmp_path: Path, seed: int) -> None:
    random = Random(seed)

    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=2)
        broker = node.broker
        dead = await broker.create_queue(ACCOUNT, "dead", {}, {})
        arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{dead.name}"
        redrive = {"RedrivePolicy": f'{{"deadLetterTargetArn":"{arn}","maxReceiveCount":2}}'}
        queues = [await broker.create_queue(ACCOUNT, f"orders-{number}", redrive, {}) for number in range(3)]
        queues.append(await broker.create_queue(ACCOUNT, "wide", {"Baton.Spread": "2"}, {}))
        held: list[tuple[Any, Any]] = []
        for _ in range(60):
            queue = random.choice(queues)
            match random.randrange(6):
                case 0 | 1:
                    await send(node, queue, *"ab", delay_ms=random.choice((None, 5_000)))
                case 2:
                    held += [(queue, delivery) for delivery in await receive(node, queue, 2, visibility_ms=10_000)]
                case 3 if held:
                    owner, delivery = held.pop()
                    await brokers.delete(broker, owner, [delivery.receipt])
                case 4:
                    await asyncio.sleep(random.choice((0.5, 6, 12)))
                case _:
                    attributes = {"MessageRetentionPeriod": str(random.randrange(60, 3_600))}
                    await broker.set_attributes(queue, attributes)
            await node.overview()
            await asyncio.sleep(random.choice((0, 0.1)))
            reader, catalog = node._overview_reader, node.catalog.current()

            def all_read(reader: OverviewReader = reader, catalog: Catalog = catalog) -> list[QueueReading | None]:
                return [reader._read_queue(catalog, entry, node.shards, {}) for entry in catalog.queues.values()]

            kept = all_read()
            reader._kept.clear()
            assert all_read() == kept
        await node.stop()

    run_virtual(main)
