"""The hot calls as the SQS front door makes them when they are plain: without a task, called back by the commit, or
relayed to the shard's owner.

Each falls back on the general call when the broker says so, as api/sqs/express.py does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from batonq.core.commands import Accepted, FirstLeases, Send
from batonq.core.ids import message_id, message_ids, request_hash
from batonq.errors import BatonError
from batonq.node.broker import Broker, Delivery, Queue
from batonq.node.host import ShardHost
from batonq.node.relayed import (
    RelayedAnswer,
    RelayedCall,
    RelayedDelete,
    RelayedDeliveries,
    RelayedDone,
    RelayedProblem,
    RelayedReceive,
    RelayedSend,
    RelayedSent,
    RelayedTexts,
    claims_of,
)
from batonq.priorities import NORMAL_PRIORITY

UNTOLD = -1  # a plain answer does not say the priority


async def send(
    broker: Broker, queue: Queue, sends: Sequence[Send], invocation: str, first_try: bool = False
) -> list[Accepted | BatonError]:
    if queue.fifo or not all(_is_plain(send) for send in sends):
        return await broker.send(queue, sends, invocation, first_try)
    bodies = [send.body for send in sends]
    digests = [send.body_md5 for send in sends]
    if broker.is_relayed(queue) and not sends[0].producer:
        key = request_hash(queue.number, invocation)
        call = RelayedSend(queue.number, "", 0, key, bodies, digests)
        told = await relayed(broker, queue, call)
        if not isinstance(told, RelayedSent):
            return await broker.send(queue, sends, invocation, first_try)
        return _accepted(queue.shard, told.first, len(sends))
    found = broker.send_plain(queue, bodies, digests, "", invocation, 0, sends[0].producer, sends[0].producer_sequence)
    if found is None:
        return await broker.send(queue, sends, invocation, first_try)
    host, first = found
    await committed(host)
    return _accepted(host.shard.number, first, len(sends))


async def receive(
    broker: Broker, queue: Queue, count: int, visibility_ms: int | None, wait_ms: int, holder: str, attempt: str
) -> list[Delivery]:
    plain_call = not queue.fifo and not attempt
    if plain_call and broker.is_relayed(queue):
        call = RelayedReceive(queue.number, queue.account, queue.name, holder, count, visibility_ms)
        told = await relayed(broker, queue, call)
        if isinstance(told, RelayedDeliveries):
            return told.deliveries
        if isinstance(told, RelayedTexts):
            return _relayed_deliveries(queue, told, broker.seal_relayed(queue, told))
        return await broker.receive(queue, count, visibility_ms, wait_ms, holder, attempt)
    found = broker.receive_front(queue, count, visibility_ms, holder) if plain_call else None
    if found is None:
        return await broker.receive(queue, count, visibility_ms, wait_ms, holder, attempt)
    host, leases = found
    try:
        await committed(host)
    except asyncio.CancelledError:
        # The real front door notices when it writes the answer that nobody is there.
        def called(problem: BatonError | None) -> None:
            if problem is None:
                broker.give_back(queue, host, leases)

        host.commit.call(called)
        raise
    plain = broker.deliver_plain(queue, host, leases)
    if plain is None:
        return await broker.deliver_front(queue, host, leases)
    return [_delivery(leases, at, *one) for at, one in enumerate(plain)]


async def delete(broker: Broker, queue: Queue, receipts: Sequence[str]) -> list[BatonError | None]:
    claims = broker.claims(queue, receipts) if not queue.fifo and broker.is_relayed(queue) else None
    if claims is not None:
        told = await relayed(broker, queue, RelayedDelete(queue.number, claims))
        if isinstance(told, RelayedDone):
            return told.problems() or [None] * len(receipts)
        return await broker.delete(queue, receipts)
    found = broker.delete_plain(queue, receipts)
    if found is None:
        return await broker.delete(queue, receipts)
    host, results = found
    await committed(host)
    return results


async def committed(host: ShardHost) -> None:
    """Wait for the commit of what was decided just now, by its callback."""
    answer = asyncio.get_running_loop().create_future()

    def called(problem: BatonError | None) -> None:
        if answer.done():
            return
        if problem is None:
            answer.set_result(None)
        else:
            answer.set_exception(problem)

    host.commit.call(called)
    await answer


async def relayed(broker: Broker, queue: Queue, call: RelayedCall) -> RelayedAnswer:
    """What the shard's owner answers. Raises what the client is told. Whoever leaves takes no message along."""
    answer: asyncio.Future[RelayedAnswer] = asyncio.get_running_loop().create_future()

    def answered(told: RelayedAnswer | BatonError) -> None:
        problem = told.problem() if isinstance(told, RelayedProblem) else told
        if answer.done():
            if isinstance(told, RelayedTexts | RelayedDeliveries):
                broker.relaying.give_back(queue.shard, queue.number, claims_of(told))
        elif isinstance(problem, BatonError):
            answer.set_exception(problem)
        else:
            answer.set_result(problem)

    broker.relaying.add(queue.shard, call, 0, answered)
    return await answer


def _accepted(shard: int, first: int, count: int) -> list[Accepted | BatonError]:
    return [Accepted(first + at, message_id(shard, first + at), False) for at in range(count)]


def _is_plain(send: Send) -> bool:
    return not (send.group or send.dedup_id or send.max_receives) and (
        send.priority == NORMAL_PRIORITY and send.delay_ms is None and send.ttl_ms is None
    )


def _relayed_deliveries(queue: Queue, found: RelayedTexts, receipts: list[str]) -> list[Delivery]:
    names = message_ids(queue.shard, found.sequences)
    return [
        _delivery(found, at, *one)
        for at, one in enumerate(zip(names, receipts, found.digests, found.bodies, strict=True))
    ]


def _delivery(
    leases: FirstLeases | RelayedTexts, at: int, name: str, receipt: str, digest: bytes, body: bytes
) -> Delivery:
    return Delivery(
        message_id=name,
        receipt=receipt,
        body=body,
        body_md5=digest,
        attributes=b"",
        sender="",
        group="",
        dedup_id="",
        trace="",
        sequence=leases.sequences[at],
        sent_ms=leases.sents_ms[at],
        first_received_ms=leases.leased_ms,
        receive_count=1,
        deadline_ms=leases.deadline_ms,
        priority=UNTOLD,
        lineage=None,
    )
