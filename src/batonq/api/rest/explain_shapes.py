"""The explanation of a queue's backlog in the REST API. See shapes.py for the conventions."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from batonq.api.rest.shapes import Answered
from batonq.node.messages.queue_diagnosis import NAMES

CauseName = Literal[NAMES]  # type: ignore[valid-type]


class Finding(Answered, kw_only=True):
    """One reason why messages of a queue wait, or a note about it."""

    cause: CauseName
    kind: Literal["cause", "note"]
    text: str
    action: str
    figures: dict[str, float | str]


class BusyGroup(Answered, kw_only=True):
    """One of the message groups of a queue that had the most messages lately."""

    message_group_id: str
    share: float
    waiting: int


class Flow(Answered, kw_only=True):
    """Messages per second, and how long consumers take for one."""

    sent_per_second: float
    received_per_second: float
    acked_per_second: float
    retried_per_second: float
    handling_p50_ms: float | UnsetType = UNSET


class QueueExplained(Answered, kw_only=True):
    """Why the messages of a queue wait: the most important reason first, with the figures behind it."""

    queue: str
    at_ms: int
    text: str
    findings: list[Finding]
    paused: str
    visible: int
    in_flight: int
    delayed: int
    oldest_age_seconds: float
    oldest_visible_age_seconds: float
    waiting_receives: int
    consumers: int
    now: Flow
    before: Flow | UnsetType = UNSET
    groups: list[BusyGroup]
