"""SendMessage and SendMessageBatch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, cast

from msgspec.structs import astuple

from batonq.api.http import Request
from batonq.api.send_builder import SendBuilder
from batonq.api.sqs import contents
from batonq.api.sqs.digests import hex_digest, md5, trace_digest
from batonq.api.sqs.errors import (
    BATCH_REQUEST_TOO_LONG,
    SqsError,
    invalid,
    invalid_value,
    missing,
    translated,
)
from batonq.api.sqs.extensions import (
    CONTENT_ENCODING,
    CONTENT_TYPE,
    SECOND_MS,
    apply_message_attributes,
    are_identifiers,
)
from batonq.api.sqs.message_attributes import attributes_size, encode_message_attributes
from batonq.api.sqs.operations.batches import failure
from batonq.api.sqs.protocol_json import text_of
from batonq.api.sqs.service import Call, Finish, Service
from batonq.api.sqs.shapes import (
    AttributeValue,
    BatchFailure,
    SendMessageBatchEntry,
    SendMessageBatchInput,
    SendMessageBatchOutput,
    SendMessageBatchResultEntry,
    SendMessageInput,
    SendMessageOutput,
)
from batonq.api.sqs.validate import (
    BATCH_BYTES_MAX,
    DELAY_MAX_S,
    TRACE_BYTES_MAX,
    allowed,
    check_batch,
    check_identifier,
    encoded,
    trace_header,
)
from batonq.core.commands import Send, Sent
from batonq.core.ids import message_ids, request_hash
from batonq.core.payload import AS_IS, content_key
from batonq.errors import BatonError
from batonq.node.broker import Queue
from batonq.node.catalog.topic_control import Topic

INVOCATION_HEADER = b"amz-sdk-invocation-id"
ATTEMPT_HEADER = b"amz-sdk-request"  # attempt=1; max=3
RETRY_HEADER = b"amz-sdk-retry"  # of older SDKs: attempts made, time waited, retry quota left
INVOCATION_LENGTH_MAX = 128
TRACE_HEADER = b"x-amzn-trace-id"  # instrumented SDKs put the trace here; it becomes AWSTraceHeader
WRONG_QUEUE_TYPE = "The request include parameter that is not valid for this queue type."
NO_TTL = "A published message cannot have its own time to live. Set MessageRetentionPeriod of the subscribed queues."
NO_DEDUPLICATION_ID = (
    "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
)


def send_message(service: Service, call: Call, given: SendMessageInput, finish: Finish) -> None:
    queue = service.queue(call, given.QueueUrl)
    if queue.fifo and not given.MessageGroupId:
        raise missing("MessageGroupId")
    bytes_max = service.broker.body_bytes_max(queue)
    columns = [(value,) for value in astuple(given)[_FIELDS_START:]]
    messages = Messages(queue, call, given, columns, "MessageBody", bytes_max)
    for error in messages.errors.values():
        raise error
    command = messages.command()

    def sent(outcome: Sent | BatonError) -> None:
        result = outcome if isinstance(outcome, BatonError) else outcome[0]
        if isinstance(result, BatonError):
            finish(translated(result))
            return
        (attributes,), (trace,) = command.attributes or (b"",), command.traces or ("",)
        finish(
            SendMessageOutput(
                result.message_id,
                messages.digests[0].hex(),
                hex_digest(attributes) if attributes else None,
                trace_digest(trace) if trace else None,
                f"{result.sequence:020d}" if queue.fifo else None,
            )
        )

    service.broker.send(queue, command, sent, is_first_try(call.request))


def send_message_batch(service: Service, call: Call, given: SendMessageBatchInput, finish: Finish) -> None:
    queue = service.queue(call, given.QueueUrl)
    entries = given.Entries or ()
    ids = check_batch(entries, "SendMessageBatch")
    columns = [*zip(*map(astuple, entries), strict=True)][_ENTRY_FIELDS_START:]
    if queue.fifo:
        _check_fifo_batch(queue, columns)
    bytes_max = service.broker.body_bytes_max(queue)
    messages = Messages(queue, call, given, columns, "SendMessageBatchRequestEntry.{}.MessageBody", bytes_max)
    batch_max = max(BATCH_BYTES_MAX, bytes_max)
    if messages.size > batch_max:
        raise SqsError(
            BATCH_REQUEST_TOO_LONG,
            f"Batch requests cannot be longer than {batch_max} bytes. You have sent {messages.size} bytes.",
        )
    failed: list[BatchFailure] = []
    if messages.errors:
        failed = [failure(ids[at], error) for at, error in sorted(messages.errors.items())]
        ids = [entry_id for at, entry_id in enumerate(ids) if at not in messages.errors]
        if not ids:
            finish(SendMessageBatchOutput(None, failed))
            return
    command = messages.command()

    def sent(outcome: Sent | BatonError) -> None:
        if isinstance(outcome, BatonError):
            finish(translated(outcome))
            return
        successful = _batch_results(queue, command, messages.digests, ids, outcome, failed)
        finish(SendMessageBatchOutput(successful or None, failed or None))

    service.broker.send(queue, command, sent, is_first_try(call.request))


def _batch_results(
    queue: Queue,
    command: Send,
    digests: Sequence[bytes],
    ids: Sequence[str],
    outcome: Sent,
    failed: list[BatchFailure],
) -> list[SendMessageBatchResultEntry]:
    """The results of the accepted messages. Refused messages are appended to `failed`."""
    hexes = map(bytes.hex, digests)
    attributes: Iterable[str | None] = repeat(None)
    traces: Iterable[str | None] = repeat(None)
    if command.attributes:
        attributes = [hex_digest(one) if one else None for one in command.attributes]
    if command.traces:
        traces = [trace_digest(one) if one else None for one in command.traces]
    if outcome.first:  # all are accepted
        sequences = range(outcome.first, outcome.first + outcome.count)
        names = message_ids(outcome.shard, sequences)
        numbers = [f"{outcome.numbers_from + one:020d}" for one in sequences] if queue.fifo else repeat(None)
        return [*map(SendMessageBatchResultEntry, ids, names, hexes, attributes, traces, numbers)]
    successful: list[SendMessageBatchResultEntry] = []
    for entry_id, result, body, own, trace in zip(ids, outcome.results(), hexes, attributes, traces, strict=False):
        if isinstance(result, BatonError):
            failed.append(failure(entry_id, translated(result)))
        else:
            number = f"{result.sequence:020d}" if queue.fifo else None
            successful.append(SendMessageBatchResultEntry(entry_id, result.message_id, body, own, trace, number))
    return successful


# The fields that a message has in SendMessage and in SendMessageBatch, as columns: one tuple of values per field.
Columns = Sequence[tuple[Any, ...]]
_FIELDS = (
    "MessageBody",
    "DelaySeconds",
    "MessageAttributes",
    "MessageSystemAttributes",
    "MessageDeduplicationId",
    "MessageGroupId",
)
_FIELDS_START = SendMessageInput.__struct_fields__.index(_FIELDS[0])
_ENTRY_FIELDS_START = SendMessageBatchEntry.__struct_fields__.index(_FIELDS[0])
assert SendMessageInput.__struct_fields__[_FIELDS_START:] == _FIELDS
assert SendMessageBatchEntry.__struct_fields__[_ENTRY_FIELDS_START:] == _FIELDS


def _check_fifo_batch(queue: Queue, columns: Columns) -> None:
    """Check what a FIFO queue requires of every entry. One invalid entry refuses the whole batch, as in SQS."""
    _, _, attributes, _, dedup_ids, groups = columns
    is_deduplicated = queue.content_dedup or all(dedup_ids)
    if is_deduplicated and all(groups):
        return
    for group, dedup_id, values in zip(groups, dedup_ids, attributes, strict=True):
        if not group:
            raise invalid_value("The request must contain the parameter MessageGroupId.")
        if not is_deduplicated and not dedup_id and "Baton.DeduplicationKey" not in (values or ()):
            raise invalid_value(NO_DEDUPLICATION_ID)


class Messages:
    """The messages of one request, checked field by field and collected as the columns of a Send command. A field that
    no message has costs nothing.
    """

    __slots__ = ("_builder", "_bytes_max", "_call", "_content", "_queue", "digests", "errors", "size")

    def __init__(
        self,
        queue: Queue | Topic,
        call: Call,
        given: SendMessageInput | SendMessageBatchInput,
        columns: Columns,
        body_name: str,
        bytes_max: int = 0,
    ) -> None:
        self._queue = queue
        self._bytes_max = bytes_max or queue.message_bytes_max
        self._call = call
        self._content = AS_IS if given.as_is else 0
        self.errors: dict[int, SqsError] = {}  # the first error of each message that cannot be sent, by its place
        texts, delays_s, attributes, system_attributes, dedup_ids, groups = columns
        bodies = self._bodies(texts, given.as_is, given.clean, body_name)
        self.digests = [md5(body).digest() for body in bodies]  # of the bodies as received
        self._builder = SendBuilder(bodies, self.digests)
        sizes = [*map(len, bodies)]
        count = len(bodies)
        if delays_s.count(None) != count:
            self._put_delays(delays_s)
        if groups.count(None) != count:
            self._put_identifiers("groups", groups, "MessageGroupId")
        if dedup_ids.count(None) != count:
            self._put_deduplication_ids(dedup_ids)
        if TRACE_HEADER in call.request.headers or system_attributes.count(None) != count:
            self._put_traces(system_attributes)
        if attributes.count(None) != count:
            self._put_attributes(attributes, given.clean, sizes)
        if queue.fifo:
            self._put_content_ids(bodies)
        self.size = sum(sizes)
        if self.errors:
            self.size -= sum([sizes[at] for at in self.errors])
        if max(sizes) > self._bytes_max:
            self._check_sizes(sizes)

    def command(self) -> Send:
        """Send the messages that have no error."""
        if self.errors:
            self._builder.remove(self.errors)
            self.digests = [one for at, one in enumerate(self.digests) if at not in self.errors]
        call, queue = self._call, self._queue
        name = invocation(call.request, self.digests) if INVOCATION_HEADER in call.request.headers else ""
        return self._builder.build(queue.number, call.caller.sender, self._content, request_hash(queue.number, name))

    def put_subjects(self, subjects: list[str]) -> None:
        """The subjects of messages that are published to a topic, one per message."""
        self._builder.put_all("subjects", subjects)

    def _refuse(self, at: int, error: SqsError) -> None:
        self.errors.setdefault(at, error.with_traceback(None))  # a traceback would keep the request in memory

    def _bodies(self, given: Sequence[str | bytes | None], as_is: bool, clean: bool, name: str) -> list[bytes]:
        """The bodies as they are stored. Without characters that no message may have, and not empty. A body in bytes is
        a JSON text.
        """
        if clean and as_is and None not in given and isinstance(given[0], bytes):
            bodies = [text[1:-1] for text in cast(Sequence[bytes], given)]
        else:
            bodies = [b""] * len(given)
            for at, one in enumerate(given):
                text = text_of(one) if isinstance(one, bytes) else one
                try:
                    bodies[at] = (text.encode() if clean else encoded(text)) if text else b""
                except SqsError as error:
                    self._refuse(at, error)
        if not all(bodies):
            for at, body in enumerate(bodies):
                if not body:
                    self._refuse(at, missing(name.format(at + 1)))
        return bodies

    def _put_delays(self, delays_s: Sequence[int | None]) -> None:
        fifo = self._queue.fifo
        for at, delay_s in enumerate(delays_s):
            if delay_s is not None and not 0 <= delay_s <= DELAY_MAX_S:
                reason = f"DelaySeconds must be >= 0 and <= {DELAY_MAX_S}."
                self._refuse(at, invalid(delay_s, "DelaySeconds", reason))
            elif delay_s and fifo:  # 0 means the queue's own delay; a FIFO queue allows no other delay per message
                self._refuse(at, invalid(delay_s, "DelaySeconds", WRONG_QUEUE_TYPE))
        if not fifo:
            self._builder.put_all("delays_ms", [None if one is None else one * SECOND_MS for one in delays_s])

    def _put_identifiers(self, column: str, values: Sequence[str | None], parameter: str) -> None:
        given = [value for value in values if value is not None]
        if not are_identifiers(given):
            for at, value in enumerate(values):
                try:
                    if value is not None:
                        check_identifier(value, parameter)
                except SqsError as error:
                    self._refuse(at, error)
        self._builder.put_all(column, given if len(given) == len(values) else [value or "" for value in values])

    def _put_deduplication_ids(self, values: Sequence[str | None]) -> None:
        if self._queue.fifo:
            self._put_identifiers("dedup_ids", values, "MessageDeduplicationId")
            return
        for at, value in enumerate(values):
            if value is not None:
                self._refuse(at, invalid(value, "MessageDeduplicationId", WRONG_QUEUE_TYPE))

    def _put_traces(self, columns: Sequence[dict[str, AttributeValue] | None]) -> None:
        """Each message's own trace, else the trace of the request."""
        of_request = _trace_of(self._call.request)
        traces = [of_request] * len(columns)
        for at, values in enumerate(columns):
            try:
                traces[at] = trace_header(values or {}) or of_request
            except SqsError as error:
                self._refuse(at, error)
        if any(traces):
            self._builder.put_all("traces", traces)

    def _put_attributes(
        self, columns: Sequence[dict[str, AttributeValue] | None], clean: bool, sizes: list[int]
    ) -> None:
        """Add the attributes, and their sizes to those of the messages."""
        encoded_rows = [b""] * len(columns)
        for at, values in enumerate(columns):
            if values:
                try:
                    encoded_rows[at], own = encode_message_attributes(values, clean=clean)
                    if own:
                        self._builder.at = at
                        self._apply(own)
                except SqsError as error:
                    self._refuse(at, error)
                sizes[at] += attributes_size(encoded_rows[at], len(values))
        if any(encoded_rows):
            self._builder.put_all("attributes", encoded_rows)

    def _apply(self, own: dict[str, str]) -> None:
        """Apply Baton's own attributes to the builder's current message."""
        apply_message_attributes(self._builder, own)
        if isinstance(self._queue, Topic) and self._builder.get("ttls_ms") is not None:
            raise invalid_value(NO_TTL)
        if CONTENT_TYPE in own or CONTENT_ENCODING in own:
            contents.take(self._builder, own.get(CONTENT_TYPE, ""), own.get(CONTENT_ENCODING, ""))

    def _put_content_ids(self, bodies: Sequence[bytes]) -> None:
        """Give messages of a FIFO queue without a deduplication id the SHA-256 of their bodies as their id."""
        builder = self._builder
        known = builder.column("dedup_ids")
        if known and all(known):
            return
        for at, body in enumerate(bodies):
            if not (known and known[at]):
                builder.at = at
                if self._queue.content_dedup:
                    builder.put("dedup_ids", content_key(body))
                else:
                    self._refuse(at, invalid_value(NO_DEDUPLICATION_ID))

    def _check_sizes(self, sizes: Sequence[int]) -> None:
        bytes_max = self._bytes_max
        for at, size in enumerate(sizes):
            if size > bytes_max:
                reason = f"Message must be shorter than {bytes_max} bytes."
                self._refuse(at, invalid_value(f"One or more parameters are invalid. Reason: {reason}"))


def _trace_of(request: Request) -> str:
    """The trace that the request belongs to. A trace that cannot be stored is ignored; the request is not refused."""
    value = request.headers.get(TRACE_HEADER, b"")
    if len(value) > TRACE_BYTES_MAX or not value.isascii() or not allowed(value):
        return ""
    return value.decode("ascii")


def is_first_try(request: Request) -> bool:
    """Whether the SDK reports that this is the request's first attempt."""
    if ATTEMPT_HEADER in request.headers:
        return b"attempt=1;" in request.headers[ATTEMPT_HEADER].replace(b" ", b"") + b";"
    return request.headers.get(RETRY_HEADER, b"").startswith(b"0/")


def invocation(request: Request, digests: Sequence[bytes]) -> str:
    """An id that stays the same when an SDK retries a request and differs between requests. Empty when the SDK sends
    none.
    """
    name = request.headers.get(INVOCATION_HEADER)
    if name is None:
        return ""
    content = b"".join(digests).hex()
    return f"{name[:INVOCATION_LENGTH_MAX].decode('latin-1')} {len(request.body)} {content}"
