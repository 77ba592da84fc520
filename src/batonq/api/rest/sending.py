"""POST /v1/queues/{queue}/messages and messages:batch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from hashlib import md5
from typing import Any

from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import astuple

from batonq.api.rest import idempotency
from batonq.api.rest.codec import MSGPACK
from batonq.api.rest.content import (
    Refuse,
    attributes_from,
    attributes_from_packed,
    bodies_from_json,
    bodies_from_packed,
    bytes_of,
    trace_from,
)
from batonq.api.rest.decode_errors import explain
from batonq.api.rest.problems import item_error
from batonq.api.rest.service import SECOND_MS, Answer, Call, Finish, Turns, milliseconds
from batonq.api.rest.shapes import (
    BatchMessage,
    LooseSendBatch,
    Message,
    OnlyClientId,
    OnlyProducer,
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
from batonq.core.commands import Once, Send
from batonq.core.commands import Sent as SendOutcome
from batonq.core.ids import message_ids
from batonq.core.payload import Content, content_key
from batonq.errors import BatonError, InvalidInput, TooLarge
from batonq.node.broker import Queue
from batonq.node.catalog.topic_control import Topic
from batonq.priorities import NORMAL_PRIORITY, PRIORITIES
from batonq.queue_attributes import DELAY_MAX_S
from batonq.topic_attributes import is_subject

TURN_VALUES = 10_000  # attributes of a batch to read per turn of the event loop
FIELDS_BYTES_MAX = 64 * 1024  # for a message's fields other than its body and attributes
NO_TIMES = (
    "A published message cannot have its own delay or time to live. Set delaySeconds and retentionSeconds of the "
    "subscribed queues."
)

AnyMessage = Message | PackedMessage


def send_message(call: Call, finish: Finish) -> None:
    send_to(call, call.queue(), finish)


def send_to(call: Call, queue: Queue | Topic, finish: Finish) -> None:
    """Send the request's message to a queue, or publish it to a topic."""
    given: AnyMessage
    if call.given is MSGPACK:
        _check_size(call, queue)
        given = call.read(PackedMessage)
        if given.client_message_id is not None:
            raise InvalidInput("clientMessageId can be used only in a batch.")
    else:
        given = call.read(Message)
    once = idempotency.once_of(call, "messages")
    messages = _Messages(queue, call.broker.body_bytes_max(queue), [given], call.broker.now_ms())

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

    def send(_: None) -> None:
        for problem in messages.errors.values():
            finish(problem)
            return
        call.broker.send(queue, messages.command(call, "", once), sent)

    call.run_in_turns(messages.read(), send, partial(_fail, call, finish))


def _check_size(call: Call, queue: Queue | Topic) -> None:
    """Refuse a body that is too large before it is decoded. MessagePack holds a body at its full size."""
    bytes_max = call.broker.body_bytes_max(queue)
    if len(call.request.body) > bytes_max + FIELDS_BYTES_MAX:
        raise TooLarge(f"The message is too large: this queue accepts at most {bytes_max} bytes per message.")


def _fail(call: Call, finish: Finish, problem: Exception) -> None:
    finish(problem.with_traceback(None) if isinstance(problem, BatonError) else call.fault(problem))


# --- batches ----------------------------------------------------------------------------------


def send_batch(call: Call, finish: Finish) -> None:
    send_batch_to(call, call.queue(), finish)


def send_batch_to(call: Call, queue: Queue | Topic, finish: Finish) -> None:
    """Send the request's messages to a queue, or publish them to a topic."""
    entries, producer, unreadable = _read_batch(call)
    once = idempotency.once_of(call, "messages:batch")
    messages = _Messages(queue, call.broker.body_bytes_max(queue), entries, call.broker.now_ms(), unreadable, producer)

    def sent(outcome: SendOutcome | BatonError) -> None:
        if isinstance(outcome, BatonError):
            finish(outcome)
            return
        conflict = idempotency.conflict_of(outcome)
        if conflict is not None:
            finish(conflict)
            return
        answers = _results(messages.ids, outcome, messages.errors)
        failed = not outcome.first and any(answer.error is not None for answer in answers)
        status = 200 if failed or messages.errors else 202
        finish(Answer(status, SendResults(answers), idempotency.headers_of(outcome)))

    def send(_: None) -> None:
        if len(messages.errors) == len(entries):
            sent(SendOutcome(0, 0, 0))
        else:
            call.broker.send(queue, messages.command(call, "" if producer is None else producer.id, once), sent)

    call.run_in_turns(messages.read(), send, partial(_fail, call, finish))


