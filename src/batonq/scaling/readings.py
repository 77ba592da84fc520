"""The input of a scaler: a reading of a queue, and the rates between two readings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

HALF_LIFE_S = 60.0  # half-life of a rate
SETTLE_S = 15.0  # workers that were started more recently may not be working yet


@dataclass(slots=True, frozen=True)
class Reading:
    """One reading of a queue. Values that a source does not have are None, and policies that need them abstain."""

    visible: int = 0
    in_flight: int = 0
    delayed: int = 0
    oldest_age_s: float | None = None
    sent: int | None = None  # since the queue was created
    deleted: int | None = None  # since the queue was created
    lag: int | None = None  # messages that a reader group has not committed; None: the reading is not of a group
    shards: int | None = None  # of the group's queue: more workers than shards would have nothing to read

    @property
    def depth(self) -> int:
        """The existing work: visible and in-flight messages. Without the latter, a queue whose messages are all in
        flight would look idle, and its workers would be stopped in the middle of their work.
        """
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
        lag=_total([reading.lag for reading in found]),
        shards=_total([reading.shards for reading in found]),
    )


def _total(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _largest(values: list[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


class Rates:
    """Messages per second, from consecutive readings: sent, finished, and finished per worker."""

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
        """Add a reading that was taken at `now_s` with this number of workers."""
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
        # The rate of a worker can be measured only while there is a backlog, and while no worker is still starting.
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
    # A total that went down belongs to a new queue with the same name.
    if before is None or after is None or after < before:
        return None
    return (after - before) / passed_s
