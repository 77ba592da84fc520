"""POST /v1/queues/{queue}/messages:receive, and POST /v1/messages:receive for several queues."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any, Protocol

from msgspec import Raw, UnsetType

from batonq.api.rest.codec import MSGPACK
from batonq.api.rest.content import attributes_of, base64_of, trace_of, value_of
from batonq.api.rest.service import Answer, Call, milliseconds
from batonq.api.rest.shapes import DeadLetter, LastFailure, Receive, ReceiveAny, Received, ReceivedMessages
from batonq.core.catalog.names import parse_queue_arn
from batonq.core.commands import FirstLeases
from batonq.core.ids import message_ids
from batonq.core.payload import AS_IS, NO_DIGEST, Content, Lineage
from batonq.core.shard.state import Failure
from batonq.errors import InvalidInput
from batonq.node.broker import Broker, Delivery, Queue
from batonq.node.host import ShardHost, committed

ATTEMPT_MESSAGES_MAX = 10  # these fit into one answer whatever their size: a repetition must give the same ones
CONTENT_BITS = 0xFF & ~(NO_DIGEST | AS_IS)
TURN_BYTES = 256 * 1024  # of JSON that are put into MessagePack before others have their turn; beside that a message
MESSAGE_BYTES = 200  # takes as long as so many of these bytes,
ATTRIBUTES_FACTOR = 2  # and its attributes as long as so many times their own
_TEXT, _JSON = int(Content.TEXT), int(Content.JSON)


async def receive(call: Call) -> Answer:
    queue = call.queue()
    given = call.read(Receive)
    if given.attempt_id is not None and not queue.fifo:
        raise InvalidInput("attemptId can be used only with FIFO queues.")
    # Whoever leaves before the answer gets no message: the broker gives back what it had taken.
    call.request.cancellable = True
    binary = call.wanted is MSGPACK
    holder = given.consumer or call.holder
    visibility_ms = _visibility_ms(given.visibility_timeout_seconds)
    if not queue.fifo:
        front = call.broker.receive_front(queue, given.max_messages, visibility_ms, holder)
        if front is not None:
            call.give_back = partial(_give_back, call.broker, queue, *front)
            return Answer(200, ReceivedMessages(await _front(call.broker, queue, *front, binary=binary)))
    deliveries = await call.broker.receive(
        queue,
        min(given.max_messages, ATTEMPT_MESSAGES_MAX) if given.attempt_id else given.max_messages,
        visibility_ms,
        queue.wait_ms if given.wait_seconds is None else milliseconds(given.wait_seconds),
        holder,
        given.attempt_id or "",
    )
    if not given.attempt_id:  # else the client that gets no answer asks for the same messages again
        call.give_back = partial(call.broker.give_back_found, [(queue.number, delivery) for delivery in deliveries])
    found = [(queue.name, delivery) for delivery in deliveries]
    return Answer(200, ReceivedMessages(await received_all(found, binary=binary)))


async def _front(broker: Broker, queue: Queue, host: ShardHost, leases: FirstLeases, *, binary: bool) -> list[Received]:
    """What was leased as one run, read as one when the messages are nothing but bodies."""
    name = queue.name
    priority = host.shard.columns.priority[leases.slots[0]]  # a run is of one lane
    plain = max(leases.sents_ms) <= leases.leased_ms  # else a clock went back in between, and times need a look
    await committed(host)
    run = broker.deliver_run(queue, host, leases) if plain else None
    if run is None or (binary and is_long_json(run[1], run[3])):
        deliveries = await broker.deliver_front(queue, host, leases)
        return await received_all([(name, delivery) for delivery in deliveries], binary=binary)
    receipts, contents, _, bodies = run
    messages: list[Received] = []
    for message_id, receipt, content, body, sequence, sent_ms in zip(
        message_ids(queue.shard, leases.sequences),
        receipts,
        contents,
        bodies,
        leases.sequences,
        leases.sents_ms,
        strict=True,
    ):
        message = Received(
            message_id=message_id,
            receipt_handle=receipt,
            receive_count=1,
            sequence=sequence,
            queue=name,
            priority=priority,
            sent_at_ms=sent_ms,
            first_received_at_ms=leases.leased_ms,
            deadline_ms=leases.deadline_ms,
        )
        put_body(message, body, content & CONTENT_BITS, binary=binary)
        messages.append(message)
    return messages


async def receive_any(call: Call) -> Answer:
    given = call.read(ReceiveAny)
    call.request.cancellable = True
    found = await call.broker.receive_any(
        call.broker.select(call.caller.account, given.queues),
        given.max_messages,
        _visibility_ms(given.visibility_timeout_seconds),
        milliseconds(given.wait_seconds or 0),
        given.consumer or call.holder,
    )
    call.give_back = partial(call.broker.give_back_found, [(queue.number, delivery) for queue, delivery in found])
    binary = call.wanted is MSGPACK
    named = [(queue.name, delivery) for queue, delivery in found]
    return Answer(200, ReceivedMessages(await received_all(named, binary=binary)))


async def _give_back(broker: Broker, queue: Queue, host: ShardHost, leases: FirstLeases) -> None:
    broker.give_back(queue, host, leases)


def _visibility_ms(seconds: float | None) -> int | None:
    return None if seconds is None else milliseconds(seconds)


def is_long_json(contents: Iterable[int], bodies: Iterable[bytes]) -> bool:
    """Whether putting these bodies into MessagePack takes more than a turn."""
    return _JSON in {content & CONTENT_BITS for content in contents} and sum(map(len, bodies)) > TURN_BYTES


async def received_all(found: Iterable[tuple[str, Delivery]], *, binary: bool) -> list[Received]:
    """Messages, each with the name of its queue. Others have their turn in between when that takes long."""
    messages: list[Received] = []
    size = 0
    for queue, delivery in found:
        messages.append(received(delivery, queue, binary=binary))
        size += MESSAGE_BYTES + ATTRIBUTES_FACTOR * len(delivery.attributes)
        if binary and delivery.content == _JSON:
            size += len(delivery.body)
        if size > TURN_BYTES:
            size = 0
            await asyncio.sleep(0)
    return messages


def received(delivery: Delivery, queue: str, *, binary: bool) -> Received:
    message = Received(
        message_id=delivery.message_id,
        receipt_handle=delivery.receipt,
        receive_count=delivery.receive_count,
        sequence=delivery.sequence,
        queue=queue,
        message_group_id=delivery.group,
        deduplication_key=delivery.dedup_id,
        priority=delivery.priority,
        sent_at_ms=delivery.sent_ms,
        first_received_at_ms=delivery.first_received_ms,
        deadline_ms=delivery.deadline_ms,
    )
    put_body(message, delivery.body, delivery.content, binary=binary)
    if delivery.attributes:
        attributes = attributes_of(delivery.attributes, binary=binary)
        if attributes:
            message.attributes = attributes
    if delivery.trace:
        message.traceparent, message.tracestate = trace_of(delivery.trace)
    if delivery.lineage is not None:
        message.dead_letter = dead_letter(delivery.lineage)
    if delivery.failure is not None:
        message.last_failure = _last_failure(delivery.failure)
    return message


class HasBody(Protocol):
    body: Any
    body_base64: str | UnsetType


def put_body(message: HasBody, body: bytes, content: int, *, binary: bool) -> None:
    if binary:
        value = value_of(body, content)
        # JSON becomes very many objects: what is kept until the answer is written are bytes.
        message.body = Raw(MSGPACK.encode(value)) if content == _JSON else value
    elif content == _TEXT:
        message.body = body.decode()
    elif content == _JSON:
        message.body = Raw(body)
    else:
        message.body_base64 = base64_of(body)


def dead_letter(lineage: Lineage) -> DeadLetter:
    source = parse_queue_arn(lineage.source_arn or lineage.first_arn)
    return DeadLetter(
        queue=source.name if source is not None else "",
        message_id=lineage.first_id,
        reason=lineage.reason,
        error_class=lineage.error_class,
        first_failure_ms=lineage.first_failure_ms,
        last_failure_ms=lineage.last_failure_ms,
        attempts=lineage.attempts,
    )


def _last_failure(failure: Failure) -> LastFailure:
    return LastFailure(
        reason=failure.reason,
        error_class=failure.error_class,
        first_failure_ms=failure.first_ms,
        last_failure_ms=failure.last_ms,
    )
