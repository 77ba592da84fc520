"""Time passing in a shard: leases expire, delays end, messages expire, refused transfers are retried."""

from __future__ import annotations

from collections.abc import Sequence

from batonq.core.limits import STEP_BYTES_MAX
from batonq.core.records import Reason, State, Type
from batonq.core.shard.columns import NIL
from batonq.core.shard.queue_state import QueueState
from batonq.core.shard.state import EXPIRY_RETRY_S, NO_EXPIRY_TIMER, NO_TIMER
from batonq.core.shard.timer_wheel import NEVER
from batonq.core.shard.transfer import Transfer
from batonq.errors import QueueDoesNotExist

_FREE, _IN_FLIGHT, _OWED = int(State.FREE), int(State.IN_FLIGHT), int(State.OWED)


class Timers(Transfer):
    def begin(self, now: int) -> int:
        """Start a command: returns a time that never goes back, after recording what is due."""
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

    def pass_time(self, now: int) -> int:
        """Move time forward like `begin`, but record nothing: due leases and messages expire at a later `begin`.

        A bounded number of delays ends; the others stay due.
        """
        if now < self.last_time_ms:
            return self.last_time_ms
        self.last_time_ms = now
        self.advance_delays(now, self.limits.timer_records_max)
        return now

    def advance(self, now: int) -> None:
        """Record what is due: expired leases, messages past their retention, refused transfers to retry.

        One step is bounded in records and in bytes. The rest stays due.
        """
        now = self.pass_time(now)
        bytes_end = self.frame.size + STEP_BYTES_MAX
        self._end_leases(now, bytes_end)
        if self.frame.size < bytes_end:
            self._end_messages(now, bytes_end)
        if self.doomed_due and self.frame.size < bytes_end:
            self.retry_refused(now, bytes_end)

    def _end_leases(self, now: int, bytes_end: int) -> None:
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
                    self._arm_lease(slot)
        over.sort()  # so that the dead letters of a group arrive in the group's order
        for at, (_, _, last) in enumerate(over):
            for slot in self._with_earlier(last, columns.timer, now):
                if self.frame.size >= bytes_end:
                    for _, _, left in over[at:]:
                        self._arm_lease(left)
                    return
                if columns.state[slot] == _IN_FLIGHT and columns.until[slot] <= now:
                    self._return(slot, now, now, Reason.EXPIRED)

    def _arm_lease(self, slot: int) -> None:
        until = self.columns.until[slot]
        self.columns.timer[slot] = until
        self.leases.push(until, slot)

    def _end_messages(self, now: int, bytes_end: int) -> None:
        columns = self.columns
        now_s = now // 1000
        old: list[tuple[int, int, int]] = []
        for due, slot in self.expiries.advance(now_s, columns.expiry_timer, self.limits.timer_records_max):
            if columns.expiry_timer[slot] != due:
                continue
            columns.expiry_timer[slot] = NO_EXPIRY_TIMER
            if self._has_expired(slot, now_s):
                old.append((columns.expires[slot], columns.sequence[slot], slot))
            elif columns.state[slot]:
                self._arm_expiry(slot, max(columns.expires[slot], now_s + 1))
        old.sort()
        for at, (_, _, last) in enumerate(old):
            for slot in self._with_earlier(last, columns.expiry_timer, now_s):
                if self.frame.size >= bytes_end:
                    for _, _, left in old[at:]:
                        self._arm_expiry(left, now_s)
                    return
                if self._has_expired(slot, now_s):
                    self._expire_message(slot, now)

    def _has_expired(self, slot: int, now_s: int) -> bool:
        return self.columns.state[slot] not in (_FREE, _OWED) and self.columns.expires[slot] <= now_s

    def _arm_expiry(self, slot: int, due_s: int) -> None:
        self.columns.expiry_timer[slot] = due_s
        self.expiries.push(due_s, slot)

    def _with_earlier(self, slot: int, timers: Sequence[int], now: int) -> list[int]:
        """A message whose time has come, preceded by the messages of its FIFO group just before it whose timers are
        due too.

        One step takes a bounded number of timers. Among equal timers it takes the lowest slots first, which may belong
        to the later messages of a group.
        """
        columns = self.columns
        group = [slot]
        if columns.line[slot] != NIL and self.queues[columns.queue[slot]].fifo:
            while (slot := columns.line_previous[slot]) != NIL and timers[slot] <= now:
                group.append(slot)
            group.reverse()
        return group

    def _expire_message(self, slot: int, now: int) -> None:
        columns = self.columns
        state = columns.state[slot]
        if state == State.FREE:
            return
        now_s = now // 1000
        if columns.expires[slot] > now_s or state == _OWED:
            self._arm_expiry(slot, max(columns.expires[slot], now_s + 1))
            return
        queue = self.queues[columns.queue[slot]]
        policy = queue.policy
        if policy.expiry_to_dead_letter and policy.dead_letter_queue:
            self.owe(
                slot, self.dead_letter_shard(queue, slot), policy.dead_letter_queue, Reason.EXPIRY_DEAD_LETTER, now
            )
            if columns.state[slot] != State.FREE:
                # Refused or on its way: check again later, so that a message that comes back is not kept for ever.
                self._arm_expiry(slot, now_s + EXPIRY_RETRY_S)
            return
        self._row(Type.DELETED, queue.number, slot, now, reason=Reason.RETENTION)
        self._on_deleted(queue, slot, now, Reason.RETENTION)

    def next_due(self) -> int | None:
        """When `advance` has something to do: never too late, sometimes too early. None if nothing will be due."""
        if self.doomed_due:
            return self.last_time_ms
        due = min(self.leases.due, self.delays.due, self.expiries.due * 1000)
        return due if due < NEVER else None
