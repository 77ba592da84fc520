"""A shard's messages: one slot per message, with its fields in compact columns. A waiting message takes about a
hundred bytes.

The live path chooses a slot and writes it into the record, so that replay puts the message into the same slot. Freed
slots are reused, newest first. The free list may hold slots that replay has taken meanwhile; `allocate` skips them.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

from batonq.core.records import State

NIL = 0xFFFFFFFF
DELTA_MAX = 0xFFFFFFFF
DELTA_EXACT_MS = 4_000_000_000  # 46 days; a longer delta is stored in units of 128 ms, up to 480 days
_DELTA_SHIFT = 7
COUNT_MAX = 0xFFFF
_GROW_MIN = 64
_VISIBLE = int(State.VISIBLE)
_GROW_MAX = 8_192
_TIDY = 4_096

# name, type code, value in an unused slot
_LAYOUT = (
    ("sequence", "Q", 0),
    ("position", "Q", 0),  # position of the record that holds the payload
    ("extent", "Q", 0),  # offset | length << 32 of the payload in that frame's variable section
    ("last", "Q", 0),  # position of the message's newest record
    ("until", "Q", 0),  # VISIBLE, OWED: since when; DELAYED: visible-at; IN_FLIGHT: deadline
    ("sent", "Q", 0),  # ms
    ("timer", "Q", (1 << 64) - 1),  # ms at which the lease wheel has an entry for this slot
    ("expires", "I", 0),  # s
    ("expiry_timer", "I", 0xFFFFFFFF),  # s at which the expiry wheel has an entry for this slot
    ("first_received", "I", 0),  # after `sent`, see `pack_delta`, plus one; 0 means never
    ("leased", "I", 0),  # start of the current lease after `sent`, see `pack_delta`
    ("queue", "I", 0),
    ("line", "I", NIL),
    ("line_next", "I", NIL),
    ("line_previous", "I", NIL),
    ("queue_next", "I", NIL),
    ("queue_previous", "I", NIL),
    ("epoch", "I", 0),
    ("count", "H", 0),  # receives
    ("state", "B", int(State.FREE)),
    ("priority", "B", 0),
    ("doomed", "B", 0),  # DELAYED: Reason for which it is owed again after the delay; OWED: DEAD if it was DEAD
)
COLUMN_NAMES = tuple(name for name, _, _ in _LAYOUT)


def pack_delta(time_ms: int, sent_ms: int) -> int:
    """The time since a message was sent, in 32 bits. A message can be delayed for a year before it is received."""
    passed_ms = time_ms - sent_ms
    if passed_ms <= DELTA_EXACT_MS:
        return max(passed_ms, 0)
    return min(DELTA_EXACT_MS + (passed_ms - DELTA_EXACT_MS >> _DELTA_SHIFT), DELTA_MAX - 1)


def delta_ms(packed: int) -> int:
    """The milliseconds that `pack_delta` stored."""
    return packed if packed <= DELTA_EXACT_MS else DELTA_EXACT_MS + (packed - DELTA_EXACT_MS << _DELTA_SHIFT)


def as_run(slots: list[int]) -> Sequence[int]:
    """The same slots, as a range if they are consecutive and ascending."""
    run = range(slots[0], slots[0] + len(slots))
    return run if slots[-1] == run[-1] and slots == [*run] else slots


def counted(typecode: str, numbers: range) -> array[int]:
    """A column of consecutive numbers. Going through a list halves the time."""
    return array(typecode, [*numbers])


def halves_of(words: array[int]) -> array[int]:
    """The low and high halves of 64-bit words, alternating."""
    halves = array("I")
    halves.frombytes(words.tobytes())
    if sys.byteorder == "big":
        halves[0::2], halves[1::2] = halves[1::2], halves[0::2]
    return halves


def joined(low: array[int], high: array[int]) -> array[int]:
    """64-bit words from a column of low halves and a column of high halves."""
    halves = array("I", bytes(8 * len(low)))
    at_low = 0 if sys.byteorder == "little" else 1
    halves[at_low::2] = low
    halves[1 - at_low :: 2] = high
    words = array("Q")
    words.frombytes(halves.tobytes())
    return words


class Columns:
    """The columns, the high-water mark `used`, and the free list."""

    sequence: array[int]
    position: array[int]
    extent: array[int]
    last: array[int]
    until: array[int]
    sent: array[int]
    timer: array[int]
    expires: array[int]
    expiry_timer: array[int]
    first_received: array[int]
    leased: array[int]
    queue: array[int]
    line: array[int]
    line_next: array[int]
    line_previous: array[int]
    queue_next: array[int]
    queue_previous: array[int]
    epoch: array[int]
    count: array[int]
    state: array[int]
    priority: array[int]
    doomed: array[int]

    def __init__(self) -> None:
        for name, typecode, _ in _LAYOUT:
            setattr(self, name, array(typecode))
        self.used = 0
        self.capacity = 0
        self.free: array[int] = array("I")
        self._until_tidy = _TIDY  # slots to take before the free list is sorted again

    def reserve(self, capacity: int) -> None:
        """Make room for slots below `capacity`. The array objects stay the same."""
        if capacity <= self.capacity:
            return
        step = max(_GROW_MIN, min(_GROW_MAX, self.capacity))
        target = max(capacity, self.capacity + step)
        added = target - self.capacity
        for name, typecode, default in _LAYOUT:
            getattr(self, name).extend(array(typecode, [default]) * added)
        self.capacity = target

    def allocate(self) -> int:
        """Choose a slot for a new message, without taking it."""
        free = self.free
        state = self.state
        while free:
            slot = free[-1]
            if state[slot] == 0:
                return slot
            free.pop()
        return self.used

    def take_run(self, count: int) -> Sequence[int]:
        """Choose slots for several new messages and take them off the free list; returns a range if they are
        adjacent.

        Messages that were leased together are usually deleted together, so the newest free slots are usually adjacent.
        """
        free = self.free
        if not free:
            return range(self.used, self.used + count)
        state = self.state
        self._until_tidy -= count
        run = self._newest_run(count)
        if run is None and self._until_tidy < 0:
            self._tidy()
            run = self._newest_run(count)
        if run is not None:
            del free[-count:]
            return run
        slots: list[int] = []
        while free and len(slots) < count:
            slot = free.pop()
            if not state[slot]:
                state[slot] = _VISIBLE  # after a Base the list may name a slot twice; this skips the second
                slots.append(slot)
        slots.sort()
        slots.extend(range(self.used, self.used + count - len(slots)))
        return as_run(slots)

    def _newest_run(self, count: int) -> range | None:
        """The newest free slots, if they are adjacent in ascending or descending order."""
        newest = self.free[-count:]
        if len(newest) < count:
            return None
        first = min(newest[0], newest[-1])
        run = range(first, first + count)
        if self.state[first : first + count].tobytes() != bytes(count):
            return None
        slots = counted("I", run)
        return run if newest == slots or newest[::-1] == slots else None

    def _tidy(self) -> None:
        """Sort the newest part of the free list, so that runs find adjacent slots there again."""
        tail = sorted({slot for slot in self.free[-_TIDY:] if not self.state[slot]}, reverse=True)
        self.free[-_TIDY:] = array("I", tail)
        self._until_tidy = len(tail)

    def take_named(self, slots: Sequence[int]) -> None:
        """Take the slots that a run of records names off the free list, if they are its newest."""
        free = self.free
        if sorted(free[-len(slots) :].tolist()) == [*slots]:
            del free[-len(slots) :]
            return
        for slot in slots:
            if free and free[-1] == slot:
                free.pop()

    def give_back_run(self, slots: Sequence[int]) -> None:
        """Undo `take_run`."""
        for slot in reversed(slots):
            if slot < self.used:
                self.release(slot)

    def take(self, slot: int) -> None:
        """Take the slot that a record names."""
        if slot >= self.used:
            self.use(slot, slot + 1)
        else:
            free = self.free
            if free and free[-1] == slot:
                free.pop()

    def use(self, first: int, end: int) -> None:
        """Take slots beyond those in use. Skipped slots were used only in the dropped front, so they are free."""
        if end > self.capacity:
            self.reserve(end)
        if first > self.used:
            self.free.extend(range(self.used, first))
        self.used = end

    def release(self, slot: int) -> None:
        self.state[slot] = 0
        self.line[slot] = NIL
        self.free.append(slot)
        if len(self.free) > 2 * self.used + 64:
            self.rebuild_free()

    def rebuild_free(self) -> None:
        """Rebuild the free list from the states, with the lowest slot on top."""
        state = self.state
        self.free = array("I", [slot for slot in range(self.used - 1, -1, -1) if state[slot] == 0])

    def save(self) -> dict[str, bytes]:
        sections = {name: getattr(self, name)[: self.used].tobytes() for name in COLUMN_NAMES}
        sections["free"] = self.free.tobytes()
        return sections

    def load(self, sections: dict[str, bytes]) -> None:
        for name in COLUMN_NAMES:
            column = getattr(self, name)
            del column[:]
            column.frombytes(sections[name])
        self.used = self.capacity = len(self.state)
        self.free = array("I")
        self.free.frombytes(sections["free"])
