"""Topics and subscriptions in the catalog: plain values, each with its form in the log, and the indexes over them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from batonq.attribute_formats.arns import QueueName
from batonq.attribute_formats.topic_arns import TopicName, subscription_arn, topic_arn
from batonq.core.catalog.entries import Link, Record
from batonq.core.policy import MISSING_QUEUE, SECOND_MS, QueuePolicy
from batonq.core.topics.subscription import Subscription
from batonq.topic_attributes import (
    ATTRIBUTES_SCOPE,
    CONTENT_DEDUPLICATION,
    FILTER_POLICY,
    FILTER_SCOPE,
    PER_GROUP_SCOPE,
    RAW_DELIVERY,
    RETENTION,
    RETENTION_DEFAULT_S,
    THROUGHPUT_SCOPE,
)

PUBLISH_BYTES_MAX = 1 << 20
NO_SHARD = 0


@dataclass(slots=True, frozen=True)
class TopicEntry:
    """A topic in the catalog. It has the properties of a queue that sending needs: publishing is a send to its number.
    Do not modify the mappings: every change creates a new entry.
    """

    number: int
    account: str
    name: str
    fifo: bool
    attributes: Mapping[str, str]  # only those that were set
    tags: Mapping[str, str]
    created_ms: int
    modified_ms: int
    shard: int
    policy_version: int

    policy: QueuePolicy = field(init=False, compare=False)

    def __post_init__(self) -> None:
        policy = QueuePolicy(
            queue=self.number,
            tenant=self.account,
            name=self.name,
            version=self.policy_version,
            fifo=self.fifo,
            retention_ms=int(self.attributes.get(RETENTION, RETENTION_DEFAULT_S)) * SECOND_MS,
            dedup_per_group=self.attributes.get(THROUGHPUT_SCOPE) == PER_GROUP_SCOPE,
            topic=True,
        )
        object.__setattr__(self, "policy", policy)

    @property
    def shards(self) -> tuple[int, ...]:
        return (self.shard,)

    @property
    def left(self) -> int:
        return 0

    @property
    def content_dedup(self) -> bool:
        return self.attributes.get(CONTENT_DEDUPLICATION) == "true"

    @property
    def message_bytes_max(self) -> int:
        return PUBLISH_BYTES_MAX

    @property
    def key(self) -> TopicName:
        return TopicName(self.account, self.name)

    @property
    def arn(self) -> str:
        return topic_arn(self.account, self.name)

    def record(self) -> Record:
        return {
            "account": self.account,
            "name": self.name,
            "fifo": self.fifo,
            "attributes": dict(self.attributes),
            "tags": dict(self.tags),
            "created_ms": self.created_ms,
            "modified_ms": self.modified_ms,
            "shard": self.shard,
            "policy_version": self.policy_version,
        }

    @classmethod
    def from_record(cls, number: int, record: Record) -> TopicEntry:
        return cls(number=number, **{name: record[name] for name in _TOPIC_FIELDS})


_TOPIC_FIELDS = (
    "account",
    "name",
    "fifo",
    "attributes",
    "tags",
    "created_ms",
    "modified_ms",
    "shard",
    "policy_version",
)


@dataclass(slots=True, frozen=True)
class SubscriptionEntry:
    """A queue's subscription to a topic. `queue` and `dead_letter` name queues, whether they exist or not; `link` and
    `dead_letter_link` are those queues as they are now, None if they do not exist
    or, for `link`, do not accept messages from the topic's account.
    """

    number: int
    topic: int
    topic_name: TopicName
    uuid: str  # the last part of its ARN
    queue: QueueName
    attributes: Mapping[str, str]  # only those that were set
    created_ms: int
    link: Link | None
    queue_fifo: bool
    dead_letter: QueueName | None
    dead_letter_link: Link | None
    policy_version: int
    protocol: str = "sqs"

    @property
    def arn(self) -> str:
        return subscription_arn(self.topic_name, self.uuid)

    @property
    def raw(self) -> bool:
        return self.attributes.get(RAW_DELIVERY) == "true"

    @property
    def filter_policy(self) -> str:
        return self.attributes.get(FILTER_POLICY, "")

    @property
    def scope(self) -> str:
        return self.attributes.get(FILTER_SCOPE, ATTRIBUTES_SCOPE)

    @property
    def policy(self) -> Subscription:
        """What the topic's shard must know."""
        link = self.link or Link(MISSING_QUEUE, NO_SHARD)
        dead = self.dead_letter_link or Link(MISSING_QUEUE if self.dead_letter else 0, NO_SHARD)
        return Subscription(
            number=self.number,
            topic=self.topic,
            version=self.policy_version,
            queue=link.number,
            shard=link.shard,
            spread=link.spread,
            name=self.queue.name,
            fifo=self.queue_fifo,
            raw=self.raw,
            filter=self.filter_policy,
            scope=self.scope,
            dead_letter_queue=dead.number,
            dead_letter_shard=dead.shard,
            dead_letter_spread=dead.spread,
            dead_letter_fifo=self.queue_fifo,
        )

    @property
    def queues(self) -> tuple[QueueName, ...]:
        return (self.queue,) if self.dead_letter in (None, self.queue) else (self.queue, self.dead_letter)

    def record(self) -> Record:
        return {
            "topic": self.topic,
            "topic_name": list(self.topic_name),
            "uuid": self.uuid,
            "queue": list(self.queue),
            "attributes": dict(self.attributes),
            "created_ms": self.created_ms,
            "link": self.link.record() if self.link else None,
            "queue_fifo": self.queue_fifo,
            "dead_letter": list(self.dead_letter) if self.dead_letter else None,
            "dead_letter_link": self.dead_letter_link.record() if self.dead_letter_link else None,
            "policy_version": self.policy_version,
            "protocol": self.protocol,
        }

    @classmethod
    def from_record(cls, number: int, record: Record) -> SubscriptionEntry:
        link, dead, dead_link = record["link"], record["dead_letter"], record["dead_letter_link"]
        return cls(
            number=number,
            topic=record["topic"],
            topic_name=TopicName(*record["topic_name"]),
            uuid=record["uuid"],
            queue=QueueName(*record["queue"]),
            attributes=record["attributes"],
            created_ms=record["created_ms"],
            link=Link(*link) if link else None,
            queue_fifo=record["queue_fifo"],
            dead_letter=QueueName(*dead) if dead else None,
            dead_letter_link=Link(*dead_link) if dead_link else None,
            policy_version=record["policy_version"],
            protocol=record["protocol"],
        )


