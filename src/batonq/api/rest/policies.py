"""A queue's fields as REST has them, and its attributes as the catalog keeps them: from one to the other and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET

from batonq.api.rest import queueshapes as shapes
from batonq.core.catalog.attributes import effective
from batonq.core.catalog.names import queue_arn
from batonq.core.catalog.redrive import parse_redrive_policy
from batonq.errors import InvalidInput
from batonq.node.broker import Queue

RECEIVES_DEFAULT = 10  # of a queue that has a dead-letter queue and does not say

# REST's own defaults, where they are not SQS's.
REST_DEFAULTS = {"Baton.StrictReceipts": "true", "Baton.DeadLetterOn": "failure"}

_decode_retry = msgspec.json.Decoder(shapes.Retry).decode


def _number(value: float) -> str:
    return str(int(value))


def _word(value: bool | str) -> str:
    return str(value).lower() if isinstance(value, bool) else value


# Field → attribute, and how its value is written. Those that need more than that are below.
_PLAIN: dict[str, tuple[str, Callable[[Any], str]]] = {
    "retention_seconds": ("MessageRetentionPeriod", _number),
    "default_visibility_timeout_seconds": ("VisibilityTimeout", _number),
    "delay_seconds": ("DelaySeconds", _number),
    "receive_wait_seconds": ("ReceiveMessageWaitTimeSeconds", _number),
    "dead_letter_on": ("Baton.DeadLetterOn", _word),
    "max_message_bytes": ("MaximumMessageSize", _number),
    "strict_receipts": ("Baton.StrictReceipts", _word),
    "expiry_to_dead_letter": ("Baton.ExpiryToDeadLetter", _word),
    "priority_ageing_seconds": ("Baton.PriorityAgeingSeconds", _number),
    "sla_seconds": ("Baton.SLASeconds", _number),
    "shed_class": ("Baton.ShedClass", _word),
    "alarm_severity": ("Baton.AlarmSeverity", _word),
    "max_in_flight": ("Baton.MaximumInFlight", _number),
    "max_messages": ("Baton.MaximumMessages", _number),
    "max_bytes": ("Baton.MaximumBytes", _number),
    "spread": ("Baton.Spread", _number),
    "durability": ("Baton.Durability", _number),
    "own_shards": ("Baton.OwnShards", _word),
    "retry": ("Baton.RetryPolicy", lambda value: msgspec.json.encode(value).decode()),
}
_DEFAULTS = effective({"FifoQueue": "true"})


def attributes_of(given: shapes.QueueChanges) -> dict[str, str]:
    """The attributes that the given fields stand for, but for those of dead letters."""
    result: dict[str, str] = {}
    for field, (attribute, write) in _PLAIN.items():
        value = getattr(given, field)
        if value is not UNSET:
            result[attribute] = _default(attribute) if value is None else write(value)
    rules = given.deduplication
    if rules is None:
        rules = shapes.Deduplication(window_seconds=300, scope="window", content_based=False, per_group=False)
    if rules is not UNSET:
        result.update(_deduplication(rules))
    return result


def _default(attribute: str) -> str:
    """SQS's numbers have no empty value: their default is written out."""
    return REST_DEFAULTS.get(attribute) or ("" if attribute.startswith("Baton.") else _DEFAULTS[attribute])


def _deduplication(given: shapes.Deduplication) -> dict[str, str]:
    result: dict[str, str] = {}
    if given.window_seconds is not None:
        result["Baton.DeduplicationWindow"] = _number(given.window_seconds)
    if given.scope is not None:
        result["Baton.DeduplicationScope"] = given.scope
    if given.content_based is not None:
        result["ContentBasedDeduplication"] = _word(given.content_based)
    if given.per_group is not None:
        result["DeduplicationScope"] = "messageGroup" if given.per_group else "queue"
    return result


def without_fifo_only(attributes: dict[str, str]) -> dict[str, str]:
    """What a standard queue has no attribute for, and need not be told when it is not wanted."""
    idle = {"ContentBasedDeduplication": "false", "DeduplicationScope": "queue"}
    if any(name in idle and value != idle[name] for name, value in attributes.items()):
        raise InvalidInput("The fields contentBased and perGroup of deduplication can be set only on FIFO queues.")
    return {name: value for name, value in attributes.items() if name not in idle}


def redrive_policy(account: str, target: str, max_receives: int) -> str:
    return json.dumps({"deadLetterTargetArn": queue_arn(account, target), "maxReceiveCount": max_receives})


def show(queue: Queue) -> shapes.Queue:
    values = effective(queue.attributes)
    policy = values.get("RedrivePolicy")
    redrive = parse_redrive_policy(policy) if policy else None
    retry = values.get("Baton.RetryPolicy")

    def number(name: str) -> int:
        return int(values[name])

    return shapes.Queue(
        queue_id=queue_id(queue),
        name=queue.name,
        mode="FIFO" if queue.fifo else "STANDARD",
        fifo=queue.fifo,
        arn=queue_arn(queue.account, queue.name),
        created_at_ms=queue.created_ms,
        modified_at_ms=queue.modified_ms,
        retention_seconds=number("MessageRetentionPeriod"),
        default_visibility_timeout_seconds=number("VisibilityTimeout"),
        delay_seconds=number("DelaySeconds"),
        receive_wait_seconds=number("ReceiveMessageWaitTimeSeconds"),
        max_receive_count=redrive.max_receives if redrive else number("Baton.MaxReceives"),
        dead_letter_queue=redrive.target.name if redrive else UNSET,
        dead_letter_on=values["Baton.DeadLetterOn"],
        retry=_decode_retry(retry.encode()) if retry else UNSET,
        max_message_bytes=number("MaximumMessageSize"),
        strict_receipts=values["Baton.StrictReceipts"] == "true",
        deduplication=shapes.DeduplicationShown(
            window_seconds=number("Baton.DeduplicationWindow"),
            scope=values["Baton.DeduplicationScope"],
            content_based=queue.content_dedup,
            per_group=values.get("DeduplicationScope") == "messageGroup",
        ),
        expiry_to_dead_letter=values["Baton.ExpiryToDeadLetter"] == "true",
        priority_ageing_seconds=number("Baton.PriorityAgeingSeconds"),
        sla_seconds=number("Baton.SLASeconds"),
        shed_class=values.get("Baton.ShedClass") or UNSET,
        alarm_severity=values.get("Baton.AlarmSeverity") or UNSET,
        max_in_flight=number("Baton.MaximumInFlight"),
        max_messages=number("Baton.MaximumMessages"),
        max_bytes=number("Baton.MaximumBytes"),
        spread=number("Baton.Spread"),
        durability=number("Baton.Durability") if "Baton.Durability" in values else UNSET,
        own_shards=values["Baton.OwnShards"] == "true",
        tags=dict(queue.tags),
    )


def queue_id(queue: Queue) -> str:
    return f"q_{queue.number}"


def field_of(attribute: str) -> str:
    """The name on the wire of the field that an attribute stands for."""
    for field, (name, _) in _PLAIN.items():
        if name == attribute:
            head, *rest = field.split("_")
            return head + "".join(word.capitalize() for word in rest)
    return "deduplication"
