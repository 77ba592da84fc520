"""POST /v1/queues/{queue}/messages and messages:batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from hashlib import md5, sha256
from typing import Any, NamedTuple

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
from batonq.api.rest.service import Answer, Call, Finish, milliseconds
from batonq.api.rest.shapes import (
    BatchMessage,
    LooseSendBatch,
    Message,
    OnlyClientId,
    PackedMessage,
    PackedSendBatch,
    Producer,
    SendBatch,
    SendResult,
    SendResults,
    Sent,
)
from batonq.api.send_builder import SendBuilder
from batonq.api.sqs.message_attributes import attributes_size
from batonq.core.commands import Accepted, Once
from batonq.core.commands import Sent as SendOutcome
from batonq.core.payload import encode_attributes
from batonq.errors import BatonError, InvalidInput, TooLarge
from batonq.node.broker import Queue
from batonq.priorities import PRIORITIES

TURN_VALUES = 10_000  # messages and attributes of a batch to read per turn of the event loop
FIELDS_BYTES_MAX = 64 * 1024  # for a message's fields other than its body and attributes

AnyMessage = Message | PackedMessage


def send_message(call: Call, finish: Finish) -> None:
    queue = call.queue()
    given: AnyMessage
    if call.given is MSGPACK:
        _check_size(call, queue)
        given = call.read(PackedMessage)
        if given.client_message_id is not None:
            raise InvalidInput("clientMessageId can be used only in a batch.")
    else:
        given = call.read(Message)
    builder = SendBuilder()
    add_message(queue, builder, given)
    once = idempotency.once_of(call, "messages")

    def sent(outcome: SendOutcome | BatonError) -> None:
        if isinstance(outcome, BatonError):
            finish(outcome)
            return
        result = outcome[0]
        if isinstance(result, BatonError):
            finish(result)
            return
        answer = Sent(result.message_id, result.sequence, result.duplicate)
        finish(Answer(202, answer, idempotency.headers_of(outcome)))

    _send(call, queue, builder, sent, once=once)


def _send(
    call: Call,
    queue: Queue,
    builder: SendBuilder,
    sent: Callable[[SendOutcome | BatonError], None],
    producer: str = "",
    once: Once | None = None,
) -> None:
    keys = builder.column("dedup_ids")
    if keys:  # a text with a digest and nothing else is one that SQS has checked
        builder.digests = [
            md5(body, usedforsecurity=False).digest() if key else b""
            for body, key in zip(builder.bodies, keys, strict=True)
        ]
    contents = builder.column("contents")
    content = contents[0] if contents else 0
    if len({*contents}) == 1:
        builder.clear("contents")
    command = builder.build(queue.number, call.caller.sender, content, producer=producer, once=once)
    call.broker.send(queue, command, sent)


def _check_size(call: Call, queue: Queue) -> None:
    """Refuse a body that is too large before it is decoded. MessagePack holds a body at its full size."""
    if len(call.request.body) > queue.message_bytes_max + FIELDS_BYTES_MAX:
        raise TooLarge(
            f"The message is too large: this queue accepts at most {queue.message_bytes_max} bytes per message."
        )


# --- batches ----------------------------------------------------------------------------------


def send_batch(call: Call, finish: Finish) -> None:
    queue = call.queue()
    entries, producer = _read_batch(call)
    once = idempotency.once_of(call, "messages:batch")
    builder = SendBuilder()
    refused: dict[int, BatonError] = {}
    ids = [entry.client_message_id for entry in entries]

    def sent(outcome: SendOutcome | BatonError) -> None:
        if isinstance(outcome, BatonError):
            finish(outcome)
            return
        conflict = idempotency.conflict_of(outcome)
        if conflict is not None:
            finish(conflict)
            return
        results = iter(outcome.results())
        everything = [refused[at] if at in refused else next(results) for at in range(len(ids))]
        answers = results_of(everything, ids)
        failed = any(answer.error is not None for answer in answers)
        finish(Answer(200 if failed else 202, SendResults(answers), idempotency.headers_of(outcome)))

    def send() -> None:
        if builder.bodies:
            _send(call, queue, builder, sent, "" if producer is None else producer.id, once)
        else:
            sent(SendOutcome(0, 0, 0))

    turns = _add_entries(queue, builder, entries, producer, refused)
    if next(turns, None) is None:
        send()
        return

    async def go_on() -> None:
        try:
            for _ in turns:
                await asyncio.sleep(0)
            send()
        except Exception as problem:
            finish(problem if isinstance(problem, BatonError) else call.fault(problem))

    call.spawn(go_on())


def _add_entries(
    queue: Queue,
    builder: SendBuilder,
    entries: Sequence[BatchMessage | PackedMessage | Unreadable],
    producer: Producer | None,
    refused: dict[int, BatonError],
) -> Iterator[int]:
    """Add the messages of a batch, and record by position those that cannot be sent. Yields when it is time to let the
    event loop run.
    """
    values = 0
    for at, entry in enumerate(entries):
        if values > TURN_VALUES:
            values = 0
            yield at
        before = len(builder.bodies)
        try:
            if isinstance(entry, Unreadable):
                raise entry.problem
            values += 1 + len(entry.attributes or ())
            add_message(queue, builder, entry)
            if producer is not None:
                builder.put("numbers", producer.sequence + at)
        except BatonError as problem:
            refused[at] = problem.with_traceback(None)  # a traceback would keep the request in memory
            if len(builder.bodies) > before:
                builder.remove((before,))


def results_of(accepted: Sequence[Accepted | BatonError], ids: Sequence[str | None]) -> list[SendResult]:
    return [
        SendResult(client_id, error=item_error(outcome))
        if isinstance(outcome, BatonError)
        else SendResult(client_id, outcome.message_id, outcome.sequence, outcome.duplicate)
        for outcome, client_id in zip(accepted, ids, strict=True)
    ]


class Unreadable(NamedTuple):
    """An invalid entry and its error."""

    client_message_id: str | None
    problem: InvalidInput


def _read_batch(call: Call) -> tuple[list[BatchMessage | PackedMessage | Unreadable], Producer | None]:
    """The entries of a batch. An invalid entry is replaced by its error."""
    packed = call.given is MSGPACK
    try:
        batch: Any = call.read(PackedSendBatch) if packed else call.read(SendBatch)
        return batch.messages, batch.producer
    except InvalidInput:
        loose = call.read(LooseSendBatch)  # raises when the body is not a batch at all
    entries: list[BatchMessage | PackedMessage | Unreadable] = []
    shape: Any = PackedMessage if packed else BatchMessage
    for raw in loose.messages:
        try:
            entries.append(call.given.decode(bytes(raw), shape))
        except InvalidInput as problem:
            alone = InvalidInput(problem.message)  # without the cause, which would keep the request in memory
            entries.append(Unreadable(_client_id(call, bytes(raw)), alone))
    return entries, loose.producer


def _client_id(call: Call, raw: bytes) -> str | None:
    """The client's id of an invalid entry, if that part can be decoded."""
    try:
        return call.given.decode(raw, OnlyClientId).client_message_id
    except InvalidInput:
        return None


