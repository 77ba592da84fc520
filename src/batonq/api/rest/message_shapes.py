"""Single messages of the REST API. See shapes.py for the conventions."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from batonq.api.rest.shapes import Answered, Peeked


class MessageEvent(Answered, kw_only=True):
    """One event in the history of a message."""

    at_ms: int
    event: Literal[
        "sent",
        "leased",
        "extended",
        "released",
        "givenBack",
        "leaseExpired",
        "nacked",
        "returned",
        "retried",
        "dead",
        "edited",
        "moving",
        "moved",
        "moveRefused",
        "arrived",
        "acknowledged",
        "acknowledgedLate",
        "deleted",
        "expired",
        "purged",
    ]
    queue: str = ""
    holder: str = ""
    reason: str = ""
    error_class: str = ""
    receive_count: int = 0
    until_ms: int = 0
    to_queue: str = ""


class MessageDetail(Peeked, kw_only=True):
    """A message with its history. `state` is `DELETED` if the message was deleted or moved and the log still has it."""

    state: Literal["DELAYED", "VISIBLE", "IN_FLIGHT", "OWED", "DEAD", "DELETED"]  # type: ignore[assignment]
    queue: str
    shard: int
    where: str
    history: list[MessageEvent]
    history_complete: bool
    history_note: str = ""
    moved_as: str | UnsetType = UNSET
