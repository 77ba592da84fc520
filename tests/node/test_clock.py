"""Shard time: never back, never jumped, steps of the wall clock worked off by at most a tenth."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from batonq.node.clock import Clock


class Hands:
    """The two clocks of a machine, set by hand."""

    def __init__(self) -> None:
        self.monotonic_s = 100.0
        self.wall_s = 1_700_000_000.0

    def run(self, seconds: float) -> None:
        self.monotonic_s += seconds
        self.wall_s += seconds

    def clock(self) -> Clock:
        return Clock(lambda: self.monotonic_s, lambda: self.wall_s)


def test_it_shows_the_wall_clock_and_runs_with_the_monotonic_one() -> None:
    hands = Hands()
    clock = hands.clock()
    assert clock.now_ms() == 1_700_000_000_000
    hands.run(2.5)
    assert clock.now_ms() == 1_700_000_002_500


def test_a_step_forward_is_worked_off_at_a_tenth() -> None:
    hands = Hands()
    clock = hands.clock()
    hands.wall_s += 60
    hands.run(1)
    at_ms = clock.now_ms()
    assert at_ms == 1_700_000_001_000
    hands.run(10)
    assert clock.now_ms() - at_ms == 11_000
    for _ in range(600):
        hands.run(1)
        clock.now_ms()
    assert abs(hands.wall_s * 1000 - clock.now_ms()) <= 2
    at_ms = clock.now_ms()
    hands.run(10)
    assert abs(clock.now_ms() - at_ms - 10_000) <= 2


def test_a_step_back_slows_it_down_and_never_turns_it() -> None:
    hands = Hands()
    clock = hands.clock()
    hands.wall_s -= 3600
    hands.run(1)
    at_ms = clock.now_ms()
    hands.run(10)
    assert clock.now_ms() - at_ms == 9_000


def test_a_correction_ends_where_it_should_even_when_nobody_looks_for_a_long_time() -> None:
    hands = Hands()
    clock = hands.clock()
    hands.wall_s += 5
    hands.run(1)
    clock.now_ms()
    hands.run(10_000)
    assert abs(clock.now_ms() - hands.wall_s * 1000) <= 1


def test_a_base_ahead_of_the_wall_clock_is_kept_and_worked_off() -> None:
    hands = Hands()
    clock = hands.clock()
    clock.raise_to(1_700_000_060_000)
    assert clock.now_ms() == 1_700_000_060_000
    hands.run(10)
    assert clock.now_ms() == 1_700_000_069_000


def test_a_base_behind_the_wall_clock_changes_nothing() -> None:
    hands = Hands()
    clock = hands.clock()
    clock.raise_to(1_600_000_000_000)
    assert clock.now_ms() == 1_700_000_000_000


def test_tests_move_it_forward_and_it_stays_there() -> None:
    hands = Hands()
    clock = hands.clock()
    clock.advance(30_000)
    assert clock.now_ms() == 1_700_000_030_000
    hands.run(100)
    assert clock.now_ms() == 1_700_000_130_000
    assert clock.seconds_until(1_700_000_131_000) == 1.0


def test_a_lead_from_before_a_restart_can_be_kept() -> None:
    hands = Hands()
    clock = hands.clock()
    clock.raise_to(1_700_003_600_000, keep_lead=True)
    hands.run(1000)
    assert clock.now_ms() == 1_700_004_600_000


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(-100, 100)), max_size=40))
def test_between_any_two_looks_it_runs_by_nine_to_eleven_tenths(steps: list[tuple[float, float]]) -> None:
    hands = Hands()
    clock = hands.clock()
    before_ms = clock.now_ms()
    for passed_s, step_s in steps:
        hands.wall_s += step_s
        hands.run(passed_s)
        now_ms = clock.now_ms()
        assert passed_s * 900 - 2 <= now_ms - before_ms <= passed_s * 1100 + 2
        before_ms = now_ms


def test_it_is_set_at_once_only_when_asked_and_far_off() -> None:
    hands = Hands()
    clock = hands.clock()
    for step_s in (3_600, -7_200):
        hands.wall_s += step_s
        before_ms = clock.now_ms()
        clock.set()
        assert clock.now_ms() == before_ms + step_s * 1000
    hands.wall_s += 0.5
    before_ms = clock.now_ms()
    clock.set()
    assert clock.now_ms() == before_ms


def test_what_tests_have_moved_it_forward_by_outlives_being_set() -> None:
    hands = Hands()
    clock = hands.clock()
    clock.advance(90_000)
    hands.wall_s += 3_600
    clock.set()
    assert clock.now_ms() == int(hands.wall_s * 1000) + 90_000


def test_it_follows_another_clock_when_told_to() -> None:
    hands = Hands()
    clock = hands.clock()
    clock.follow(lambda: hands.monotonic_s + 1_699_999_900.0)
    hands.wall_s += 3_600
    for _ in range(100):
        hands.run(1)
        assert clock.now_ms() == int((hands.monotonic_s + 1_699_999_900.0) * 1000)
