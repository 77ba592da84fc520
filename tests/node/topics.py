"""Topics on whole nodes, for tests: create, subscribe, publish, and wait until no copy is on its way."""

from __future__ import annotations

from itertools import count
from typing import Any

from batonq.attribute_formats.arns import queue_arn
from batonq.core.catalog.topic_entries import SubscriptionEntry, TopicEntry
from batonq.core.commands import Accepted
from batonq.core.payload import Attribute, encode_attributes
from batonq.errors import BatonError
from batonq.node.broker import Queue
from batonq.node.node import Node
from tests.node.nodes import ACCOUNT, make_send
from tests.node.support import until
from tests.support import brokers

_uuids = count(1)


async def make_topic(node: Node, name: str = "news", **attributes: str) -> TopicEntry:
    if name.endswith(".fifo"):
        attributes["FifoTopic"] = "true"
    return await node.broker.create_topic(ACCOUNT, name, attributes, {})


async def make_queue(node: Node, name: str, attributes: dict[str, str] | None = None) -> Queue:
    fifo = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
    return await node.broker.create_queue(ACCOUNT, name, {**fifo, **(attributes or {})}, {})


async def subscribe(node: Node, topic: TopicEntry, name: str, raw: bool = True, **attributes: str) -> SubscriptionEntry:
    if raw:
        attributes["RawMessageDelivery"] = "true"
    return await node.broker.subscribe(topic, queue_arn(ACCOUNT, name), attributes, f"uuid-{next(_uuids)}")


async def publish(
    node: Node, topic: TopicEntry, *texts: str, kind: str = "", **fields: Any
) -> list[Accepted | BatonError]:
    """`kind` becomes an attribute of the messages."""
    if kind:
        fields["attributes"] = encode_attributes([Attribute("kind", "String", kind.encode(), False)])
    queue: Any = topic  # a topic stands in the place of a queue
    return await brokers.send(node.broker, queue, [make_send(text, **fields) for text in texts])


def copies_waiting(node: Node) -> int:
    """The copies that wait in the topics of a node's shards."""
    shards = [keeper.host().shard for keeper in node.shards if keeper.serving]
    return sum(shard.queues[number].messages for shard in shards for number in shard.topics)


async def delivered(node: Node) -> None:
    await until(lambda: copies_waiting(node) == 0)


async def all_serving(node: Node) -> None:
    await until(lambda: all(keeper.serving for keeper in node.shards))
