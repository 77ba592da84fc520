"""From samples to the datapoints of CloudWatch. Pure functions."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

BASIC = ("SampleCount", "Average", "Sum", "Minimum", "Maximum")
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d{1,10})?|100)")


class Sample(NamedTuple):
    """`weight`: how many equal values the sample stands for."""

    at_ms: int
    value: float
    weight: float = 1.0


class Bucket(NamedTuple):
    """The values and weights of one period, sorted by value; `start_ms` is the beginning of the period."""

    start_ms: int
    values: list[float]
    weights: list[float]

    def statistic(self, name: str) -> float:
        """`name` is one of BASIC, or a percentile such as p95. Check it with `is_statistic`."""
        values, weights = self.values, self.weights
        if name == "SampleCount":
            return float(sum(weights))
        if name == "Sum":
            return self._sum()
        if name == "Average":
            return self._sum() / sum(weights)
        if name == "Minimum":
            return values[0]
        if name == "Maximum":
            return values[-1]
        found = _PERCENTILE.fullmatch(name)
        assert found is not None, name
        wanted = float(found[1]) / 100 * sum(weights)
        return values[min(len(values) - 1, bisect_right([*accumulate(weights)], wanted))]

    def _sum(self) -> float:
        return sum([value * weight for value, weight in zip(self.values, self.weights, strict=True)])


def is_statistic(name: str) -> bool:
    return name in BASIC or _PERCENTILE.fullmatch(name) is not None


def buckets(samples: Iterable[Sample], start_ms: int, end_ms: int, period_s: int) -> list[Bucket]:
    """The samples from `start_ms` on and before `end_ms`, by periods that begin at multiples of their length, as in
    CloudWatch; oldest first. A period without samples is left out.
    """
    period_ms = period_s * 1000
    first_ms = start_ms // period_ms * period_ms
    found: dict[int, list[tuple[float, float]]] = {}
    for at_ms, value, weight in samples:
        if first_ms <= at_ms < end_ms:
            found.setdefault(at_ms // period_ms * period_ms, []).append((value, weight))
    sorted_by_value = ((at_ms, sorted(found[at_ms])) for at_ms in sorted(found))
    return [
        Bucket(at_ms, [value for value, _ in pairs], [weight for _, weight in pairs])
        for at_ms, pairs in sorted_by_value
    ]
