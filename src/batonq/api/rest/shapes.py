"""Messages and leases of the REST API. Requests are validated against these types, and the OpenAPI document is
generated from them.

Fields are camelCase. Durations end in Seconds and may have fractions; times end in Ms and are milliseconds since 1970.
A field that is null counts as absent, except `body`, for which null is a value.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from batonq.api.rest.problems import ItemError
from batonq.priorities import NORMAL_PRIORITY, PRIORITY_MAX
from batonq.queue_attributes import DELAY_MAX_S
from batonq.topic_attributes import SUBJECT_LENGTH_MAX

BATCH_MAX = 1_000
PEEK_MAX = 100
ATTRIBUTES_MAX = 50
DAYS_14_S = 1_209_600
VISIBILITY_MAX_S = 43_200
WAIT_MAX_S = 20

Identifier = Annotated[str, Meta(min_length=1, max_length=128, pattern="^[!-~]+$")]
ShortText = Annotated[str, Meta(min_length=1, max_length=128)]
ClientId = ShortText
Receipt = Annotated[str, Meta(min_length=1, max_length=1024)]
Delay = Annotated[float, Meta(ge=0, le=DAYS_14_S)]
SendDelay = Annotated[float, Meta(ge=0, le=DELAY_MAX_S)]
Time = Annotated[datetime, Meta(tz=True)]
Visibility = Annotated[float, Meta(ge=0, le=VISIBILITY_MAX_S)]
Wait = Annotated[float, Meta(ge=0, le=WAIT_MAX_S)]
Lifetime = Annotated[float, Meta(gt=0, le=DAYS_14_S)]
Receives = Annotated[int, Meta(ge=1, le=255)]
Priority = Annotated[int, Meta(ge=0, le=PRIORITY_MAX)] | Literal["lowest", "low", "normal", "high", "highest"]
TraceParent = Annotated[str, Meta(pattern="^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")]
TraceState = Annotated[str, Meta(min_length=1, max_length=512, pattern="^[ -~]+$")]
Subject = Annotated[str, Meta(min_length=1, max_length=SUBJECT_LENGTH_MAX, pattern="^[ -~]+$")]
Consumer = Annotated[str, Meta(max_length=256)]
Reason = Annotated[str, Meta(max_length=500)]
ErrorClass = Annotated[str, Meta(max_length=100)]
Count = Annotated[int, Meta(ge=1, le=BATCH_MAX)]
IdempotencyKey = Annotated[str, Meta(min_length=1, max_length=255, pattern="^[!-~]([ -~]*[!-~])?$")]
JobId = Annotated[str, Meta(min_length=1, max_length=64)]
PeekSize = Annotated[int, Meta(ge=1, le=PEEK_MAX)]
PeekText = Annotated[str, Meta(max_length=1_024)]
MessageId = Annotated[str, Meta(min_length=36, max_length=36)]
Sequence = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
ProducerSequence = Annotated[int, Meta(ge=1, le=(1 << 53) - 1)]


class Given(Struct, rename="camel", forbid_unknown_fields=True, gc=False):
    """Base class of requests: an unknown field is an error."""

    limits_work: ClassVar[bool] = False


class Bulk(Given):
    """Base class of requests that may be long. Decoding them is fast, whatever they contain: values of any type are
    `Raw`, arrays have a maximum length, and fields that an entry can repeat have no pattern.
    """

    limits_work: ClassVar[bool] = True


class Answered(Struct, rename="camel", omit_defaults=True, gc=False):
    """Base class of responses: fields with their default value are omitted."""


# --- sending ----------------------------------------------------------------------------------


class Base64(Given):
    """Bytes as base64, for formats without a type for bytes."""

    base64: str


AttributeValue = str | int | float | Base64
Attributes = Annotated[dict[str, AttributeValue], Meta(max_length=ATTRIBUTES_MAX)]


class _MessageFields(Given):
    body_base64: str | None = None
    deduplication_key: Identifier | None = None
    message_group_id: Identifier | None = None
    delay_seconds: SendDelay | None = None
    deliver_at: Time | None = None
    ttl_seconds: Lifetime | None = None
    max_receive_count: Receives | None = None
    priority: Priority | None = None
    traceparent: TraceParent | None = None
    tracestate: TraceState | None = None
    subject: Subject | None = None


class Message(_MessageFields):
    """A message to send: `body` (any JSON value) or `bodyBase64`, and its options."""

    body: Raw | UnsetType = UNSET
    attributes: Attributes | None = None


class BatchMessage(Message):
    """A message of a batch."""

    client_message_id: ClientId | None = None


class PackedMessage(Bulk):
    """A message in MessagePack, where `body` and attributes may be bytes. Both are decoded later, see content.py, and
    `sending.py` checks the patterns of `_MessageFields`.
    """

    body_base64: str | None = None
    deduplication_key: ShortText | None = None
    message_group_id: ShortText | None = None
    delay_seconds: SendDelay | None = None
    deliver_at: Time | None = None
    ttl_seconds: Lifetime | None = None
    max_receive_count: Receives | None = None
    priority: Priority | None = None
    traceparent: str | None = None
    tracestate: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    subject: Annotated[str, Meta(min_length=1, max_length=SUBJECT_LENGTH_MAX)] | None = None
    body: Raw | UnsetType = UNSET
    attributes: Raw | UnsetType = UNSET
    client_message_id: ClientId | None = None


PackedAttributes = Annotated[dict[str, Raw], Meta(max_length=ATTRIBUTES_MAX)] | None


class OnlyAttributes(Given):
    """The attributes of a message in MessagePack, whose other fields have been decoded."""

    attributes: PackedAttributes = None


class Producer(Given):
    """A producer id and the number of the first message. A number that is not above the last one is a duplicate."""

    id: Identifier
    sequence: ProducerSequence


class SendBatch(Given):
    """Messages to send, with one result per message. `producer.sequence` is the number of the first message."""

    messages: Annotated[list[BatchMessage], Meta(min_length=1, max_length=BATCH_MAX)]
    producer: Producer | None = None


class PackedSendBatch(Bulk):
    messages: Annotated[list[PackedMessage], Meta(min_length=1, max_length=BATCH_MAX)]
    producer: Raw | UnsetType = UNSET


class LooseSendBatch(Bulk):
    """A batch in which at least one entry is not valid: each entry is decoded separately."""

    messages: Annotated[list[Raw], Meta(min_length=1, max_length=BATCH_MAX)]
    producer: Raw | UnsetType = UNSET


class OnlyProducer(Given):
    """The producer of a batch whose other fields have been decoded."""

    producer: Producer | None = None


class OnlyClientId(Struct, rename="camel"):
    """The part of an invalid entry that is returned with its error."""

    client_message_id: ClientId | None = None


class Sent(Answered):
    """A stored message. `duplicate` is true if it was stored before; the id is that of the first one."""

    message_id: str
    sequence: int
    duplicate: bool = False


class SendResult(Answered):
    """The result of one message of a batch: its id and sequence number, or an error."""

    client_message_id: str | None = None
    message_id: str | None = None
    sequence: int | None = None
    duplicate: bool = False
    error: ItemError | None = None


class SendResults(Answered):
    """One result per message, in the order of the request."""

    results: list[SendResult]


# --- receiving --------------------------------------------------------------------------------


class Receive(Given):
    """How many messages to receive, their visibility timeout, and how long to wait for the first."""

    max_messages: Count = 10
    wait_seconds: Wait | None = None
    visibility_timeout_seconds: Visibility | None = None
    consumer: Consumer | None = None
    attempt_id: Identifier | None = None


class ReceiveAny(Given):
    """A receive from several queues: names, or patterns with `*` and `?`."""

    queues: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=80, pattern="^[A-Za-z0-9_.*?-]+$")]],
        Meta(min_length=1, max_length=BATCH_MAX),
    ]
    max_messages: Count = 10
    wait_seconds: Wait | None = None
    visibility_timeout_seconds: Visibility | None = None
    consumer: Consumer | None = None


class DeadLetter(Answered):
    """The source of a dead letter, and why it was dead-lettered."""

    queue: str = ""
    message_id: str = ""
    reason: str = ""
    error_class: str = ""
    first_failure_ms: int = 0
    last_failure_ms: int = 0
    attempts: int = 0


class LastFailure(Answered):
    """How the last attempt in this queue failed."""

    reason: str = ""
    error_class: str = ""
    first_failure_ms: int = 0
    last_failure_ms: int = 0


class Received(Answered):
    """A received message. It is leased to the consumer until `deadlineMs`."""

    message_id: str
    receipt_handle: str
    receive_count: int
    sequence: int
    queue: str
    sent_at_ms: int
    first_received_at_ms: int
    deadline_ms: int
    body: Any = UNSET
    priority: int = NORMAL_PRIORITY
    body_base64: str | UnsetType = UNSET
    attributes: dict[str, Any] | UnsetType = UNSET
    message_group_id: str = ""
    deduplication_key: str = ""
    traceparent: str = ""
    tracestate: str = ""
    dead_letter: DeadLetter | None = None
    last_failure: LastFailure | None = None


class ReceivedMessages(Answered):
    messages: list[Received]


# --- leases -----------------------------------------------------------------------------------


class Nack(Given):
    """Why a message failed, and when it becomes visible again. Without a delay, the queue's retry policy applies."""

    delay_seconds: Delay | None = None
    reason: Reason | None = None
    error_class: ErrorClass | None = None
    dead_letter: bool = False
    untried: bool = False


