"""What time does to a shard: leases run out, delays end, messages expire, refused transfers are tried again."""

from __future__ import annotations

from batonq.core.records import Reason, State, Type
from batonq.core.shard.queuestate import QueueState
from batonq.core.shard.state import EXPIRY_RETRY_S, NO_EXPIRY_TIMER, NO_TIMER
from batonq.core.shard.transfer import Transfer
from batonq.core.shard.wheel import NEVER
from batonq.errors import QueueDoesNotExist

_IN_FLIGHT, _OWED = int(State.IN_FLIGHT), int(State.OWED)


class Timers(Transfer):
    def begin(self, now: int) -> int:
        """Every command starts here: time never goes back, and what is due comes first."""
        if now < self.last_time_ms:
            now = self.last_time_ms
        if now >= self.leases.due or now >= self.delays.due or now >= self.expiries.due * 1000 or self.doomed_due:
            self.advance(now)
        else:
            self.last_time_ms = now
        return now

    def queue_state(self, number: int) -> QueueState:
        queue = self.queues.get(number)
        if queue is None or queue.closed:
            raise QueueDoesNotExist()
        return queue

    def advance(self, now: int) -> None:
        """Write what is due: leases that ran out, messages past their retention, refused transfers to try again."""
        if now > self.last_time_ms:
            self.last_time_ms = now
        self.advance_delays(now)
        columns = self.columns
        over: list[tuple[int, int, int]] = []
        for due, slot in self.leases.advance(now, columns.timer, self.limits.timer_records_max):
            if columns.timer[slot] != due:
                continue
            columns.timer[slot] = NO_TIMER
            if columns.state[slot] == _IN_FLIGHT:
                if columns.until[slot] <= now:
                    over.append((columns.until[slot], columns.sequence[slot], slot))
                else:
                    columns.timer[slot] = columns.until[slot]
                    self.leases.push(columns.until[slot], slot)
        over.sort()  # so that the dead letters of a group arrive in its order
        for _, _, slot in over:
            self._return(slot, now, now, Reason.EXPIRED)
        old = [
            (columns.expires[slot], columns.sequence[slot], due, slot)
            for due, slot in self.expiries.advance(now // 1000, columns.expiry_timer, self.limits.timer_records_max)
        ]
        old.sort()
        for _, _, due, slot in old:
            if columns.expiry_timer[slot] == due:
                columns.expiry_timer[slot] = NO_EXPIRY_TIMER
                self._expire_message(slot, now)
        if self.doomed_due:
            self.retry_refused(now)

    def _expire_message(self, slot: int, now: int) -> None:
        columns = self.columns
        state = columns.state[slot]
        if state == State.FREE:
            return
        now_s = now // 1000
        if columns.expires[slot] > now_s or state == _OWED:
            due = max(columns.expires[slot], now_s + 1)
            columns.expiry_timer[slot] = due
            self.expiries.push(due, slot)
            return
        queue = self.queues[columns.queue[slot]]
        policy = queue.policy
        if policy.expiry_to_dead_letter and policy.dead_letter_queue:
            self.owe(
                slot, self.dead_letter_shard(queue, slot), policy.dead_letter_queue, Reason.EXPIRY_DEAD_LETTER, now
            )
            if columns.state[slot] != State.FREE:
                # Refused or on its way: look again, so that a message that came back is not kept for ever.
                columns.expiry_timer[slot] = now_s + EXPIRY_RETRY_S
                self.expiries.push(now_s + EXPIRY_RETRY_S, slot)
            return
        self._row(Type.DELETED, queue.number, slot, now, reason=Reason.RETENTION)
        self._on_deleted(queue, slot, now, Reason.RETENTION)

    def next_due(self) -> int | None:
        """When `advance` has something to do: never late, sometimes early."""
        if self.doomed_due:
            return self.last_time_ms
        due = min(self.leases.due, self.delays.due, self.expiries.due * 1000)
        return due if due < NEVER else None
