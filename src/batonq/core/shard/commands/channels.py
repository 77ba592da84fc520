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
        self.stored = messages.stored
        self.columns = messages.columns
        self.queues = messages.queues
        self.expiry = expiry
        self.arrivals = arrivals
        self.transfers = transfers
        self.shared: dict[bytes, tuple[int, int]] = {}  # variable part of a copy → frame and extent, for one command

    def settle(self, shard: int, results: Sequence[tuple[int, int]], now: int) -> None:
        """Apply the destination's answer: (number, verdict) of entries that this shard owed it."""
        self.transfers.settle(shard, results, self.expiry.begin(now))

    def check_arrivals(self, arrivals: Sequence[Arrival]) -> None:
        """Raise LogCorrupt if the entries do not follow those that arrived before, or if the verdict on a repeated
        entry is no longer known. The error affects only the source, which still has the messages.
        """
        last: dict[int, int] = {}  # source → its last number in these entries
        for at, arrival in enumerate(arrivals):
            if not 0 <= arrival.same_as <= at:
                raise LogCorrupt(f"entry {arrival.number} has the payload of an entry that is not in the same call")
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
        for at, arrival in enumerate(arrivals):
            if arrival.same_as:
                arrival.payload = arrivals[at - arrival.same_as].payload
            incoming = self.arrivals.incoming.get(arrival.source_shard)
            if incoming is not None and arrival.number <= incoming.cursor:
                results.append((arrival.number, self._past_verdict(arrival)))
            else:
                results.append((arrival.number, self._arrive(arrival, now)))
        self.shared.clear()
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
        w6 = self._put(prefix + arrival.payload, arrival.reason)
        delay_ms = target.policy.delay_ms if arrival.reason == Reason.FANOUT else 0
        sequence = self.journal.next_sequence
        slot = self.columns.allocate()
        w0 = Type.ARRIVED | flags << 8 | arrival.priority << 16 | arrival.reason << 24 | arrival.queue << 32
        position = self.frame.add(w0, sequence, now, sent_ms, count | delay_ms << 32, w5, w6, slot | expires_s << 32)
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
            delay_ms=delay_ms,
        )
        self.arrivals.note_arrival(slot, arrival.reason, arrival.origin, arrival.redriven, arrival.maximum)
        self.stored.put_payload(target, slot, arrival.payload, now)
        return Reason.ACCEPTED

    def _put(self, variable: bytes, reason: int) -> int:
        """Add the variable part of an arrival to the frame; returns its w6. Copies of one message share it."""
        if reason != Reason.FANOUT:
            return self.frame.put(variable)
        number, w6 = self.shared.get(variable, (0, 0))
        if number != self.frame.number:
            w6 = self.frame.put(variable)
            self.shared[variable] = self.frame.number, w6
        return w6