class ChangeVisibility(Given):
    """The lease ends this many seconds from now; 0 makes the message visible at once."""

    visibility_timeout_seconds: Visibility


class AckBatch(Bulk):
    receipt_handles: Annotated[list[Receipt], Meta(min_length=1, max_length=BATCH_MAX)]


class NackEntry(Nack, kw_only=True):
    receipt_handle: Receipt


class NackBatch(Bulk):
    messages: Annotated[list[NackEntry], Meta(min_length=1, max_length=BATCH_MAX)]


class ChangeVisibilityEntry(ChangeVisibility):
    receipt_handle: Receipt


class ChangeVisibilityBatch(Bulk):
    messages: Annotated[list[ChangeVisibilityEntry], Meta(min_length=1, max_length=BATCH_MAX)]


class Deadline(Answered):
    """When the lease ends; 0: it has ended."""

    deadline_ms: int


class LeaseResult(Answered):
    """The result of one entry: empty, or an error."""

    deadline_ms: int | None = None
    error: ItemError | None = None


class LeaseResults(Answered):
    """One result per entry, in the order of the request."""

    results: list[LeaseResult]


# --- peeking ----------------------------------------------------------------------------------

MessageState = Literal["DELAYED", "VISIBLE", "IN_FLIGHT", "OWED", "DEAD"]


class Peeked(Answered, kw_only=True):
    """A message in its current state, without a lease. `untilMs` is the end of its delay or of its lease."""

    message_id: str
    current_id: str
    sequence: int
    state: MessageState
    why: str
    until_ms: int = 0
    holder: str = ""
    receive_count: int
    body: Any = UNSET
    body_base64: str | UnsetType = UNSET
    body_bytes: int
    body_cut: bool = False
    attributes: dict[str, Any] | UnsetType = UNSET
    message_group_id: str = ""
    deduplication_key: str = ""
    priority: int = NORMAL_PRIORITY
    sent_at_ms: int
    first_received_at_ms: int = 0
    expires_at_ms: int
    traceparent: str = ""
    tracestate: str = ""
    dead_letter: DeadLetter | None = None
    last_failure: LastFailure | None = None
    replay_of: str | UnsetType = UNSET
    problem: str = ""


class PeekedMessages(Answered):
    """Messages in the order of their arrival. `nextAfter` gets the next page. With a filter, a request examines a
    limited number of messages, so a page may be empty although later ones match.
    """

    messages: list[Peeked]
    examined: int
    complete: bool
    next_after: int | UnsetType = UNSET
