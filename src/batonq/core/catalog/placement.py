"""Where queues lie: shards of the kind that they name, chosen when a queue is made, grows or changes its class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from batonq.core.catalog.entries import QueueEntry
from batonq.core.catalog.state import CatalogState
from batonq.core.spread import GROWTHS_MAX, PLACES_MAX, Spread
from batonq.errors import InvalidAttributeValue, Unavailable


class Placement(CatalogState):
    def __init__(self, own_replicas: int) -> None:
        """`own_replicas`: of shards that do not say."""
        super().__init__()
        self.own_replicas = own_replicas
        self.spread_refused = ""  # why no queue can be spread, nor name its class, right now; the host knows

    def replicas_of(self, shard: int) -> int:
        return self.shards[shard].replicas or self.own_replicas

    def shards_of(self, replicas: int) -> list[int]:
        """The shards of a kind; 0: of the log's own."""
        return [number for number in self.shards if self.replicas_of(number) == (replicas or self.own_replicas)]

    def _replicas(self, values: Mapping[str, str]) -> int:
        """The kind of the shards that a queue with these attributes lies on: unless it says, the log's own."""
        return int(values.get("Baton.Durability") or self.own_replicas)

    def _free_shards(self, values: Mapping[str, str], besides: Sequence[int] = ()) -> list[int]:
        """Those of its kind that a queue with these attributes may be placed on, the first to choose first: with the
        fewest queues, the lowest of equals. Those that a queue has for its own are left out.
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
        if self.spread_refused and (count + len(besides) > 1 or values.get("Baton.Durability")):
            raise InvalidAttributeValue(self.spread_refused)
        if len(free) < count:
            kind = "that hold no queue" if wants_own(values) else "with room"
            raise InvalidAttributeValue(
                f"The queue needs {count} more shards {kind}, but there are only {len(free)}. Add shards "
                "(--shards), or lower Baton.Spread."
            )
        self._check_left(values, [*besides, *free[:count]])
        return free[:count]

    def _check_left(self, values: Mapping[str, str], shards: Sequence[int]) -> None:
        """A queue that has its shards for its own leaves one of their kind to all others."""
        kind = self.shards_of(self._replicas(values))
        if wants_own(values) and not set(kind).difference(shards, self._taken):
            raise InvalidAttributeValue(
                "Baton.OwnShards would leave no shard for other queues. Add shards (--shards), or do not set it."
            )

    def _check_kind(self, replicas: int) -> None:
        if not self.shards_of(replicas):
            kinds = sorted(set(map(self.replicas_of, self.shards)))
            raise InvalidAttributeValue(
                f"Baton.Durability {replicas} is not available: no shard has {replicas} replicas. Use one of "
                f"{', '.join(map(str, kinds))}, or add such shards: start a node with --other-shards {replicas}:2 "
                f"and a NATS JetStream log on at least {replicas} servers."
            )

    def _placed(self, entry: QueueEntry, values: Mapping[str, str]) -> Spread:
        """The spread of a queue that is given these attributes: it grows, or moves to shards of another kind."""
        spread = entry.spread
        have = len(spread.taking)
        same = values.get("Baton.Spread") == entry.attributes.get("Baton.Spread")
        wanted = have if same else int(values.get("Baton.Spread", "1"))
        named = values.get("Baton.Durability") != entry.attributes.get("Baton.Durability")
        moves = named and self.replicas_of(spread.first) != self._replicas(values)
        if wanted < have:
            raise InvalidAttributeValue(f"Baton.Spread cannot be decreased: the queue has {have} shards.")
        if named and values.get("Baton.Durability") and self.spread_refused:
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
        if entry.fifo and values.get("DeduplicationScope") != "messageGroup":
            raise InvalidAttributeValue(
                "Baton.Durability of a FIFO queue can be changed only if DeduplicationScope is messageGroup, "
                "because deduplication for the whole queue works only on one shard. Create a new queue with that "
                "Baton.Durability instead."
            )
        return spread.moved(self._choose_shards(wanted, values, entry.shards))


def wants_own(values: Mapping[str, str]) -> bool:
    return values.get("Baton.OwnShards") == "true"
