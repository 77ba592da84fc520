"""The table of operations: for each name, its function and its input."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, get_type_hints

from msgspec import Struct

from batonq.api.sns import publishing, subscriptions, topics
from batonq.api.sns.service import Call, Service

Run = Callable[[Service, Call, Any], Awaitable[Struct | None]]

_RUNS: dict[str, Run] = {
    "CreateTopic": topics.create_topic,
    "DeleteTopic": topics.delete_topic,
    "ListTopics": topics.list_topics,
    "GetTopicAttributes": topics.get_topic_attributes,
    "SetTopicAttributes": topics.set_topic_attributes,
    "TagResource": topics.tag_resource,
    "UntagResource": topics.untag_resource,
    "ListTagsForResource": topics.list_tags_for_resource,
    "Subscribe": subscriptions.subscribe,
    "ConfirmSubscription": subscriptions.confirm_subscription,
    "Unsubscribe": subscriptions.unsubscribe,
    "ListSubscriptions": subscriptions.list_subscriptions,
    "ListSubscriptionsByTopic": subscriptions.list_subscriptions_by_topic,
    "GetSubscriptionAttributes": subscriptions.get_subscription_attributes,
    "SetSubscriptionAttributes": subscriptions.set_subscription_attributes,
    "Publish": publishing.publish,
    "PublishBatch": publishing.publish_batch,
}
# Operations that change nothing, which a key with the role `read` may use.
READS = frozenset(name for name in _RUNS if name.startswith(("Get", "List")))
OF_TAGS = ("TagResource", "UntagResource", "ListTagsForResource")


class Operation(NamedTuple):
    name: str
    changes: bool
    run: Run
    input: type[Struct]
    output: Any  # a structure, or NoneType


def _operation(name: str, run: Run) -> Operation:
    hints = get_type_hints(run)
    return Operation(name, name not in READS, run, hints["given"], hints["return"])


OPERATIONS = {name: _operation(name, run) for name, run in _RUNS.items()}