def _results(ids: Sequence[str | None], outcome: SendOutcome, errors: Mapping[int, BatonError]) -> list[SendResult]:
    """One result per entry of the batch."""
    if outcome.first and not errors:
        sequences = range(outcome.first, outcome.first + outcome.count)
        first = outcome.first + outcome.numbers_from
        numbers = range(first, first + outcome.count)
        return [*map(SendResult, ids, message_ids(outcome.shard, sequences), numbers)]
    results = iter(outcome.results())
    everything = [errors[at] if at in errors else next(results) for at in range(len(ids))]
    return [
        SendResult(client_id, error=item_error(result))
        if isinstance(result, BatonError)
        else SendResult(client_id, result.message_id, result.sequence, result.duplicate)
        for client_id, result in zip(ids, everything, strict=True)
    ]


def _read_batch(call: Call) -> tuple[Sequence[AnyMessage], Producer | None, dict[int, BatonError]]:
    """The entries of a batch, and the errors of invalid entries by their place. An empty message replaces such an
    entry.
    """
    packed = call.given is MSGPACK
    try:
        if packed:
            batch = call.read(PackedSendBatch)
            return batch.messages, _producer(call, batch.producer), {}
        given = call.read(SendBatch)
        return given.messages, given.producer, {}
    except InvalidInput:
        loose = call.read(LooseSendBatch)  # raises when the body is not a batch at all
    producer = _producer(call, loose.producer)
    entries: list[AnyMessage] = []
    unreadable: dict[int, BatonError] = {}
    shape: type[PackedMessage] | type[BatchMessage] = PackedMessage if packed else BatchMessage
    for at, raw in enumerate(loose.messages):
        try:
            entries.append(call.given.decode(bytes(raw), shape))
        except InvalidInput as problem:
            unreadable[at] = InvalidInput(problem.message)  # without the cause, which would keep the request in memory
            entries.append(shape(client_message_id=_client_id(call, bytes(raw))))
    return entries, producer, unreadable


def _producer(call: Call, raw: Raw | UnsetType) -> Producer | None:
    if raw is UNSET:
        return None
    start, end = (b"\x81" + MSGPACK.encode("producer"), b"") if call.given is MSGPACK else (b'{"producer":', b"}")
    return call.given.decode(start + bytes(raw) + end, OnlyProducer).producer


def _client_id(call: Call, raw: bytes) -> str | None:
    """The client's id of an invalid entry, if that part can be decoded."""
    try:
        return call.given.decode(raw, OnlyClientId).client_message_id
    except InvalidInput:
        return None


# --- messages ---------------------------------------------------------------------------------

_FIELDS = PackedMessage.__struct_fields__
assert BatchMessage.__struct_fields__ == _FIELDS
assert (*Message.__struct_fields__, "client_message_id") == _FIELDS


