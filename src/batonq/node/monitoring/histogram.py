"""Histograms with one bucket per power of two: cheap to count, and good enough for percentiles.

A value is a whole number of some unit (microseconds, milliseconds). It is counted in the bucket with the number of its
bits, so bucket b has the values from 2**(b-1) up to, but not including, 2**b.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

BUCKETS = 64
MICROSECONDS = 1e6


class Buckets(NamedTuple):
    """How a histogram is shown: for each bound, the last bucket that is counted below it."""

    ends: tuple[int, ...]
    bounds: tuple[float, ...]

    def cumulative(self, counts: Sequence[int]) -> list[int]:
        """The number of values up to each bound."""
        found: list[int] = []
        total = start = 0
        for end in self.ends:
            total += sum(counts[start : end + 1])
            start = end + 1
            found.append(total)
        return found


def powers(first: int, last: int, unit: float, step: int = 1) -> Buckets:
    """Bounds at powers of two of a unit, given in the base unit of a metric: seconds."""
    ends = tuple(range(first, last + 1, step))
    return Buckets(ends, tuple(2**end * unit for end in ends))


REQUEST_BUCKETS = powers(8, 25, 1e-6)  # 256 µs to 34 s
COMMIT_BUCKETS = powers(5, 23, 1e-6)  # 32 µs to 8.4 s
LAG_BUCKETS = powers(9, 23, 1e-6)  # 512 µs to 8.4 s
MESSAGE_BUCKETS = powers(0, 30, 1e-3)  # 1 ms to 12 days
QUEUE_BUCKETS = powers(0, 22, 1e-3, 2)  # 1 ms to 70 minutes, in steps of 4: there may be many queues
COUNT_BUCKETS = Buckets((1, 2, 3, 4, 5, 10, 20), (1, 2, 3, 4, 5, 10, 20))


class Histogram:
    """Durations in microseconds."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[int(seconds * MICROSECONDS).bit_length()] += 1
        self.seconds += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)


def percentiles(counts: Sequence[int], wanted: Sequence[float]) -> list[float] | None:
    """Percentiles (0 to 1, rising) of the values in a histogram; None if it has no values.

    Within a bucket, values are assumed to be spread evenly.
    """
    total = sum(counts)
    if total <= 0:
        return None
    found: list[float] = []
    below, bucket = 0, 0
    for share in wanted:
        rank = share * total
        while below + counts[bucket] < rank:
            below += counts[bucket]
            bucket += 1
        low = 1 << (bucket - 1) if bucket else 0
        width = low or 1
        inside = counts[bucket]
        found.append(low + width * ((rank - below) / inside if inside else 0.0))
    return found
