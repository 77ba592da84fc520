"""Schedules of the REST API. See shapes.py for the conventions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from batonq.api.rest.queue_shapes import QueueName
from batonq.api.rest.shapes import Answered, Attributes, Given, Identifier, Lifetime, Priority, Receives, Time
from batonq.node.schedules.timing import CRON_LENGTH_MAX, RATE_MAX_MS, RATE_MIN_MS, ZONE_LENGTH_MAX

PREVIEW_MAX = 100

ScheduleName = Annotated[str, Meta(min_length=1, max_length=80, pattern="^[A-Za-z0-9_-]+$")]
ScheduleId = Annotated[str, Meta(min_length=3, max_length=161, pattern="^[^@/:]+@[^@/:]+$")]
Cron = Annotated[str, Meta(min_length=1, max_length=CRON_LENGTH_MAX)]
TimeZone = Annotated[str, Meta(min_length=1, max_length=ZONE_LENGTH_MAX)]
Rate = Annotated[float, Meta(ge=RATE_MIN_MS / 1000, le=RATE_MAX_MS / 1000)]
Missed = Literal["all", "last", "none"]
PreviewSize = Annotated[int, Meta(ge=1, le=PREVIEW_MAX)]


class ScheduledMessage(Given):
    """The message that a schedule sends: `body` (any JSON value) or `bodyBase64`, and its options."""

    body: Any = UNSET
    body_base64: str | None = None
    attributes: Attributes | None = None
    message_group_id: Identifier | None = None
    ttl_seconds: Lifetime | None = None
    max_receive_count: Receives | None = None
    priority: Priority | None = None


class _Timing(Given):
    cron: Cron | None = None
    time_zone: TimeZone | None = None
    rate_seconds: Rate | None = None
    start_at: Time | None = None
    end_at: Time | None = None


class ScheduleSpec(_Timing, kw_only=True):
    """A schedule to create: when it fires, by `cron` or `rateSeconds`, and the message that it sends."""

    name: ScheduleName
    queue: QueueName
    message: ScheduledMessage
    missed: Missed = "last"
    enabled: bool = True


class ScheduleChanges(Given):
    """What to change. Absent fields do not change. null removes `startAt` and `endAt`."""

    cron: Cron | UnsetType = UNSET
    time_zone: TimeZone | UnsetType = UNSET
    rate_seconds: Rate | UnsetType = UNSET
    start_at: Time | UnsetType | None = UNSET
    end_at: Time | UnsetType | None = UNSET
    message: ScheduledMessage | UnsetType = UNSET
    missed: Missed | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET


class SchedulePreview(_Timing):
    """When a schedule would fire. `after` is the time to start from; default: now."""

    count: PreviewSize = 10
    after: Time | None = None


class ScheduleTimes(Answered):
    """The next times of an expression, in its time zone."""

    times: list[str]


class ShownMessage(Answered):
    """The message that a schedule sends."""

    body: Any = UNSET
    body_base64: str | UnsetType = UNSET
    attributes: dict[str, Any] | UnsetType = UNSET
    message_group_id: str | UnsetType = UNSET
    ttl_seconds: float | UnsetType = UNSET
    max_receive_count: int | UnsetType = UNSET
    priority: int | UnsetType = UNSET


class ScheduleShown(Answered, kw_only=True):
    """A schedule and what it has done. `why` says why a firing that is due waits."""

    schedule_id: str
    name: str
    queue: str
    cron: str | UnsetType = UNSET
    time_zone: str | UnsetType = UNSET
    rate_seconds: float | UnsetType = UNSET
    start_at: str | UnsetType = UNSET
    end_at: str | UnsetType = UNSET
    missed: Missed
    enabled: bool
    state: Literal["ACTIVE", "WAITING", "PAUSED", "ENDED"]
    why: str
    next_at_ms: int | UnsetType = UNSET
    last_due_at_ms: int | UnsetType = UNSET
    last_fired_at_ms: int | UnsetType = UNSET
    last_message_id: str | UnsetType = UNSET
    firings: int
    late_firings: int
    skipped_firings: int
    created_at_ms: int
    modified_at_ms: int
    message: ShownMessage | UnsetType = UNSET


class Schedules(Answered):
    """Schedules by queue and name, without their messages. `complete` is false if some shards did not answer."""

    schedules: list[ScheduleShown]
    complete: bool = True


class FiredNow(Answered):
    """The message that was sent at once. The schedule's own times do not change."""

    message_id: str
    sequence: int
