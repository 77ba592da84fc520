"""Queues on several shards of one node, and where their messages lie."""

from __future__ import annotations

from typing import Any

from batonq.core.ids import parse_message_id
from batonq.node.broker import Queue
from batonq.node.node import Node
from tests.node.nodes import ACCOUNT


async def make(node: Node, name: str = "wide", spread: int = 3, **attributes: str) -> Queue:
    own = {"Baton.Spread": str(spread), **attributes}
    return await node.broker.create_queue(ACCOUNT, name, {key.replace("_", "."): own[key] for key in own}, {})


async def make_fifo(node: Node, name: str = "wide.fifo", spread: int = 3, **attributes: str) -> Queue:
    return await make(node, name, spread, FifoQueue="true", DeduplicationScope="messageGroup", **attributes)


def shards_of(results: list[Any]) -> list[int]:
    places = [parse_message_id(result.message_id) for result in results]
    return [place[0] for place in places if place is not None]


def ids(results: list[Any]) -> list[str]:
    return [result.message_id for result in results]


def counts(node: Node, queue: Queue) -> list[int]:
    return [node.shards[shard].host().counters(queue.number).visible for shard in queue.shards]


def grown(node: Node, queue: Queue) -> Queue:
    found = node.broker.queue_by_number(queue.number)
    assert found is not None
    return found


def written(node: Node) -> list[int]:
    return [keeper.host().shard.frame.number + bool(keeper.host().shard.frame.filled) for keeper in node.shards]
