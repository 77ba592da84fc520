"""What restricts the deliveries of a queue: it is paused, has a cap per second, or delivers only one group or only
messages of a minimum priority.

A queue without restrictions has no gate, and its receives do nothing for this feature.
"""

from __future__ import annotations

from batonq.core.ids import key_hash
from batonq.core.policy import PAUSES_DELIVERY, QueuePolicy
from batonq.core.shard.state.columns import NIL
from batonq.core.shard.state.lines import NO_RING, Lane
from batonq.core.shard.state.pace import Pace
from batonq.core.shard.state.ready_order import Ready
from batonq.core.spread import parse


class DeliveryGate:
    __slots__ = ("group", "pace", "paused", "priority_min")

    def __init__(self, policy: QueuePolicy, before: DeliveryGate | None) -> None:
        """`before` is the queue's gate so far: its bucket is kept."""
        self.paused = policy.paused in PAUSES_DELIVERY
        self.group = key_hash(policy.only_group) if policy.only_group else 0
        self.priority_min = policy.priority_min
        self.pace: Pace | None = None
        if policy.deliveries_per_s:
            shards = len(parse(policy.spread).shards) if policy.spread else 1
            self.pace = Pace(policy.deliveries_per_s, shards, before.pace if before is not None else None)

    def allows(self, wanted: int, now: int) -> int:
        """How many of the wanted messages may be delivered now."""
        if self.paused:
            return 0
        return wanted if self.pace is None else min(wanted, self.pace.available(now))

    def next_standard(self, ready: Ready, ageing_ms: int) -> int:
        """The slot of a standard queue to lease next, or NIL."""
        if not self.group:
            lane = ready.best_lane(ageing_ms, self.priority_min)
            return NIL if lane is None else ready.next_in(lane)
        lines = ready.lines
        until = lines.columns.until
        found = [
            (until[lines.head[line]] - priority * ageing_ms if ageing_ms else 0, -priority, line)
            for priority in ready.lanes
            if priority >= self.priority_min and (line := lines.find(ready.queue, self.group, priority)) != NIL
        ]
        return lines.head[min(found)[2]] if found else NIL

    def next_group(self, ready: Ready, ageing_ms: int) -> tuple[Lane, int] | None:
        """The lane and the line of the FIFO group to lease from next."""
        if not self.group:
            lane = ready.best_lane(ageing_ms, self.priority_min)
            return None if lane is None else (lane, lane.quiet)
        lines = ready.lines
        line = lines.find(ready.queue, self.group, 0)
        if line == NIL or lines.ring[line] == NO_RING or lines.priority[line] < self.priority_min:
            return None
        return ready.lanes[lines.priority[line]], line


def gate_of(policy: QueuePolicy, before: DeliveryGate | None = None) -> DeliveryGate | None:
    """The gate of a queue; None if its policy does not restrict deliveries."""
    restricted = policy.paused in PAUSES_DELIVERY or policy.deliveries_per_s or policy.only_group or policy.priority_min
    return DeliveryGate(policy, before) if restricted else None
