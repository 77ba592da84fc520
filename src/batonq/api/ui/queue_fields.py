"""A queue's settings as fields of a form, derived from the table of queue attributes, and their values read back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from batonq.api.ui import formats
from batonq.api.ui.view import Mistake
from batonq.quantities import read_duration_s, read_size
from batonq.queue_attributes import REST_ATTRIBUTES, QueueAttribute, ValueKind, camel

Kind = Literal["number", "flag", "choice", "text", "json", "tags"]
GROUPS: dict[str, tuple[str, ...]] = {
    "Delivery": (
        "retention_seconds",
        "retain_seconds",
        "default_visibility_timeout_seconds",
        "delay_seconds",
        "receive_wait_seconds",
        "strict_receipts",
        "priority_ageing_seconds",
    ),
    "Pausing and pacing": ("paused", "deliveries_per_second", "only_group", "minimum_priority"),
    "Retries and dead letters": (
        "max_receive_count",
        "dead_letter_queue",
        "dead_letter_on",
        "expiry_to_dead_letter",
        "retry",
        "retry_expired_leases",
    ),
    "Deduplication": (
        "deduplication.window_seconds",
        "deduplication.scope",
        "deduplication.content_based",
        "deduplication.per_group",
    ),
    "Alarms": ("sla_seconds", "alarm_severity", "alarm_depth"),
}
REST_OF_THEM = "Limits and placement"
# Fields that the page for a new queue shows at once.
FIRST = ("dead_letter_queue", "max_receive_count", "default_visibility_timeout_seconds", "retention_seconds")
_UNITS = {"seconds": "seconds", "bytes": "bytes"}
_FORMS = {"": "", "seconds": " of seconds, such as 90, 12h or 4d", "bytes": " of bytes, such as 65536 or 64KiB"}
_LABELS = {
    "default_visibility_timeout_seconds": "Visibility timeout",
    "max_receive_count": "Maximum receives",
    "dead_letter_queue": "Dead-letter queue",
    "dead_letter_on": "Dead-letter on",
    "expiry_to_dead_letter": "Dead-letter expired messages",
    "retry": "Retry delays",
    "retry_expired_leases": "Delay retries of expired leases",
    "retain_seconds": "Keep history for",
    "max_message_bytes": "Maximum message size",
    "max_in_flight": "Maximum in flight",
    "max_messages": "Maximum messages",
    "max_bytes": "Maximum stored",
    "sla_seconds": "SLA",
    "deliveries_per_second": "Deliveries per second",
    "only_group": "Only message group",
    "spread": "Shards",
    "own_shards": "Dedicated shards",
    "durability": "Replicas",
    "deduplication.window_seconds": "Window",
    "deduplication.content_based": "By content",
    "deduplication.per_group": "Per message group",
}


@dataclass(frozen=True, slots=True)
class Field:
    """One input of the form. `name` is REST's, with a dot inside an object."""

    name: str
    label: str
    kind: Kind
    help: str
    group: str
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()
    unit: str = ""
    fifo_only: bool = False
    default: str = ""

    @property
    def input(self) -> str:
        """The id of its element on a page."""
        return "f-" + self.name.replace(".", "-")

    @property
    def words(self) -> str:
        """Its name within a sentence: visibility timeout, deduplication window, SLA."""
        label = self.label if self.label[:2].isupper() else self.label[:1].lower() + self.label[1:]
        return f"{self.group.lower()} {label}" if "." in self.name else label

    def shown(self, queue: Mapping[str, Any]) -> str:
        """The current value as the form shows it; empty for a field that is not set."""
        value: Any = queue
        for part in self.name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return written(self, value)


def read_view(field: Field, shown: str) -> str:
    """A value for those who cannot change it: 4 d (345,600 s), 256.0 KiB (262,144 B), 120,000."""
    if field.kind != "number" or not shown.isdecimal():
        return shown
    value, grouped = int(shown), f"{int(shown):,}"
    if not field.unit:
        return grouped
    short, exact = (
        (formats.duration(value), f"{grouped} s") if field.unit == "seconds" else (formats.size(value), f"{grouped} B")
    )
    return exact if short.replace(",", "") == exact.replace(",", "") else f"{short} ({exact})"


def written(field: Field, value: Any) -> str:
    if value is None:
        return ""
    if field.kind == "flag":
        return "true" if value else "false"
    if field.kind == "json":
        return json.dumps(value)
    if field.kind == "tags":
        return "\n".join(f"{name}={text}" for name, text in value.items())
    return str(value)


