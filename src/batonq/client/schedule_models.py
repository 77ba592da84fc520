"""Schedules in the client: what a schedule is, and its settings on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, TypedDict

from msgspec import Struct, field

from batonq.client.models import AttributeValue, Priority

Missed = Literal["all", "last", "none"]


class ScheduleSettings(TypedDict, total=False):
    """When a schedule fires, and the options of its message. Times of day need a time zone."""

    # A cron expression: minute, hour, day of month, month, day of week.
    cron: str
    # Time zone of `cron`, such as Europe/Berlin. Default: UTC.
    time_zone: str
    # Instead of `cron`: the interval in seconds.
    rate: float
    # First time at which it may fire.
    start_at: datetime | None
    # Last time at which it may fire.
    end_at: datetime | None
    # Which due times are fired when several have passed. Default: last.
    missed: Missed
    # Whether it fires. Default: True.
    enabled: bool
    # Message group.
    group: str
    # Attributes of the message.
    attributes: Mapping[str, AttributeValue]
    # Seconds after which each message expires.
    ttl: float
    # Priority of the message.
    priority: Priority
    # Maximum number of receives of each message.
    max_receives: int


class ScheduleInfo(Struct, kw_only=True, rename="camel"):
    """A schedule and what it has done."""

    id: str = field(name="scheduleId")  # NAME@QUEUE
    name: str
    queue: str
    cron: str | None = None
    time_zone: str | None = None
    rate: float | None = field(default=None, name="rateSeconds")
    start_at: str | None = None
    end_at: str | None = None
    missed: str = "last"
    enabled: bool = True
    state: str = "ACTIVE"  # ACTIVE, WAITING, PAUSED, ENDED
    why: str = ""  # why a firing that is due waits
    next_at_ms: int | None = None
    last_due_at_ms: int | None = None
    last_fired_at_ms: int | None = None
    last_message_id: str | None = None
    firings: int = 0
    late_firings: int = 0
    skipped_firings: int = 0  # due times that were not fired
    created_at_ms: int = 0
    modified_at_ms: int = 0
    message: dict[str, Any] | None = None  # not in lists


class SchedulePage(Struct):
    schedules: list[ScheduleInfo]


class ScheduleTimes(Struct):
    times: list[str]


class FiredNow(Struct, rename="camel"):
    message_id: str
    sequence: int


_TIMING = {
    "cron": "cron",
    "time_zone": "timeZone",
    "rate": "rateSeconds",
    "start_at": "startAt",
    "end_at": "endAt",
    "missed": "missed",
    "enabled": "enabled",
}
_MESSAGE = {
    "group": "messageGroupId",
    "attributes": "attributes",
    "ttl": "ttlSeconds",
    "priority": "priority",
    "max_receives": "maxReceiveCount",
}
SCHEDULE_NAMES = {**_TIMING, **_MESSAGE}


def timing_to_wire(settings: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(settings.keys() - SCHEDULE_NAMES.keys())
    if unknown:
        raise TypeError(f"unknown setting of a schedule: {', '.join(unknown)}")
    return {wire: settings[name] for name, wire in _TIMING.items() if name in settings}


def message_to_wire(body: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {"body": body, **{wire: settings[name] for name, wire in _MESSAGE.items() if name in settings}}


def changes_message(settings: Mapping[str, Any]) -> bool:
    return not settings.keys().isdisjoint(_MESSAGE)
