"""POST /v1/queues/{queue}/messages and messages:batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from hashlib import md5, sha256
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from batonq.api.rest import idempotency
from batonq.api.rest.codec import MSGPACK
from batonq.api.rest.content import (
    attributes_from,
    body_from_base64,
    body_from_json,
    body_from_value,
    trace_from,
)
from batonq.api.rest.problems import item_error
from batonq.api.rest.service import Answer, Call, milliseconds
from batonq.api.rest.shapes import (
    BatchMessage,
    LooseSendBatch,
    Message,
    OnlyClientId,
    PackedMessage,
    PackedPlainSendBatch,
    PackedSendBatch,
    PlainSendBatch,
    Producer,
    SendBatch,
    SendResult,
    SendResults,
    Sent,
)
from batonq.api.sqs.validate import attributes_size
from batonq.core.commands import Accepted, Send
from batonq.core.ids import message_id
from batonq.core.payload import encode_attributes
from batonq.errors import BatonError, InvalidInput, TooLarge
from batonq.node.broker import Queue
from batonq.node.host import committed
from batonq.priorities import PRIORITIES

TURN_VALUES = 10_000  # messages and attributes of a batch that are read before others have their turn
FIELDS_BYTES_MAX = 64 * 1024  # what a message's fields may take beside its body and attributes

AnyMessage = Message | PackedMessage


async def send_message(call: Call) -> Answer:
    queue = call.queue()
    given: AnyMessage
    if call.given is MSGPACK:
        _check_size(call, queue)
        given = call.read(PackedMessage)
        if given.client_message_id is not None:
            raise InvalidInput("clientMessageId can be used only in a batch.")
    else:
        given = call.read(Message)
    send = to_send(queue, given, call.caller.sender)
    (result,), headers = await idempotency.send(call, queue, [send], "messages")
    if isinstance(result, BatonError):
        raise result
    return Answer(202, Sent(result.message_id, result.sequence, result.duplicate), headers)


def _check_size(call: Call, queue: Queue) -> None:
    """MessagePack holds a body as it is: one that is too large is not decoded first."""
    if len(call.request.body) > queue.message_bytes_max + FIELDS_BYTES_MAX:
        raise TooLarge(
            f"The message is too large: this queue accepts at most {queue.message_bytes_max} bytes per message."
        )


# --- batches ----------------------------------------------------------------------------------


async def send_batch(call: Call) -> Answer:
    queue = call.queue()
    plain = None if idempotency.HEADER in call.request.headers else _read_plain(call)
    if plain is not None:
        answer = await _send_plain(call, queue, plain)
        if answer is not None:
            return answer
    entries, producer = _read_batch(call)
    results = [SendResult(entry.client_message_id) for entry in entries]
    sends: list[Send] = []
    places: list[int] = []
    sender = call.caller.sender
    values = 0
    for at, entry in enumerate(entries):
        if values > TURN_VALUES:
            values = 0
            await asyncio.sleep(0)
        try:
            if isinstance(entry, Unreadable):
                raise entry.problem
            values += 1 + len(entry.attributes or ())
            sends.append(to_send(queue, entry, sender))
            places.append(at)
        except BatonError as problem:
            results[at].error = item_error(problem)
    if producer is not None:
        _number(sends, places, producer)
    accepted, headers = await idempotency.send(call, queue, sends, "messages:batch") if sends else ([], ())
    for at, result in zip(places, results_of(accepted, [results[at].client_message_id for at in places]), strict=True):
        results[at] = result
    failed = any(result.error is not None for result in results)
    return Answer(200 if failed else 202, SendResults(results), headers)


def results_of(accepted: Sequence[Accepted | BatonError], ids: Sequence[str | None]) -> list[SendResult]:
    return [
        SendResult(client_id, error=item_error(outcome))
        if isinstance(outcome, BatonError)
        else SendResult(client_id, outcome.message_id, outcome.sequence, outcome.duplicate)
        for outcome, client_id in zip(accepted, ids, strict=True)
    ]


def _read_plain(call: Call) -> PlainSendBatch | PackedPlainSendBatch | None:
    """The batch, if its messages are only bodies; None when they are more, or are not valid."""
    shape: Any = PackedPlainSendBatch if call.given is MSGPACK else PlainSendBatch
    call.given.check_weight(call.request.body)
    try:
        return call.given.decoder(shape)(call.request.body)  # type: ignore[no-any-return]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


async def _send_plain(call: Call, queue: Queue, batch: PlainSendBatch | PackedPlainSendBatch) -> Answer | None:
    """Send them as one run; None when the queue, or what the bodies are, does not allow it."""
    if queue.fifo:
        return None
    ids = [entry.client_message_id for entry in batch.messages]
    try:
        if isinstance(batch, PackedPlainSendBatch):
            pairs = [body_from_value(entry.body) for entry in batch.messages]
        else:
            if not call.request.body.isascii():
                call.request.body.decode()
            pairs = [body_from_json(bytes(entry.body)) for entry in batch.messages]
    except (BatonError, UnicodeDecodeError):
        return None
    bodies = [body for body, _ in pairs]
    content = pairs[0][1]
    if any(other != content for _, other in pairs) or max(map(len, bodies)) > queue.message_bytes_max:
        return None
    taken = call.broker.send_plain(queue, bodies, (), call.caller.sender, "", content)
    if taken is None:
        return None
    host, first = taken
    await committed(host)
    shard = queue.shard
    results = [
        SendResult(client_id, message_id(shard, sequence), sequence)
        for sequence, client_id in enumerate(ids, start=first)
    ]
    return Answer(202, SendResults(results))


class Unreadable(NamedTuple):
    """An entry that is not valid, and why."""

    client_message_id: str | None
    problem: InvalidInput


def _read_batch(call: Call) -> tuple[list[BatchMessage | PackedMessage | Unreadable], Producer | None]:
    """The entries of a batch; what is wrong with one of them stands in its place."""
    packed = call.given is MSGPACK
    try:
        batch: Any = call.read(PackedSendBatch) if packed else call.read(SendBatch)
        return batch.messages, batch.producer
    except InvalidInput:
        loose = call.read(LooseSendBatch)  # refused whole when it is not a batch at all
    entries: list[BatchMessage | PackedMessage | Unreadable] = []
    shape: Any = PackedMessage if packed else BatchMessage
    for raw in loose.messages:
        try:
            entries.append(call.given.decode(bytes(raw), shape))
        except InvalidInput as problem:
            entries.append(Unreadable(_client_id(call, bytes(raw)), problem))
    return entries, loose.producer


def _client_id(call: Call, raw: bytes) -> str | None:
    """The client's name for an entry, if that much of it can be read."""
    try:
        return call.given.decode(raw, OnlyClientId).client_message_id
    except InvalidInput:
        return None


