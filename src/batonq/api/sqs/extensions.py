"""Everything that Baton adds to the SQS protocol.

Any SQS client can send queue attributes and message attributes. Features that SQS has no name for therefore travel as
attributes with the prefix `Baton.`. A few properties of a request travel as HTTP headers, for clients that can set
them. Queue attributes are in batonq/queue_attributes.py; everything else is here. docs/reference/baton-attributes.md
lists all of them, and a test compares that page with these tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from batonq.api.send_builder import SendBuilder
from batonq.api.sqs.errors import invalid, invalid_value
from batonq.priorities import NORMAL_PRIORITY, PRIORITY_MAX
from batonq.queue_attributes import DELAY_MAX_S, PREFIX, RETENTION_MAX_S

SECOND_MS = 1000
MAX_RECEIVES_MAX = 255  # per message; the log stores it in one byte
KEY_LENGTH_MAX = 128
REASON_LENGTH_MAX = 500
ERROR_CLASS_LENGTH_MAX = 100

# Selects all of Baton's attributes in GetQueueAttributes, and all of its system attributes in ReceiveMessage, as `All`
# does for those of SQS.
ALL_OF_OURS = "Baton.All"

# The type of a body that is not text, see contents.py.
CONTENT_TYPE = "Baton.ContentType"
CONTENT_ENCODING = "Baton.ContentEncoding"
CONTENT_LENGTH_MAX = 256

# ReceiveMessage: an entry of MessageAttributeNames that names the consumer.
CONSUMER_ENTRY = "Baton.Consumer="


class MessageAttribute(NamedTuple):
    """A message attribute that controls how the message is treated. It is stored and returned like any other."""

    name: str
    doc: str
    low: int
    high: int
    apply: Callable[[SendBuilder, int], None] | None  # None: the value is text, see `_deduplicate` and contents.py


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
            "A delay that may exceed the 900 seconds of DelaySeconds, which it overrides. In a FIFO queue the message "
            "holds up its group until then.",
            0,
            DELAY_MAX_S,
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
    """A system attribute that ReceiveMessage returns when asked by name or with `Baton.All`, but not with `All`."""

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
        Header("Baton-Consumer", "Name of the consumer, shown as the holder of its leases and in the list of workers."),
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
REASON_HEADER = b"baton-reason"
ERROR_CLASS_HEADER = b"baton-error-class"
DEAD_LETTER_HEADER = b"baton-dead-letter"


def apply_message_attributes(builder: SendBuilder, values: Mapping[str, str]) -> None:
    """Apply the attributes with Baton's prefix to the builder's current message. Raises SqsError for an unknown
    attribute or an invalid value.
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
        row.apply(builder, int(value))


def _deduplicate(builder: SendBuilder, key: str) -> None:
    if not is_identifier(key):
        raise invalid(
            key,
            "Baton.DeduplicationKey",
            "Can only include alphanumeric and punctuation characters. 1 to 128 in length.",
        )
    if not builder.get("dedup_ids"):
        builder.put("dedup_ids", key)
        builder.put("strict", True)


def is_identifier(text: str) -> bool:
    """Whether the text is 1 to 128 ASCII letters, digits and punctuation: what SQS accepts as a group, deduplication or
    attempt id.
    """
    return 0 < len(text) <= KEY_LENGTH_MAX and text.isascii() and text.isprintable() and " " not in text


def are_identifiers(texts: Sequence[str]) -> bool:
    """Whether `is_identifier` holds for all texts, which is checked at once."""
    joined = "".join(texts)
    return (
        joined.isascii()
        and joined.isprintable()
        and " " not in joined
        and all(texts)
        and max(map(len, texts), default=0) <= KEY_LENGTH_MAX
    )


def is_word_list(text: str) -> bool:
    """Whether the text has only characters that a content type may have."""
    return 0 < len(text) <= CONTENT_LENGTH_MAX and text.isascii() and text.isprintable()


def consumer_of(names: list[str]) -> tuple[str, list[str]]:
    """The consumer named by an entry of MessageAttributeNames, and the remaining names."""
    for name in names:
        if name.startswith(CONSUMER_ENTRY):
            return name[len(CONSUMER_ENTRY) :], [other for other in names if not other.startswith(CONSUMER_ENTRY)]
    return "", names
