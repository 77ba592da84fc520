"""The rows that an application writes into its outbox, and how they become messages."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from batonq.client.models import AttributeValue, Outgoing, Priority
from batonq.errors import InvalidInput

KEY_CHARACTERS_MAX = 128  # the limit of a message group
BODY_BYTES_MAX = 1 << 20
TOPIC = "topic:"  # starts the column `queue` of a message for a topic; no queue has a colon in its name
_QUEUE = re.compile(r"[^\x00/?#:]{1,80}")
_TOPIC = re.compile(r"[^\x00/?#:]{1,256}")


class Row(NamedTuple):
    """A row as a relay reads it."""

    id: int
    queue: str
    key: str | None
    body: str | bytes | None  # JSON text
    data: bytes | None
    options: str | bytes | None  # JSON text

    @property
    def size(self) -> int:
        return len(self.body or b"") + len(self.data or b"") + len(self.options or b"")


class Options(msgspec.Struct, omit_defaults=True):
    """Optional fields of a message."""

    delay: float | None = None
    ttl: float | None = None
    priority: Priority | None = None
    attributes: dict[str, Any] | None = None
    max_receives: int | None = None
    dedup_key: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None


_options = msgspec.json.Decoder(Options)


def encode_body(body: Any) -> tuple[str | None, bytes | None]:
    """The two body columns: JSON text, or bytes."""
    if isinstance(body, (bytes, bytearray, memoryview)):
        if len(body) > BODY_BYTES_MAX:
            raise InvalidInput(f"The body has {len(body):,} bytes; the maximum is {BODY_BYTES_MAX:,}.")
        return None, bytes(body)
    try:
        text = msgspec.json.encode(body)
    except (TypeError, ValueError) as problem:
        raise InvalidInput(f"The body must be a JSON value or bytes: {problem}") from None
    if len(text) > BODY_BYTES_MAX:
        raise InvalidInput(f"The body has {len(text):,} bytes as JSON; the maximum is {BODY_BYTES_MAX:,}.")
    return text.decode(), None


def encode_options(
    *,
    delay: float | None,
    ttl: float | None,
    priority: Priority | None,
    attributes: Mapping[str, AttributeValue] | None,
    max_receives: int | None,
    dedup_key: str | None,
    traceparent: str | None,
    tracestate: str | None,
) -> str | None:
    kept: dict[str, Any] | None = None
    if attributes:
        kept = {
            name: {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value
            for name, value in attributes.items()
        }
    options = Options(delay, ttl, priority, kept, max_receives, dedup_key, traceparent, tracestate)
    text = msgspec.json.encode(options)
    return None if text == b"{}" else text.decode()


def destination(queue: str | None, topic: str | None, key: str | None) -> str:
    """The column `queue` of a message. Raises InvalidInput if the names are not valid."""
    if (queue is None) == (topic is None):
        raise InvalidInput("A message is for a queue or for a topic: name one of them.")
    if queue is not None and not _QUEUE.fullmatch(queue):
        raise InvalidInput(f"{queue!r} is not a valid queue name.")
    if topic is not None and not _TOPIC.fullmatch(topic):
        raise InvalidInput(f"{topic!r} is not a valid topic name.")
    if key is not None and not 0 < len(key) <= KEY_CHARACTERS_MAX:
        raise InvalidInput(f"A key must have 1 to {KEY_CHARACTERS_MAX} characters. Hash longer keys.")
    return f"{TOPIC}{topic}" if queue is None else queue


def to_message(row: Row) -> Outgoing:
    """The message of a row. Raises InvalidInput if its options are not valid."""
    try:
        body = row.data if row.data is not None else msgspec.json.decode(row.body or "")
        options = _options.decode(row.options) if row.options else Options()
    except msgspec.MsgspecError as problem:
        raise InvalidInput(f"Row {row.id} is not a valid message: {problem}") from None
    attributes = options.attributes
    if attributes is not None:
        attributes = {
            name: base64.b64decode(value["base64"]) if isinstance(value, dict) else value
            for name, value in attributes.items()
        }
    return Outgoing(
        body,
        options.dedup_key,
        row.key,
        options.delay,
        options.ttl,
        options.priority,
        attributes,
        options.max_receives,
        options.traceparent,
        options.tracestate,
    )
