"""Copies of published messages that wait in their topic: on their way to another shard, refused, or behind another.

A copy waits as a message of the topic's own number. It is `Owed` to the subscription's queue like a dead letter is to
its dead-letter queue. What its queue refuses goes to the subscription's dead-letter queue, if it has one. Otherwise a
copy whose queue is full is retried until the topic's retention ends, and a copy without a possible destination is
dropped and counted.

In a FIFO topic the copies of one group for one subscription form a line. Only the first of a line is under way; the
next one follows when the first has arrived, so the order of the group is kept whatever is refused in between.
"""

from __future__ import annotations

from batonq.core.commands import Alarm
from batonq.core.ids import key_hash
from batonq.core.payload import Lineage
from batonq.core.policy import MISSING_QUEUE
from batonq.core.records import Reason, State, Type
from batonq.core.shard.effects.message_records import MessageRecords
from batonq.core.shard.moves.transfers import NO_LINEAGE, REFUSED_BACKOFF_MAX_MS, REFUSED_BACKOFF_MS, Transfers
from batonq.core.shard.state.columns import NIL
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.queue_state import QueueState
from batonq.core.topics.subscription import Subscription

ALARMS_MAX = 100  # in one frame
MOVES_MAX = 8  # retries without a pause while the shards of a queue change
HOPELESS = (Reason.REFUSED_NO_QUEUE, Reason.REFUSED_TYPE)  # a retry would be refused again
WORDS = {
    Reason.REFUSED_NO_QUEUE: "does not exist",
    Reason.REFUSED_FULL: "is full",
    Reason.REFUSED_TYPE: "is not of the topic's type (standard or FIFO)",
    Reason.REFUSED_MOVED: "was moved",
}
_VISIBLE = int(State.VISIBLE)


def line_key(subscription: int, group: int) -> int:
    """The line in which the copies of a group wait for a subscription."""
    return key_hash(subscription, "line", group)