def _field(row: QueueAttribute) -> Field:
    flag = row.rest_boolean or row.kind is ValueKind.BOOLEAN
    kind: Kind = (
        "flag"
        if flag
        else "choice"
        if row.kind is ValueKind.CHOICE
        else "json"
        if row.field == "retry"
        else "number"
        if row.kind is ValueKind.INTEGER
        else "text"
    )
    group = next((name for name, fields in GROUPS.items() if row.field in fields), REST_OF_THEM)
    words = row.member.split("_")
    unit = _UNITS.get(words[-1], "") if kind == "number" else ""
    label = _LABELS.get(row.field) or " ".join(words[:-1] if unit else words).capitalize()
    default = row.rest_default or row.default or ""
    return Field(
        name=".".join(map(camel, row.field.split("."))),
        label=label,
        kind=kind,
        help=row.meaning,
        group=group,
        low=row.low,
        high=row.high,
        choices=() if flag else row.choices,
        unit=unit,
        fifo_only=row.fifo_only,
        default=("true" if default == row.word else "false") if row.rest_boolean else default,
    )


TAGS = Field("tags", "Tags", "tags", "One per line, as name=value.", "Tags")
FIELDS: tuple[Field, ...] = (*(_field(row) for row in REST_ATTRIBUTES), TAGS)


def groups(*, fifo: bool) -> dict[str, list[Field]]:
    """The fields of a queue by group, in the order of the page."""
    order = [*GROUPS, REST_OF_THEM, TAGS.group]
    found: dict[str, list[Field]] = {name: [] for name in order}
    for field in FIELDS:
        if fifo or not field.fifo_only:
            found[field.group].append(field)
    return found


class Wrong(Exception):
    """A value that a field does not accept."""


def parse(field: Field, text: str) -> Any:
    """The value of a field as REST takes it. Raises Wrong, with a text for people."""
    text = text.strip()
    if field.kind == "number":
        value = _whole(text.replace(",", "").replace("_", ""), field.unit)
        if value is None:
            raise Wrong(
                f"{text[:40]!r} is not a whole number{_FORMS[field.unit]}. Use {field.low:,} to {field.high:,}."
            )
        if not field.low <= value <= field.high:
            raise Wrong(f"Use {field.low:,} to {field.high:,}.")
        return value
    if field.kind == "flag":
        return text == "true"
    if field.kind == "choice":
        if text not in field.choices:
            raise Wrong(f"Choose one of {', '.join(field.choices)}.")
        return int(text) if text.isdecimal() else text
    if field.kind == "json":
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise Wrong("This is not JSON.") from None
    if field.kind == "tags":
        return dict(_tags(text))
    return text


def _whole(text: str, unit: str) -> int | None:
    """A whole number, which may be written with a unit where the field has one; None if it is not."""
    if not text.isascii() or len(text) > 16:
        return None
    if text.isdecimal():
        return int(text)
    if not unit or not text[:1].isdecimal():
        return None
    try:
        given = read_duration_s(text.replace(" ", "").lower()) if unit == "seconds" else read_size(text)
    except ValueError:
        return None
    value = round(given, 3)  # 1.1 hours are not exactly 3,960 seconds
    return int(value) if value == int(value) else None


def _tags(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, sign, value = line.strip().partition("=")
        if not line.strip():
            continue
        if not sign or not name.strip():
            raise Wrong(f"{line.strip()[:60]!r} is not of the form name=value.")
        yield name.strip(), value.strip()


def changes(form: Mapping[str, str], queue: Mapping[str, Any], *, fifo: bool) -> tuple[dict[str, Any], dict[str, str]]:
    """What a form asks to change, as the body of a request; and what is wrong with it, by the name of the field.

    A field that is empty gets its default, which REST writes as null. Unchanged fields are left out.
    """
    body: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for field in FIELDS:
        if field.name not in form or (field.fifo_only and not fifo):
            continue
        text = form[field.name].replace("\r\n", "\n").strip()
        before = field.shown(queue)
        if text == before or (not text and not before):
            continue
        try:
            value = parse(field, text) if text or field.kind == "tags" else None
        except Wrong as problem:
            wrong[field.name] = str(problem)
            continue
        if written(field, value) == before:
            continue
        parent, _, member = field.name.rpartition(".")
        if parent:
            body.setdefault(parent, {})[member] = value
        else:
            body[field.name] = value
    return body, wrong


def changed(body: Mapping[str, Any]) -> list[Field]:
    """The fields that the body of a request changes, in the order of the form."""

    def named(field: Field) -> bool:
        parent, _, member = field.name.rpartition(".")
        return member in (body.get(parent) or {}) if parent else member in body

    return [field for field in FIELDS if named(field)]


def mistakes(wrong: Mapping[str, str]) -> list[Mistake]:
    """What is wrong with the fields of a form, in the order of the form."""
    return [Mistake(field.input, field.label, wrong[field.name]) for field in FIELDS if field.name in wrong]


def blamed(detail: str) -> str:
    """The field that an error of REST is about; empty if it names none."""
    by_length = sorted((field.name for field in FIELDS), key=len, reverse=True)
    for name in by_length:
        if name in detail or f"`{name.rpartition('.')[2]}`" in detail:
            return name
    return ""
