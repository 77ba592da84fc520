"""GET /v1/queues/{queue}/counters: exact counters, with the log positions that they describe."""

from __future__ import annotations

from collections.abc import Sequence

from batonq.api.rest.counter_shapes import Counted, QueueCounters, ShardCounters
from batonq.api.rest.service import Answer, Call
from batonq.core.commands import ExactCounters


async def queue_counters(call: Call) -> Answer:
    queue = call.queue()
    parts = await call.broker.exact_counters(queue)
    shards = [
        ShardCounters(shard=shard, position=f"{shard}:{exact.position}", counters=_counted([exact]))
        for shard, exact in parts.items()
    ]
    value = QueueCounters(
        queue=queue.name,
        at_ms=call.broker.now_ms(),
        positions=[part.position for part in shards],
        counters=_counted(list(parts.values())),
        shards=shards,
    )
    return Answer(200, value)


def _counted(parts: Sequence[ExactCounters]) -> Counted:
    every = [part.counters for part in parts]
    return Counted(
        sent=sum(each.sent for each in every),
        arrived=sum(each.arrived for each in every),
        deleted=sum(each.deleted for each in every),
        expired=sum(part.expired for part in parts),
        moved=sum(part.moved for part in parts),
        present=sum(each.present for each in every),
        unaccounted=sum(part.entered - part.accounted for part in parts),
        dead_lettered=sum(each.dead_lettered for each in every),
        delivered=sum(each.received for each in every),
        returned=sum(each.returned for each in every),
        expired_leases=sum(each.expired_leases for each in every),
        visible=sum(each.visible for each in every),
        in_flight=sum(each.in_flight for each in every),
        delayed=sum(each.delayed for each in every),
        owed=sum(each.owed for each in every),
        dead=sum(each.dead for each in every),
        bytes=sum(each.bytes for each in every),
    )
