"""Single messages of the REST API. See shapes.py for the conventions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from batonq.api.rest.job_shapes import AttributeName
from batonq.api.rest.shapes import ATTRIBUTES_MAX, Answered, Attributes, Given, Peeked


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
    moved_to: str | UnsetType = UNSET
    moved_as: str | UnsetType = UNSET


class MessageEdit(Given):
    """Changes of a message: a new body, and new attributes, or attributes to set and to remove."""

    body: Any = UNSET
    body_base64: str | None = None
    attributes: Attributes | None = None
    set_attributes: Attributes | None = None
    remove_attributes: Annotated[list[AttributeName], Meta(max_length=ATTRIBUTES_MAX)] | None = None


class DeadLetterGroup(Answered, kw_only=True):
    """Dead letters that failed in the same way: same error, same source queue, bodies of the same shape."""

    group: str
    error_class: str
    reason: str
    shape: str
    source_queue: str
    count: int
    first_at_ms: int
    last_at_ms: int
    examples: list[Peeked]


class DeadLetters(Answered, kw_only=True):
    """The newest dead letters of a queue in groups, the largest group first."""

    queue: str
    total: int
    examined: int
    complete: bool
    sources: list[str]
    groups: list[DeadLetterGroup]
    groups_omitted: int = 0
