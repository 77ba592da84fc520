"""The passing of time: every command first records what is due by then."""

from __future__ import annotations

from collections.abc import Sequence

from batonq.core.limits import STEP_BYTES_MAX
from batonq.core.records import Reason, State
from batonq.core.shard.moves.returns import Returns
from batonq.core.shard.state.columns import NIL
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.timer_wheel import NEVER
from batonq.core.shard.state.timers import NO_EXPIRY_TIMER, NO_TIMER

_FREE, _IN_FLIGHT, _OWED = int(State.FREE), int(State.IN_FLIGHT), int(State.OWED)


class Expiry:
    def __init__(self, messages: Messages, returns: Returns) -> None:
        self.journal = messages.journal
        self.frame = messages.frame
        self.messages = messages
        self.columns = messages.columns
        self.queues = messages.queues
        self.timers = messages.timers
        self.topics = messages.topics
        self.returns = returns

    def begin(self, now: int) -> int:
        """Start a command: returns a time that never goes back, after recording what is due."""
        if now < self.journal.last_time_ms:
            now = self.journal.last_time_ms
        if (
            now >= self.timers.leases.due
            or now >= self.timers.delays.due
            or now >= self.timers.expiries.due * 1000
            or self.timers.doomed_due
            or self.topics.unlocked
        ):
            self.advance(now)
        else:
            self.journal.last_time_ms = now
        return now

    def pass_time(self, now: int) -> int:
        """Move time forward like `begin`, but record nothing: due leases and messages expire at a later `begin`.

        A bounded number of delays ends; the others stay due.
        """
        if now < self.journal.last_time_ms:
            return self.journal.last_time_ms
        self.journal.last_time_ms = now
        self.messages.end_delays(now, self.journal.limits.timer_records_max)
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
        if self.timers.doomed_due and self.frame.size < bytes_end:
            self.returns.retry_refused(now, bytes_end)
        if self.messages.paced:
            self.messages.wake_paced(now)
        if self.topics.unlocked and self.frame.size < bytes_end:
            self.returns.fanout.advance(now, bytes_end)

    def next_due(self) -> int | None:
        """When `advance` has something to do: never too late, sometimes too early. None if nothing will be due."""
        if self.timers.doomed_due or self.topics.unlocked:
            return self.journal.last_time_ms
        due = min(self.timers.leases.due, self.timers.delays.due, self.timers.expiries.due * 1000)
        if self.messages.paced:
            due = min(due, *self.messages.paced.values())
        return due if due < NEVER else None

    def _end_leases(self, now: int, bytes_end: int) -> None:
        columns = self.columns
        over: list[tuple[int, int, int]] = []
        for due, slot in self.timers.leases.advance(now, columns.timer, self.journal.limits.timer_records_max):
            if columns.timer[slot] != due:
                continue
            columns.timer[slot] = NO_TIMER
            if columns.state[slot] == _IN_FLIGHT:
                if columns.until[slot] <= now:
                    over.append((columns.until[slot], columns.sequence[slot], slot))
                else:
                    self.timers.arm_lease(slot)
        over.sort()  # so that the dead letters of a group arrive in the group's order
        for at, (_, _, last) in enumerate(over):
            for slot in self._with_earlier(last, columns.timer, now):
                if self.frame.size >= bytes_end:
                    for _, _, left in over[at:]:
                        self.timers.arm_lease(left)
                    return
                if columns.state[slot] == _IN_FLIGHT and columns.until[slot] <= now:
                    queue = self.queues[columns.queue[slot]]
                    delay_ms = self.returns.retry_delay(queue, slot) if queue.policy.retry_expired else 0
                    self.returns.end_lease(slot, now, now + delay_ms, Reason.EXPIRED)

    def _end_messages(self, now: int, bytes_end: int) -> None:
        columns = self.columns
        now_s = now // 1000
        old: list[tuple[int, int, int]] = []
        for due, slot in self.timers.expiries.advance(
            now_s, columns.expiry_timer, self.journal.limits.timer_records_max
        ):
            if columns.expiry_timer[slot] != due:
                continue
            columns.expiry_timer[slot] = NO_EXPIRY_TIMER
            if self._has_expired(slot, now_s):
                old.append((columns.expires[slot], columns.sequence[slot], slot))
            elif columns.state[slot]:
                self.timers.arm_expiry(slot, max(columns.expires[slot], now_s + 1))
        old.sort()
        for at, (_, _, last) in enumerate(old):
            for slot in self._with_earlier(last, columns.expiry_timer, now_s):
                if self.frame.size >= bytes_end:
                    for _, _, left in old[at:]:
                        self.timers.arm_expiry(left, now_s)
                    return
                if self._has_expired(slot, now_s):
                    self.returns.expire(slot, now)

    def _has_expired(self, slot: int, now_s: int) -> bool:
        return self.columns.state[slot] not in (_FREE, _OWED) and self.columns.expires[slot] <= now_s

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
