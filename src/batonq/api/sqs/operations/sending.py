"""SendMessage and SendMessageBatch."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from batonq.api.http import Request
from batonq.api.send_builder import SendBuilder
from batonq.api.sqs import contents
from batonq.api.sqs.digests import digest, hex_digest, md5, trace_digest
from batonq.api.sqs.errors import (
    BATCH_REQUEST_TOO_LONG,
    SqsError,
    invalid,
    invalid_value,
    missing,
    translated,
)
from batonq.api.sqs.extensions import CONTENT_ENCODING, CONTENT_TYPE, SECOND_MS, apply_message_attributes
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
    attributes_size,
    check_batch,
    check_identifier,
    encoded,
    message_attributes,
    trace_header,
)
from batonq.core.commands import Send, Sent
from batonq.core.ids import message_ids, request_hash
from batonq.core.payload import AS_IS, encode_attributes
from batonq.errors import BatonError
from batonq.node.broker import Queue
from batonq.queue_attributes import PREFIX

INVOCATION_HEADER = b"amz-sdk-invocation-id"
ATTEMPT_HEADER = b"amz-sdk-request"  # attempt=1; max=3
RETRY_HEADER = b"amz-sdk-retry"  # of older SDKs: attempts made, time waited, retry quota left
INVOCATION_LENGTH_MAX = 128
TRACE_HEADER = b"x-amzn-trace-id"  # instrumented SDKs put the trace here; it becomes AWSTraceHeader
WRONG_QUEUE_TYPE = "The request include parameter that is not valid for this queue type."
NO_DEDUPLICATION_ID = (
    "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
)


def send_message(service: Service, call: Call, given: SendMessageInput, finish: Finish) -> None:
    queue = service.queue(call, given.QueueUrl)
    if queue.fifo and not given.MessageGroupId:
        raise missing("MessageGroupId")
    batch = _Messages(queue, call, given)
    size = batch.add(given, "MessageBody")
    _check_size(queue, size)
    command = batch.command()

    def sent(outcome: Sent | BatonError) -> None:
        result = outcome if isinstance(outcome, BatonError) else outcome[0]
        if isinstance(result, BatonError):
            finish(translated(result))
            return
        (attributes,), (trace,) = command.attributes or (b"",), command.traces or ("",)
        finish(
            SendMessageOutput(
                result.message_id,
                batch.digests[0].hex(),
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
    if queue.fifo:
        _check_fifo_batch(queue, entries)
    batch = _Messages(queue, call, given)
    failed = batch.add_all(entries, ids)
    if not batch.digests:
        finish(SendMessageBatchOutput(None, failed))
        return
    command = batch.command()
    if failed:
        refused = {one.Id for one in failed}
        ids = [entry_id for entry_id in ids if entry_id not in refused]

    def sent(outcome: Sent | BatonError) -> None:
        if isinstance(outcome, BatonError):
            finish(translated(outcome))
            return
        successful = _batch_results(queue, command, batch.digests, ids, outcome, failed)
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
    if outcome.first and not (queue.fifo or command.attributes or command.traces):
        names = message_ids(outcome.shard, range(outcome.first, outcome.first + outcome.count))
        return [*map(SendMessageBatchResultEntry, ids, names, map(bytes.hex, digests))]
    successful: list[SendMessageBatchResultEntry] = []
    for at, (entry_id, result) in enumerate(zip(ids, outcome.results(), strict=True)):
        if isinstance(result, BatonError):
            failed.append(failure(entry_id, translated(result)))
            continue
        attributes = command.attributes[at] if command.attributes else b""
        trace = command.traces[at] if command.traces else ""
        successful.append(
            SendMessageBatchResultEntry(
                entry_id,
                result.message_id,
                digests[at].hex(),
                hex_digest(attributes) if attributes else None,
                trace_digest(trace) if trace else None,
                f"{result.sequence:020d}" if queue.fifo else None,
            )
        )
    return successful


def _check_fifo_batch(queue: Queue, entries: Sequence[SendMessageBatchEntry]) -> None:
    """Check what a FIFO queue requires of every entry. One invalid entry refuses the whole batch, as in SQS."""
    for entry in entries:
        if not entry.MessageGroupId:
            raise invalid_value("The request must contain the parameter MessageGroupId.")
        if not entry.MessageDeduplicationId and not queue.content_dedup and not _has_own_key(entry):
            raise invalid_value(NO_DEDUPLICATION_ID)


class _Messages:
    """Collects the messages of one request into a Send command."""

    __slots__ = ("_as_is", "_builder", "_call", "_clean", "_queue", "_trace", "digests")

    def __init__(self, queue: Queue, call: Call, given: SendMessageInput | SendMessageBatchInput) -> None:
        self._queue = queue
        self._call = call
        self._clean = given.clean
        self._as_is = given.as_is
        self._trace = _trace_of(call.request) if TRACE_HEADER in call.request.headers else ""
        self._builder = SendBuilder()
        self.digests: list[bytes] = []  # MD5s of the bodies as received

    def add_all(self, entries: Sequence[SendMessageBatchEntry], ids: list[str]) -> list[BatchFailure]:
        """Add the entries of a batch. Returns a failure for each entry that cannot be sent."""
        if not self._trace and not self._queue.fifo and not any(map(_is_more_than_a_body, entries)):
            self._add_bodies([entry.MessageBody for entry in entries])
            if len(self.digests) == len(entries):
                return []
        failed: list[BatchFailure] = []
        total = 0
        for number, entry in enumerate(entries, start=1):
            before = len(self.digests)
            try:
                size = self.add(entry, f"SendMessageBatchRequestEntry.{number}.MessageBody")
                total += size
                _check_size(self._queue, size)
            except SqsError as error:
                failed.append(failure(ids[number - 1], error))
                if len(self.digests) > before:
                    self.digests.pop()
                if len(self._builder.bodies) > before:
                    self._builder.drop()
        if total > BATCH_BYTES_MAX:
            raise SqsError(
                BATCH_REQUEST_TOO_LONG,
                f"Batch requests cannot be longer than {BATCH_BYTES_MAX} bytes. You have sent {total} bytes.",
            )
        return failed

    def _body(self, value: str | bytes | None) -> bytes:
        """The bytes of a body as they are stored. Raises SqsError when the body has characters that no message may
        have.
        """
        if isinstance(value, bytes):
            if self._as_is and self._clean:
                return value[1:-1]
            value = text_of(value)
        if not value:
            return b""
        return value.encode() if self._clean else encoded(value)

    def _add_bodies(self, values: list[str | bytes | None]) -> None:
        """Add messages that have only a body. Adds either all of them or, when any of them cannot be sent, none."""
        try:
            bodies = [*map(self._body, values)]
        except SqsError:
            return
        if not all(bodies):
            return
        sizes = [*map(len, bodies)]
        if max(sizes) <= self._queue.message_bytes_max and sum(sizes) <= BATCH_BYTES_MAX:
            self.digests = [md5(body).digest() for body in bodies]
            self._builder.bodies = bodies
            self._builder.digests = self.digests

    def add(self, given: SendMessageInput | SendMessageBatchEntry, body_name: str) -> int:
        """Add one message and return its size. Raises SqsError when the message is not valid for this queue."""
        body = self._body(given.MessageBody)
        if not body:
            raise missing(body_name)
        body_md5 = digest(body)
        builder, queue = self._builder, self._queue
        builder.add(body)
        builder.digests.append(body_md5)
        self.digests.append(body_md5)
        size = len(body)
        if given.DelaySeconds is not None:
            _put_delay(queue, builder, given.DelaySeconds)
        if given.MessageGroupId is not None:
            check_identifier(given.MessageGroupId, "MessageGroupId")
            builder.put("groups", given.MessageGroupId)
        if given.MessageDeduplicationId is not None:
            _put_deduplication_id(queue, builder, given.MessageDeduplicationId)
        trace = self._trace
        if given.MessageSystemAttributes:
            trace = trace_header(given.MessageSystemAttributes) or trace
        if trace:
            builder.put("traces", trace)
        if given.MessageAttributes:
            size += _put_attributes(queue, builder, given.MessageAttributes)
        if queue.fifo and not builder.last("dedup_ids"):
            if not queue.content_dedup:
                raise invalid_value(NO_DEDUPLICATION_ID)
            builder.put("dedup_ids", sha256(body).hexdigest())
        return size

    def command(self) -> Send:
        call, queue = self._call, self._queue
        name = invocation(call.request, self.digests) if INVOCATION_HEADER in call.request.headers else ""
        return self._builder.build(
            queue.number, call.caller.sender, AS_IS if self._as_is else 0, request_hash(queue.number, name)
        )


def _is_more_than_a_body(entry: SendMessageBatchEntry) -> bool:
    return (
        entry.MessageAttributes is not None
        or entry.MessageGroupId is not None
        or entry.DelaySeconds is not None
        or entry.MessageDeduplicationId is not None
        or entry.MessageSystemAttributes is not None
    )


def _trace_of(request: Request) -> str:
    """The trace that the request belongs to. A trace that cannot be stored is ignored; the request is not refused."""
    value = request.headers[TRACE_HEADER]
    if len(value) > TRACE_BYTES_MAX or not value.isascii() or not allowed(value):
        return ""
    return value.decode("ascii")


def _put_delay(queue: Queue, builder: SendBuilder, delay_s: int) -> None:
    if not 0 <= delay_s <= DELAY_MAX_S:
        raise invalid(delay_s, "DelaySeconds", f"DelaySeconds must be >= 0 and <= {DELAY_MAX_S}.")
    if not queue.fifo:
        builder.put("delays_ms", delay_s * SECOND_MS)
    elif delay_s:  # 0 means the queue's own delay; a FIFO queue allows no other delay per message
        raise invalid(delay_s, "DelaySeconds", WRONG_QUEUE_TYPE)


def _put_deduplication_id(queue: Queue, builder: SendBuilder, value: str) -> None:
    if not queue.fifo:
        raise invalid(value, "MessageDeduplicationId", WRONG_QUEUE_TYPE)
    check_identifier(value, "MessageDeduplicationId")
    builder.put("dedup_ids", value)


def _put_attributes(queue: Queue, builder: SendBuilder, values: dict[str, AttributeValue]) -> int:
    """Add attributes to the last message. Returns the number of bytes they add to its size."""
    attributes = message_attributes(values)
    builder.put("attributes", encode_attributes(attributes))
    own = {row.name: row.value.decode("utf-8", "replace") for row in attributes if row.name.startswith(PREFIX)}
    if own:
        apply_message_attributes(builder, own, fifo=queue.fifo)
        if CONTENT_TYPE in own or CONTENT_ENCODING in own:
            contents.take(builder, own.get(CONTENT_TYPE, ""), own.get(CONTENT_ENCODING, ""))
    return attributes_size(attributes)


def _has_own_key(entry: SendMessageBatchEntry) -> bool:
    return entry.MessageAttributes is not None and "Baton.DeduplicationKey" in entry.MessageAttributes


def _check_size(queue: Queue, size: int) -> None:
    if size > queue.message_bytes_max:
        raise invalid_value(
            f"One or more parameters are invalid. Reason: Message must be shorter than {queue.message_bytes_max} bytes."
        )


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