class TopicTables:
    """The topics and subscriptions of the catalog, and indexes derived from them."""

    def __init__(self) -> None:
        self.topics: dict[int, TopicEntry] = {}
        self.subscriptions: dict[int, SubscriptionEntry] = {}
        self.next_subscription = 1
        self.by_name: dict[TopicName, TopicEntry] = {}
        self.names: dict[str, list[str]] = {}  # account → names of topics, sorted
        self.of_topic: dict[int, list[int]] = {}  # topic → its subscriptions, ascending
        self.of_queue: dict[QueueName, set[int]] = {}  # queue → subscriptions that deliver or dead-letter to it
        self.by_endpoint: dict[tuple[int, QueueName], int] = {}  # topic and queue → subscription
        self.by_uuid: dict[tuple[TopicName, str], int] = {}

    def set_topic(self, number: int, entry: TopicEntry | None) -> TopicEntry | None:
        """Returns the entry before. The subscriptions of a topic that is removed are removed with it."""
        old = self.topics.pop(number, None)
        if old is not None:
            del self.by_name[old.key]
            names = self.names[old.account]
            del names[bisect_left(names, old.name)]
            if not names:
                del self.names[old.account]
        if entry is not None:
            self.topics[number] = entry
            self.by_name[entry.key] = entry
            insort(self.names.setdefault(entry.account, []), entry.name)
            self.of_topic.setdefault(number, [])
        else:
            for subscription in list(self.of_topic.get(number, ())):
                self.set_subscription(subscription, None)
            self.of_topic.pop(number, None)
        return old

    def set_subscription(self, number: int, entry: SubscriptionEntry | None) -> SubscriptionEntry | None:
        """Returns the entry before."""
        old = self.subscriptions.pop(number, None)
        if old is not None:
            numbers = self.of_topic[old.topic]
            del numbers[bisect_left(numbers, number)]
            for queue in old.queues:
                self.of_queue[queue].discard(number)
                if not self.of_queue[queue]:
                    del self.of_queue[queue]
            del self.by_endpoint[old.topic, old.queue]
            del self.by_uuid[old.topic_name, old.uuid]
        if entry is not None:
            self.subscriptions[number] = entry
            insort(self.of_topic.setdefault(entry.topic, []), number)
            for queue in entry.queues:
                self.of_queue.setdefault(queue, set()).add(number)
            self.by_endpoint[entry.topic, entry.queue] = number
            self.by_uuid[entry.topic_name, entry.uuid] = number
        self.next_subscription = max(self.next_subscription, number + 1)
        return old

    def facts(self) -> dict[str, Any]:
        """The part of the catalog's Base about topics; empty if there never was one."""
        if self.next_subscription == 1 and not self.topics:
            return {}
        return {
            "topics": {str(key): entry.record() for key, entry in self.topics.items()},
            "subscriptions": {str(key): entry.record() for key, entry in self.subscriptions.items()},
            "next_subscription": self.next_subscription,
        }

    def validate(self) -> None:
        """Assert that the indexes agree with the entries."""
        fresh = TopicTables()
        for number, topic in self.topics.items():
            fresh.set_topic(number, topic)
        for number, subscription in self.subscriptions.items():
            assert subscription.topic in self.topics, "a subscription to a topic that is gone"
            assert self.topics[subscription.topic].key == subscription.topic_name
            fresh.set_subscription(number, subscription)
        for name in ("by_name", "names", "of_topic", "of_queue", "by_endpoint", "by_uuid"):
            assert getattr(self, name) == getattr(fresh, name), f"the index {name} of topics is wrong"
        assert self.next_subscription >= fresh.next_subscription
