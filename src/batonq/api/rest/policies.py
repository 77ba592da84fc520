"""Converts a queue between its REST fields and the attributes stored in the catalog."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec import UNSET

from batonq.api.rest import queue_shapes as shapes
from batonq.attribute_formats.arns import queue_arn
from batonq.attribute_formats.redrive_policy import parse_redrive_policy
from batonq.core.catalog.attributes import effective
from batonq.errors import InvalidInput
from batonq.node.broker import Queue
from batonq.queue_attributes import ATTRIBUTES, REST_ATTRIBUTES, REST_FIELDS, QueueAttribute, ValueKind, camel

RECEIVES_DEFAULT = 10  # default for a queue that has a dead-letter queue

# The defaults of REST, where they differ from those of SQS.
REST_DEFAULTS = {row.name: row.rest_default for row in REST_ATTRIBUTES if row.rest_default}

_decode_retry = msgspec.json.Decoder(shapes.Retry).decode


def _write(row: QueueAttribute, value: Any) -> str:
    """The attribute's value for a field."""
    if value is None:  # numbers and words of SQS have no empty value, so their default is written out
        return row.rest_default or ("" if row.removable else row.default or "")
    if row.rest_boolean:
        return row.word if value else next(word for word in row.choices if word != row.word)
    if isinstance(value, shapes.NoRetryDelay):
        return ""
    if row.kind is ValueKind.JSON:
        return msgspec.json.encode(value).decode()
    if row.numeric:
        return str(int(value))
    return str(value).lower() if row.kind is ValueKind.BOOLEAN else str(value)


def _read(row: QueueAttribute, value: str | None) -> Any:
    """The field's value for an attribute."""
    if not value:
        return False if row.fifo_only else UNSET
    if row.rest_boolean:
        return value == row.word
    if row.kind is ValueKind.JSON:
        return _decode_retry(value.encode())
    if row.kind is ValueKind.BOOLEAN:
        return value == "true"
    return int(value) if row.numeric else value


def attributes_of(given: shapes.GivenFields) -> dict[str, str]:
    """The attributes for the given fields, except those of the dead-letter queue."""
    result: dict[str, str] = {}
    for name, rows in REST_FIELDS.items():
        value = getattr(given, name)
        if value is UNSET or rows[0].composite:
            continue
        if value is None or not rows[0].parent:
            result.update((row.name, _write(row, value)) for row in rows)
            continue
        members = ((row, getattr(value, row.member)) for row in rows)
        result.update((row.name, _write(row, member)) for row, member in members if member is not None)
    return result


def without_fifo_only(attributes: dict[str, str]) -> dict[str, str]:
    """The attributes without those that only FIFO queues have. Raises InvalidInput when one of them is not at its
    default.
    """
    fifo_only = [row for row in REST_ATTRIBUTES if row.fifo_only and row.name in attributes]
    if any(attributes[row.name] != row.default for row in fifo_only):
        raise InvalidInput("The fields contentBased and perGroup of deduplication can be set only on FIFO queues.")
    return {name: value for name, value in attributes.items() if not ATTRIBUTES[name].fifo_only}


def redrive_policy(account: str, target: str, max_receives: int) -> str:
    return json.dumps({"deadLetterTargetArn": queue_arn(account, target), "maxReceiveCount": max_receives})


def redrive_of(queue: Queue) -> tuple[str, int]:
    """The dead-letter queue (empty if there is none), and the number of receives after which a message is
    dead-lettered.
    """
    values = effective(queue.attributes)
    policy = values.get("RedrivePolicy")
    if not policy:
        return "", int(values["Baton.MaxReceives"])
    redrive = parse_redrive_policy(policy)
    return redrive.target.name, redrive.max_receives


def show(queue: Queue, warnings: list[str] | None = None) -> Any:
    """A queue as REST returns it: `shapes.Queue`."""
    values = effective(queue.attributes)
    target, receives = redrive_of(queue)
    fields: dict[str, Any] = {"dead_letter_queue": target or UNSET, "max_receive_count": receives}
    for name, rows in REST_FIELDS.items():
        shown = {row.member: _read(row, values.get(row.name)) for row in rows if not row.composite}
        if rows[0].parent:
            fields[name] = shapes.OBJECTS[name][1](**shown)
        else:
            fields.update(shown)
    return shapes.Queue(
        queue_id=queue_id(queue),
        name=queue.name,
        mode="FIFO" if queue.fifo else "STANDARD",
        fifo=queue.fifo,
        arn=queue_arn(queue.account, queue.name),
        created_at_ms=queue.created_ms,
        modified_at_ms=queue.modified_ms,
        tags=dict(queue.tags),
        warnings=warnings or UNSET,
        **fields,
    )


def queue_id(queue: Queue) -> str:
    return f"q_{queue.number}"


def field_of(attribute: str) -> str:
    """The wire name of the field for an attribute."""
    row = ATTRIBUTES[attribute]
    return camel(row.parent or row.field)
