"""The settings of queues and redrives, with Python names and wire names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from msgspec import UNSET

from batonq.client.models import Deduplication, RedriveEdit, RedriveFilter, RetryPolicy


class QueueSettings(TypedDict, total=False):
    """Settings of a queue. Times are in seconds; omitted settings have the server's default."""

    visibility: float  # how long a message is leased if it is not acknowledged
    retention: float  # how long a message is kept
    delay: float  # before a new message becomes visible
    receive_wait: float  # default wait time of a receive
    max_receives: int  # then it is dead-lettered
    dead_letter_queue: str  # its name; it is created if it does not exist
    dead_letter_on: Literal["failure", "receive"]  # at the last failure, or at the next receive as in SQS
    retry: RetryPolicy | None  # delay before a failed message becomes visible again
    max_message_bytes: int
    strict_receipts: bool  # for SQS clients too, a receipt is valid only during its lease
    deduplication: Deduplication | None
    expiry_to_dead_letter: bool  # expired messages are dead-lettered instead of deleted
    priority_ageing: float  # seconds of waiting that raise a message by one priority level
    sla: float  # the queue is reported as late if the oldest message is older
    shed_class: Any
    alarm_severity: str
    max_in_flight: int
    max_messages: int
    max_bytes: int
    spread: int  # number of shards
    durability: Literal[1, 3, 5]  # replicas of each message; default: as in the log's URL
    own_shards: bool  # dedicated shards, which accept no other new queue
    tags: Mapping[str, str]


WIRE_NAMES = {
    "visibility": "defaultVisibilityTimeoutSeconds",
    "retention": "retentionSeconds",
    "delay": "delaySeconds",
    "receive_wait": "receiveWaitSeconds",
    "max_receives": "maxReceiveCount",
    "dead_letter_queue": "deadLetterQueue",
    "dead_letter_on": "deadLetterOn",
    "retry": "retry",
    "max_message_bytes": "maxMessageBytes",
    "strict_receipts": "strictReceipts",
    "deduplication": "deduplication",
    "expiry_to_dead_letter": "expiryToDeadLetter",
    "priority_ageing": "priorityAgeingSeconds",
    "sla": "slaSeconds",
    "shed_class": "shedClass",
    "alarm_severity": "alarmSeverity",
    "max_in_flight": "maxInFlight",
    "max_messages": "maxMessages",
    "max_bytes": "maxBytes",
    "spread": "spread",
    "durability": "durability",
    "own_shards": "ownShards",
    "tags": "tags",
}


def to_wire(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Raises TypeError for an unknown setting, as a call with a wrong keyword does."""
    unknown = settings.keys() - WIRE_NAMES.keys()
    if unknown:
        known = ", ".join(WIRE_NAMES)
        raise TypeError(f"{sorted(unknown)[0]!r} is not a queue setting; the settings are {known}")
    return {WIRE_NAMES[name]: value for name, value in settings.items()}


class RedriveSettings(TypedDict, total=False):
    """Settings of a redrive."""

    rate: int  # messages per second, up to 10,000; default 10
    ramp: float  # seconds until the full rate is reached
    filter: RedriveFilter | Mapping[str, Any]  # only these messages; a mapping uses the names of the wire
    edit: RedriveEdit | Mapping[str, Any]  # how to change them
    max_messages: int
    pause_when_dying_share: float  # the job pauses if a larger share of the last messages fails again, 0 to 1


REDRIVE_NAMES = {
    "rate": "maxMessagesPerSecond",
    "ramp": "rampSeconds",
    "filter": "filter",
    "edit": "edit",
    "max_messages": "maxMessages",
    "pause_when_dying_share": "pauseWhenDyingShare",
}


def redrive_to_wire(to: str | None, dry_run: bool, settings: Mapping[str, Any]) -> dict[str, Any]:
    unknown = settings.keys() - REDRIVE_NAMES.keys()
    if unknown:
        raise TypeError(f"{sorted(unknown)[0]!r} is not a redrive setting; the settings are {', '.join(REDRIVE_NAMES)}")
    spec = {REDRIVE_NAMES[name]: value for name, value in settings.items()}
    if isinstance(spec.get("edit"), RedriveEdit):
        spec["edit"] = _edit_to_wire(spec["edit"])
    if to is not None:
        spec["targetQueue"] = to
    if dry_run:
        spec["dryRun"] = True
    return spec


def _edit_to_wire(edit: RedriveEdit) -> dict[str, Any]:
    texts = edit.replace_text
    fields = {
        "setAttributes": edit.set_attributes,
        "removeAttributes": edit.remove_attributes,
        "replaceText": None if texts is None else [{"find": old, "with": new} for old, new in texts.items()],
    }
    wire = {name: value for name, value in fields.items() if value is not None}
    if edit.replace_body is not UNSET:
        wire["replaceBody"] = edit.replace_body
    return wire
