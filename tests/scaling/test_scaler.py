"""The scaler: limits always hold, up is quick, down is slow, and noise does not make it flap."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonq.errors import InvalidInput
from batonq.scaling import Decision, Pace, PerWorker, Policy, Reading, Scaler, Steps

PACE = Pace(up_cooldown_s=10, down_window_s=300, down_cooldown_s=60, down_share=0.5, tolerance=0.1)


class Lane:
    """A scaler with a pool that always does as it is told."""

    def __init__(self, policy: Policy, minimum: int = 2, maximum: int = 50, pace: Pace = PACE) -> None:
        self.scaler = Scaler(policy, minimum, maximum, pace)
        self.workers = minimum

    def at(self, second: float, depth: int) -> Decision:
        decision = self.scaler.decide(Reading(visible=depth), second, self.workers)
        self.workers = decision.workers
        return decision


def test_up_at_once() -> None:
    lane = Lane(PerWorker(100))
    assert lane.at(0, 0).workers == 2
    decision = lane.at(5, 3_000)
    assert (decision.before, decision.workers, decision.wanted) == (2, 30, 30)
    assert decision.why == "3,000 messages ÷ 100 messages per worker"


def test_a_second_rise_waits_for_its_cool_down() -> None:
    lane = Lane(PerWorker(100))
    lane.at(0, 1_000)
    assert "next one in" in lane.at(5, 3_000).why
    assert lane.workers == 10
    assert lane.at(10, 3_000).workers == 30


def test_down_slowly() -> None:
    """Only when nothing else was wished for in the window, by half at most, with a cool-down between."""
    lane = Lane(PerWorker(100))
    lane.at(0, 5_000)
    numbers = {second: lane.at(second, 0).workers for second in range(5, 700, 5)}
    falls = [(second, after) for (_, before), (second, after) in pairwise(numbers.items()) if after < before]
    assert falls == [(300, 25), (360, 13), (420, 7), (480, 4), (540, 2)]


def test_down_only_as_far_as_the_window_wished() -> None:
    lane = Lane(PerWorker(100))
    lane.at(0, 5_000)
    lane.at(200, 3_500)
    assert lane.at(250, 0).workers == 50
    assert lane.at(301, 0).workers == 35


def test_a_wish_that_returns_starts_the_window_again() -> None:
    lane = Lane(PerWorker(100))
    lane.at(0, 5_000)
    lane.at(290, 5_000)
    assert lane.at(400, 0).workers == 50
    assert "the maximum of the last 300 s was" in lane.at(589, 0).why
    assert lane.at(590, 0).workers == 25


def test_a_minimum_of_warm_workers() -> None:
    scaler = Scaler(PerWorker(100), 3, 50)
    decision = scaler.decide(Reading(), 0, 0)
    assert (decision.workers, decision.why) == (3, "the minimum is 3")


def test_more_than_the_maximum_go_at_once() -> None:
    assert Scaler(PerWorker(100), 3, 50).decide(Reading(visible=10**6), 0, 80).workers == 50


def test_the_maximum_is_told() -> None:
    why = Lane(PerWorker(100)).at(0, 90_000).why
    assert why == "90,000 messages ÷ 100 messages per worker = 900; the maximum is 50"


def test_a_policy_that_cannot_tell_changes_nothing() -> None:
    class Silent:
        def wish(self, reading: object, rates: object) -> None:
            return None

    decision = Scaler(Silent(), 1, 9).decide(Reading(visible=10**6), 0, 4)
    assert (decision.workers, decision.wanted, decision.changes) == (4, None, False)


def test_scaling_to_zero_is_allowed_when_asked_for() -> None:
    lane = Lane(PerWorker(100), minimum=0)
    lane.at(0, 100)
    lane.at(300, 0)
    assert lane.workers == 0
    assert lane.at(301, 1).workers == 1


@pytest.mark.parametrize(("minimum", "maximum"), [(5, 2), (-1, 2), (0, 0)])
def test_limits_that_are_no_range_are_refused(minimum: int, maximum: int) -> None:
    with pytest.raises(InvalidInput, match="2:50"):
        Scaler(PerWorker(1), minimum, maximum)


# --- properties ---------------------------------------------------------------------------------

policies = st.one_of(
    st.integers(1, 500).map(PerWorker),
    st.just(Steps(((0, 2), (500, 20), (2_000, 50)))),
)
depths = st.lists(st.integers(0, 20_000), min_size=1, max_size=200)


@given(policies, depths, st.integers(0, 10), st.integers(0, 60), st.integers(0, 100))
def test_limits_hold_whatever_happens(policy: Policy, seen: list[int], minimum: int, more: int, start: int) -> None:
    scaler = Scaler(policy, minimum, max(1, minimum + more), PACE)
    workers = start
    for number, depth in enumerate(seen):
        workers = scaler.decide(Reading(visible=depth), number * 7.0, workers).workers
        assert minimum <= workers <= max(1, minimum + more)


@given(policies, depths)
def test_no_fall_follows_a_rise_within_the_window(policy: Policy, seen: list[int]) -> None:
    """So that however wild the readings are, it turns at most twice in each window."""
    lane = Lane(policy)
    risen: float | None = None
    fallen: float | None = None
    for number, depth in enumerate(seen):
        now = number * 7.0
        decision = lane.at(now, depth)
        if decision.workers > decision.before:
            assert risen is None or now - risen >= PACE.up_cooldown_s
            risen = now
        elif decision.workers < decision.before:
            assert risen is None or now - risen >= PACE.down_window_s
            assert fallen is None or now - fallen >= PACE.down_cooldown_s
            assert decision.before - decision.workers <= max(1, decision.before // 2)
            fallen = now


@given(
    policies,
    st.integers(0, 5_000),
    st.lists(st.floats(-0.3, 0.3), min_size=100, max_size=400),
)
def test_noise_around_a_level_does_not_make_it_flap(policy: Policy, level: int, noise: list[float]) -> None:
    """The readings of a steady queue scatter by up to 30 %: the number goes up to what the peaks ask for. It falls only
    when no peak came for a whole window, and never goes up and down in turn."""
    lane = Lane(policy)
    numbers = [lane.at(number * 5.0, max(0, round(level * (1 + part)))).workers for number, part in enumerate(noise)]
    moves = [after - before for before, after in pairwise(numbers) if after != before]
    turns = sum((first > 0) != (second > 0) for first, second in pairwise(moves))
    assert turns <= 2 * (len(noise) * 5.0 // PACE.down_window_s)
    assert len(moves) <= 20


@given(st.integers(10, 4_000), st.lists(st.floats(-0.05, 0.05), min_size=100, max_size=400))
def test_noise_within_the_tolerance_changes_nothing(level: int, noise: list[float]) -> None:
    lane = Lane(PerWorker(100), minimum=1, maximum=100)
    settled = lane.at(0, round(level * 1.05)).workers
    for number, part in enumerate(noise):
        decision = lane.at(10 + number * 5.0, round(level * (1 + part)))
        # Whole workers: a difference of one may be more than the tolerance, and shows once at most.
        assert settled - max(1, settled // 10) <= decision.workers <= settled
