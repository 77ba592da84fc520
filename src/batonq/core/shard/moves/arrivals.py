"""The destination's side of moves between queues and shards: what it accepts, and which answers it has given.

The Arrived record of a message from another shard is written in commands/channels.py. That of a move within the shard
is written in transfers.py.
"""

from __future__ import annotations

from typing import Any

from batonq.core.records import TOPICS_VERSION, Reason, State
from batonq.core.shard.state.channel_end import Incoming, load_all
from batonq.core.shard.state.columns import COUNT_MAX, NIL
from batonq.core.shard.state.job_book import JobBook
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.queue_state import QueueState
from batonq.core.shard.state.retained import NOTHING
from batonq.core.spread import parse, takes

_SHARD_BITS = 0xFFFF
_OVERLAYS_KEPT = 16  # per message that is moved repeatedly, in addition to the first overlay
_DELAYED, _VISIBLE = int(State.DELAYED), int(State.VISIBLE)


class Arrivals:
    def __init__(self, messages: Messages, jobs: JobBook) -> None:
        self.journal = messages.journal
        self.number = self.journal.number
        self.messages = messages
        self.columns = messages.columns
        self.queues = messages.queues
        self.lines = messages.lines
        self.jobs = jobs
        self.incoming: dict[int, Incoming] = {}  # source shard → the receiving end of its channel

    def acceptance(self, target: QueueState | None, fifo: bool, added_bytes: int, group: int | None = None) -> Reason:
        if target is None or target.closed:
            return Reason.REFUSED_NO_QUEUE
        if target.fifo != fifo or target.policy.topic:
            return Reason.REFUSED_TYPE
        if target.sends_paused:
            return Reason.REFUSED_PAUSED
        if target.full(added_bytes):
            return Reason.REFUSED_FULL
        if not fifo and not takes(target.policy.spread, self.number):
            return Reason.REFUSED_MOVED
        if group is not None and self.has_moved(target, group):
            return Reason.REFUSED_MOVED
        return Reason.ACCEPTED

    def has_moved(self, queue: QueueState, group: int) -> bool:
        """Whether a FIFO group belongs to another shard since the queue grew. If so, this shard accepts none of its
        messages.

        While this shard still has a message of the group, the group stays here.
        """
        spread = queue.policy.spread
        if not spread or not queue.fifo or parse(spread).of_hash(group) == self.number:
            return False
        return self.lines.find(queue.number, group, 0) == NIL

    @staticmethod
    def expiry_s(target: QueueState, reason: int, sent_ms: int, now: int) -> int:
        """The expiry of an arriving message. Retention counts from the first send, but from now for a message that
        was dead-lettered because it expired.
        """
        start_ms = now if reason == Reason.EXPIRY_DEAD_LETTER else sent_ms
        return -(-(start_ms + target.policy.retention_ms) // 1000)

    def on_entry(self, source_shard: int, number: int, verdict: int) -> None:
        """Store the verdict on an entry from another shard, for as long as the entry may be sent again."""
        incoming = self.incoming.get(source_shard)
        if incoming is None:
            incoming = self.incoming[source_shard] = Incoming()
        incoming.note(number, verdict)

    def on_arrived(
        self,
        queue: QueueState,
        slot: int,
        sequence: int,
        time: int,
        sent_ms: int,
        count: int,
        expires_s: int,
        priority: int,
        group: int,
        position: int,
        w6: int,
        payload_position: int = NOTHING,
        delay_ms: int = 0,
    ) -> None:
        """`payload_position` is where the payload is, if it is not in the record at `position`."""
        self.messages.insert(queue, slot, sequence, position, w6, priority, sent_ms, expires_s)
        self.columns.count[slot] = min(count, COUNT_MAX)
        self.messages.join_group(queue, slot, group)
        if delay_ms:
            self.messages.enter(queue, slot, _DELAYED, time + delay_ms)
        else:
            self.messages.enter(queue, slot, _VISIBLE, time)
        queue.arrived += 1
        if queue.retained is not None:
            queue.retained.append(position, time, payload_position)

    def on_moved(
        self,
        queue: QueueState,
        slot: int,
        source: int,
        sequence: int,
        time: int,
        sent_ms: int,
        count: int,
        expires_s: int,
        priority: int,
        position: int,
        reason: int,
        delay_ms: int = 0,
    ) -> None:
        """Apply a move within the shard: the new message shares the old one's payload and has its own lineage."""
        columns = self.columns
        old = self.queues[columns.queue[source]]
        line = columns.line[source]
        in_line = old.fifo and not self.journal.before_base and line != NIL
        group = self.lines.group(line, True) if in_line else self.messages.loose_groups.get(source, 0)
        if reason == Reason.FANOUT:
            group = self.messages.fanned.get(source, (0, 0))[1]
        payload_position, payload_extent = columns.position[source], columns.extent[source]
        self.on_arrived(
            queue,
            slot,
            sequence,
            time,
            sent_ms,
            count,
            expires_s,
            priority,
            group,
            position,
            payload_extent,
            payload_position,
            delay_ms,
        )
        columns.position[slot] = payload_position
        self.messages.stored.copy(queue, slot, source, time)
        past = self.messages.overlays.get(source, ())
        self.messages.overlays[slot] = (*past[:1], *past[1:][-_OVERLAYS_KEPT:], position)
        redriven = self.jobs.redriver(old.number) if reason == Reason.REDRIVE else self.messages.redriven.get(source, 0)
        maximum = self.messages.maxima.get(source, 0) or self.messages.kept_maxima.get(source, 0)
        origin = old.number | self.number << 32
        if reason == Reason.FANOUT:
            origin = self.messages.topics.origin_of(
                old.number, self.messages.fanned.get(source, (0, 0))[0], queue.number
            )
        self.note_arrival(slot, reason, origin, redriven, maximum)

    def note_arrival(self, slot: int, reason: int, origin: int, redriven: int, maximum: int) -> None:
        """Store what an arrived message brings along: its origin, the job that moved it, its own maximum of
        receives.
        """
        if reason == Reason.FANOUT:
            self.journal.use_format(TOPICS_VERSION)
        if reason == Reason.REDRIVE or (reason == Reason.FANOUT and not origin):
            if redriven:
                self.messages.redriven[slot] = redriven
            if maximum:
                self.messages.maxima[slot] = maximum
            return
        if reason == Reason.DEAD_LETTER:
            self.jobs.died_again(redriven)
        if maximum:
            self.messages.kept_maxima[slot] = maximum
        if origin:
            self.messages.origins[slot] = origin

    def load(self, facts: dict[str, Any]) -> None:
        self.incoming.clear()
        self.incoming.update(load_all(facts["cursors"], facts["refused_numbers"], facts.get("verdicts_from")))
