"""The timer wheel against a list of entries: nothing due is missed, nothing comes early, nothing is scanned."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonq.core.shard.state.timer_wheel import Wheel

NEVER_MS = (1 << 64) - 1
SLOTS = 20
START_MS = 1_700_000_000_000

# A step moves one slot's timer (far, near, or into the past) or lets time pass.
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, SLOTS - 1), st.sampled_from((0, 1, 90, 200, 5_000, 70_000, 600_000))),
        st.tuples(st.just("pass"), st.sampled_from((0, 1, 127, 128, 1_000, 65_535, 65_536, 400_000)), st.just(0)),
        st.tuples(st.just("reload"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@given(steps, st.integers(0, 100_000))
def test_every_timer_comes_out_once_when_it_is_due(script: list[tuple[str, int, int]], offset: int) -> None:
    wheel = Wheel(7, 16)
    column = array("Q", [NEVER_MS]) * SLOTS
    now = START_MS + offset
    wheel.advance(now, column, 1000)
    for deed, number, value in script:
        if deed == "set":
            due = now + value
            if due < column[number]:  # as the shard does: an earlier entry is found and looked at anyway
                column[number] = due
                wheel.push(due, number)
        elif deed == "reload":
            other = Wheel(7, 16)
            other.load(wheel.save())
            wheel = other
        else:
            now += number
            came = set()
            for due, slot in wheel.advance(now, column, 1000):
                if column[slot] == due:
                    came.add(slot)
                    column[slot] = NEVER_MS
            late = {slot for slot in range(SLOTS) if column[slot] <= now}
            assert not late, "a timer that is due did not come out"
            assert all(slot < SLOTS for slot in came)
        first = min(column)
        due_next = wheel.next_due()
        assert first == NEVER_MS or (due_next is not None and due_next <= first), "the next call would be late"


@pytest.mark.parametrize("opened_max", [1, 3, 100])
@pytest.mark.parametrize("limit", [1, 4])
def test_one_step_opens_a_bounded_part_of_a_bucket(
    monkeypatch: pytest.MonkeyPatch, opened_max: int, limit: int
) -> None:
    monkeypatch.setattr("batonq.core.shard.state.timer_wheel.OPENED_MAX", opened_max)
    wheel = Wheel(7, 16)
    dues = array("Q", [200_000 + number % 3 for number in range(50)])
    wheel.advance(1, dues, limit)
    for slot, due in enumerate(dues):
        wheel.push(due, slot)
    assert wheel.advance(199_999, dues, limit) == []
    came: list[int] = []
    steps = 0
    while (due_next := wheel.next_due()) is not None and due_next <= 200_010:
        held = len(wheel._near)
        found = wheel.advance(200_010, dues, limit)
        assert len(found) <= limit
        assert len(wheel._near) + len(found) - held <= max(limit, opened_max)
        came += [slot for _, slot in found]
        steps += 1
        if steps == 5:  # half opened
            other = Wheel(7, 16)
            other.load(wheel.save())
            wheel = other
    assert sorted(came) == [*range(50)] and len(wheel) == 0


def test_entries_come_in_order_of_due_time() -> None:
    wheel = Wheel(7, 16)
    dues = array("Q", [300, 100, 70_000, 200, 65_000])
    for slot, due in enumerate(dues):
        wheel.push(due, slot)
    assert wheel.advance(100_000, dues, 10) == [(100, 1), (200, 3), (300, 0), (65_000, 4), (70_000, 2)]


def test_nothing_comes_early() -> None:
    wheel = Wheel(7, 16)
    dues = array("Q", [70_000])
    wheel.push(70_000, 0)
    assert wheel.advance(69_999, dues, 10) == []
    assert wheel.advance(70_000, dues, 10) == [(70_000, 0)]


def test_the_limit_leaves_the_rest_for_the_next_call() -> None:
    wheel = Wheel(7, 16)
    dues = array("Q", [5] * 10)
    wheel.push_run(5, range(10))
    assert len(wheel.advance(10, dues, 4)) == 4
    assert wheel.next_due() == 5
    assert len(wheel.advance(10, dues, 100)) == 6
    assert len(wheel) == 0


def test_a_moved_timer_is_dropped_where_it_was() -> None:
    wheel = Wheel(7, 16)
    dues = array("Q", [1_000_000])
    wheel.push(1_000_000, 0)
    dues[0] = 200_000
    wheel.push(200_000, 0)
    assert wheel.advance(300_000, dues, 10) == [(200_000, 0)]
    dues[0] = NEVER_MS
    assert wheel.advance(2_000_000, dues, 10) == []
    assert len(wheel) == 0


def test_a_far_timer_costs_four_bytes() -> None:
    wheel = Wheel(7, 16)
    wheel.push_run(10_000_000, range(10_000))
    sections = wheel.save()
    assert sum(map(len, sections.values())) <= 10_000 * 4 + 200


def test_advancing_does_not_look_at_buckets_that_are_not_due() -> None:
    """A column that cannot be read stands for the timers of far buckets."""
    wheel = Wheel(7, 16)
    wheel.push_run(10_000_000, range(1_000))
    nothing: array[int] = array("Q")
    for now in range(0, 9_000_000, 300_000):
        assert wheel.advance(now, nothing, 10) == []
    with pytest.raises(IndexError):
        wheel.advance(10_000_000, nothing, 10)
