"""Topics and subscriptions of the REST API. See shapes.py for the conventions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, UnsetType

from batonq.api.rest.queue_shapes import QueueName, Tags
from batonq.api.rest.shapes import DAYS_14_S, Answered, Attributes, Given
from batonq.topic_attributes import RETENTION_MIN_S

PAGE_MAX = 1_000
PageSize = Annotated[int, Meta(ge=1, le=PAGE_MAX)]
TopicName = Annotated[
    str, Meta(min_length=1, max_length=256, pattern=r"^[A-Za-z0-9_-]{1,256}$|^[A-Za-z0-9_-]{1,251}\.fifo$")
]
SubscriptionId = Annotated[str, Meta(min_length=1, max_length=64, pattern="^[A-Za-z0-9_-]+$")]
Scope = Literal["MessageAttributes", "MessageBody"]
Retention = Annotated[int, Meta(ge=RETENTION_MIN_S, le=DAYS_14_S)]
DisplayName = Annotated[str, Meta(max_length=100)]
Policy = dict[str, Any]


class TopicChanges(Given):
    """Settings to change. null restores a field's default; absent fields do not change."""

    display_name: DisplayName | UnsetType | None = UNSET
    retention_seconds: Retention | UnsetType | None = UNSET
    content_based_deduplication: bool | UnsetType | None = UNSET
    tags: Tags | UnsetType | None = UNSET


class TopicSpec(TopicChanges, kw_only=True):
    """A topic to create."""

    name: TopicName
    mode: Literal["STANDARD", "FIFO"] = "STANDARD"


class Topic(Answered, kw_only=True):
    """A topic with all its settings, including defaults."""

    name: str
    mode: Literal["STANDARD", "FIFO"]
    fifo: bool
    arn: str
    created_at_ms: int
    modified_at_ms: int
    display_name: str | UnsetType = UNSET
    retention_seconds: int
    content_based_deduplication: bool = False
    tags: dict[str, str]
    subscriptions: int
    waiting_copies: int = 0
    oldest_waiting_seconds: float = 0.0


class Topics(Answered):
    """A page of topics, sorted by name. `nextCursor` gets the next page."""

    topics: list[Topic]
    next_cursor: str | UnsetType = UNSET


class SubscriptionChanges(Given):
    """Settings to change. null restores a field's default; absent fields do not change."""

    raw_delivery: bool | UnsetType | None = UNSET
    filter_policy: Policy | UnsetType | None = UNSET
    filter_policy_scope: Scope | UnsetType | None = UNSET
    dead_letter_queue: QueueName | UnsetType | None = UNSET


class SubscriptionSpec(SubscriptionChanges, kw_only=True):
    """A queue that shall get the messages of a topic."""

    queue: QueueName


class Subscription(Answered, kw_only=True):
    """A subscription with all its settings, including defaults."""

    subscription_id: str
    topic: str
    queue: str
    arn: str
    queue_arn: str
    created_at_ms: int
    raw_delivery: bool
    filter_policy: Policy | UnsetType = UNSET
    filter_policy_scope: Scope | UnsetType = UNSET
    dead_letter_queue: str | UnsetType = UNSET
    queue_missing: bool = False


class Subscriptions(Answered):
    """A page of subscriptions, oldest first. `nextCursor` gets the next page."""

    subscriptions: list[Subscription]
    next_cursor: str | UnsetType = UNSET


class MatchSpec(Given):
    """A message to compare with the filters of a topic's subscriptions. Nothing is sent."""

    body: Raw | UnsetType = UNSET
    attributes: Attributes | None = None


class Match(Answered):
    """Whether a subscription would get the message."""

    subscription_id: str
    queue: str
    matches: bool
    reason: str | UnsetType = UNSET


class Matches(Answered):
    """The subscriptions that would get a message, and those that would not. `left_out`: how many more there are."""

    matched: int
    subscriptions: list[Match]
    left_out: int = 0
