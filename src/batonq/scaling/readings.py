"""What a scaler looks at: a queue at one moment, and the rates that two such moments give."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

HALF_LIFE_S = 60.0  # how long until a rate that is no longer true counts for half
SETTLE_S = 15.0  # workers that were started less long ago may not be working yet


@dataclass(slots=True, frozen=True)
class Reading:
    """One look at a queue. What a source cannot tell is None, and policies that need it do without or abstain."""

    visible: int = 0
    in_flight: int = 0
    delayed: int = 0
    oldest_age_s: float | None = None
    sent: int | None = None  # since the queue was made
    deleted: int | None = None  # since the queue was made

    @property
    def depth(self) -> int:
        """The work that is there: what waits, and what is being worked on. Without the second, a queue whose messages
        are all in flight would look idle, and its workers would be taken away in the middle of their work."""
        return self.visible + self.in_flight


def combined(readings: Iterable[Reading]) -> Reading:
    """Several queues that the same workers serve, as one."""
    found = list(readings)
    return Reading(
        visible=sum(reading.visible for reading in found),
        in_flight=sum(reading.in_flight for reading in found),
        delayed=sum(reading.delayed for reading in found),
        oldest_age_s=_largest([reading.oldest_age_s for reading in found]),
        sent=_total([reading.sent for reading in found]),
        deleted=_total([reading.deleted for reading in found]),
    )


def _total(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _largest(values: list[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


class Rates:
    """Messages a second, learned from one reading after another: sent, finished, and finished by one worker."""

    def __init__(self, half_life_s: float = HALF_LIFE_S, settle_s: float = SETTLE_S) -> None:
        self.arrivals: float | None = None
        self.drain: float | None = None
        self.per_worker: float | None = None
        self._half_life_s = half_life_s
        self._settle_s = settle_s
        self._last: Reading | None = None
        self._last_s = 0.0
        self._workers = 0
        self._workers_since_s = 0.0

    def observe(self, reading: Reading, now_s: float, workers: int) -> None:
        """Take a reading into account that was made at `now_s` while there were so many workers."""
        last, passed_s = self._last, now_s - self._last_s
        if workers != self._workers:
            self._workers, self._workers_since_s = workers, now_s
        if last is not None and passed_s <= 0:
            return
        self._last, self._last_s = reading, now_s
        if last is None:
            return
        self.arrivals = self._learn(self.arrivals, _rate(last.sent, reading.sent, passed_s), passed_s)
        finished = _rate(last.deleted, reading.deleted, passed_s)
        self.drain = self._learn(self.drain, finished, passed_s)
        # What a worker can do shows only while there is more to do than it does, and while none is still starting.
        busy = last.visible > 0 and reading.visible > 0
        settled = now_s - passed_s - self._workers_since_s >= self._settle_s
        if busy and settled and workers > 0 and finished:
            self.per_worker = self._learn(self.per_worker, finished / workers, passed_s)

    def _learn(self, known: float | None, seen: float | None, passed_s: float) -> float | None:
        if seen is None:
            return known
        if known is None:
            return seen
        weight: float = 0.5 ** (passed_s / self._half_life_s)
        return known * weight + seen * (1 - weight)


def _rate(before: int | None, after: int | None, passed_s: float) -> float | None:
    # A total that went down is another queue under the same name.
    if before is None or after is None or after < before:
        return None
    return (after - before) / passed_s