def _number(sends: list[Send], places: list[int], producer: Producer) -> None:
    for send, at in zip(sends, places, strict=True):
        send.producer = producer.id
        send.producer_sequence = producer.sequence + at


# --- one message ------------------------------------------------------------------------------


def to_send(queue: Queue, given: AnyMessage, sender: str) -> Send:
    """The message as the broker takes it. Raises InvalidInput or TooLarge when it is not one for this queue."""
    body, content = _body(given)
    send = Send(body, b"", b"", sender, content=content)
    size = len(body)
    if given.attributes:
        attributes = attributes_from(given.attributes)
        send.attributes = encode_attributes(attributes)
        size += attributes_size(attributes)
    if size > queue.message_bytes_max:
        raise TooLarge(
            f"The message has {size} bytes, including its attributes; this queue accepts at most "
            f"{queue.message_bytes_max}."
        )
    if given.message_group_id is not None:
        send.group = given.message_group_id
    if given.delay_seconds is not None:
        if not queue.fifo:
            send.delay_ms = milliseconds(given.delay_seconds)
        elif given.delay_seconds:
            raise InvalidInput(
                "A message in a FIFO queue cannot have its own delay. Set the queue's delaySeconds instead."
            )
    if given.ttl_seconds is not None:
        send.ttl_ms = max(1, milliseconds(given.ttl_seconds))
    if given.max_receive_count is not None:
        send.max_receives = given.max_receive_count
    if given.priority is not None:
        send.priority = given.priority if isinstance(given.priority, int) else PRIORITIES[given.priority]
    for text in (given.message_group_id, given.deduplication_key, given.traceparent, given.tracestate):
        if text is not None and text.endswith("\n"):  # which the end of a pattern lets pass
            raise InvalidInput("Ids and trace headers cannot contain line breaks.")
    send.trace = trace_from(given.traceparent, given.tracestate)
    if queue.fifo and not send.group:
        raise InvalidInput("A message in a FIFO queue needs a messageGroupId.")
    if given.deduplication_key is not None:
        send.dedup_id = given.deduplication_key
        send.strict_content = True
    elif queue.content_dedup:
        send.dedup_id = sha256(body).hexdigest()
    if send.dedup_id:
        send.body_md5 = md5(body, usedforsecurity=False).digest()
    return send


def _body(given: AnyMessage) -> tuple[bytes, int]:
    if given.body_base64 is not None:
        if given.body is not UNSET:
            raise InvalidInput("body and bodyBase64 are both set. Set only one of them.")
        return body_from_base64(given.body_base64)
    if given.body is UNSET:
        raise InvalidInput("The message has no body. Set body (any JSON value) or bodyBase64.")
    if isinstance(given, PackedMessage):
        return body_from_value(given.body)
    return body_from_json(bytes(given.body))