class _Messages:
    """The messages of one request, checked field by field and collected as the columns of a Send command. A field that
    no message has costs nothing.
    """

    __slots__ = ("_builder", "_bytes_max", "_columns", "_now_ms", "_packed", "_producer", "_queue", "errors", "ids")

    def __init__(
        self,
        queue: Queue | Topic,
        bytes_max: int,
        entries: Sequence[AnyMessage],
        now_ms: int,
        unreadable: Mapping[int, BatonError] | None = None,
        producer: Producer | None = None,
    ) -> None:
        self._queue = queue
        self._now_ms = now_ms
        self._bytes_max = bytes_max
        self._packed = isinstance(entries[0], PackedMessage)
        self._columns = [*zip(*map(astuple, entries), strict=True)]
        self._producer = producer
        self._builder = SendBuilder()
        self.ids: Sequence[str | None] = self._columns[-1]
        self.errors: dict[int, BatonError] = {
            **(unreadable or {})
        }  # the first error of each message that cannot be sent

    def command(self, call: Call, producer: str, once: Once | None) -> Send:
        """Send the messages that have no error."""
        builder = self._builder
        if self.errors:
            builder.remove(self.errors)
        keys = builder.column("dedup_ids")
        if keys:  # a text with a digest and nothing else is one that SQS has checked
            builder.digests = [
                md5(body, usedforsecurity=False).digest() if key else b""
                for body, key in zip(builder.bodies, keys, strict=True)
            ]
        contents = builder.column("contents")
        content = contents[0]
        if contents.count(content) == len(contents):
            builder.clear("contents")
        return builder.build(self._queue.number, call.caller.sender, content, producer=producer, once=once)

    def read(self) -> Turns[None]:
        """Check the messages, and collect them. `errors` has those that cannot be sent."""
        (
            texts64,
            keys,
            groups,
            delays_s,
            times,
            ttls_s,
            receives,
            priorities,
            parents,
            states,
            subjects,
            raws,
            attributes,
            *_,
        ) = self._columns
        builder, queue = self._builder, self._queue
        bodies, contents = self._bodies(raws, texts64)
        count = len(bodies)
        builder.bodies = bodies
        builder.put_all("contents", contents)
        sizes: Sequence[int] = [*map(len, bodies)]
        if attributes.count(UNSET if self._packed else None) != count:
            sizes = yield from self._put_attributes(attributes, sizes)
        if max(sizes) > self._bytes_max:
            self._check_sizes(sizes)
        if isinstance(queue, Topic):
            self._refuse_times(delays_s, times, ttls_s)
        if delays_s.count(None) != count:
            builder.put_all("delays_ms", [None if one is None else milliseconds(one) for one in delays_s])
        if times.count(None) != count:
            self._put_times(times)
        if ttls_s.count(None) != count:
            builder.put_all("ttls_ms", [None if one is None else max(1, milliseconds(one)) for one in ttls_s])
        if receives.count(None) != count:
            builder.put_all("max_receives", [one or 0 for one in receives])
        if priorities.count(None) != count:
            builder.put_all("priorities", [*map(priority_of, priorities)])
        if groups.count(None) != count:
            self._check_texts("messageGroupId", groups, _IDENTIFIER)
            builder.put_all("groups", [one or "" for one in groups])
        if keys.count(None) != count:
            self._check_texts("deduplicationKey", keys, _IDENTIFIER)
        if parents.count(None) != count:
            self._check_texts("traceparent", parents, _TRACE_PARENT)
        if states.count(None) != count:
            self._check_texts("tracestate", states, _TRACE_STATE)
        if parents.count(None) != count:
            builder.put_all("traces", [*map(trace_from, parents, states)])
        if subjects.count(None) != count:
            self._put_subjects(subjects)
        if queue.fifo and None in groups:
            for at, group in enumerate(groups):
                if group is None:
                    self._refuse(at, InvalidInput("A message for a FIFO queue or topic needs a messageGroupId."))
        self._put_keys(keys)
        if self._producer is not None:
            first = self._producer.sequence
            builder.put_all("numbers", [*range(first, first + count)])

    def _refuse_times(self, *columns: Sequence[object]) -> None:
        for at, times in enumerate(zip(*columns, strict=True)):
            if any(time is not None for time in times):
                self._refuse(at, InvalidInput(NO_TIMES))

    def _put_subjects(self, subjects: Sequence[str | None]) -> None:
        if not isinstance(self._queue, Topic):
            for at, subject in enumerate(subjects):
                if subject is not None:
                    self._refuse(at, InvalidInput("Only messages that are published to a topic can have a subject."))
            return
        self._check_texts("subject", subjects, is_subject)
        self._builder.put_all("subjects", [subject or "" for subject in subjects])

    def _refuse(self, at: int, problem: BatonError) -> None:
        self.errors.setdefault(at, problem.with_traceback(None))  # a traceback would keep the request in memory

    def _bodies(self, raws: Sequence[Raw | UnsetType], texts64: Sequence[str | None]) -> tuple[list[bytes], list[int]]:
        """The bodies to store, and their content types."""
        count = len(raws)
        if texts64.count(None) == count and {*map(type, raws)} == {Raw}:
            return self._converted(raws, self._refuse)
        places = [at for at in range(count) if raws[at] is not UNSET and texts64[at] is None]
        bodies, contents = [b""] * count, [int(Content.BYTES)] * count
        converted = self._converted([raws[at] for at in places], lambda at, problem: self._refuse(places[at], problem))
        for at, body, content in zip(places, *converted, strict=True):
            bodies[at], contents[at] = body, content
        for at, text in enumerate(texts64):
            if text is None:
                if raws[at] is UNSET:
                    self._refuse(at, InvalidInput("The message has no body. Set body (any JSON value) or bodyBase64."))
            elif raws[at] is not UNSET:
                self._refuse(at, InvalidInput("body and bodyBase64 are both set. Set only one of them."))
            else:
                try:
                    bodies[at] = bytes_of(text, "bodyBase64")
                except InvalidInput as problem:
                    self._refuse(at, problem)
        return bodies, contents

    def _converted(self, raws: Sequence[Any], refuse: Refuse) -> tuple[list[bytes], list[int]]:
        if self._packed:
            return bodies_from_packed(raws, refuse)
        return bodies_from_json([*map(bytes, raws)], refuse)

    def _put_attributes(self, column: Sequence[Any], sizes: Sequence[int]) -> Turns[list[int]]:
        """Add the attributes. Returns the sizes of the messages with them."""
        encoded_rows = [b""] * len(column)
        with_attributes = [*sizes]
        cost = 0
        for at, given in enumerate(column):
            if given is UNSET or given is None:
                continue
            if cost > TURN_VALUES:
                cost = 0
                yield
            try:
                if self._packed:
                    given = attributes_from_packed(given)
                cost += len(given)
                encoded_rows[at] = attributes_from(given)
                with_attributes[at] += attributes_size(encoded_rows[at], len(given))
            except BatonError as problem:
                self._refuse(at, problem)
        if any(encoded_rows):
            self._builder.put_all("attributes", encoded_rows)
        return with_attributes

    def _check_sizes(self, sizes: Sequence[int]) -> None:
        bytes_max = self._bytes_max
        for at, size in enumerate(sizes):
            if size > bytes_max:
                self._refuse(
                    at,
                    TooLarge(
                        f"The message has {size} bytes, including its attributes; this queue accepts at most "
                        f"{bytes_max}."
                    ),
                )

    def _put_times(self, times: Sequence[datetime | None]) -> None:
        """Delay messages until their time. A time that has passed means now."""
        builder = self._builder
        for builder.at, time in enumerate(times):
            if time is None:
                continue
            if builder.get("delays_ms") is not None:
                self._refuse(builder.at, InvalidInput("Set deliverAt or delaySeconds, not both."))
                continue
            delay_ms = max(0, milliseconds(time.timestamp()) - self._now_ms)
            if delay_ms > DELAY_MAX_S * SECOND_MS:
                days = DELAY_MAX_S // 86_400
                text = f"deliverAt is too far ahead: {time.isoformat()} is more than {days} days from now."
                self._refuse(builder.at, InvalidInput(text))
            else:
                builder.put("delays_ms", delay_ms)

    def _check_texts(self, field: str, texts: Sequence[str | None], is_valid: Callable[[str], object]) -> None:
        """Check a field's pattern. The decoder has not checked it for MessagePack, and its `$` accepts a line break."""
        if all(map(is_valid, [text for text in texts if text is not None])):
            return
        for at, text in enumerate(texts):
            if text is not None and not is_valid(text):
                problem = "Ids, trace headers and subjects cannot contain line breaks."
                if not text.endswith("\n"):
                    wrong = explain(f"Expected `str` matching regex - at `$.{field}`", "Message")
                    problem = f"The request's body is not valid: {wrong}."
                self._refuse(at, InvalidInput(problem))

    def _put_keys(self, keys: Sequence[str | None]) -> None:
        builder = self._builder
        if keys.count(None) != len(keys):
            builder.put_all("dedup_ids", [key or "" for key in keys])
            builder.put_all("strict", [key is not None for key in keys])
        if self._queue.content_dedup:
            builder.put_all(
                "dedup_ids",
                [key or content_key(body) for key, body in zip(keys, builder.bodies, strict=True)],
            )


_IDENTIFIER = re.compile("[!-~]+").fullmatch
_TRACE_PARENT = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}").fullmatch
_TRACE_STATE = re.compile("[ -~]+").fullmatch


def priority_of(given: int | str | None) -> int:
    return given if isinstance(given, int) else NORMAL_PRIORITY if given is None else PRIORITIES[given]
