"""What happens to a message that was not deleted: it returns to its queue, is dead-lettered, or becomes DEAD."""

from __future__ import annotations

from itertools import islice

from batonq.core.records import FOREVER_MS, Reason, ReturnedFlag, State, Type, encode_notes
from batonq.core.retry import parse_retry
from batonq.core.shard.effects.message_records import MessageRecords
from batonq.core.shard.moves.fanout import FanOut
from batonq.core.shard.moves.transfers import Transfers
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.queue_state import QueueState
from batonq.core.shard.state.timers import EXPIRY_RETRY_S

_FREE, _OWED = int(State.FREE), int(State.OWED)


class Returns:
    def __init__(self, messages: Messages, records: MessageRecords, transfers: Transfers, fanout: FanOut) -> None:
        self.journal = messages.journal
        self.frame = messages.frame
        self.messages = messages
        self.columns = messages.columns
        self.queues = messages.queues
        self.timers = messages.timers
        self.records = records
        self.transfers = transfers
        self.fanout = fanout

    def end_lease(
        self,
        slot: int,
        now: int,
        visible_ms: int,
        reason: Reason,
        error_class: str = "",
        text: str = "",
        dead_letter: bool = False,
        charged: bool = True,
    ) -> None:
        """End a lease without a delete. If that failure used up the last attempt, the message is dead-lettered or
        becomes DEAD.

        A return that is not `charged` was no attempt by a consumer, so it never exhausts the message.
        """
        columns = self.columns
        queue = self.queues[columns.queue[slot]]
        policy = queue.policy
        spent = charged and (dead_letter or (policy.dead_letter_on_failure and self.messages.exhausted(queue, slot)))
        if spent and not policy.dead_letter_queue:
            visible_ms = FOREVER_MS
        w6 = self.frame.put(encode_notes(error_class, text)) if error_class or text else 0
        flags = 0 if charged else int(ReturnedFlag.UNCHARGED)
        position = self.messages.write(
            Type.RETURNED, queue.number, slot, now, until=visible_ms, flags=flags, reason=reason, w6=w6
        )
        self.records.on_returned(queue, slot, now, visible_ms, reason, position, error_class, text, charged)
        if spent and policy.dead_letter_queue:
            self.transfers.owe(
                slot, self.transfers.dead_letter_shard(queue, slot), policy.dead_letter_queue, Reason.DEAD_LETTER, now
            )

    def retry_delay(self, queue: QueueState, slot: int) -> int:
        """The delay before a failed message is retried, by its queue's retry policy. The attempts are the receives
        on this shard.
        """
        policy = queue.policy
        if not policy.retry:
            return 0
        columns = self.columns
        epoch = columns.epoch[slot]
        attempts = epoch - self.messages.uncharged.get(slot, 0)
        delay = parse_retry(policy.retry).delay_ms(attempts, columns.sequence[slot], epoch)
        return min(delay, policy.retention_ms)

    def give_up(self, queue: QueueState, slot: int, now: int) -> None:
        """Dead-letter a VISIBLE message that has no attempt left, or make it DEAD if there is no dead-letter queue."""
        policy = queue.policy
        if policy.dead_letter_queue:
            self.transfers.owe(
                slot, self.transfers.dead_letter_shard(queue, slot), policy.dead_letter_queue, Reason.DEAD_LETTER, now
            )
            return
        reason = Reason.UNDELIVERABLE
        position = self.messages.write(Type.RETURNED, queue.number, slot, now, until=FOREVER_MS, reason=reason)
        self.records.on_returned(queue, slot, now, FOREVER_MS, reason, position, "", "")

    def expire(self, slot: int, now: int) -> None:
        columns = self.columns
        state = columns.state[slot]
        if state == State.FREE:
            return
        now_s = now // 1000
        if columns.expires[slot] > now_s or state == _OWED:
            self.timers.arm_expiry(slot, max(columns.expires[slot], now_s + 1))
            return
        queue = self.queues[columns.queue[slot]]
        policy = queue.policy
        if policy.expiry_to_dead_letter and policy.dead_letter_queue:
            self.transfers.owe(
                slot,
                self.transfers.dead_letter_shard(queue, slot),
                policy.dead_letter_queue,
                Reason.EXPIRY_DEAD_LETTER,
                now,
            )
            if columns.state[slot] != State.FREE:
                # Refused or on its way: check again later, so that a message that comes back is not kept for ever.
                self.timers.arm_expiry(slot, now_s + EXPIRY_RETRY_S)
            return
        self.messages.write(Type.DELETED, queue.number, slot, now, reason=Reason.RETENTION)
        self.records.on_deleted(queue, slot, now, Reason.RETENTION)
        if policy.topic and queue.fifo:
            self.messages.topics.unlocked.add(queue.number)

    def retry_refused(self, now: int, bytes_end: int) -> None:
        """Retry refused transfers whose backoff has ended, if their queue still has a dead-letter queue; otherwise
        the messages become DEAD.

        Stops when the open frame has `bytes_end` bytes. The rest stays due.
        """
        for slot in list(islice(self.timers.doomed_due, self.journal.limits.retries_max)):
            if self.frame.size >= bytes_end:
                return
            del self.timers.doomed_due[slot]
            self.retry_one(slot, now)

    def retry_one(self, slot: int, now: int) -> None:
        """Retry the refused transfer of one message."""
        columns = self.columns
        queue = self.queues[columns.queue[slot]]
        policy = queue.policy
        if policy.topic:
            self.fanout.deliver(slot, now)
        elif policy.dead_letter_queue:
            cause = Reason(columns.doomed[slot])
            self.transfers.owe(
                slot, self.transfers.dead_letter_shard(queue, slot), policy.dead_letter_queue, cause, now
            )
        else:
            reason = Reason.UNDELIVERABLE
            position = self.messages.write(Type.RETURNED, queue.number, slot, now, until=FOREVER_MS, reason=reason)
            self.records.on_returned(queue, slot, now, FOREVER_MS, reason, position, "", "")
