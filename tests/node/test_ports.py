"""A shard's port answers the same over the wire as in place: every operation, its results and its errors."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from batonq.core.commands import Leases
from batonq.core.ids import message_id
from batonq.core.payload import Payloads
from batonq.errors import BatonError, InvalidInput, Unavailable
from batonq.node.broker import Broker, Queue
from batonq.node.jobs.job_control import Redrive
from batonq.node.messages.received import Received
from batonq.node.node import Node
from batonq.node.routing import wire
from batonq.node.routing.forwarding import RemoteShard
from batonq.node.routing.ports import ShardPort
from tests.node.nodes import ACCOUNT, make_send, open_node
from tests.node.support import VirtualLoop, run_virtual
from tests.support import brokers


def over_the_wire(broker: Broker) -> None:
    """From now on the broker asks its shards by bytes, as it would ask another node."""
    local = broker._port
    ports: dict[int, RemoteShard] = {}

    def remote(shard: int) -> ShardPort:
        async def call(operation: str, data: bytes, wait_ms: int) -> bytes:
            return await wire.answer(local(shard), operation, data)

        if shard not in ports:
            ports[shard] = RemoteShard(call)
        return cast(ShardPort, ports[shard])

    broker._port = broker._spreading._port = broker.messages._port = remote


async def whole_life(node: Node) -> list[Any]:
    """Every operation once, with good and bad input; what each answered."""
    broker = node.broker
    told: list[Any] = []
    dead = await broker.create_queue(ACCOUNT, "dead", {}, {})
    orders = await broker.create_queue(
        ACCOUNT,
        "orders",
        {"RedrivePolicy": f'{{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:{ACCOUNT}:dead","maxReceiveCount":"2"}}'},
        {},
    )
    sends = [
        make_send("plain"),
        make_send("{}", group="g", trace="root", priority=3, ttl_ms=60_000, content=1),
        make_send("later", delay_ms=5_000),
    ]
    told.append(await brokers.send(broker, orders, sends))
    told.append(await brokers.send(broker, orders, [make_send("x" * 2_000_000)]))
    numbered = await broker.create_queue(ACCOUNT, "numbered", {"Baton.MaximumMessages": "3"}, {})
    for queue in (dead, numbered):  # as one run, and one by one because of the limit
        for sequence in (1, 2):
            pair = [
                make_send(text, sender="ann", producer="producer", producer_sequence=sequence + at)
                for at, text in enumerate("12")
            ]
            told.append(await brokers.send(broker, queue, pair))
    gone = [delivery.receipt for delivery in await brokers.receive(broker, dead, 10, 30_000, 0, "zoe")]
    assert len(gone) == 3
    told.append(await brokers.delete(broker, dead, gone))
    told.append(await brokers.delete(broker, dead, gone))
    told.append(await brokers.send_once(broker, orders, [make_send("once")], "request-1", "content"))
    told.append(await brokers.send_once(broker, orders, [make_send("once")], "request-1", "content"))
    told.append(await brokers.send_once(broker, orders, [make_send("other")], "request-1", "another content"))
    told.append(await broker.counters(orders))
    (unseen,) = await brokers.receive(broker, orders, 1, 30_000, 0, "zoe")
    claim = broker._receipts.open_at(ACCOUNT, orders.number, unseen.receipt)[1]
    await broker._port(orders.shard).give_back(orders.number, [claim, claim])
    held = await brokers.receive(broker, orders, 10, 30_000, 0, "ann")
    assert {delivery.receive_count for delivery in held} == {1}
    told.append([delivery._replace(receipt="") for delivery in held])
    told.append(await brokers.peek(broker, orders, 0, 10))
    receipts = [delivery.receipt for delivery in held]
    told.append(await brokers.change_visibility_until(broker, orders, [(receipts[0], 90_000), ("nonsense", 1)]))
    told.append(await brokers.nack_many(broker, orders, [(receipts[1], 0, "no", "Timeout", False, False)]))
    told.append(await brokers.nack_many(broker, orders, [(receipts[2], None, "poison", "Bad", True, False)]))
    told.append(await brokers.delete(broker, orders, [receipts[0], receipts[0], receipts[1]], strict=True))
    told.append(
        [delivery._replace(receipt="") for delivery in await brokers.receive(broker, orders, 10, None, 1_000, "ben")]
    )
    assert dead.shard != orders.shard, "what died goes over a channel"
    told.append(
        [delivery._replace(receipt="") for delivery in await brokers.receive(broker, dead, 10, 0, 9_000, "ben")]
    )
    told.append(await broker.waiting(orders))
    told += await jobs(broker, dead, orders)
    await broker.purge_queue(orders)
    told.append(await broker.counters(orders))
    return told


async def jobs(broker: Broker, dead: Queue, orders: Queue) -> list[Any]:
    told: list[Any] = [await broker.can_move_from(dead), await broker.can_move_from(orders)]
    gone = {"messageIds": [message_id(dead.shard, 1), message_id(dead.shard, 999)]}
    for redrive in (Redrive(dry_run=True), Redrive(dry_run=True, filter=gone), Redrive(rate_per_s=1)):
        status = await broker.start_job(dead, redrive)
        told.append(status._replace(id=""))
    told.append(await _problem(broker.start_job(orders, Redrive())))
    told.append((await broker.pause_job(ACCOUNT, status.id, "for a while"))._replace(id=""))
    told.append([job._replace(id="") for job in await broker.jobs(dead)])
    told.append((await broker.resume_job(ACCOUNT, status.id))._replace(id=""))
    told.append(await _problem(broker.cancel_job(ACCOUNT, status.id)))
    told.append((await broker.job(ACCOUNT, status.id))._replace(id=""))
    told.append(await _problem(broker.job("111111111111", status.id)))
    told.append(await _problem(broker.job(ACCOUNT, "nonsense")))
    moves = await broker.moves(dead)
    told.append([replace(job, id="", key=0) for job in moves])
    told.append(await _problem(broker.cancel_move(orders, moves[0].id)))
    return told


async def _problem(work: Awaitable[Any]) -> BatonError:
    with pytest.raises(BatonError) as raised:
        await work
    return raised.value


def test_every_operation_answers_the_same_over_the_wire(tmp_path: Path) -> None:
    told: dict[bool, list[str]] = {}

    async def main(loop: VirtualLoop) -> None:
        for remote in (False, True):
            node = await open_node(loop, tmp_path / str(remote), shards=2)
            if remote:
                over_the_wire(node.broker)
            started_ms = node.clock.now_ms()
            answers = await whole_life(node)
            told[remote] = [_shown(one, started_ms) for one in answers]
            await node.stop()

    run_virtual(main)
    assert told[True] == told[False]
    assert {"ReceiptInvalid", "LeaseLost", "IdempotencyConflict", "JobNotFound", "COMPLETED"} <= {
        word for one in told[False] for word in re.findall(r"\w+", one)
    }


def _shown(value: Any, started_ms: int) -> str:
    """As text; the times of two runs differ by when they began."""
    if isinstance(value, BatonError):
        return f"{type(value).__name__}: {value.message}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_shown(one, started_ms) for one in value) + "]"
    if isinstance(value, int) and abs(value - started_ms) < 10**9:
        return f"+{value - started_ms}"
    return repr(value)


def test_a_shard_that_is_not_served_says_so_over_the_wire(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        over_the_wire(node.broker)
        await node.shards[0].close()
        with pytest.raises(Unavailable):
            await brokers.send(node.broker, queue, [make_send("lost")])
        await node.stop()

    run_virtual(main)


def test_a_body_goes_over_the_wire_once() -> None:
    body = b"x" * 10_000
    payloads = Payloads([body], [0], [b"m" * 16], ["sender"], ["group"])
    received = Received(0, Leases(1, 2, [3], [4], [5], [6], [7]), *payloads)
    data = wire.encode_outcomes([received])
    assert len(data) < 2 * len(body)
    (read,) = wire.decode_outcomes(data)
    assert (read.bodies, read.digests, read.senders, read.groups) == ([body], [b"m" * 16], ["sender"], ["group"])
    assert len(read) == 1 and not read.is_bare


def test_an_error_is_itself_again() -> None:
    problem = wire.decode_problem(wire.encode_problem(Unavailable("Shard 3 is not served.")))
    assert type(problem) is Unavailable and problem.message == "Shard 3 is not served."


@pytest.mark.parametrize(
    ("operation", "data"),
    [
        ("explode", b"\x90"),
        ("counters", b"\xc1"),
        ("counters", b"\x91\xa1x"),
        ("submit", b""),
        ("submit", b"\x91\x91\x91\x09"),
    ],
)
def test_what_is_no_call_is_refused(operation: str, data: bytes) -> None:
    with pytest.raises(InvalidInput):
        wire.decode_arguments(operation, data)