class FanOut:
    def __init__(self, messages: Messages, records: MessageRecords, transfers: Transfers) -> None:
        self.journal = messages.journal
        self.number = self.journal.number
        self.frame = messages.frame
        self.messages = messages
        self.columns = messages.columns
        self.lines = messages.lines
        self.queues = messages.queues
        self.fanned = messages.fanned
        self.records = records
        self.transfers = transfers
        self.topics = messages.topics
        transfers.fanout = self

    # --- where a copy goes -----------------------------------------------------------------------------

    def subscription_of(self, slot: int) -> Subscription | None:
        """The subscription that a waiting copy is for; None if it was removed."""
        return self.topics.subscription(self.columns.queue[slot], self.fanned[slot][0])

    def deliver(self, slot: int, now: int) -> None:
        """Start moving a waiting copy to its queue."""
        queue = self.queues[self.columns.queue[slot]]
        subscription = self.subscription_of(slot)
        if queue.closed:
            return  # the topic is being deleted, and the copy with it
        if subscription is None:
            self.drop(queue, slot, now)
        elif subscription.queue == MISSING_QUEUE:
            self._refused(queue, slot, subscription, Reason.REFUSED_NO_QUEUE, now)
        else:
            group, sequence = self.fanned[slot][1], self.columns.sequence[slot]
            shard = self.transfers.place(
                subscription.queue,
                subscription.shard,
                subscription.spread,
                subscription.fifo,
                group,
                sequence,
                slot,
                self._rounds(slot, subscription),
            )
            self.transfers.owe(slot, shard, subscription.queue, Reason.FANOUT, now)

    def _rounds(self, slot: int, subscription: Subscription) -> int:
        """How often a copy has been refused by all its destinations: by its queue, and by the dead-letter queue if
        there is one. Each round asks the next shard of each queue.
        """
        refusals = self.transfers.refusals.get(slot, 0)
        return refusals // 2 if subscription.dead_letter_queue not in (0, MISSING_QUEUE) else refusals

    def lineage(self, queue: QueueState, slot: int, to: int, now: int) -> Lineage:
        """What a copy takes along: nothing on its way to its queue, where it comes from on its way to a dead-letter
        queue.
        """
        subscription = self.subscription_of(slot)
        if subscription is None or to != subscription.dead_letter_queue:
            return NO_LINEAGE
        arn = self.topics.states[queue.number].arn
        return Lineage(
            source_queue=queue.number,
            source_shard=self.number,
            source_arn=arn,
            first_queue=queue.number,
            first_arn=arn,
            reason=f"Queue {subscription.name} of the subscription refused the message.",
            moved_ms=now,
            moved="fan_out",
        )

    # --- the answer of a queue -------------------------------------------------------------------------

    def retry_at(self, slot: int, verdict: int, now: int) -> int:
        """When a copy that was refused is retried."""
        tries = min(self.transfers.refusals.get(slot, 0), 16)
        if verdict == Reason.REFUSED_MOVED and tries < MOVES_MAX:
            return now + 1  # the next shard may have the queue
        return now + min(REFUSED_BACKOFF_MS << tries, REFUSED_BACKOFF_MAX_MS)

    def facts_of(self, slot: int) -> tuple[bool, int]:
        """Whether a copy goes to a FIFO queue, and the hash of its group."""
        subscription = self.subscription_of(slot)
        return subscription is not None and subscription.fifo, self.fanned[slot][1]

    def on_settled(self, queue: QueueState, slot: int, to: int, verdict: Reason, now: int) -> None:
        """Decide what follows the answer of a destination. A copy that was refused is already DELAYED until its next
        retry.
        """
        if verdict == Reason.ACCEPTED:
            if queue.fifo:
                self.topics.unlocked.add(queue.number)
            return
        subscription = self.subscription_of(slot)
        if queue.closed:
            return  # the topic is being deleted, and the copy with it
        if subscription is None:
            self.drop(queue, slot, now)
        elif to == subscription.dead_letter_queue:
            if verdict == Reason.REFUSED_MOVED and subscription.dead_letter_fifo:
                self._owe_dead_letter(slot, subscription, now, passed=slot)
        elif to != subscription.queue:
            pass  # the subscription has other queues by now, which the next retry asks
        elif verdict != Reason.REFUSED_MOVED:
            self._refused(queue, slot, subscription, verdict, now)

    def _refused(self, queue: QueueState, slot: int, subscription: Subscription, verdict: Reason, now: int) -> None:
        if subscription.dead_letter_queue not in (0, MISSING_QUEUE):
            self._owe_dead_letter(slot, subscription, now)
        elif verdict in HOPELESS:
            self.alarm(queue, subscription, verdict)
            self.drop(queue, slot, now)

    def _owe_dead_letter(self, slot: int, subscription: Subscription, now: int, passed: int = NIL) -> None:
        """Start moving a copy to the subscription's dead-letter queue. `passed` is its slot if a shard of that queue
        has answered that the group has moved: then the next shard is asked, if there is one.
        """
        to = subscription.dead_letter_queue
        shard = self.transfers.place(
            to,
            subscription.dead_letter_shard,
            subscription.dead_letter_spread,
            subscription.dead_letter_fifo,
            self.fanned[slot][1],
            self.columns.sequence[slot],
            passed,
            self._rounds(slot, subscription),
        )
        if passed == NIL or shard != self.transfers.passed[slot] & 0xFFFF:
            self.transfers.owe(slot, shard, to, Reason.FANOUT, now)

    def alarm(self, queue: QueueState, subscription: Subscription, verdict: Reason) -> None:
        """Tell operators that copies are lost because their queue is gone or of the wrong type."""
        alarms = self.transfers.alarms
        key = f"copies-dropped:{queue.number}"
        if len(alarms) < ALARMS_MAX and not any(alarm.key == key for alarm in alarms):
            text = (
                f"Topic {queue.policy.name} drops messages for queue {subscription.name}, which {WORDS[verdict]}. "
                "Create the queue, remove the subscription, or give it a dead-letter queue."
            )
            alarms.append(Alarm(key, queue.number, text))

    def drop(self, queue: QueueState, slot: int, now: int) -> None:
        """Remove a copy that has no destination."""
        self.messages.write(Type.DELETED, queue.number, slot, now, reason=Reason.UNDELIVERABLE)
        self.records.on_deleted(queue, slot, now, Reason.UNDELIVERABLE)
        if queue.fifo:
            self.topics.unlocked.add(queue.number)

    # --- lines of FIFO topics --------------------------------------------------------------------------

    def unlock_all(self) -> None:
        """Look at every FIFO topic: this shard has a new owner."""
        self.topics.unlocked.update(number for number in self.topics.states if self.queues[number].fifo)

    def advance(self, now: int, bytes_end: int) -> None:
        """Send the copies that have come to the front of their line. Stops when the open frame has `bytes_end` bytes;
        the rest stays due.
        """
        for number in sorted(self.topics.unlocked):
            queue = self.queues.get(number)
            while queue is not None and not queue.closed and queue.ready.lanes:
                if self.frame.size >= bytes_end:
                    return
                lane = next(iter(queue.ready.lanes.values()))
                line = lane.quiet if lane.quiet != NIL else lane.noisy
                self.deliver(self.lines.head[line], now)
            self.topics.unlocked.discard(number)