# --- one message ------------------------------------------------------------------------------


def add_message(queue: Queue, builder: SendBuilder, given: AnyMessage) -> None:
    """Add a message for this queue. Raises InvalidInput or TooLarge when the message is not valid for the queue."""
    body, content = _body(given)
    builder.add(body)
    if content:
        builder.put("contents", content)
    size = len(body)
    if given.attributes:
        attributes = encode_attributes(attributes_from(given.attributes))
        builder.put("attributes", attributes)
        size += attributes_size(attributes, len(given.attributes))
    if size > queue.message_bytes_max:
        raise TooLarge(
            f"The message has {size} bytes, including its attributes; this queue accepts at most "
            f"{queue.message_bytes_max}."
        )
    if given.delay_seconds is not None:
        if not queue.fifo:
            builder.put("delays_ms", milliseconds(given.delay_seconds))
        elif given.delay_seconds:
            raise InvalidInput(
                "A message in a FIFO queue cannot have its own delay. Set the queue's delaySeconds instead."
            )
    if given.ttl_seconds is not None:
        builder.put("ttls_ms", max(1, milliseconds(given.ttl_seconds)))
    if given.max_receive_count is not None:
        builder.put("max_receives", given.max_receive_count)
    if given.priority is not None:
        priority = given.priority if isinstance(given.priority, int) else PRIORITIES[given.priority]
        builder.put("priorities", priority)
    for text in (given.message_group_id, given.deduplication_key, given.traceparent, given.tracestate):
        if text is not None and text.endswith("\n"):  # which `$` at the end of a pattern accepts
            raise InvalidInput("Ids and trace headers cannot contain line breaks.")
    if given.traceparent is not None:
        builder.put("traces", trace_from(given.traceparent, given.tracestate))
    if given.message_group_id is not None:
        builder.put("groups", given.message_group_id)
    elif queue.fifo:
        raise InvalidInput("A message in a FIFO queue needs a messageGroupId.")
    if given.deduplication_key is not None:
        builder.put("dedup_ids", given.deduplication_key)
        builder.put("strict", True)
    elif queue.content_dedup:
        builder.put("dedup_ids", sha256(body).hexdigest())


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
