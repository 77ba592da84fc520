"""The effect of the records of a message's life, one at a time: on the owner, on followers and in recovery."""

from __future__ import annotations

from batonq.core.commands import Failure
from batonq.core.records import FOREVER_MS, Reason, State
from batonq.core.shard.state.columns import COUNT_MAX, pack_delta
from batonq.core.shard.state.job_book import JobBook
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.queue_state import QueueState

_DELAYED, _VISIBLE, _IN_FLIGHT, _DEAD = map(int, (State.DELAYED, State.VISIBLE, State.IN_FLIGHT, State.DEAD))


class MessageRecords:
    def __init__(self, messages: Messages, jobs: JobBook) -> None:
        self.journal = messages.journal
        self.messages = messages
        self.columns = messages.columns
        self.jobs = jobs

    def on_sent(
        self,
        queue: QueueState,
        slot: int,
        sequence: int,
        time: int,
        visible_ms: int,
        group: int,
        expires_s: int,
        priority: int,
        maximum: int,
        position: int,
        w6: int,
    ) -> None:
        messages = self.messages
        messages.insert(queue, slot, sequence, position, w6, priority, time, expires_s)
        if maximum:
            messages.maxima[slot] = maximum
        messages.join_group(queue, slot, group)
        if visible_ms <= time:
            messages.enter(queue, slot, _VISIBLE, time)
        else:
            messages.enter(queue, slot, _DELAYED, visible_ms)
        queue.sent += 1
        queue.sent_bytes += w6 >> 32
        if queue.retained is not None:
            queue.retained.append(position, time)

    def on_leased(
        self, queue: QueueState, slot: int, time: int, deadline: int, epoch: int, count: int, position: int, holder: str
    ) -> None:
        columns, messages = self.columns, self.messages
        messages.leave(queue, slot, time)
        columns.epoch[slot] = epoch
        columns.count[slot] = min(count, COUNT_MAX)
        columns.last[slot] = position
        delta = pack_delta(time, columns.sent[slot])
        columns.leased[slot] = delta
        if not columns.first_received[slot]:
            columns.first_received[slot] = delta + 1
        messages.enter(queue, slot, _IN_FLIGHT, deadline)
        if not self.journal.before_base:
            messages.holders[slot] = holder
            queue.ready.lease_began(messages.loose_groups.get(slot, 0) if messages.loose_groups else 0)
        queue.received += 1

    def on_extended(self, slot: int, deadline: int, position: int, by_attempt: bool) -> None:
        columns = self.columns
        columns.until[slot] = deadline
        columns.last[slot] = position
        if self.journal.before_base:
            return
        self.messages.timers.lease_until(slot, deadline)
        if not by_attempt:
            self.messages.attempts.end_of(slot)

    def on_returned(
        self,
        queue: QueueState,
        slot: int,
        time: int,
        visible_ms: int,
        reason: int,
        position: int,
        error_class: str,
        text: str,
        charged: bool = True,
    ) -> None:
        self.messages.leave(queue, slot, time)
        self.columns.last[slot] = position
        if not charged:
            self._uncharge(slot)
        if visible_ms == FOREVER_MS:
            self.messages.enter(queue, slot, _DEAD, FOREVER_MS)
            self.jobs.died_again(self.messages.redriven.pop(slot, 0))
        elif visible_ms <= time:
            self.messages.enter(queue, slot, _VISIBLE, time)
        else:
            self.messages.enter(queue, slot, _DELAYED, visible_ms)
        queue.returned += 1
        if reason == Reason.EXPIRED:
            queue.expired_leases += 1
        if reason == Reason.NACK or reason == Reason.EXPIRED:
            old = self.messages.failures.get(slot)
            first = old.first_ms if old else time
            if old and not error_class and not text:
                error_class, text = old.error_class, old.reason
            self.messages.failures[slot] = Failure(first, time, error_class, text)

    def _uncharge(self, slot: int) -> None:
        """Take back a receive, because no consumer got the message."""
        columns = self.columns
        self.messages.uncharged[slot] = self.messages.uncharged.get(slot, 0) + 1
        if columns.count[slot]:
            columns.count[slot] -= 1
        if not columns.count[slot]:
            columns.first_received[slot] = 0

    def on_deleted(self, queue: QueueState, slot: int, time: int, reason: int) -> None:
        self.messages.remove(queue, slot, time)
        if reason == Reason.RETENTION:
            queue.expired_messages += 1
        else:
            queue.deleted += 1
        if reason == Reason.LATE_ACK:
            queue.late_deletes += 1
        elif reason == Reason.UNDELIVERABLE and (topic := self.messages.topics.states.get(queue.number)) is not None:
            topic.dropped += 1

    def on_published(self, number: int, first: int, count: int, copies: int, dropped: int) -> None:
        """Apply Published records of consecutive sequences. `copies` and `dropped` are those of all messages."""
        if first + count > self.journal.next_sequence:
            self.journal.next_sequence = first + count
        topic = self.messages.topics.states.get(number)
        if topic is not None:
            topic.published += count
            topic.copies += copies
            topic.dropped += dropped

    def on_waiting(self, queue: QueueState, slot: int, subscription: int, group: int, refused: bool) -> None:
        """Complete a Sent record with WAITING: a copy that stays in its topic. `refused`: it is DELAYED because its
        queue refused it.
        """
        self.messages.fanned[slot] = (subscription, group)
        if refused:
            self.columns.doomed[slot] = Reason.FANOUT
            topic = self.messages.topics.states.get(queue.number)
            if topic is not None:
                topic.refused += 1
