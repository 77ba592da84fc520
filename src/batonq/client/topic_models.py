"""Topics and subscriptions of the client, with the field names of the wire."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

FilterScope = Literal["MessageAttributes", "MessageBody"]
FilterPolicy = dict[str, Any]


class TopicInfo(Struct, frozen=True, rename="camel"):
    """A topic's settings."""

    name: str
    mode: str
    arn: str
    created_at_ms: int
    modified_at_ms: int
    retention_seconds: int  # how long a copy waits for a queue that is full or paused
    subscriptions: int  # how many there are
    fifo: bool = False
    display_name: str = ""
    content_based_deduplication: bool = False
    tags: dict[str, str] = {}
    waiting_copies: int = 0  # for queues that are full, paused or out of reach; only in `info()`
    oldest_waiting_seconds: float = 0.0


class Subscription(Struct, frozen=True, rename="camel"):
    """A queue's subscription to a topic."""

    subscription_id: str
    topic: str
    queue: str
    arn: str
    queue_arn: str
    created_at_ms: int
    raw_delivery: bool = False
    filter_policy: FilterPolicy | None = None  # None: the queue gets every message
    filter_policy_scope: FilterScope = "MessageAttributes"
    dead_letter_queue: str = ""
    queue_missing: bool = False


class Match(Struct, frozen=True, rename="camel"):
    """Whether a subscription would get a message, and if not, why."""

    subscription_id: str
    queue: str
    matches: bool
    reason: str = ""


class TopicPage(Struct, rename="camel"):
    topics: list[TopicInfo]
    next_cursor: str | None = None


class SubscriptionPage(Struct, rename="camel"):
    subscriptions: list[Subscription]
    next_cursor: str | None = None


class Matches(Struct, rename="camel"):
    matched: int
    subscriptions: list[Match]
    left_out: int = 0
