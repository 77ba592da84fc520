"""A queue's settings by the names that Python programs use, and by those of the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from msgspec import UNSET

from batonq.client.models import Deduplication, RedriveEdit, RedriveFilter, RetryPolicy


class QueueSettings(TypedDict, total=False):
    """What a queue can be told. Times are in seconds; what is left out has the server's default."""

    visibility: float  # how long a receiver holds a message that it does not acknowledge
    retention: float  # how long a message is kept
    delay: float  # before a message can be received
    receive_wait: float  # how long a receive waits that does not say
    max_receives: int  # then it is a dead letter
    dead_letter_queue: str  # by its name; made if there is none
    dead_letter_on: Literal["failure", "receive"]  # at the failure itself, or at the receive after it as SQS does
    retry: RetryPolicy | None  # how long until a message that failed is tried again
    max_message_bytes: int
    strict_receipts: bool  # for SQS clients too, a receipt counts only while its lease does
    deduplication: Deduplication | None
    expiry_to_dead_letter: bool  # a message whose time to live is over is a dead letter, not gone
    priority_ageing: float  # a message gains a level for so many seconds of waiting
    sla: float  # an alarm when the oldest message is older
    shed_class: Any
    alarm_severity: str
    max_in_flight: int
    max_messages: int
    max_bytes: int
    spread: int  # shards that it lies on
    durability: Literal[1, 3, 5]  # replicas of each message; not set: as the log's address says
    own_shards: bool  # which take no other new queue
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
    """Raises TypeError for a setting that there is not, as a call with a wrong keyword does."""
    unknown = settings.keys() - WIRE_NAMES.keys()
    if unknown:
        known = ", ".join(WIRE_NAMES)
        raise TypeError(f"a queue has no setting {sorted(unknown)[0]!r}; it has {known}")
    return {WIRE_NAMES[name]: value for name, value in settings.items()}


class RedriveSettings(TypedDict, total=False):
    """What a redrive can be told."""

    rate: int  # messages a second, up to 10,000; 10 if you say nothing
    ramp: float  # seconds until the rate is reached
    filter: RedriveFilter | Mapping[str, Any]  # only these; a mapping has the names of the wire
    edit: RedriveEdit | Mapping[str, Any]  # changed like this
    max_messages: int
    pause_when_dying_share: float  # of the last ones redriven, 0 to 1: above it the job pauses itself


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
        raise TypeError(f"a redrive has no setting {sorted(unknown)[0]!r}; it has {', '.join(REDRIVE_NAMES)}")
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
