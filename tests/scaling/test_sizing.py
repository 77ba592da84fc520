"""Little's law and what follows from it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonq.errors import InvalidInput
from batonq.scaling.sizing import (
    LATE_SHARE,
    advised_receives,
    advised_visibility_s,
    blocked_share,
    high_water_mark,
    late_share,
    quantile,
    size,
)


def test_two_hundred_a_second_of_three_seconds_each() -> None:
    found = size(rate=200, seconds=3, slo_s=60)
    assert (found.busy, found.workers, found.drain_rate, found.high_water) == (600, 720, 240, 14_400)
    assert found.headroom == pytest.approx(0.2)
    assert (found.backlog, found.drain_s) == (12_000, 300)


def test_a_few_workers_need_more_headroom_than_many() -> None:
    """Three busy ones and 20 % would be four, of which 1 in 7 messages waits more than the ten seconds."""
    assert late_share(3, 4, 3, 10, blocked_share(3, 4)) > LATE_SHARE
    assert size(rate=1, seconds=3, slo_s=10).workers == 5


def test_late_share_is_what_a_simulated_queue_shows() -> None:
    random_ = random.Random(3)
    rate, seconds, workers, slo_s = 1.0, 3.0, 4, 10.0
    free = [0.0] * workers
    now, late, count = 0.0, 0, 200_000
    for _ in range(count):
        now += random_.expovariate(rate)
        first = min(range(workers), key=free.__getitem__)
        begin = max(now, free[first])
        late += begin - now > slo_s
        free[first] = begin + random_.expovariate(1 / seconds)
    busy = rate * seconds
    expected = late_share(busy, workers, seconds, slo_s, blocked_share(busy, workers))
    assert late / count == pytest.approx(expected, rel=0.1)


@given(st.floats(0.01, 1_000), st.floats(0.001, 100), st.floats(0.1, 1_000), st.floats(0, 2))
def test_what_is_advised_keeps_up_and_drains(rate: float, seconds: float, slo_s: float, headroom: float) -> None:
    found = size(rate, seconds, slo_s, headroom)
    assert found.drain_rate > rate
    assert found.utilisation < 1
    assert found.late_share <= LATE_SHARE
    assert 0 <= found.drain_s < float("inf")
    assert found.headroom >= headroom - 1e-9


@pytest.mark.parametrize(
    ("median", "p99", "expected"), [(1, 2, 6), (1, 5, 10), (0.5, 1.6, 4), (0.001, 0.001, 1), (10, 10, 60)]
)
def test_visibility_is_the_larger_of_six_medians_and_two_p99s(median: float, p99: float, expected: int) -> None:
    assert advised_visibility_s(median, p99) == expected


@pytest.mark.parametrize(
    ("failed", "tries", "expected"), [(0, 1, 3), (0.05, 1, 3), (0.2, 2, 5), (0.02, 7, 7), (0.9, 1, 10), (1, 0, 10)]
)
def test_receives(failed: float, tries: int, expected: int) -> None:
    assert advised_receives(failed, tries) == expected


def test_high_water_mark_is_drain_rate_times_sla() -> None:
    """1,000 a minute within 15 minutes: 15,000."""
    assert high_water_mark(1_000 / 60, 15 * 60) == 15_000


def test_quantiles() -> None:
    values = [float(number) for number in range(1, 101)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile([7.0], 0.99)) == (50, 99, 7)


@pytest.mark.parametrize(
    ("rate", "seconds", "slo"), [(0, 1, 1), (1, 0, 1), (1, 1, 0), (float("inf"), 1, 1), (1e9, 9, 9)]
)
def test_what_cannot_be_sized_is_refused(rate: float, seconds: float, slo: float) -> None:
    with pytest.raises(InvalidInput):
        size(rate, seconds, slo)
