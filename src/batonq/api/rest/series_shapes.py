"""The answers about queues in figures: a page of queues with their statistics, and time series."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from batonq.api.rest.shapes import Answered
from batonq.api.rest.status_shapes import Level

Sort = Literal["name", "visible", "inFlight", "delayed", "dead", "depth", "sent", "received", "acked", "oldest"]


class QueueSummary(Answered, kw_only=True):
    """A queue with its most important settings and figures."""

    name: str
    account: str
    mode: Literal["STANDARD", "FIFO"]
    dead_letter_queue: str | UnsetType = UNSET
    is_dead_letter_queue: bool
    sources: list[str]
    max_receive_count: int | UnsetType = UNSET
    sla_seconds: int | UnsetType = UNSET
    severity: str | UnsetType = UNSET
    paused: str | UnsetType = UNSET
    deliveries_per_second: int | UnsetType = UNSET
    only_group: str | UnsetType = UNSET
    minimum_priority: int | UnsetType = UNSET
    visible: int
    in_flight: int
    delayed: int
    owed: int
    dead: int
    bytes: int
    oldest_age_seconds: float
    oldest_visible_age_seconds: float
    sent_per_second: float
    received_per_second: float
    acked_per_second: float
    retried_per_second: float
    sent: int
    received: int
    deleted: int
    arrived: int
    dead_lettered: int
    expired: int
    waiting_receives: int
    trend: list[int]
    level: Level
    note: str


class QueueStats(Answered, kw_only=True):
    """A page of queues."""

    total: int
    offset: int
    at_ms: int
    queues: list[QueueSummary]


class SeriesMark(Answered, kw_only=True):
    at_ms: int
    kind: str
    text: str


class Series(Answered, kw_only=True):
    """Values over time: one per step and name, null where nothing is known."""

    queue: str | UnsetType = UNSET
    range: Literal["15m", "1h", "6h", "24h", "72h"]
    step_seconds: int
    start_at_ms: int
    end_at_ms: int
    values: dict[str, list[float | None]]
    marks: list[SeriesMark]
