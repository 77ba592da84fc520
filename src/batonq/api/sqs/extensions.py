"""What Baton offers on the SQS wire beyond SQS, all of it in one place.

SQS has names for queue attributes and message attributes, and any client can send those; so what SQS has no name for
travels as attributes with the prefix `Baton.`. A few things about a request itself travel as HTTP headers, for
clients that can set them. Queue attributes are in batonq/queue_attributes.py; here is the rest.
docs/reference/baton-attributes.md lists all of them, and a test compares it with these tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from batonq.api.send_builder import SendBuilder
from batonq.api.sqs.errors import invalid, invalid_value
from batonq.priorities import NORMAL_PRIORITY, PRIORITY_MAX
from batonq.queue_attributes import PREFIX, RETENTION_MAX_S

SECOND_MS = 1000
MAX_RECEIVES_MAX = 255  # of one message; the log keeps it in a byte
KEY_LENGTH_MAX = 128
CONSUMER_LENGTH_MAX = 256
REASON_LENGTH_MAX = 500
ERROR_CLASS_LENGTH_MAX = 100

# GetQueueAttributes, and ReceiveMessage for system attributes: every one of ours, as `All` is for those of SQS.
ALL_OF_OURS = "Baton.All"

# What a body is when it is not text, see contents.py.
CONTENT_TYPE = "Baton.ContentType"
CONTENT_ENCODING = "Baton.ContentEncoding"
CONTENT_LENGTH_MAX = 256

# ReceiveMessage: an entry of MessageAttributeNames that says who is asking.
CONSUMER_ENTRY = "Baton.Consumer="


class MessageAttribute(NamedTuple):
    """A message attribute that says how to treat the message. It is kept and returned like any other."""

    name: str
    doc: str
    low: int
    high: int
    apply: Callable[[SendBuilder, int], None] | None  # None: a text, see `_deduplicate` and contents.py


def _priority(builder: SendBuilder, value: int) -> None:
    builder.put("priorities", value)


def _time_to_live(builder: SendBuilder, value: int) -> None:
    builder.put("ttls_ms", value * SECOND_MS)


def _max_receives(builder: SendBuilder, value: int) -> None:
    builder.put("max_receives", value)


def _delay(builder: SendBuilder, value: int) -> None:
    builder.put("delays_ms", value * SECOND_MS)


MESSAGE_ATTRIBUTES = {
    row.name: row
    for row in (
        MessageAttribute(
            "Baton.Priority",
            "Messages with a higher priority are delivered first. The messages of a FIFO group keep their order. "
            f"Default: {NORMAL_PRIORITY}.",
            0,
            PRIORITY_MAX,
            _priority,
        ),
        MessageAttribute(
            "Baton.DeduplicationKey",
            "A second message with the same key is not delivered. Reusing a key with a different body is an "
            "error. Works on every queue; on a FIFO queue it is used if MessageDeduplicationId is missing.",
            1,
            KEY_LENGTH_MAX,
            None,
        ),
        MessageAttribute(
            "Baton.TimeToLive",
            "Seconds after which the message expires, counted from when it becomes visible.",
            1,
            RETENTION_MAX_S,
            _time_to_live,
        ),
        MessageAttribute(
            "Baton.MaxReceives",
            "Maximum number of receives of this message, instead of the queue's.",
            1,
            MAX_RECEIVES_MAX,
            _max_receives,
        ),
        MessageAttribute(
            "Baton.DelaySeconds",
            "A delay that may exceed the 900 seconds of DelaySeconds, which it overrides. Not for FIFO queues.",
            0,
            RETENTION_MAX_S,
            _delay,
        ),
        MessageAttribute(
            CONTENT_TYPE,
            "Content type of the body: `application/json` is a JSON value for REST clients. Set on messages that "
            "REST clients sent.",
            1,
            CONTENT_LENGTH_MAX,
            None,
        ),
        MessageAttribute(
            CONTENT_ENCODING,
            "`base64`: the body encodes bytes, or text with characters that SQS does not allow.",
            1,
            CONTENT_LENGTH_MAX,
            None,
        ),
    )
}


class SystemAttribute(NamedTuple):
    """What ReceiveMessage tells of a message when it is asked for by name, or with `Baton.All`; never with `All`."""

    name: str
    doc: str


SYSTEM_ATTRIBUTES = {
    row.name: row
    for row in (
        SystemAttribute("Baton.FirstQueue", "ARN of the queue to which the message was first sent."),
        SystemAttribute("Baton.FirstMessageId", "The message's id in that queue."),
        SystemAttribute("Baton.FirstFailureTimestamp", "Time of the first failed attempt, in milliseconds since 1970."),
        SystemAttribute("Baton.LastFailureTimestamp", "Time of the last failed attempt, in milliseconds since 1970."),
        SystemAttribute("Baton.ErrorClass", "Error class of the last nack."),
        SystemAttribute("Baton.Reason", "Reason of the last nack."),
        SystemAttribute("Baton.Attempts", "Number of receives when the message was last dead-lettered."),
        SystemAttribute("Baton.TraceId", "The AWSTraceHeader with which the message was first sent."),
        SystemAttribute("Baton.Priority", "The message's priority, 0 to 255."),
        SystemAttribute("Baton.LeaseDeadline", "Time when this lease ends, in milliseconds since 1970."),
    )
}


class Header(NamedTuple):
    name: str
    doc: str


HEADERS = {
    row.name: row
    for row in (
        Header("Baton-Consumer", "ReceiveMessage: name of the consumer, shown as the holder of the lease."),
        Header(
            "Baton-Reason",
            "ChangeMessageVisibility: makes the request a nack with this reason, at most 500 characters.",
        ),
        Header("Baton-Error-Class", "ChangeMessageVisibility: makes the request a nack with this error class."),
        Header(
            "Baton-Dead-Letter",
            "ChangeMessageVisibility: `true` makes the request a nack that dead-letters the message at once.",
        ),
    )
}
CONSUMER_HEADER = b"baton-consumer"
REASON_HEADER = b"baton-reason"
ERROR_CLASS_HEADER = b"baton-error-class"
DEAD_LETTER_HEADER = b"baton-dead-letter"


def apply_message_attributes(builder: SendBuilder, values: Mapping[str, str], *, fifo: bool) -> None:
    """Do to the last message what the attributes with our prefix say. Raises SqsError for one that is unknown or has a
    wrong value.
    """
    for name, value in values.items():
        row = MESSAGE_ATTRIBUTES.get(name)
        if row is None:
            raise invalid_value(
                f"Unknown message attribute '{name}'. The prefix {PREFIX} is reserved for "
                f"{', '.join(MESSAGE_ATTRIBUTES)}."
            )
        if row.apply is None:
            if name in (CONTENT_TYPE, CONTENT_ENCODING):
                if not is_word_list(value):
                    raise invalid(value, name, f"Must be 1 to {CONTENT_LENGTH_MAX} printable ASCII characters.")
            else:
                _deduplicate(builder, value)
            continue
        if not (value.isascii() and value.isdigit() and len(value) <= 18 and row.low <= int(value) <= row.high):
            raise invalid(value, name, f"Must be an integer from {row.low} to {row.high}.")
        if row.apply is _delay and fifo:
            raise invalid(value, name, "The request include parameter that is not valid for this queue type.")
        row.apply(builder, int(value))


def _deduplicate(builder: SendBuilder, key: str) -> None:
    if not is_identifier(key):
        raise invalid(
            key,
            "Baton.DeduplicationKey",
            "Can only include alphanumeric and punctuation characters. 1 to 128 in length.",
        )
    if not builder.last("dedup_ids"):
        builder.put("dedup_ids", key)
        builder.put("strict", True)


def is_identifier(text: str) -> bool:
    """1 to 128 letters, digits and punctuation of ASCII: what SQS takes for group, deduplication and attempt ids."""
    return 0 < len(text) <= KEY_LENGTH_MAX and text.isascii() and text.isprintable() and " " not in text


def is_word_list(text: str) -> bool:
    """What a content type is written with."""
    return 0 < len(text) <= CONTENT_LENGTH_MAX and text.isascii() and text.isprintable()


def consumer_of(names: list[str]) -> tuple[str, list[str]]:
    """Who is asking, as an entry of MessageAttributeNames says it, and the names that are left."""
    for name in names:
        if name.startswith(CONSUMER_ENTRY):
            return name[len(CONSUMER_ENTRY) :], [other for other in names if not other.startswith(CONSUMER_ENTRY)]
    return "", names
