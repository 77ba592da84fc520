"""What is asked about alarms, and the answers."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from batonq.api.rest.shapes import Given
from batonq.node.alarms.book import NOTE_LENGTH_MAX
from batonq.node.alarms.document import Alarm

Note = Annotated[str, Meta(max_length=NOTE_LENGTH_MAX)]


class Acknowledge(Given, rename="camel", kw_only=True):
    note: Note = ""


class Alarms(Struct, rename="camel", kw_only=True):
    """The active alarms, the most severe first, and those that have ended, newest first."""

    at_ms: int
    alarms: list[Alarm]
    history: list[Alarm] | UnsetType = UNSET


class WebhookResult(Struct, rename="camel", kw_only=True):
    webhook: str
    delivered: bool
    answer_status: int | UnsetType = UNSET
    problem: str | UnsetType = UNSET


class WebhookResults(Struct, rename="camel", kw_only=True):
    results: list[WebhookResult]
