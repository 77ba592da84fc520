"""POST /v1/queues/{queue}/messages:receive, and POST /v1/messages:receive for several queues."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any, Protocol

from msgspec import Raw, UnsetType

from batonq.api.rest.codec import MSGPACK
from batonq.api.rest.content import attributes_of, base64_of, trace_of, value_of
from batonq.api.rest.service import Answer, Call, Finish, milliseconds
from batonq.api.rest.shapes import DeadLetter, LastFailure, Receive, ReceiveAny, Received, ReceivedMessages
from batonq.attribute_formats.arns import parse_queue_arn
from batonq.core.commands import Failure
from batonq.core.commands import Receive as ReceiveCommand
from batonq.core.payload import Content, Lineage
from batonq.errors import BatonError, InvalidInput
from batonq.node.broker import Delivery
from batonq.node.broker import Received as BrokerReceived
from batonq.node.messages.received import CONTENT_BITS

ATTEMPT_MESSAGES_MAX = 10  # any 10 messages fit into one answer, and a repeated attempt must return the same messages
TURN_BYTES = 256 * 1024  # of JSON to convert to MessagePack per turn of the event loop
MESSAGE_BYTES = 200  # the fixed cost of a message, in units of TURN_BYTES
ATTRIBUTES_FACTOR = 2  # the cost of attributes per byte, relative to bytes of a body
_TEXT, _JSON = int(Content.TEXT), int(Content.JSON)


def receive(call: Call, finish: Finish) -> None:
    queue = call.queue()
    given = call.read(Receive)
    attempt = given.attempt_id or ""
    if attempt and not queue.fifo:
        raise InvalidInput("attemptId can be used only with FIFO queues.")
    binary = call.wanted is MSGPACK

    def delivered(outcome: BrokerReceived | BatonError) -> None:
        if isinstance(outcome, BatonError):
            finish(outcome)
            return
        if _takes_long(outcome, binary):
            call.spawn(_deliver_in_turns(call, finish, queue.name, outcome, binary))
            return
        try:
            answer = Answer(200, ReceivedMessages(_messages(queue.name, outcome, binary)))
        except Exception as problem:
            outcome.give_back()
            finish(call.fault(problem))
        else:
            finish(answer, outcome.give_back)

    command = ReceiveCommand(
        queue.number,
        min(given.max_messages, ATTEMPT_MESSAGES_MAX) if attempt else given.max_messages,
        _visibility_ms(given.visibility_timeout_seconds),
        given.consumer or call.holder,
        attempt,
        queue.wait_ms if given.wait_seconds is None else milliseconds(given.wait_seconds),
    )
    waiting = call.broker.receive(queue, command, delivered)
    # A client that disconnects before the answer must not hold a lease on any message.
    call.request.cancellable = True
    call.request.abandon = None if waiting is None else waiting.abandon


def _takes_long(found: BrokerReceived, binary: bool) -> bool:
    """Whether encoding the answer takes more than one turn of the event loop."""
    if found.is_bare:
        return binary and _JSON in {content & CONTENT_BITS for content in found.contents} and _size(found) > TURN_BYTES
    return _size(found) + MESSAGE_BYTES * len(found) > TURN_BYTES


def _size(found: BrokerReceived) -> int:
    bodies = found.bodies or [delivery.body for delivery in found.rows]
    attributes = found.attributes or [row.attributes for row in found.rows]
    return sum(map(len, bodies)) + ATTRIBUTES_FACTOR * sum(map(len, attributes))


async def _deliver_in_turns(call: Call, finish: Finish, name: str, found: BrokerReceived, binary: bool) -> None:
    try:
        named = [(name, delivery) for delivery in found.deliveries()]
        answer = Answer(200, ReceivedMessages(await received_all(named, binary=binary)))
    except Exception as problem:
        found.give_back()
        finish(call.fault(problem))
    else:
        finish(answer, found.give_back)


def _messages(name: str, found: BrokerReceived, binary: bool) -> list[Received]:
    if not found.is_bare or found.failures:
        return [received(delivery, name, binary=binary) for delivery in found.deliveries()]
    leases = found.leases
    messages: list[Received] = []
    for message_id, receipt, content, body, lease in zip(
        found.message_ids(), found.receipts, found.contents, found.bodies, leases, strict=True
    ):
        message = Received(
            message_id=message_id,
            receipt_handle=receipt,
            receive_count=lease.receive_count,
            sequence=found.numbers_from + lease.sequence,
            queue=name,
            priority=lease.priority,
            sent_at_ms=lease.sent_ms,
            first_received_at_ms=lease.first_received_ms,
            deadline_ms=lease.deadline_ms,
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


def _visibility_ms(seconds: float | None) -> int | None:
    return None if seconds is None else milliseconds(seconds)


async def received_all(found: Iterable[tuple[str, Delivery]], *, binary: bool) -> list[Received]:
    """Encode messages, each with the name of its queue. Yields to the event loop when this takes long."""
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
        # Decoded JSON is very many objects, so it is encoded to bytes at once and not when the answer is written.
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
