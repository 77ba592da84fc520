"""The busiest message groups of a queue, in bounded space: a fixed number of counters (Misra and Gries).

A group with more than 1/GROUPS_KEPT of the counted messages always has a counter. Once a queue has many messages, one
in STRIDE is counted, so that sends cost next to nothing. Old messages count for less and less. Soft state: a new owner
starts empty.
"""

from __future__ import annotations

from array import array

GROUPS_KEPT = 128
_COUNTERS_MAX = 2 * GROUPS_KEPT
EVERY_ONE = 1_000  # so many messages are all counted
STRIDE = 7
_TOTAL_MAX = 20_000  # at this total all counters are halved


class BusyGroups:
    __slots__ = ("_skip", "counts", "positions", "total")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}  # hash of a group → messages counted
        self.positions: dict[int, int] = {}  # hash of a group → position of a record with its name
        self.total = 0
        self._skip = 0

    def add(self, groups: array[int], position: int) -> None:
        """Count new messages, whose records begin at a position."""
        at, count = self._skip, len(groups)
        if at >= count:
            self._skip = at - count
            return
        stride = 1 if self.total < EVERY_ONE else STRIDE
        counts = self.counts
        while at < count:
            group = groups[at]
            if group:
                if group in counts:
                    counts[group] += 1
                else:
                    counts[group] = 1
                    self.positions[group] = position + at
                self.total += 1
            at += stride
        self._skip = at - count
        if len(counts) > _COUNTERS_MAX or self.total > _TOTAL_MAX:
            self._shrink()

    def _shrink(self) -> None:
        counts = self.counts
        if len(counts) > _COUNTERS_MAX:
            cut = sorted(counts.values(), reverse=True)[GROUPS_KEPT]
            counts = {group: count - cut for group, count in counts.items() if count > cut}
        if self.total > _TOTAL_MAX:
            counts = {group: count // 2 for group, count in counts.items() if count > 1}
            self.total //= 2
        self.counts = counts
        self.positions = {group: position for group, position in self.positions.items() if group in counts}

    def busiest(self, limit: int) -> list[tuple[int, float, int]]:
        """Hash of the group, its share of the counted messages, and the position of one of its records."""
        ranked = sorted(self.counts.items(), key=lambda pair: (-pair[1], pair[0]))[:limit]
        return [(group, count / self.total, self.positions[group]) for group, count in ranked]
