"""Queues of the REST API: settings, changes and statistics. See shapes.py for the conventions."""

from __future__ import annotations

from collections.abc import Iterable
from types import GenericAlias
from typing import Annotated, Any, Literal, Protocol

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct

from batonq.api.rest.shapes import DAYS_14_S, Answered, Given
from batonq.queue_attributes import LABEL_LENGTH_MAX, NOT_PAUSED, REST_FIELDS, QueueAttribute, ValueKind

PAGE_MAX = 1_000
PageSize = Annotated[int, Meta(ge=1, le=PAGE_MAX)]
NAME_PATTERN = r"^[A-Za-z0-9_-]{1,80}$|^[A-Za-z0-9_-]{1,75}\.fifo$"

QueueName = Annotated[str, Meta(min_length=1, max_length=80, pattern=NAME_PATTERN)]
Label = Annotated[str, Meta(min_length=1, max_length=LABEL_LENGTH_MAX, pattern="^[A-Za-z0-9_-]+$")]
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


class NoRetryDelay(Struct, rename="camel", tag="none", tag_field="kind", forbid_unknown_fields=True):
    """No delay: a nacked message becomes visible at once."""


Retry = Exponential | Schedule | NoRetryDelay


# --- derived from the table of queue attributes ------------------------------------------------


class GivenFields(Protocol):
    """The fields that are read by name, of QueueChanges and QueueSpec."""

    max_receive_count: int | UnsetType | None
    dead_letter_queue: str | UnsetType | None
    tags: dict[str, str] | UnsetType | None


class SpecFields(GivenFields, Protocol):
    """The fields that are read by name, of QueueSpec only."""

    name: str
    mode: Literal["STANDARD", "FIFO"]


# Attributes that have their own form in REST: the accepted type, and the returned type.
_OWN_FORMS: dict[str, tuple[Any, Any]] = {"RedrivePolicy": (QueueName, str), "Baton.RetryPolicy": (Retry, Retry)}


def _accepted(row: QueueAttribute) -> Any:
    """The type of a field in a request."""
    if row.name in _OWN_FORMS:
        return _OWN_FORMS[row.name][0]
    if row.rest_boolean or row.kind is ValueKind.BOOLEAN:
        return bool
    if row.kind is ValueKind.CHOICE:
        return Literal[tuple(map(int, row.choices) if row.numeric else row.choices)]
    if row.kind is ValueKind.LABEL:
        return Label
    if row.kind is ValueKind.TEXT:
        return Annotated[str, Meta(max_length=row.high)]
    if row.seconds:  # whole seconds: 30 and 30.0 are valid, 30.5 is not
        return Annotated[float, Meta(ge=row.low, le=row.high, multiple_of=1)]
    return Annotated[int, Meta(ge=row.low, le=row.high)]


def _answered(row: QueueAttribute) -> tuple[Any, ...]:
    """A field of an answer. A field without a default is omitted until it is set. A field for FIFO queues is omitted
    while it is false.
    """
    boolean = row.rest_boolean or row.kind is ValueKind.BOOLEAN
    kind = _OWN_FORMS[row.name][1] if row.name in _OWN_FORMS else bool if boolean else int if row.numeric else str
    if row.default is None:
        return (row.member, kind | UnsetType, UNSET)
    return (row.member, kind, False) if row.fifo_only else (row.member, kind)


def _struct(name: str, doc: str, fields: Iterable[tuple[Any, ...]], base: Any, *, kw_only: bool = False) -> Any:
    namespace = {"__doc__": doc or None}
    return defstruct(name, fields, bases=(base,), namespace=namespace, module=__name__, kw_only=kw_only)


Deduplication = _struct(
    "Deduplication",
    "How long a deduplicationKey is remembered, and its scope. `contentBased` is for FIFO queues.",
    [(row.member, _accepted(row) | None, None) for row in REST_FIELDS["deduplication"]],
    Given,
)
DeduplicationShown = _struct("DeduplicationShown", "", map(_answered, REST_FIELDS["deduplication"]), Answered)
# Fields that are objects: the accepted type, and the returned type.
OBJECTS: dict[str, tuple[Any, Any]] = {"deduplication": (Deduplication, DeduplicationShown)}

QueueChanges = _struct(
    "QueueChanges",
    "Settings to change. null restores a field's default; absent fields do not change.",
    [
        *(
            (name, (OBJECTS[name][0] if name in OBJECTS else _accepted(rows[0])) | UnsetType | None, UNSET)
            for name, rows in REST_FIELDS.items()
        ),
        ("tags", Tags | UnsetType | None, UNSET),
    ],
    Given,
)
QueueSpec = _struct(
    "QueueSpec",
    "A queue to create. If its deadLetterQueue does not exist, that is created too, with a retention of 14 days.",
    [("name", QueueName), ("mode", Literal["STANDARD", "FIFO"], "STANDARD")],
    QueueChanges,
    kw_only=True,
)


class QueueCreated(Answered):
    queue_id: str
    name: str


class _Identity(Answered, kw_only=True):
    queue_id: str
    name: str
    mode: Literal["STANDARD", "FIFO"]
    fifo: bool
    arn: str
    created_at_ms: int
    modified_at_ms: int


Queue = _struct(
    "Queue",
    "A queue with all its settings, including defaults.",
    [
        *((name, OBJECTS[name][1]) if name in OBJECTS else _answered(rows[0]) for name, rows in REST_FIELDS.items()),
        ("tags", dict[str, str]),
        ("warnings", list[str] | UnsetType, UNSET),
        ("subscriptions", int | UnsetType, UNSET),
        ("subscribed_topics", list[str] | UnsetType, UNSET),
    ],
    _Identity,
    kw_only=True,
)
Queues = _struct(
    "Queues",
    "A page of queues, sorted by name. `nextCursor` gets the next page.",
    [("queues", GenericAlias(list, (Queue,))), ("next_cursor", str | UnsetType, UNSET)],
    Answered,
)


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
    oldest_visible_age_seconds: float
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
    is_dead_letter_queue: bool = False
    paused: str = NOT_PAUSED
