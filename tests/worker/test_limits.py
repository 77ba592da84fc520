"""Token buckets: never more than the rate allows, and never less than it could."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonq.worker.limits import Bucket, Buckets, Limits, Rate


@given(st.floats(0.1, 50), st.floats(1, 50), st.lists(st.floats(0, 3), max_size=30))
def test_a_bucket_gives_no_more_than_its_rate(per_second: float, size: float, pauses: list[float]) -> None:
    bucket = Bucket(per_second, size, 0.0)
    now, taken = 0.0, 0
    for pause in pauses:
        now += pause
        while bucket.wait(now) == 0:
            bucket.take(now)
            taken += 1
        assert taken <= size + now * per_second + 1e-6
        assert bucket.wait(now) <= 1 / per_second + 1e-6  # and the next one is never further away than that


@given(st.floats(0.1, 100), st.integers(1, 50))
def test_reserved_tokens_come_one_after_another(per_second: float, count: int) -> None:
    bucket = Bucket(per_second, 1, 0.0)
    waits = []
    for _ in range(count):
        waits.append(bucket.wait(0.0))
        bucket.take(0.0)
    assert waits == pytest.approx([number / per_second for number in range(count)])


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = Bucket(1, 1, 100.0)
    bucket.take(100.0)
    assert bucket.available(50.0) == 0
    assert bucket.available(100.5) == 0.5


def test_full_buckets_are_forgotten_when_there_are_many() -> None:
    buckets = Buckets(Rate(1, key="queue"), keys_max=10)
    for number in range(10):
        buckets.bucket(str(number), 0.0).take(0.0)
    buckets.bucket("next", 100.0)
    assert len(buckets) == 1
    for number in range(9):
        buckets.bucket(str(number), 100.0).take(100.0)
    buckets.bucket("next", 100.0).take(100.0)
    buckets.bucket("one more", 100.0)  # all are in use
    assert len(buckets) <= 10


def test_limits_of_a_task_and_of_keys_hold_together() -> None:
    limits = Limits((Rate(10), Rate(1, key=lambda message: message.attributes.get("customer"))))
    assert limits.keyed and limits.room(64, 0.0) == 10
    limits.took(10, 0.0)
    assert limits.room(64, 0.0) == 0 and limits.until_room(0.0) == pytest.approx(0.1)
    ann = SimpleNamespace(attributes={"customer": "ann"}, queue="q")
    nobody = SimpleNamespace(attributes={}, queue="q")
    assert limits.wait(ann, 0.0) == 0
    limits.reserve(ann, 0.0)
    assert limits.wait(ann, 0.0) == pytest.approx(1.0)
    assert limits.wait(nobody, 0.0) == 0


def test_a_rate_a_queue_is_one_bucket_for_each() -> None:
    limits = Limits((Rate(1, key="queue"),))
    for name in ("a", "b"):
        message = SimpleNamespace(attributes={}, queue=name)
        assert limits.wait(message, 0.0) == 0
        limits.reserve(message, 0.0)
        assert limits.wait(message, 0.0) > 0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"per_second": 0}, "greater than 0"),
        ({"per_second": 1, "burst": 0}, "burst"),
        ({"per_second": 1, "key": "x"}, "key"),
    ],
)
def test_bad_rates_are_refused(given: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Rate(**given)  # type: ignore[arg-type]
