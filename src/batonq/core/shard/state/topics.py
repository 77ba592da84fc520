"""The topics of a shard: their subscriptions, the index over the filters, and counters.

A topic is also a queue of this shard (`QueueState`) whose messages are the copies that wait: those on their way to
another shard, those that their queue refused, and, in a FIFO topic, those behind such a copy. `Messages.fanned` has the
subscription of each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from batonq.attribute_formats.topic_arns import topic_arn
from batonq.core.policy import MISSING_QUEUE, QueuePolicy
from batonq.core.topics.filter_index import FilterIndex
from batonq.core.topics.filters import parse_filter
from batonq.core.topics.subscription import Subscription

TOPIC_TOTALS = ("published", "copies", "refused", "dropped")
NO_SUBSCRIPTIONS: dict[int, Subscription] = {}


class TopicState:
    """One topic. The counters follow from records and are replayed."""

    __slots__ = (*TOPIC_TOTALS, "arn", "enveloped", "filtered", "index", "subscriptions")

    published: int  # messages
    copies: int  # of those messages, for subscriptions that match
    refused: int  # refusals of copies by a queue
    dropped: int  # copies without a destination: no queue, or one of the wrong type, and no dead-letter queue

    def __init__(self, policy: QueuePolicy) -> None:
        self.arn = topic_arn(policy.tenant, policy.name)
        self.subscriptions: dict[int, Subscription] = {}
        self.index = FilterIndex()
        self.filtered = 0  # subscriptions with a filter
        self.enveloped = 0  # subscriptions without raw delivery
        for name in TOPIC_TOTALS:
            setattr(self, name, 0)

    def set(self, number: int, subscription: Subscription | None) -> None:
        old = self.subscriptions.pop(number, None)
        if old is not None:
            self.index.remove(number)
            self.filtered -= bool(old.filter)
            self.enveloped -= not old.raw
        if subscription is not None:
            self.subscriptions[number] = subscription
            text = subscription.filter
            self.index.put(number, parse_filter(text, subscription.scope) if text else None)
            self.filtered += bool(text)
            self.enveloped += not subscription.raw

    def facts(self) -> dict[str, Any]:
        return {
            "totals": [getattr(self, name) for name in TOPIC_TOTALS],
            "subscriptions": [self.subscriptions[number].values() for number in sorted(self.subscriptions)],
        }

    def load(self, facts: dict[str, Any]) -> None:
        for name, value in zip(TOPIC_TOTALS, facts["totals"], strict=True):
            setattr(self, name, value)
        for values in facts["subscriptions"]:
            subscription = Subscription.from_values(values)
            self.set(subscription.number, subscription)

    def validate(self) -> None:
        assert len(self.index) == len(self.subscriptions), "a filter of a subscription that is gone"
        kinds = self.subscriptions.values()
        assert self.filtered == sum(bool(one.filter) for one in kinds), "filters are miscounted"
        assert self.enveloped == sum(not one.raw for one in kinds), "raw subscriptions are miscounted"


class Topics:
    def __init__(self) -> None:
        self.states: dict[int, TopicState] = {}
        self.unlocked: set[int] = set()  # soft: FIFO topics in which a copy may have come to the front of its line

    def on_policy(self, policy: QueuePolicy) -> None:
        if policy.queue not in self.states:
            self.states[policy.queue] = TopicState(policy)

    def forget(self, number: int) -> None:
        self.states.pop(number, None)
        self.unlocked.discard(number)

    def subscription(self, topic: int, number: int) -> Subscription | None:
        state = self.states.get(topic)
        return state.subscriptions.get(number) if state is not None else None

    def subscriptions(self, topic: int) -> dict[int, Subscription]:
        """The subscriptions of a topic by number. Do not modify the mapping."""
        state = self.states.get(topic)
        return state.subscriptions if state is not None else NO_SUBSCRIPTIONS

    def destination_of(self, topic: int, number: int) -> int:
        """The queue of a subscription; 0 if the subscription was removed."""
        subscription = self.subscription(topic, number)
        return 0 if subscription is None else subscription.queue

    def origin_of(self, topic: int, number: int, to: int) -> int:
        """Where a redrive takes a copy that goes to its subscription's dead-letter queue: to the subscription's queue.
        0 for a copy that goes elsewhere.
        """
        subscription = self.subscription(topic, number)
        if subscription is None or to != subscription.dead_letter_queue or subscription.queue == MISSING_QUEUE:
            return 0
        return subscription.queue | subscription.shard << 32

    def on_subscription(self, topic: int, number: int, subscription: Subscription | None) -> None:
        state = self.states.get(topic)
        if state is not None:
            state.set(number, subscription)

    def validate(self, queues: Iterable[int]) -> None:
        assert self.states.keys() == set(queues), "a topic without its queue, or the reverse"
        for state in self.states.values():
            state.validate()
