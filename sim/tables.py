"""The check of a quiet node's memory: nothing waits, and tables have no more entries than queues and messages need."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from batonq.node.node import Node
from batonq.node.shard_host.host import ShardHost

SPARE = 8  # tolerated entries
# The size of these does not depend on the current content: bounded caches, and entries remembered for a time.
CACHES = {"_selections", "_turns", "_known", "_ports", "attempts", "attempt_of", "jobs", "job_pace", "job_place"}


def leftovers(node: Node) -> Iterator[str]:
    """The tables that should be empty or small when no request has arrived for a while, and are not."""
    queues = len(node.catalog.current().queues)
    for keeper in node.shards:
        if keeper.serving:
            host = keeper.host()
            yield from _waiting(host)
            messages = sum(queue.messages for queue in host.shard.queues.values())
            room = SPARE + queues + messages + len(node.shards)
            parts = {"host": host, "shard": host.shard, "commit": host.commit, "jobs": host.jobs, "polls": host.polls}
            for name, part in parts.items():
                yield from _large(f"shard {host.shard.number}, {name}", part, room)
    room = SPARE + queues + len(node.shards) ** 2
    for name, part in {"broker": node.broker, "spreading": node.broker._spreading, "channels": node._channels}.items():
        yield from _large(name, part, room)


def _waiting(host: ShardHost) -> Iterator[str]:
    counts = {
        "replies that wait for a commit": host.commit.pending,
        "long polls": host.polls.total,
        "requests that were not executed": sum(map(len, host.commands.arrived.values())),
    }
    for what, count in counts.items():
        if count:
            yield f"shard {host.shard.number} has {count} {what}, and nobody asks for anything"


def _large(name: str, part: object, room: int) -> Iterator[str]:
    for attribute, value in vars(part).items():
        if isinstance(value, dict | set | list | deque) and attribute not in CACHES and len(value) > room:
            yield f"{name}.{attribute} has {len(value)} entries, where {room} are plenty"
