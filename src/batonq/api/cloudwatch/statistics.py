"""From samples to the datapoints of CloudWatch. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

BASIC = ("SampleCount", "Average", "Sum", "Minimum", "Maximum")
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d{1,10})?|100)")


class Sample(NamedTuple):
    at_ms: int
    value: float


class Bucket(NamedTuple):
    """The samples of one period, sorted by value; `start_ms` is the beginning of the period."""

    start_ms: int
    values: list[float]

    def statistic(self, name: str) -> float:
        """`name` is one of BASIC, or a percentile such as p95. Check it with `is_statistic`."""
        values = self.values
        if name == "SampleCount":
            return float(len(values))
        if name == "Sum":
            return sum(values)
        if name == "Average":
            return sum(values) / len(values)
        if name == "Minimum":
            return values[0]
        if name == "Maximum":
            return values[-1]
        found = _PERCENTILE.fullmatch(name)
        assert found is not None, name
        share = float(found[1]) / 100
        return values[min(len(values) - 1, int(share * len(values)))]


def is_statistic(name: str) -> bool:
    return name in BASIC or _PERCENTILE.fullmatch(name) is not None


def buckets(samples: Iterable[Sample], start_ms: int, end_ms: int, period_s: int) -> list[Bucket]:
    """The samples from `start_ms` on and before `end_ms`, by periods that begin at multiples of their length, as in
    CloudWatch; oldest first. A period without samples is left out.
    """
    period_ms = period_s * 1000
    first_ms = start_ms // period_ms * period_ms
    found: dict[int, list[float]] = {}
    for at_ms, value in samples:
        if first_ms <= at_ms < end_ms:
            found.setdefault(at_ms // period_ms * period_ms, []).append(value)
    return [Bucket(at_ms, sorted(found[at_ms])) for at_ms in sorted(found)]
