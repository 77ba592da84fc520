"""The policies as they are written down: what each wishes for, and when it abstains."""

from __future__ import annotations

import pytest

from batonq.errors import InvalidInput
from batonq.scaling import Drain, KeepUp, Lag, Largest, PerWorker, Policy, Rates, Reading, Sla, Steps, combined


def workers(policy: Policy, reading: Reading, rates: Rates | None = None) -> int | None:
    wish = policy.wish(reading, rates or Rates())
    return None if wish is None else wish.workers


@pytest.mark.parametrize(
    ("depth", "expected"), [(0, 5), (499, 5), (500, 20), (1_999, 20), (2_000, 50), (10_000, 100), (10**9, 100)]
)
def test_steps(depth: int, expected: int) -> None:
    policy = Steps(((0, 5), (500, 20), (2_000, 50), (10_000, 100)))
    assert workers(policy, Reading(visible=depth)) == expected


def test_why_reads_as_a_sentence() -> None:
    policy = Steps(((0, 1), (500, 20)))
    whys = [wish.why for depth in (3, 600) if (wish := policy.wish(Reading(visible=depth), Rates())) is not None]
    assert whys == ["3 messages: from 0 on, 1 worker", "600 messages: from 500 on, 20 workers"]


@pytest.mark.parametrize(("depth", "expected"), [(0, 0), (1, 1), (100, 1), (101, 2), (5_000, 50)])
def test_messages_per_worker(depth: int, expected: int) -> None:
    assert workers(PerWorker(100), Reading(visible=depth)) == expected


@pytest.mark.parametrize(("lag", "expected"), [(0, 0), (1, 1), (1_000, 1), (1_001, 2), (50_000, 4)])
def test_the_lag_of_a_reader_group_asks_for_at_most_one_worker_per_shard(lag: int, expected: int) -> None:
    assert workers(Lag(1_000), Reading(visible=lag, lag=lag, shards=4)) == expected


def test_lag_says_nothing_about_a_queue_without_a_group() -> None:
    assert workers(Lag(1_000), Reading(visible=10_000)) is None
    wish = Lag(10).wish(Reading(lag=100, shards=1), Rates())
    assert wish is not None and wish.why == "lag of 100 messages ÷ 10 messages per worker, but the queue has 1 shard"
    both = combined([Reading(lag=5, shards=2), Reading(lag=7, shards=3)])
    assert (both.lag, both.shards) == (12, 5)
    assert combined([Reading(lag=5, shards=2), Reading()]).lag is None
    with pytest.raises(InvalidInput, match="lag per worker"):
        Lag(0)


def test_messages_in_flight_are_work_too() -> None:
    assert workers(PerWorker(10), Reading(visible=0, in_flight=100, delayed=1_000)) == 10


def test_drain_is_depth_over_rate_a_worker_times_drain_minutes() -> None:
    """10,000 messages, 100 a minute a worker, 5 minutes: 20 workers."""
    assert workers(Drain(5 * 60, rate_per_worker=100 / 60), Reading(visible=10_000)) == 20


def test_a_rate_that_is_neither_given_nor_measured_says_nothing() -> None:
    assert workers(Drain(60), Reading(visible=10_000)) is None
    assert workers(Sla(60), Reading(visible=10_000, oldest_age_s=1)) is None
    assert workers(KeepUp(), Reading(visible=10_000)) is None


def test_a_measured_rate_stands_in_for_a_given_one() -> None:
    rates = Rates()
    for second in (0, 20, 40):
        rates.observe(Reading(visible=5_000, sent=100 * second, deleted=40 * second), second, workers=2)
    assert rates.per_worker == 20
    assert workers(Drain(50), Reading(visible=5_000), rates) == 5
    assert workers(KeepUp(headroom=0.2), Reading(), rates) == 6  # 100 a second × 1.2 ÷ 20


def test_an_idle_worker_says_nothing_about_what_it_can_do() -> None:
    rates = Rates()
    for second in (0, 20, 40):
        rates.observe(Reading(visible=0, sent=second, deleted=second), second, workers=10)
    assert rates.drain == 1
    assert rates.per_worker is None


def test_workers_that_are_starting_do_not_spoil_the_rate() -> None:
    rates = Rates(settle_s=15)
    for second in (0, 20, 40):
        rates.observe(Reading(visible=900, deleted=40 * second), second, workers=2)
    rates.observe(Reading(visible=900, deleted=1_640), 41, workers=100)
    rates.observe(Reading(visible=900, deleted=1_800), 45, workers=100)  # still the first two's work
    assert rates.per_worker == 20


def test_totals_that_go_back_are_another_queue() -> None:
    rates = Rates()
    rates.observe(Reading(sent=1_000, deleted=1_000), 0, 1)
    rates.observe(Reading(sent=5, deleted=0), 10, 1)
    assert (rates.arrivals, rates.drain) == (None, None)
    rates.observe(Reading(sent=25, deleted=10), 20, 1)
    assert (rates.arrivals, rates.drain) == (2, 1)


def test_an_sla_counts_what_is_left_of_it() -> None:
    policy = Sla(60, rate_per_worker=10, aim=1)
    assert workers(policy, Reading(visible=3_000, oldest_age_s=0)) == 5
    assert workers(policy, Reading(visible=3_000, oldest_age_s=30)) == 10
    assert workers(policy, Reading(visible=3_000, oldest_age_s=60)) == 3_000  # too late for arithmetic: all there are
    assert workers(policy, Reading(visible=0, oldest_age_s=0)) == 0


def test_an_sla_plans_for_what_arrives_meanwhile() -> None:
    rates = Rates()
    rates.observe(Reading(sent=0), 0, 1)
    rates.observe(Reading(sent=1_000), 10, 1)
    assert workers(Sla(60, rate_per_worker=10, aim=1), Reading(visible=3_000, oldest_age_s=0), rates) == 15


def test_the_largest_wish_counts() -> None:
    policy = Largest((PerWorker(100), Steps(((0, 3), (1_000, 5))), Drain(60)))
    assert workers(policy, Reading(visible=0)) == 3
    assert workers(policy, Reading(visible=2_000)) == 20
    assert workers(Largest((Drain(60),)), Reading(visible=1)) is None


def test_queues_of_the_same_workers_are_one_reading() -> None:
    both = combined([Reading(1, 2, 3, 4.0, 5, 6), Reading(10, 20, 30, 1.0, 50, None)])
    assert both == Reading(11, 22, 33, 4.0, 55, None)  # a total that one of them cannot tell is not known


@pytest.mark.parametrize(
    "make",
    [
        lambda: Steps(()),
        lambda: Steps(((5, 1),)),
        lambda: Steps(((0, 5), (500, 2))),
        lambda: Steps(((0, 1), (0, 2))),
        lambda: PerWorker(0),
        lambda: Drain(0),
        lambda: Drain(60, -1),
        lambda: KeepUp(headroom=-1),
        lambda: Sla(float("inf")),
        lambda: Sla(60, aim=2),
        lambda: Largest(()),
    ],
)
def test_what_makes_no_sense_is_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(InvalidInput):
        make()
