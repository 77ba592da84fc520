"""What shards ask of each other: take over these messages, and here is what became of yours."""

from __future__ import annotations

from collections.abc import Sequence

from batonq.core.commands import Arrival
from batonq.core.ids import key_hash
from batonq.core.records import ARRIVED_NOTED, ARRIVED_PREFIX, ArrivedFlag, Reason, Type, skip
from batonq.core.shard.expiry import Expiry
from batonq.core.shard.moves.arrivals import Arrivals
from batonq.core.shard.moves.transfers import Transfers
from batonq.core.shard.state.messages import Messages
from batonq.errors import LogCorrupt


class ChannelCommands:
    def __init__(self, messages: Messages, expiry: Expiry, arrivals: Arrivals, transfers: Transfers) -> None:
        self.journal = messages.journal
        self.number = self.journal.number
        self.frame = messages.frame
        self.columns = messages.columns
        self.queues = messages.queues
        self.expiry = expiry
        self.arrivals = arrivals
        self.transfers = transfers

    def settle(self, shard: int, results: Sequence[tuple[int, int]], now: int) -> None:
        """Apply the destination's answer: (number, verdict) of entries that this shard owed it."""
        self.transfers.settle(shard, results, self.expiry.begin(now))

    def check_arrivals(self, arrivals: Sequence[Arrival]) -> None:
        """Raise LogCorrupt if the entries do not follow those that arrived before, or if the verdict on a repeated
        entry is no longer known. The error affects only the source, which still has the messages.
        """
        last: dict[int, int] = {}  # source → its last number in these entries
        for arrival in arrivals:
            source, number = arrival.source_shard, arrival.number
            incoming = self.arrivals.incoming.get(source)
            cursor = 0 if incoming is None else incoming.cursor
            before = last.get(source, 0)
            if number <= before or number > max(before, cursor) + 1:
                raise LogCorrupt(
                    f"entry {number} from shard {source} follows {max(before, cursor)}: entries are missing in "
                    "the channel"
                )
            if incoming is not None and number <= cursor and not self._past_verdict(arrival):
                raise LogCorrupt(
                    f"shard {self.number} no longer knows whether it accepted entry {number} from shard {source}; "
                    f"it has results only up to {cursor}. The message stays on shard {source}. Was one of the two "
                    "logs restored from an older copy?"
                )
            last[source] = number

    def arrive(self, arrivals: Sequence[Arrival], now: int) -> list[tuple[int, int]]:
        """Accept or refuse channel entries in order; returns (number, verdict) of each. A repeated entry gets its
        first verdict again.
        """
        self.check_arrivals(arrivals)
        now = self.expiry.begin(now)
        results: list[tuple[int, int]] = []
        for arrival in arrivals:
            incoming = self.arrivals.incoming.get(arrival.source_shard)
            if incoming is not None and arrival.number <= incoming.cursor:
                results.append((arrival.number, self._past_verdict(arrival)))
            else:
                results.append((arrival.number, self._arrive(arrival, now)))
        return results

    def _past_verdict(self, arrival: Arrival) -> int:
        """The verdict on an entry that has arrived before; 0 if it is no longer known."""
        return self.arrivals.incoming[arrival.source_shard].verdict(arrival.number, self.journal.limits.verdicts_max)

    def _arrive(self, arrival: Arrival, now: int) -> int:
        target = self.queues.get(arrival.queue)
        group = key_hash(arrival.group) if arrival.group else 0
        verdict = self.arrivals.acceptance(target, arrival.fifo, len(arrival.payload), group)
        w5 = arrival.source_shard | arrival.number << 16
        if verdict != Reason.ACCEPTED or target is None:
            w0 = Type.ARRIVED | ArrivedFlag.REFUSED << 8 | verdict << 24 | arrival.queue << 32
            self.frame.add(w0, 0, now, 0, 0, w5, 0, 0)
            self.arrivals.on_entry(arrival.source_shard, arrival.number, verdict)
            return verdict
        redriven = arrival.reason == Reason.REDRIVE
        sent_ms = now if redriven or target.fifo else arrival.sent_ms
        count = 0 if redriven else arrival.receive_count
        expires_s = self.arrivals.expiry_s(target, arrival.reason, sent_ms, now)
        flags = 0
        prefix = ARRIVED_PREFIX.pack(group, arrival.origin)
        if arrival.redriven or arrival.maximum:
            flags = int(ArrivedFlag.NOTED)
            prefix = ARRIVED_NOTED.pack(group, arrival.origin, arrival.redriven, arrival.maximum)
        w6 = self.frame.put(prefix + arrival.payload)
        sequence = self.journal.next_sequence
        slot = self.columns.allocate()
        w0 = Type.ARRIVED | flags << 8 | arrival.priority << 16 | arrival.reason << 24 | arrival.queue << 32
        position = self.frame.add(w0, sequence, now, sent_ms, count, w5, w6, slot | expires_s << 32)
        self.arrivals.on_entry(arrival.source_shard, arrival.number, Reason.ACCEPTED)
        self.arrivals.on_arrived(
            target,
            slot,
            sequence,
            now,
            sent_ms,
            count,
            expires_s,
            arrival.priority,
            group,
            position,
            skip(w6, len(prefix)),
        )
        self.arrivals.note_arrival(slot, arrival.reason, arrival.origin, arrival.redriven, arrival.maximum)
        return Reason.ACCEPTED
