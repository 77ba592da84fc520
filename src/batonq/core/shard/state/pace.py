"""The cap on a queue's deliveries per second: a token bucket that is kept as the time of the next delivery.

All times are whole numbers of 1/rate milliseconds, so a cap that runs for months loses nothing to rounding. A bucket is
soft state: it is not replayed, and a new owner starts with room for one message.
"""

from __future__ import annotations

TOLERANCE_MS = 100  # how far deliveries may run ahead: a receive that is late by less than this costs no deliveries
WAKE_MS = 5  # a waiting receive is not tried more often than this


class Pace:
    __slots__ = ("_interval", "_next", "per_second")

    def __init__(self, per_second: int, shards: int = 1, before: Pace | None = None) -> None:
        """The share of one of `shards` shards. `before` is the bucket that this one replaces."""
        self.per_second = per_second
        self._interval = 1000 * shards  # between two messages
        self._next: int = before._next * per_second // before.per_second if before is not None and before._next else 0

    def available(self, now: int) -> int:
        """How many messages may be delivered now."""
        rate = self.per_second
        if not self._next:
            self._next = (now + TOLERANCE_MS) * rate
        ahead = (now + TOLERANCE_MS) * rate - max(self._next, now * rate)
        return ahead // self._interval + 1 if ahead >= 0 else 0

    def take(self, count: int, now: int) -> None:
        """Count deliveries; `available` has allowed them."""
        self._next = max(self._next, now * self.per_second) + count * self._interval

    def due_ms(self, now: int) -> int:
        """When to look again, after nothing was available."""
        return max(-(-self._next // self.per_second) - TOLERANCE_MS, now + WAKE_MS)
