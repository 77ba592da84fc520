"""A burst of 50,000 messages in 30 s, simulated: no policy flaps, and none misses its SLA."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from batonq.scaling import Autoscale, Drain, KeepUp, Largest, PerWorker, Policy, Reading, Scaler, Sla, Steps
from batonq.scaling.simulator import Outcome, World, simulate

BURST = 50_000
BURST_S = 30
SLA_S = 120
RATE = 20.0  # messages a second a worker
MAXIMUM = 100
HOUR_S = 3600


def burst_at(begin_s: float, steady: float = 0.0) -> World:
    def arrivals(now: float) -> float:
        return steady + (BURST / BURST_S if begin_s <= now < begin_s + BURST_S else 0.0)

    return World(arrivals, RATE, start_s=10)


POLICIES: dict[str, Policy] = {
    "steps": Steps(((0, 2), (500, 20), (2_000, 50), (10_000, 100))),
    "messages per worker": PerWorker(100),
    "drain time": Drain(60, RATE),
    "drain time, measured": Drain(30),
    "sla": Sla(SLA_S, RATE),
    "sla, measured": Sla(SLA_S),
    "several": Largest((PerWorker(500), Sla(SLA_S), KeepUp(RATE))),
}


def check(outcome: Outcome) -> None:
    assert outcome.sent == pytest.approx(outcome.done)
    assert outcome.oldest_s <= SLA_S
    assert outcome.turns == 1  # up, then down, and that is all
    assert outcome.workers[-1] == 2
    assert all(2 <= workers <= MAXIMUM for workers in outcome.workers)


@pytest.mark.parametrize("name", POLICIES)
def test_a_burst_neither_flaps_nor_misses_its_sla(name: str) -> None:
    check(simulate(Scaler(POLICIES[name], 2, MAXIMUM), burst_at(100), HOUR_S))


@pytest.mark.parametrize("name", POLICIES)
def test_with_readings_that_scatter(name: str) -> None:
    random_ = random.Random(name)

    def seen(reading: Reading) -> Reading:
        return replace(reading, visible=round(reading.visible * random_.uniform(0.8, 1.2)))

    outcome = simulate(Scaler(POLICIES[name], 2, MAXIMUM), replace(burst_at(100, steady=10), seen=seen), HOUR_S)
    assert outcome.oldest_s <= SLA_S
    assert outcome.turns <= 1
    assert outcome.workers[-1] == 2


def test_what_baton_worker_does_with_two_numbers() -> None:
    """`--autoscale 2:100` and nothing else."""
    check(simulate(Autoscale.parse("2:100").scaler(), burst_at(100), HOUR_S))


def test_with_depth_alone() -> None:
    """What any SQS endpoint tells: three numbers, no totals, no age."""
    world = replace(burst_at(100), seen=lambda reading: Reading(reading.visible, reading.in_flight))
    check(simulate(Scaler(PerWorker(100), 2, MAXIMUM), world, HOUR_S))


def test_a_scaler_costs_less_than_the_peak_all_the_time() -> None:
    outcome = simulate(Scaler(Sla(SLA_S), 2, MAXIMUM), burst_at(100), HOUR_S)
    assert outcome.worker_seconds < 0.25 * MAXIMUM * HOUR_S


def test_the_simulator_sees_a_missed_sla_and_a_flapping_policy() -> None:
    """A witness for the tests above: with too few workers the SLA is missed, and without a pace the number flaps."""
    from batonq.scaling import Pace

    slow = simulate(Scaler(PerWorker(100), 2, 4), burst_at(100), HOUR_S)
    assert slow.oldest_s > SLA_S
    random_ = random.Random(1)
    nervous = Pace(up_cooldown_s=0, down_window_s=0, down_cooldown_s=0, down_share=1, tolerance=0)
    world = World(lambda now: random_.uniform(0, 400), RATE)
    assert simulate(Scaler(PerWorker(10), 2, MAXIMUM, nervous), world, HOUR_S).turns > 20


def test_lanes_have_policies_of_their_own() -> None:
    """The paid lane is quick and never waits for the free one, whose burst it does not see."""
    paid = simulate(Autoscale.parse("5:50,per-worker=10,sla=30").scaler(), replace(burst_at(9e9, 40)), HOUR_S)
    free = simulate(Autoscale.parse("2:20,steps=0:2/5000:20").scaler(), burst_at(100), HOUR_S)
    assert paid.oldest_s <= 30
    assert free.oldest_s > paid.oldest_s
    assert max(free.workers) == 20
