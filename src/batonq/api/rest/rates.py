"""Rates in messages per second, from samples of a queue's counters during the last minute."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from batonq.core.commands import Counters

QUEUES_MAX = 10_000
LOOKS_MAX = 8
APART_MS = 1_000  # over less time than this a rate says little
WINDOW_MS = 60_000


class Rates(NamedTuple):
    """Messages per second since the oldest sample."""

    sent: float
    received: float
    deleted: float


class _Look(NamedTuple):
    at_ms: int
    sent: int
    received: int
    deleted: int


class RateBook:
    """Samples of the counters of each queue. Rates are known from the second sample on."""

    def __init__(self) -> None:
        self._looks: dict[int, deque[_Look]] = {}

    def look(self, queue: int, counters: Counters, at_ms: int) -> Rates | None:
        """Take a sample. Returns the rates since the oldest sample of the last minute, or None if no sample is old
        enough.
        """
        looks = self._looks.pop(queue, None) or deque(maxlen=LOOKS_MAX)
        self._looks[queue] = looks  # most recently used last
        if len(self._looks) > QUEUES_MAX:
            del self._looks[next(iter(self._looks))]
        while looks and at_ms - looks[0].at_ms > WINDOW_MS:
            looks.popleft()
        now = _Look(at_ms, counters.sent, counters.received, counters.deleted)
        first = looks[0] if looks else now
        if not looks or at_ms - looks[-1].at_ms >= WINDOW_MS // LOOKS_MAX:
            looks.append(now)
        passed_s = (at_ms - first.at_ms) / 1000
        if passed_s * 1000 < APART_MS:
            return None
        return Rates(
            (now.sent - first.sent) / passed_s,
            (now.received - first.received) / passed_s,
            (now.deleted - first.deleted) / passed_s,
        )
