"""Tells a topic's shard about subscriptions, one by one, as queue_control.py tells shards about queues."""

from __future__ import annotations

from collections.abc import Sequence

from batonq.core.catalog.machine import Catalog
from batonq.core.topics.subscription import Subscription
from batonq.node.shard_host.host import ShardHost

Missed = tuple[int, int, Subscription | None]  # topic, number, and the subscription; None: it was removed


def tell_subscription(
    host: ShardHost, topic: int, number: int, subscription: Subscription | None, version: int
) -> None:
    """Update one subscription on its topic's shard to the catalog's state at that version; None: removed."""
    state = host.shard.queues.get(topic)
    if state is None or state.closed:
        return  # its subscriptions are gone with it
    held = host.shard.subscriptions(topic).get(number)
    if subscription is None:
        if held is not None and held.version < version:
            host.set_subscription(topic, number, None, version)
    elif held is None or held.version < subscription.version:
        host.set_subscription(topic, number, subscription, subscription.version)


def missed_subscriptions(host: ShardHost, catalog: Catalog, topic: int = 0) -> list[Missed]:
    """The subscriptions of one topic, or of all topics of a shard, of which the shard does not know the catalog's
    state.
    """
    shard = host.shard
    numbers = [topic] if topic else [number for number, state in shard.queues.items() if state.policy.topic]
    held = {
        number: {own: subscription.version for own, subscription in shard.subscriptions(number).items()}
        for number in numbers
    }
    return catalog.reconcile_subscriptions(shard.number, held, topic)


def tell_missed(host: ShardHost, missed: Sequence[Missed], version: int) -> None:
    for topic, number, subscription in missed:
        tell_subscription(host, topic, number, subscription, version)
