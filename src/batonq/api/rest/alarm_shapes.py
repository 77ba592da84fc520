"""What is asked about alarms, and the answers."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from batonq.api.rest.shapes import Answered, Given
from batonq.node.alarms.book import NOTE_LENGTH_MAX
from batonq.node.alarms.document import Alarm

AlarmId = Annotated[str, Meta(min_length=1, max_length=320, pattern="^[A-Za-z0-9._@-]+$")]
Note = Annotated[str, Meta(max_length=NOTE_LENGTH_MAX)]


class Acknowledge(Given):
    """Why an alarm is acknowledged."""

    note: Note = ""


class Alarms(Answered, kw_only=True):
    """The active alarms, the most severe first, and those that have ended, newest first."""

    at_ms: int
    alarms: list[Alarm]
    history: list[Alarm] | UnsetType = UNSET


class WebhookResult(Answered, kw_only=True):
    webhook: str
    delivered: bool
    answer_status: int | UnsetType = UNSET
    problem: str | UnsetType = UNSET


class WebhookResults(Answered, kw_only=True):
    results: list[WebhookResult]
