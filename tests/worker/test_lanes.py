"""Which lane is asked next: the shares come out, and no lane starves, whatever the lanes hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonq.worker.lanes import Lane, Lanes

WEIGHTS = st.floats(0.1, 10, allow_nan=False)


def served(lanes: Lanes, stock: dict[str, int], free: int, rounds: int, now: float = 0.0) -> list[str]:
    """Play the poller: so many rounds of filling free slots from what the lanes hold."""
    taken: list[str] = []
    for number in range(rounds):
        lanes.begin()
        room = free
        while ask := lanes.next(room, now + number):
            assert 1 <= ask.wanted <= room
            got = min(ask.wanted, stock[ask.lane.queue])
            stock[ask.lane.queue] -= got
            lanes.took(ask.lane, ask.wanted, got, now + number)
            taken += [ask.lane.queue] * got
            room -= got
    return taken


@given(st.lists(WEIGHTS, min_size=1, max_size=6), st.integers(1, 70))
def test_busy_lanes_share_by_weight(weights: list[float], free: int) -> None:
    lanes = Lanes([Lane(str(number), weight) for number, weight in enumerate(weights)])
    taken = served(lanes, {str(number): 1_000_000 for number in range(len(weights))}, free, 40)
    assert len(taken) == 40 * free
    for number, weight in enumerate(weights):
        share = len(taken) * weight / sum(weights)
        # Stride scheduling is never off by more than one message a lane, whatever the weights.
        assert abs(taken.count(str(number)) - share) <= len(weights) + 1


@given(st.lists(WEIGHTS, min_size=2, max_size=6), st.integers(1, 20), st.data())
def test_a_fair_lane_with_messages_is_never_passed_over(weights: list[float], free: int, data: st.DataObject) -> None:
    """Between two messages of a busy lane there are no more of the others than its weight allows."""
    names = [str(number) for number in range(len(weights))]
    lanes = Lanes([Lane(name, weight) for name, weight in zip(names, weights, strict=True)])
    stock = {name: data.draw(st.integers(0, 200)) for name in names}
    stock["0"] = 10_000
    taken = served(lanes, stock, free, 30)
    longest = max((len(run) for run in "".join(taken).split("0")), default=0)
    allowed = sum(weights[1:]) / weights[0] + 2 * len(weights)
    # Within one filling of the slots the order is the lanes', not the messages', and two fillings may meet.
    assert longest <= allowed + 2 * free


@given(st.integers(2, 6), st.integers(1, 70), st.integers(1, 30), st.integers(0, 5))
def test_no_lane_starves_under_strict_order(count: int, free: int, patience: int, empty: int) -> None:
    """Every lane with messages gets at least one of patience + slots messages for each lane, if slowly."""
    names = [str(number) for number in range(count)]
    lanes = Lanes([Lane(name) for name in names], "strict", patience=patience)
    stock = {name: 0 if number == empty and number < count - 1 else 1_000_000 for number, name in enumerate(names)}
    rounds = 10 * count * (patience // free + 2)
    taken = served(lanes, stock, free, rounds)
    window = (patience + free) * count + free
    for name in names:
        if stock[name]:
            gaps = [len(run) for run in "".join(taken).split(name)]
            assert max(gaps) <= window, f"lane {name} waited for {max(gaps)} messages of the others"


def test_strict_takes_the_first_lane_first() -> None:
    lanes = Lanes([Lane("paid"), Lane("free")], "strict", patience=10)
    taken = served(lanes, {"paid": 9, "free": 100}, free=3, rounds=5)
    assert taken == ["paid"] * 9 + ["free"] * 6


def test_strict_asks_the_first_lane_again_in_every_round() -> None:
    lanes = Lanes([Lane("paid"), Lane("free")], "strict")
    assert served(lanes, {"paid": 0, "free": 100}, free=3, rounds=2) == ["free"] * 6
    assert served(lanes, {"paid": 2, "free": 100}, free=3, rounds=1, now=2) == ["paid", "paid", "free"]


def test_a_lane_that_had_nothing_does_not_catch_up() -> None:
    lanes = Lanes([Lane("a"), Lane("b")], probe_s=0.5)
    stock = {"a": 1000, "b": 0}
    assert served(lanes, stock, free=10, rounds=20) == ["a"] * 200
    stock["b"] = 1000
    taken = served(lanes, stock, free=10, rounds=2, now=100)
    assert taken.count("b") == 10


def test_an_empty_lane_is_asked_again_after_a_while_only() -> None:
    lanes = Lanes([Lane("a"), Lane("b")], probe_s=1.0)
    lanes.took(lanes.lanes[1], 5, 0, now=10.0)
    lanes.begin()
    ask = lanes.next(4, 10.5)
    assert ask is not None and ask.lane.queue == "a" and ask.wanted == 4
    lanes.took(ask.lane, 4, 0, now=10.5)
    assert lanes.next(4, 10.6) is None  # all are empty: time for a long poll
    lanes.begin()
    ask = lanes.next(4, 11.0)
    assert ask is not None and ask.lane.queue == "b"


def test_what_a_long_poll_brought_makes_a_lane_busy() -> None:
    lanes = Lanes([Lane("a"), Lane("hooks-*")], probe_s=100.0)
    for lane in lanes.lanes:
        lanes.took(lane, 1, 0, now=0.0)
    assert lanes.next(1, 1.0) is None
    lanes.woken("hooks-7", 1)
    lanes.begin()
    ask = lanes.next(1, 1.0)
    assert ask is not None and ask.lane.queue == "hooks-*"


def test_a_pattern_holds_the_queues_that_it_matches() -> None:
    lane = Lane("hooks-*")
    assert lane.is_pattern and lane.holds("hooks-1") and not lane.holds("mail")
    assert Lane("mail").holds("mail") and not Lane("mail").is_pattern


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Lanes([]), "at least one lane"),
        (lambda: Lanes([Lane("a"), Lane("a")]), "two lanes"),
        (lambda: Lanes([Lane("a")], "random"), "fair"),  # type: ignore[arg-type]
        (lambda: Lanes([Lane("a")], patience=0), "patience"),
        (lambda: Lane(""), "needs a queue name"),
        (lambda: Lane("a", 0), "greater than 0"),
    ],
)
def test_bad_lanes_are_refused(make: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()  # type: ignore[operator]
