"""Placement: the choice of shards for a queue when it is created, grows or changes its durability class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from batonq.core.catalog.entries import QueueEntry
from batonq.core.catalog.state import CatalogState
from batonq.core.spread import GROWTHS_MAX, PLACES_MAX, Spread
from batonq.errors import InvalidAttributeValue, Unavailable
from batonq.queue_attributes import DEDUPLICATION_SCOPE, OWN_SHARDS, PER_GROUP, REPLICAS, SPREAD, mention


class Placement(CatalogState):
    def __init__(self, own_replicas: int) -> None:
        """`own_replicas` is the number of replicas of shards whose entry names none."""
        super().__init__()
        self.own_replicas = own_replicas
        self.spread_refused = ""  # set by the host: why no queue can have several shards or a durability class now

    def replicas_of(self, shard: int) -> int:
        return self.shards[shard].replicas or self.own_replicas

    def shards_of(self, replicas: int) -> list[int]:
        """The shards with this many replicas; 0 means the log's own number."""
        return [number for number in self.shards if self.replicas_of(number) == (replicas or self.own_replicas)]

    def _replicas(self, values: Mapping[str, str]) -> int:
        """The number of replicas of the shards for a queue with these attributes. The default is the log's own
        number.
        """
        return int(values.get(REPLICAS) or self.own_replicas)

    def _free_shards(self, values: Mapping[str, str], besides: Sequence[int] = ()) -> list[int]:
        """The shards on which a queue with these attributes may be placed, best first: fewest queues, then lowest
        number. The dedicated shards of other queues are left out.
        """
        if not self.shards:
            raise Unavailable("No shard is open yet. Retry.")
        kind = self.shards_of(self._replicas(values))
        free = [number for number in kind if number not in besides and number not in self._taken]
        if wants_own(values):
            free = [number for number in free if not self._loads[number]]
        return sorted(free, key=lambda number: (self._loads[number], number))

    def _choose_shards(self, count: int, values: Mapping[str, str], besides: Sequence[int] = ()) -> list[int]:
        free = self._free_shards(values, besides)
        self._check_kind(self._replicas(values))
        if self.spread_refused and (count + len(besides) > 1 or values.get(REPLICAS)):
            raise InvalidAttributeValue(self.spread_refused)
        if len(free) < count:
            kind = "that hold no queue" if wants_own(values) else "with room"
            raise InvalidAttributeValue(
                f"The queue needs {count} more shards {kind}, but there are only {len(free)}. Add shards "
                f"(--shards), or lower {mention(SPREAD)}."
            )
        self._check_left(values, [*besides, *free[:count]])
        return free[:count]

    def _check_left(self, values: Mapping[str, str], shards: Sequence[int]) -> None:
        """A queue with dedicated shards must leave at least one shard of their class to other queues."""
        kind = self.shards_of(self._replicas(values))
        if wants_own(values) and not set(kind).difference(shards, self._taken):
            raise InvalidAttributeValue(
                f"{mention(OWN_SHARDS)} would leave no shard for other queues. Add shards (--shards), or do not set it."
            )

    def _check_kind(self, replicas: int) -> None:
        if not self.shards_of(replicas):
            kinds = sorted(set(map(self.replicas_of, self.shards)))
            raise InvalidAttributeValue(
                f"{mention(REPLICAS, str(replicas))} is not available: no shard has {replicas} replicas. Use one of "
                f"{', '.join(map(str, kinds))}, or add such shards: start a node with --other-shards {replicas}:2 "
                f"and a NATS JetStream log on at least {replicas} servers."
            )

    def _placed(self, entry: QueueEntry, values: Mapping[str, str]) -> Spread:
        """The spread of a queue with these new attributes: it may grow, or move to shards of another durability
        class.
        """
        spread = entry.spread
        have = len(spread.taking)
        same = values.get(SPREAD) == entry.attributes.get(SPREAD)
        wanted = have if same else int(values.get(SPREAD, "1"))
        named = values.get(REPLICAS) != entry.attributes.get(REPLICAS)
        moves = named and self.replicas_of(spread.first) != self._replicas(values)
        if wanted < have:
            raise InvalidAttributeValue(f"{mention(SPREAD)} cannot be decreased: the queue has {have} shards.")
        if named and values.get(REPLICAS) and self.spread_refused:
            raise InvalidAttributeValue(self.spread_refused)
        if wanted == have and not moves:
            if not entry.own_shards:
                self._check_left(values, entry.shards)
            return spread
        if spread.growths >= GROWTHS_MAX:
            raise InvalidAttributeValue(
                "The queue's shards were changed too often. Wait until its older deduplication keys have expired, "
                "then retry."
            )
        if entry.left + len(entry.shards) + wanted - (0 if moves else have) > PLACES_MAX:
            raise InvalidAttributeValue(
                "The queue is still being moved off too many shards (a FIFO queue counts every shard that it has "
                "left). Wait until they are empty, or create a new queue."
            )
        if not moves:
            return spread.grown(self._choose_shards(wanted - have, values, entry.shards))
        if entry.fifo and values.get(DEDUPLICATION_SCOPE) != PER_GROUP:
            raise InvalidAttributeValue(
                f"{mention(REPLICAS)} of a FIFO queue can be changed only with "
                f"{mention(DEDUPLICATION_SCOPE, PER_GROUP)}, because deduplication for the whole queue works only on "
                f"one shard. Create a new queue with that {mention(REPLICAS)} instead."
            )
        return spread.moved(self._choose_shards(wanted, values, entry.shards))


def wants_own(values: Mapping[str, str]) -> bool:
    return values.get(OWN_SHARDS) == "true"
