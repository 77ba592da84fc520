"""Reading retained history on a node: pages, moved messages, restarts, and the front of the log."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from batonq.attribute_formats.arns import queue_arn
from batonq.core.commands import Accepted
from batonq.errors import NotRetained
from batonq.node.messages.retained_reader import RetainedMessage, RetainedReader
from batonq.node.node import Node
from tests.node.nodes import ACCOUNT, SEGMENT_BYTES, drain, kill, open_node, receive, send
from tests.node.support import VirtualLoop, run_virtual
from tests.node.test_maintenance import churn, log_bytes
from tests.support import brokers


async def read_all(node: Node, name: str, page: int = 7) -> list[RetainedMessage]:
    """The whole retained history of a queue on one shard."""
    queue = node.broker.queue(ACCOUNT, name)
    reader, position = RetainedReader(), 0
    found: list[RetainedMessage] = []
    while True:
        some = [*(await reader.read(node.shards[0].host(), queue.number, position, page)).messages()]
        if not some:
            return found
        found += some
        position = some[-1].position


async def make_queue(node: Node, name: str, **attributes: str) -> None:
    await node.broker.create_queue(ACCOUNT, name, {f"Baton.{key}": value for key, value in attributes.items()}, {})


def bodies(messages: list[RetainedMessage]) -> list[str]:
    return [message.body.decode() for message in messages]


def test_deleted_messages_are_read_in_the_order_in_which_they_were_sent(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        await make_queue(node, "orders", RetainSeconds="3600")
        await make_queue(node, "other")
        queue, other = node.broker.queue(ACCOUNT, "orders"), node.broker.queue(ACCOUNT, "other")
        sent = [f"message {at}" for at in range(50)]
        for at in range(0, 50, 5):
            await send(node, queue, *sent[at : at + 5])
            await send(node, other, "not this one")
        await send(node, queue, "with group", group="red")
        await drain(node, queue)
        found = await read_all(node, "orders")
        assert bodies(found) == [*sent, "with group"]
        assert [message.group for message in found] == [""] * 50 + ["red"]
        assert len({message.message_id for message in found}) == 51
        assert {message.sent_ms for message in found} == {message.time_ms for message in found}
        assert node.shards[0].host().shard.counters(queue.number).received == 51  # the reads are not counted
        with pytest.raises(NotRetained, match="RetainSeconds"):
            await read_all(node, "other")
        page = await RetainedReader().read(node.shards[0].host(), queue.number, 0, 100, limit_bytes=1)
        assert len(page) == 1 and page.left == 50  # at least one, whatever its size
        await kill(node)
        node = await open_node(loop, tmp_path)
        assert await read_all(node, "orders") == found
        await node.stop()

    run_virtual(main)


def test_a_dead_letter_is_read_from_its_first_record(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        await make_queue(node, "dead", RetainSeconds="3600")
        dead = node.broker.queue(ACCOUNT, "dead")
        policy = json.dumps({"deadLetterTargetArn": queue_arn(ACCOUNT, "dead"), "maxReceiveCount": 2})
        await node.broker.create_queue(ACCOUNT, "orders", {"RedrivePolicy": policy}, {})
        queue = node.broker.queue(ACCOUNT, "orders")
        (sent,) = await send(node, queue, "poison")
        for _ in range(2):
            (delivery,) = await receive(node, queue)
            await brokers.nack(node.broker, queue, delivery.receipt, reason="no")
        assert await receive(node, queue) == []
        (delivery,) = await receive(node, dead)
        await brokers.delete(node.broker, dead, [delivery.receipt])
        await send(node, dead, "sent here")
        (moved, own) = await read_all(node, "dead")
        assert (moved.body, own.body) == (b"poison", b"sent here")
        assert isinstance(sent, Accepted) and moved.message_id == delivery.message_id == sent.message_id
        assert moved.time_ms >= moved.sent_ms and own.time_ms == own.sent_ms
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize("seed", range(2))
def test_the_front_of_the_log_stays_while_it_is_retained_and_goes_afterwards(tmp_path: Path, seed: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        random = Random(seed)
        node = await open_node(loop, tmp_path, history_bytes=0, history_hours=0.0, carry_rows=7)
        await make_queue(node, "orders", RetainSeconds="600")
        for _ in range(3):
            await churn(node, random, 40, keep=0)
            await node.maintenance.step()
        host = node.shards[0].host()
        assert host.log.first == 1
        before = log_bytes(node)
        assert before > 5 * SEGMENT_BYTES
        assert len(await read_all(node, "orders", 100)) == 3 * 40 * 10
        await node.broker.advance_clock(601_000)
        await send(node, node.broker.queue(ACCOUNT, "orders"), "new")
        for _ in range(4):
            await node.maintenance.step()
        assert log_bytes(node) < before / 3 and host.log.first > 1
        assert bodies(await read_all(node, "orders")) == ["new"]
        await kill(node)
        for saved in (tmp_path / "shard-0000").glob("snapshots/*"):
            saved.unlink()
        node = await open_node(loop, tmp_path)
        node.shards[0].host().shard.validate()
        assert bodies(await read_all(node, "orders")) == ["new"]
        await node.stop()

    run_virtual(main)
