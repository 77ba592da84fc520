"""When leases, delays and retentions end: three wheels over the columns of messages."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from batonq.core.shard.state.columns import Columns
from batonq.core.shard.state.timer_wheel import Wheel

NO_TIMER = (1 << 64) - 1
NO_EXPIRY_TIMER = 0xFFFFFFFF
EXPIRY_RETRY_S = 60  # interval at which an expired message that was not yet dead-lettered is checked again


class Timers:
    """For each message, a column holds the time of its earliest entry in a wheel. Another entry is added only if it is
    earlier than that one.
    """

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.leases = Wheel(7, 16)
        self.delays = Wheel(7, 16)
        self.expiries = Wheel(4, 12)
        self.doomed_due: dict[int, None] = {}  # refused transfers whose backoff has ended, in order

    def lease_until(self, slot: int, until: int) -> None:
        """Make sure that a lease has an entry that is no later than its end."""
        if until < self.columns.timer[slot]:
            self.columns.timer[slot] = until
            self.leases.push(until, slot)

    def clear(self) -> None:
        columns = self.columns
        for wheel in (self.leases, self.delays, self.expiries):
            wheel.clear()
        columns.timer[:] = array("Q", [NO_TIMER]) * columns.capacity
        columns.expiry_timer[:] = array("I", [NO_EXPIRY_TIMER]) * columns.capacity

    def arm_lease(self, slot: int) -> None:
        """Add an entry at the end of a lease whose entry was taken out of the wheel."""
        until = self.columns.until[slot]
        self.columns.timer[slot] = until
        self.leases.push(until, slot)

    def arm_leases(self, slots: Sequence[int], deadline: int) -> None:
        timers = self.columns.timer
        unarmed = [slot for slot in slots if timers[slot] > deadline]
        for slot in unarmed:
            timers[slot] = deadline
        if unarmed:
            self.leases.push_run(deadline, unarmed)

    def arm_expiry(self, slot: int, due_s: int) -> None:
        self.columns.expiry_timer[slot] = due_s
        self.expiries.push(due_s, slot)

    def arm_expiries(self, slots: Sequence[int], expires_s: int) -> None:
        timers = self.columns.expiry_timer
        for slot in slots:
            timers[slot] = expires_s
        if slots:
            self.expiries.push_run(expires_s, slots)

    def arm_run(self, slots: range, expires: array[int]) -> None:
        """Make sure that each message has an entry in the expiry wheel that is no later than its expiry."""
        columns = self.columns
        first, end = slots.start, slots.stop
        timers = columns.expiry_timer[first:end]
        soonest = expires[0]
        if expires != array("I", (soonest,)) * len(expires):
            unarmed: dict[int, list[int]] = {}
            for slot, expires_s, timer_s in zip(slots, expires, timers, strict=True):
                if expires_s < timer_s:
                    unarmed.setdefault(expires_s, []).append(slot)
            for expires_s in sorted(unarmed):
                self.arm_expiries(unarmed[expires_s], expires_s)
        elif timers == array("I", (NO_EXPIRY_TIMER,)) * len(timers):
            columns.expiry_timer[first:end] = expires
            self.expiries.push_run(soonest, slots)
        elif max(timers) > soonest:
            self.arm_expiries([slot for slot in slots if columns.expiry_timer[slot] > soonest], soonest)
