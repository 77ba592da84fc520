"""A timer wheel: buckets of two sizes, and a heap of the entries that are due next. Timers are never scanned.

A bucket holds only slots, so a timer takes four bytes. The exact due time is in the caller's column, which is read when
the bucket opens. If the due time of a slot has moved to another bucket, the old entry is dropped, because the caller
has pushed a new one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

NEVER = 1 << 62
OPENED_MAX = 5_000  # entries that one step takes out of buckets of each size, if its limit is not higher


class Wheel:
    """Entries (due, slot). The unit of time is that of the caller's column of due times."""

    def __init__(self, fine_shift: int, coarse_shift: int) -> None:
        self.fine_shift = fine_shift
        self.coarse_shift = coarse_shift
        self.time = 0
        self.due = NEVER  # no entry is due before this time; pushes lower it, `advance` raises it
        self._near: list[int] = []  # due << 32 | slot
        self._fine: dict[int, array[int]] = {}
        self._coarse: dict[int, array[int]] = {}
        self._fine_keys: list[int] = []
        self._coarse_keys: list[int] = []

    def push(self, due: int, slot: int) -> None:
        self.push_run(due, (slot,))

    def push_run(self, due: int, slots: Iterable[int]) -> None:
        """Add entries with one due time."""
        if due < self.due:
            self.due = due
        key = due >> self.coarse_shift
        if key > self.time >> self.coarse_shift:
            buckets, keys = self._coarse, self._coarse_keys
        else:
            key = due >> self.fine_shift
            if key <= self.time >> self.fine_shift:
                for slot in slots:
                    heappush(self._near, due << 32 | slot)
                return
            buckets, keys = self._fine, self._fine_keys
        bucket = buckets.get(key)
        if bucket is None:
            bucket = buckets[key] = array("I")
            heappush(keys, key)
        bucket.extend(slots)

    def _open_buckets(self, now: int, due_column: Sequence[int], opened_max: int) -> None:
        """Take entries out of the buckets whose time has come. Entries beyond `opened_max` stay in their buckets,
        and stay due.
        """
        for due, slot in _open(self._coarse, self._coarse_keys, self.coarse_shift, now, due_column, opened_max):
            self.push(due, slot)
        for due, slot in _open(self._fine, self._fine_keys, self.fine_shift, now, due_column, opened_max):
            heappush(self._near, due << 32 | slot)

    def advance(self, now: int, due_column: Sequence[int], limit: int) -> list[tuple[int, int]]:
        """Take out at most `limit` entries that are due at `now`, as (due, slot) in order of due time.

        If more entries are due than `limit` or OPENED_MAX, some remain: call again, as `next_due` says.
        """
        if now > self.time:
            self.time = now
        if (self._coarse_keys and self._coarse_keys[0] <= now >> self.coarse_shift) or (
            self._fine_keys and self._fine_keys[0] <= now >> self.fine_shift
        ):
            self._open_buckets(now, due_column, max(limit, OPENED_MAX))
        near = self._near
        due: list[tuple[int, int]] = []
        while near and near[0] >> 32 <= now and len(due) < limit:
            entry = heappop(near)
            due.append((entry >> 32, entry & 0xFFFFFFFF))
        self.due = self._first_due()
        return due

    def _first_due(self) -> int:
        """A lower bound of the first due time: never too late, sometimes too early."""
        first = self._near[0] >> 32 if self._near else NEVER
        if self._fine_keys:
            first = min(first, self._fine_keys[0] << self.fine_shift)
        if self._coarse_keys:
            first = min(first, self._coarse_keys[0] << self.coarse_shift)
        return first

    def next_due(self) -> int | None:
        """When to call `advance` next; None if there is no entry."""
        return self.due if self.due != NEVER else None

    def __len__(self) -> int:
        buckets = list(self._fine.values()) + list(self._coarse.values())
        return len(self._near) + sum(map(len, buckets))

    def clear(self) -> None:
        self._near.clear()
        self._fine.clear()
        self._coarse.clear()
        self._fine_keys.clear()
        self._coarse_keys.clear()
        self.due = NEVER

    def save(self) -> dict[str, bytes]:
        keys: array[int] = array("Q")
        counts: array[int] = array("Q")
        slots: array[int] = array("I")
        for buckets in (self._fine, self._coarse):
            for key in sorted(buckets):
                keys.append(key)
                counts.append(len(buckets[key]))
                slots.extend(buckets[key])
        near = sorted(self._near)
        return {
            "head": array("Q", [self.time, len(self._fine)]).tobytes(),
            "keys": keys.tobytes(),
            "counts": counts.tobytes(),
            "slots": slots.tobytes(),
            "near_due": array("Q", [entry >> 32 for entry in near]).tobytes(),
            "near_slot": array("I", [entry & 0xFFFFFFFF for entry in near]).tobytes(),
        }

    def load(self, sections: dict[str, bytes]) -> None:
        self.clear()
        self.time, fine_count = _read("Q", sections["head"])
        slots = _read("I", sections["slots"])
        at = 0
        pairs = zip(_read("Q", sections["keys"]), _read("Q", sections["counts"]), strict=True)
        for number, (key, count) in enumerate(pairs):
            if number < fine_count:
                self._fine[key] = slots[at : at + count]
                self._fine_keys.append(key)
            else:
                self._coarse[key] = slots[at : at + count]
                self._coarse_keys.append(key)
            at += count
        dues = _read("Q", sections["near_due"])
        self._near = [due << 32 | slot for due, slot in zip(dues, _read("I", sections["near_slot"]), strict=True)]
        self.due = self._first_due()


def _open(
    buckets: dict[int, array[int]], keys: list[int], shift: int, now: int, due_column: Sequence[int], opened_max: int
) -> list[tuple[int, int]]:
    """Take entries (due, slot) out of the buckets up to `now`, earliest bucket first. Entries whose due time has
    moved are dropped.
    """
    opened: list[tuple[int, int]] = []
    current = now >> shift
    while keys and keys[0] <= current and opened_max > 0:
        key = keys[0]
        bucket = buckets[key]
        slots = bucket[-opened_max:]
        del bucket[-opened_max:]
        opened_max -= len(slots)
        if not bucket:
            heappop(keys)
            del buckets[key]
        opened += [(due, slot) for slot in slots if (due := due_column[slot]) >> shift == key]
    return opened


def _read(typecode: str, data: bytes) -> array[int]:
    column: array[int] = array(typecode)
    column.frombytes(data)
    return column
