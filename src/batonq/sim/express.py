"""The hot calls as the SQS front door makes them when they are plain: without a task, called back by the commit.

Each falls back on the general call when the broker says so, as api/sqs/express.py does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from batonq.core.commands import Accepted, FirstLeases, Send
from batonq.core.ids import message_id
from batonq.errors import BatonError
from batonq.node.broker import Broker, Delivery, Queue
from batonq.node.host import ShardHost

UNTOLD = -1  # a plain answer does not say the priority


async def send(broker: Broker, queue: Queue, sends: Sequence[Send], invocation: str) -> list[Accepted | BatonError]:
    if queue.fifo or not all(_is_plain(send) for send in sends):
        return await broker.send(queue, sends, invocation)
    bodies = [send.body for send in sends]
    digests = [send.body_md5 for send in sends]
    found = broker.send_plain(queue, bodies, digests, "", invocation, 0, sends[0].producer, sends[0].producer_sequence)
    if found is None:
        return await broker.send(queue, sends, invocation)
    host, first = found
    await committed(host)
    shard = host.shard.number
    return [Accepted(first + at, message_id(shard, first + at), False) for at in range(len(sends))]


async def receive(
    broker: Broker, queue: Queue, count: int, visibility_ms: int | None, wait_ms: int, holder: str, attempt: str
) -> list[Delivery]:
    found = None if queue.fifo or attempt else broker.receive_front(queue, count, visibility_ms, holder)
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


def _is_plain(send: Send) -> bool:
    return not (send.group or send.dedup_id or send.priority or send.max_receives) and (
        send.delay_ms is None and send.ttl_ms is None
    )


def _delivery(leases: FirstLeases, at: int, name: str, receipt: str, digest: bytes, body: bytes) -> Delivery:
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
