"""Queues of the REST API: settings, changes and statistics. See shapes.py for the conventions."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from batonq.api.rest.shapes import DAYS_14_S, VISIBILITY_MAX_S, Answered, Given
from batonq.core.spread import SPREAD_MAX

PAGE_MAX = 1_000
PageSize = Annotated[int, Meta(ge=1, le=PAGE_MAX)]
NAME_PATTERN = r"^[A-Za-z0-9_-]{1,80}$|^[A-Za-z0-9_-]{1,75}\.fifo$"

QueueName = Annotated[str, Meta(min_length=1, max_length=80, pattern=NAME_PATTERN)]
Label = Annotated[str, Meta(min_length=1, max_length=64, pattern="^[A-Za-z0-9_-]+$")]


def _whole(low: int, high: int) -> Meta:
    """Whole seconds: 30 and 30.0 are, 30.5 is not."""
    return Meta(ge=low, le=high, multiple_of=1)


Retention = Annotated[float, _whole(60, DAYS_14_S)]
QueueVisibility = Annotated[float, _whole(0, VISIBILITY_MAX_S)]
QueueDelay = Annotated[float, _whole(0, 900)]
QueueWait = Annotated[float, _whole(0, 20)]
Window = Annotated[float, _whole(1, DAYS_14_S)]
Ageing = Annotated[float, _whole(0, 86_400)]
Sla = Annotated[float, _whole(0, DAYS_14_S)]
MaxReceives = Annotated[int, Meta(ge=0, le=1000)]
MessageBytes = Annotated[int, Meta(ge=1024, le=1_048_576)]
InFlight = Annotated[int, Meta(ge=1, le=120_000)]
MessagesMax = Annotated[int, Meta(ge=0, le=10**12)]
SpreadCount = Annotated[int, Meta(ge=1, le=SPREAD_MAX)]
Replicas = Literal[1, 3, 5]
BytesMax = Annotated[int, Meta(ge=0, le=10**15)]
RetrySeconds = Annotated[float, Meta(ge=0, le=DAYS_14_S)]
Jitter = Annotated[float, Meta(ge=0, le=1)]
TagKey = Annotated[str, Meta(min_length=1, max_length=128)]
Tags = Annotated[dict[TagKey, Annotated[str, Meta(max_length=256)]], Meta(max_length=50)]


class Exponential(
    Struct, rename="camel", tag="exponential", tag_field="kind", forbid_unknown_fields=True, omit_defaults=False
):
    """Exponential backoff: each delay is `factor` times the previous one, up to `maxSeconds`; `jitter` is the share by
    which it varies at random.
    """

    base_seconds: RetrySeconds = 1.0
    factor: Annotated[float, Meta(ge=1, le=100)] = 2.0
    max_seconds: RetrySeconds = 3600.0
    jitter: Jitter = 0.0


class Schedule(Struct, rename="camel", tag="schedule", tag_field="kind", forbid_unknown_fields=True):
    """A list of delays; the last one repeats."""

    delays_seconds: Annotated[list[RetrySeconds], Meta(min_length=1, max_length=64)]
    jitter: Jitter = 0.0


Retry = Exponential | Schedule


class Deduplication(Given):
    """How long a deduplicationKey is remembered, and its scope. `contentBased` is for FIFO queues."""

    window_seconds: Window | None = None
    scope: Literal["window", "lives"] | None = None
    content_based: bool | None = None
    per_group: bool | None = None


class QueueChanges(Given):
    """Settings to change. null restores a field's default; absent fields do not change."""

    retention_seconds: Retention | UnsetType | None = UNSET
    default_visibility_timeout_seconds: QueueVisibility | UnsetType | None = UNSET
    delay_seconds: QueueDelay | UnsetType | None = UNSET
    receive_wait_seconds: QueueWait | UnsetType | None = UNSET
    max_receive_count: MaxReceives | UnsetType | None = UNSET
    dead_letter_queue: QueueName | UnsetType | None = UNSET
    dead_letter_on: Literal["receive", "failure"] | UnsetType | None = UNSET
    retry: Retry | UnsetType | None = UNSET
    max_message_bytes: MessageBytes | UnsetType | None = UNSET
    strict_receipts: bool | UnsetType | None = UNSET
    deduplication: Deduplication | UnsetType | None = UNSET
    expiry_to_dead_letter: bool | UnsetType | None = UNSET
    priority_ageing_seconds: Ageing | UnsetType | None = UNSET
    sla_seconds: Sla | UnsetType | None = UNSET
    shed_class: Label | UnsetType | None = UNSET
    alarm_severity: Label | UnsetType | None = UNSET
    max_in_flight: InFlight | UnsetType | None = UNSET
    max_messages: MessagesMax | UnsetType | None = UNSET
    max_bytes: BytesMax | UnsetType | None = UNSET
    spread: SpreadCount | UnsetType | None = UNSET
    durability: Replicas | UnsetType | None = UNSET
    own_shards: bool | UnsetType | None = UNSET
    tags: Tags | UnsetType | None = UNSET


class QueueSpec(QueueChanges, kw_only=True):
    """A queue to create. If its deadLetterQueue does not exist, that is created too, with a retention of 14 days."""

    name: QueueName
    mode: Literal["STANDARD", "FIFO"] = "STANDARD"


class QueueCreated(Answered):
    queue_id: str
    name: str


class DeduplicationShown(Answered):
    window_seconds: int
    scope: str
    content_based: bool = False
    per_group: bool = False


class Queue(Answered, kw_only=True):
    """A queue with all its settings, including defaults."""

    queue_id: str
    name: str
    mode: Literal["STANDARD", "FIFO"]
    fifo: bool
    arn: str
    created_at_ms: int
    modified_at_ms: int
    retention_seconds: int
    default_visibility_timeout_seconds: int
    delay_seconds: int
    receive_wait_seconds: int
    max_receive_count: int
    dead_letter_queue: str | UnsetType = UNSET
    dead_letter_on: str
    retry: Retry | UnsetType = UNSET
    max_message_bytes: int
    strict_receipts: bool
    deduplication: DeduplicationShown
    expiry_to_dead_letter: bool
    priority_ageing_seconds: int
    sla_seconds: int
    shed_class: str | UnsetType = UNSET
    alarm_severity: str | UnsetType = UNSET
    max_in_flight: int
    max_messages: int
    max_bytes: int
    spread: int
    durability: int | UnsetType = UNSET
    own_shards: bool
    tags: dict[str, str]


class Queues(Answered):
    """A page of queues, sorted by name. `nextCursor` gets the next page."""

    queues: list[Queue]
    next_cursor: str | UnsetType = UNSET


class Stats(Answered):
    """Exact statistics of a queue: its current content, and counts since it was created."""

    queue: str
    visible: int
    in_flight: int
    delayed: int
    owed: int
    dead: int
    bytes: int
    oldest_age_seconds: float
    sent: int
    received: int
    deleted: int
    returned: int
    expired_leases: int
    expired: int
    dead_lettered: int
    arrived: int
    duplicates: int
    stale_acks: int
    late_acks: int
    waiting_receives: int
    at_ms: int
    sent_per_second: float | UnsetType = UNSET
    received_per_second: float | UnsetType = UNSET
    deleted_per_second: float | UnsetType = UNSET
