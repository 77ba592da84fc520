"""Who holds messages of a shard, and until when."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from batonq.errors import Unavailable
from batonq.node.shard_host.host import ShardHost, committed

EXAMINED_MAX = 200_000  # leases per request
TURN_LEASES = 5_000
HOLDERS_MAX = 2_000  # per answer


@dataclass(slots=True)
class Holding:
    """The messages of one queue that one consumer holds."""

    holder: str
    queue: int
    in_flight: int
    oldest_ms: int  # when the oldest of these leases began
    deadline_ms: int  # when the first of them ends


async def lease_holders(host: ShardHost, queue: int) -> list[Holding]:
    """The holders of a queue's messages, or of all queues' messages if `queue` is 0."""
    host.run(host.shard.advance, host.admit())
    slots = host.shard.leased_slots(EXAMINED_MAX)
    await committed(host)
    found: dict[tuple[str, int], Holding] = {}
    for start in range(0, len(slots), TURN_LEASES):
        if start:
            await asyncio.sleep(0)
            if not host.serving:
                raise Unavailable(host.why)
        for slot in slots[start : start + TURN_LEASES]:
            lease = host.shard.lease_at(slot)
            if lease is None or (queue and lease.queue != queue):
                continue
            known = found.get((lease.holder, lease.queue))
            if known is None:
                if len(found) < HOLDERS_MAX:
                    found[lease.holder, lease.queue] = Holding(
                        lease.holder, lease.queue, 1, lease.leased_ms, lease.deadline_ms
                    )
                continue
            known.in_flight += 1
            known.oldest_ms = min(known.oldest_ms, lease.leased_ms)
            known.deadline_ms = min(known.deadline_ms, lease.deadline_ms)
    return sorted(found.values(), key=lambda holding: (-holding.in_flight, holding.holder, holding.queue))


def merged(parts: list[list[Holding]]) -> list[Holding]:
    """The holdings of several shards together."""
    found: dict[tuple[str, int], Holding] = {}
    for part in parts:
        for one in part:
            known = found.get((one.holder, one.queue))
            if known is None:
                found[one.holder, one.queue] = one
            else:
                known.in_flight += one.in_flight
                known.oldest_ms = min(known.oldest_ms, one.oldest_ms)
                known.deadline_ms = min(known.deadline_ms, one.deadline_ms)
    return sorted(found.values(), key=lambda holding: (-holding.in_flight, holding.holder, holding.queue))
