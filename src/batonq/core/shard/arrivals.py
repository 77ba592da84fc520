"""The destination's side of the protocol between shards, and its answers at the source."""

from __future__ import annotations

from collections.abc import Sequence

from batonq.core.commands import Arrival
from batonq.core.ids import key_hash
from batonq.core.records import Flag, Reason, Type
from batonq.core.shard.replay import skip
from batonq.core.shard.seeking import Seeking
from batonq.core.shard.state import ARRIVED_NOTED, ARRIVED_PREFIX
from batonq.errors import LogCorrupt


class Arrivals(Seeking):
    def settle(self, shard: int, results: Sequence[tuple[int, int]], now: int) -> None:
        """The destination has answered: (number, verdict) of entries that this shard owed it."""
        self._settle(shard, results, self.begin(now))

    # --- the destination -----------------------------------------------------------------------------

    def cursor(self, shard: int) -> int:
        return self.cursors.get(shard, 0)

    def arrive(self, arrivals: Sequence[Arrival], now: int) -> list[tuple[int, int]]:
        """Take channel entries in order; (number, verdict) of each. One seen before is answered from the cursor."""
        now = self.begin(now)
        results: list[tuple[int, int]] = []
        for arrival in arrivals:
            cursor = self.cursors.get(arrival.source_shard, 0)
            if arrival.number <= cursor:
                # Its verdict was sent before. It cannot have been lost unsettled by the source: only entries that
                # the source still owes are sent again, and the verdict of each is in this shard's log.
                results.append((arrival.number, self._past_verdict(arrival)))
                continue
            if arrival.number != cursor + 1:
                raise LogCorrupt(
                    f"entry {arrival.number} from shard {arrival.source_shard} follows {cursor}: a gap in the channel"
                )
            results.append((arrival.number, self._arrive(arrival, now)))
        return results

    def _past_verdict(self, arrival: Arrival) -> int:
        return self.refused_numbers.get((arrival.source_shard, arrival.number), Reason.ACCEPTED)

    def _arrive(self, arrival: Arrival, now: int) -> int:
        target = self.queues.get(arrival.queue)
        tenant = key_hash(arrival.group) if arrival.group else 0
        verdict = self._acceptance(target, arrival.fifo, len(arrival.payload), tenant)
        w5 = arrival.source_shard | arrival.number << 16
        if verdict != Reason.ACCEPTED or target is None:
            w0 = Type.ARRIVED | Flag.REFUSED << 8 | verdict << 24 | arrival.queue << 32
            self.frame.add(w0, 0, now, 0, 0, w5, 0, 0)
            self._on_refused(arrival.source_shard, arrival.number, verdict)
            return verdict
        redriven = arrival.reason == Reason.REDRIVE
        sent_ms = now if redriven or target.fifo else arrival.sent_ms
        count = 0 if redriven else arrival.receive_count
        expires_s = self._expiry_s(target, arrival.reason, sent_ms, now)
        flags = 0
        prefix = ARRIVED_PREFIX.pack(tenant, arrival.origin)
        if arrival.redriven or arrival.maximum:
            flags = int(Flag.NOTED)
            prefix = ARRIVED_NOTED.pack(tenant, arrival.origin, arrival.redriven, arrival.maximum)
        w6 = self.frame.put(prefix + arrival.payload)
        sequence = self.next_sequence
        slot = self.columns.allocate()
        w0 = Type.ARRIVED | flags << 8 | arrival.priority << 16 | arrival.reason << 24 | arrival.queue << 32
        position = self.frame.add(w0, sequence, now, sent_ms, count, w5, w6, slot | expires_s << 32)
        self.cursors[arrival.source_shard] = arrival.number
        self._on_arrived(
            target,
            slot,
            sequence,
            now,
            sent_ms,
            count,
            expires_s,
            arrival.priority,
            tenant,
            position,
            skip(w6, len(prefix)),
        )
        self._note_arrival(slot, arrival.reason, arrival.origin, arrival.redriven, arrival.maximum)
        return Reason.ACCEPTED
