"""SendMessage and SendMessageBatch."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from batonq.api.http import Request
from batonq.api.sqs import contents
from batonq.api.sqs.digests import digest, hex_digest, trace_digest
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
from batonq.api.sqs.service import Call, Service
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
from batonq.core.commands import Send
from batonq.core.payload import encode_attributes
from batonq.errors import BatonError
from batonq.node.broker import Queue
from batonq.queue_attributes import PREFIX

INVOCATION_HEADER = b"amz-sdk-invocation-id"
ATTEMPT_HEADER = b"amz-sdk-request"  # attempt=1; max=3
RETRY_HEADER = b"amz-sdk-retry"  # of older SDKs: how many tries there were, how long was waited, what is left
INVOCATION_LENGTH_MAX = 128
TRACE_HEADER = b"x-amzn-trace-id"  # how instrumented SDKs name the trace; it becomes AWSTraceHeader
WRONG_QUEUE_TYPE = "The request include parameter that is not valid for this queue type."
NO_DEDUPLICATION_ID = (
    "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
)


async def send_message(service: Service, call: Call, given: SendMessageInput) -> SendMessageOutput:
    queue = service.queue(call, given.QueueUrl)
    if queue.fifo and not given.MessageGroupId:
        raise missing("MessageGroupId")
    send, size, body_md5 = _message(queue, given, given.clean, call, "MessageBody")
    _check_size(queue, size)
    name = invocation(call.request, [body_md5])
    (result,) = await service.broker.send(queue, [send], name, is_first_try(call.request))
    if isinstance(result, BatonError):
        raise translated(result)
    return SendMessageOutput(
        result.message_id,
        body_md5.hex(),
        hex_digest(send.attributes) if send.attributes else None,
        trace_digest(send.trace) if send.trace else None,
        f"{result.sequence:020d}" if queue.fifo else None,
    )


async def send_message_batch(service: Service, call: Call, given: SendMessageBatchInput) -> SendMessageBatchOutput:
    queue = service.queue(call, given.QueueUrl)
    entries = given.Entries or ()
    ids = check_batch(entries, "SendMessageBatch")
    if queue.fifo:
        _check_fifo_batch(queue, entries)
    sends, digests, sent_ids, failed = _messages(queue, given, ids, call)
    if not sends:
        return SendMessageBatchOutput(None, failed)
    results = await service.broker.send(queue, sends, invocation(call.request, digests), is_first_try(call.request))
    successful = []
    fifo = queue.fifo
    for entry_id, send, body_md5, result in zip(sent_ids, sends, digests, results, strict=True):
        if isinstance(result, BatonError):
            failed.append(failure(entry_id, translated(result)))
            continue
        successful.append(
            SendMessageBatchResultEntry(
                entry_id,
                result.message_id,
                body_md5.hex(),
                hex_digest(send.attributes) if send.attributes else None,
                trace_digest(send.trace) if send.trace else None,
                f"{result.sequence:020d}" if fifo else None,
            )
        )
    return SendMessageBatchOutput(successful or None, failed or None)


def _check_fifo_batch(queue: Queue, entries: Sequence[SendMessageBatchEntry]) -> None:
    """What a FIFO queue asks of every entry refuses the whole batch, as SQS does."""
    for entry in entries:
        if not entry.MessageGroupId:
            raise invalid_value("The request must contain the parameter MessageGroupId.")
        if not entry.MessageDeduplicationId and not queue.content_dedup and not _has_own_key(entry):
            raise invalid_value(NO_DEDUPLICATION_ID)


def _messages(
    queue: Queue, given: SendMessageBatchInput, ids: list[str], call: Call
) -> tuple[list[Send], list[bytes], list[str], list[BatchFailure]]:
    """The messages that can be sent, their bodies' MD5s, their entries' ids, and the entries that cannot."""
    sends: list[Send] = []
    digests: list[bytes] = []
    sent_ids: list[str] = []
    failed: list[BatchFailure] = []
    total = 0
    clean = given.clean
    for number, entry in enumerate(given.Entries or (), start=1):
        entry_id = ids[number - 1]
        try:
            send, size, body_md5 = _message(
                queue, entry, clean, call, f"SendMessageBatchRequestEntry.{number}.MessageBody"
            )
            total += size
            if size > queue.message_bytes_max:
                _check_size(queue, size)
            sends.append(send)
            digests.append(body_md5)
            sent_ids.append(entry_id)
        except SqsError as error:
            failed.append(failure(entry_id, error))
    if total > BATCH_BYTES_MAX:
        raise SqsError(
            BATCH_REQUEST_TOO_LONG,
            f"Batch requests cannot be longer than {BATCH_BYTES_MAX} bytes. You have sent {total} bytes.",
        )
    return sends, digests, sent_ids, failed


def _message(
    queue: Queue, given: SendMessageInput | SendMessageBatchEntry, clean: bool, call: Call, body_name: str
) -> tuple[Send, int, bytes]:
    """The message, its size, and the MD5 of its body as it came. Raises SqsError when it is not one for this queue."""
    text = given.MessageBody
    if not text:
        raise missing(body_name)
    body = text.encode() if clean else encoded(text)
    body_md5 = digest(body)
    send = Send(body, body_md5, b"", call.caller.sender)
    size = len(body)
    if given.DelaySeconds is not None:
        _set_delay(queue, send, given.DelaySeconds)
    if given.MessageGroupId is not None:
        check_identifier(given.MessageGroupId, "MessageGroupId")
        send.group = given.MessageGroupId
    if given.MessageDeduplicationId is not None:
        _set_deduplication_id(queue, send, given.MessageDeduplicationId)
    if given.MessageSystemAttributes:
        send.trace = trace_header(given.MessageSystemAttributes)
    if not send.trace and TRACE_HEADER in call.request.headers:
        send.trace = _trace_of(call.request)
    if given.MessageAttributes:
        size += _set_attributes(queue, send, given.MessageAttributes)
    if queue.fifo and not send.dedup_id:
        if not queue.content_dedup:
            raise invalid_value(NO_DEDUPLICATION_ID)
        send.dedup_id = sha256(body).hexdigest()
    return send, size, body_md5


def _trace_of(request: Request) -> str:
    """The trace that the request itself belongs to; one that cannot be kept is not worth a refusal."""
    value = request.headers[TRACE_HEADER]
    if len(value) > TRACE_BYTES_MAX or not value.isascii() or not allowed(value):
        return ""
    return value.decode("ascii")


def _set_delay(queue: Queue, send: Send, delay_s: int) -> None:
    if not 0 <= delay_s <= DELAY_MAX_S:
        raise invalid(delay_s, "DelaySeconds", f"DelaySeconds must be >= 0 and <= {DELAY_MAX_S}.")
    if not queue.fifo:
        send.delay_ms = delay_s * SECOND_MS
    elif delay_s:  # 0 means the queue's own delay, the only one that a FIFO queue has
        raise invalid(delay_s, "DelaySeconds", WRONG_QUEUE_TYPE)


def _set_deduplication_id(queue: Queue, send: Send, value: str) -> None:
    if not queue.fifo:
        raise invalid(value, "MessageDeduplicationId", WRONG_QUEUE_TYPE)
    check_identifier(value, "MessageDeduplicationId")
    send.dedup_id = value


def _set_attributes(queue: Queue, send: Send, values: dict[str, AttributeValue]) -> int:
    """Returns what they add to the message's size."""
    attributes = message_attributes(values)
    send.attributes = encode_attributes(attributes)
    own = {row.name: row.value.decode("utf-8", "replace") for row in attributes if row.name.startswith(PREFIX)}
    if own:
        apply_message_attributes(send, own, fifo=queue.fifo)
        if CONTENT_TYPE in own or CONTENT_ENCODING in own:
            contents.take(send, own.get(CONTENT_TYPE, ""), own.get(CONTENT_ENCODING, ""))
    return attributes_size(attributes)


def _has_own_key(entry: SendMessageBatchEntry) -> bool:
    return entry.MessageAttributes is not None and "Baton.DeduplicationKey" in entry.MessageAttributes


def _check_size(queue: Queue, size: int) -> None:
    if size > queue.message_bytes_max:
        raise invalid_value(
            f"One or more parameters are invalid. Reason: Message must be shorter than {queue.message_bytes_max} bytes."
        )


def is_first_try(request: Request) -> bool:
    """Whether the SDK says that it has not made this request before."""
    if ATTEMPT_HEADER in request.headers:
        return b"attempt=1;" in request.headers[ATTEMPT_HEADER].replace(b" ", b"") + b";"
    return request.headers.get(RETRY_HEADER, b"").startswith(b"0/")


def invocation(request: Request, digests: Sequence[bytes]) -> str:
    """What is the same when an SDK tries the same request again, and never in another request."""
    name = request.headers.get(INVOCATION_HEADER)
    if name is None:
        return ""
    content = b"".join(digests).hex()
    return f"{name[:INVOCATION_LENGTH_MAX].decode('latin-1')} {len(request.body)} {content}"
