"""Who is next: priority and its ageing, turns of message groups, noisy tenants, returned messages."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonq.core.commands import Send
from batonq.core.records import State
from tests.core.rig import Bench, claim
from tests.support import ask

AGEING_MS = 300_000


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.queue(1)
    yield made
    made.check()


def drain(bench: Bench, queue: int = 1) -> list[str]:
    """Receive and delete one by one until there is nothing left."""
    order = []
    while leases := bench.receive(queue, 1):
        order += bench.bodies(leases)
        bench.delete(queue, *leases)
    return order


# --- priority ---------------------------------------------------------------------------------


def test_the_oldest_comes_first(bench: Bench) -> None:
    bench.send(1, "a", "b", "c")
    assert drain(bench) == ["a", "b", "c"]


def test_higher_priorities_come_first_and_equals_by_age(bench: Bench) -> None:
    for body, priority in (("a", 0), ("b", 255), ("c", 7), ("d", 255), ("e", 0)):
        bench.send(1, body, priority=priority)
    assert drain(bench) == ["b", "d", "c", "a", "e"]


def test_a_message_without_a_priority_is_between_low_and_high(bench: Bench) -> None:
    for body, priority in (("low", 64), ("high", 192), ("normal", 128)):
        bench.send(1, body, priority=priority)
    bench.send(1, "none")
    bench.shard.send([Send(1, [b"none, in a run"])], bench.now)
    assert drain(bench) == ["high", "normal", "none", "none, in a run", "low"]


def test_without_ageing_priority_is_strict(bench: Bench) -> None:
    bench.queue(1, ageing_ms=0)
    bench.send(1, "old", priority=1)
    bench.later(200 * AGEING_MS)
    bench.send(1, "new", priority=2)
    assert drain(bench) == ["new", "old"]


@pytest.mark.parametrize(
    ("waited_ms", "first"), [(2 * AGEING_MS - 1, "new"), (2 * AGEING_MS, "new"), (2 * AGEING_MS + 1, "old")]
)
def test_waiting_is_worth_one_step_each_ageing_time(bench: Bench, waited_ms: int, first: str) -> None:
    bench.send(1, "old", priority=3)
    bench.later(waited_ms)
    bench.send(1, "new", priority=5)
    assert drain(bench)[0] == first


def test_nothing_starves_under_a_stream_of_higher_ones(bench: Bench) -> None:
    """A message is passed only by those that became visible less than an ageing time a step after it."""
    bench.send(1, "low", priority=0)
    steps = 3
    passed = 0
    while True:
        bench.send(1, "high", priority=steps)
        (lease,) = bench.receive(1, 1)
        if bench.bodies([lease]) == ["low"]:
            break
        bench.delete(1, lease)
        passed += 1
        bench.later(60_000)
    assert passed == steps * AGEING_MS // 60_000 + 1


@given(seed=st.integers(0, 1 << 32), groups=st.booleans(), fifo=st.booleans())
def test_the_bound_of_ageing(seed: int, groups: bool, fifo: bool) -> None:
    """Whatever is served, no message of a lower priority that waits at the front of its group is past its bound."""
    bench = Bench()
    bench.queue(1, ageing_ms=1_000, fifo=fifo)
    dice = random.Random(seed)
    in_front_since: dict[int, int] = {}
    waiting: dict[int, tuple[str, int, int]] = {}  # sequence → group, priority, sent
    for number in range(60):
        bench.later(dice.choice((0, 10, 500, 2_000)))
        group = f"g{dice.randint(1, 4)}" if fifo or (groups and dice.random() < 0.7) else ""
        priority = dice.randint(0, 4)
        (sent,) = bench.send(1, str(number), group=group, priority=priority)
        waiting[sent.sequence] = (group, priority, bench.now)
        if dice.random() < 0.7:
            served = bench.receive(1, 1)
            for sequence in fronts(waiting):
                in_front_since.setdefault(sequence, bench.now)
            for lease in served:
                _, high, since_ms = waiting.pop(lease.sequence)
                for other, (_, low, _) in waiting.items():
                    if other in in_front_since and low < high:
                        assert since_ms <= in_front_since[other] + (high - low) * 1_000, "a message is passed too long"
                bench.delete(1, lease)
    bench.check()


def fronts(waiting: dict[int, tuple[str, int, int]]) -> list[int]:
    """Of messages in order of arrival, those at the front of their group or of the ungrouped of their priority."""
    seen = set()
    result = []
    for sequence, (group, priority, _) in waiting.items():
        line = (group, 0 if group else priority)
        if line not in seen:
            seen.add(line)
            result.append(sequence)
    return result


class CountedArray(array):  # type: ignore[type-arg]
    """An array that counts how often it is read."""

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.reads += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("fifo", [True, False])
def test_the_choice_looks_at_the_heads_of_lanes_only(fifo: bool) -> None:
    lanes = 6
    reads = []
    for backlog in (10, 1_000):
        bench = Bench()
        bench.queue(1, fifo=fifo)
        for number in range(backlog):
            for priority in range(lanes):
                group = f"g{number}-{priority}" if fifo or number % 2 else ""
                bench.send(1, "m", priority=priority, group=group)
        counted = CountedArray("Q", bench.shard.columns.until)
        bench.shard.columns.until = counted
        bench.shard.queues[1].ready.best_lane(AGEING_MS)
        assert counted.reads <= lanes * 4
        counted.reads = 0
        bench.receive(1, 1)
        reads.append(counted.reads)
    assert reads[0] == reads[1], "what a choice costs does not depend on the backlog"


# --- groups of standard queues ------------------------------------------------------------------


def test_groups_take_turns(bench: Bench) -> None:
    bench.send(1, "a1", "a2", "a3", group="a")
    bench.send(1, "b1", group="b")
    bench.send(1, "c1", "c2", group="c")
    assert drain(bench) == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_a_message_without_a_group_is_served_by_its_age(bench: Bench) -> None:
    bench.send(1, "a1", "a2", group="a")
    bench.later(1)
    bench.send(1, "alone")
    bench.later(1)
    bench.send(1, "b1", group="b")
    assert drain(bench) == ["a1", "alone", "b1", "a2"]


def in_flight(bench: Bench, group: str, count: int) -> None:
    for _ in range(count):
        bench.send(1, "busy", group=group)
        assert bench.bodies(bench.receive(1, 1, visibility_ms=3_600_000)) == ["busy"]


def test_a_tenant_with_many_in_flight_waits_behind_quiet_ones(bench: Bench) -> None:
    in_flight(bench, "noisy", 30)
    bench.send(1, "n1", "n2", group="noisy")
    bench.later(1_000)
    bench.send(1, "q1", "q2", group="quiet")
    bench.send(1, "alone")
    assert drain(bench) == ["alone", "q1", "q2", "n1", "n2"]


def test_below_thirty_of_its_own_a_tenant_is_not_noisy(bench: Bench) -> None:
    in_flight(bench, "busy", 29)
    bench.send(1, "n1", group="busy")
    bench.later(1_000)
    bench.send(1, "q1", group="quiet")
    assert drain(bench)[0] == "n1"


def test_a_tenth_of_what_is_in_flight_is_not_noisy(bench: Bench) -> None:
    in_flight(bench, "a", 30)
    for number in range(270):
        in_flight(bench, f"other{number}", 1)
    bench.send(1, "a1", group="a")
    bench.later(1_000)
    bench.send(1, "q1", group="quiet")
    assert drain(bench)[0] == "a1"


def test_among_noisy_tenants_the_one_with_the_fewest_in_flight_comes_first(bench: Bench) -> None:
    in_flight(bench, "more", 40)
    in_flight(bench, "less", 35)
    bench.send(1, "m1", group="more")
    bench.send(1, "l1", group="less")
    assert drain(bench) == ["l1", "m1"]


def test_a_tenant_that_takes_most_of_the_processing_time_is_noisy(bench: Bench) -> None:
    """Above a tenth of the recent processing time, while it has something in flight."""
    bench.send(1, "slow", group="slow")
    (lease,) = bench.receive(1, visibility_ms=3_600_000)
    bench.later(100_000)
    bench.delete(1, lease)
    in_flight(bench, "slow", 1)
    bench.send(1, "s1", group="slow")
    bench.later(1_000)
    bench.send(1, "q1", group="quiet")
    assert drain(bench) == ["q1", "s1"]


def test_a_tenant_is_quiet_again_when_its_leases_have_ended(bench: Bench) -> None:
    in_flight(bench, "noisy", 30)
    bench.send(1, "n1", "n2", group="noisy")
    bench.later(1_000)
    bench.send(1, "q1", group="quiet")
    (lease,) = bench.receive(1, 1)
    assert bench.bodies([lease]) == ["q1"]
    bench.shard.purge(1, bench.now)
    bench.send(1, "n3", group="noisy")
    bench.later(1_000)
    bench.send(1, "q2", group="quiet")
    assert drain(bench) == ["n3", "q2"]


# --- returned messages ---------------------------------------------------------------------------


def test_returned_messages_get_every_second_turn(bench: Bench) -> None:
    bench.send(1, "r1", "r2", "r3")
    for lease in bench.receive(1):
        ask.nack(bench.shard, 1, [ask.Nack(claim(lease))], bench.now)
    bench.send(1, "f1", "f2", "f3", "f4")
    assert drain(bench) == ["r1", "f1", "r2", "f2", "r3", "f3", "f4"]


def test_a_returned_message_comes_before_the_rest_of_its_group(bench: Bench) -> None:
    bench.send(1, "a1", "a2", "a3", group="a")
    (lease,) = bench.receive(1, 1)
    ask.nack(bench.shard, 1, [ask.Nack(claim(lease))], bench.now)
    assert drain(bench) == ["a1", "a2", "a3"]


# --- FIFO ------------------------------------------------------------------------------------------


def test_priority_orders_groups_and_never_messages_inside_one(bench: Bench) -> None:
    bench.queue(2, fifo=True)
    bench.send(2, "a1", group="a", priority=0)
    bench.send(2, "a2", group="a", priority=9)
    bench.send(2, "b1", group="b", priority=5)
    assert drain(bench, 2) == ["b1", "a1", "a2"]


def test_a_group_counts_with_the_priority_of_its_first_message(bench: Bench) -> None:
    bench.queue(2, fifo=True)
    bench.send(2, "a1", group="a", priority=1)
    bench.send(2, "a2", group="a", priority=9)
    bench.send(2, "b1", "b2", group="b", priority=5)
    (first,) = bench.receive(2, 1)
    assert bench.bodies([first]) == ["b1"]
    assert bench.bodies(bench.receive(2, 1)) == ["a1"], "group b is locked"
    bench.delete(2, first)
    assert drain(bench, 2) == ["b2"]


def test_groups_of_a_fifo_queue_take_turns(bench: Bench) -> None:
    bench.queue(2, fifo=True)
    bench.send(2, "a1", "a2", group="a")
    bench.send(2, "b1", "b2", group="b")
    order = []
    for _ in range(4):
        (lease,) = bench.receive(2, 1)
        order += bench.bodies([lease])
        bench.delete(2, lease)
    assert order == ["a1", "b1", "a2", "b2"]


def test_lines_are_given_back(bench: Bench) -> None:
    """A group that is empty costs nothing: its line is used for the next one."""
    bench.queue(2, fifo=True)
    for number in range(100):
        for queue in (1, 2):
            bench.send(queue, "m", group=f"g{number}")
            bench.delete(queue, *bench.receive(queue))
    lines = bench.shard.messages.lines
    assert len(lines.key) <= 4
    assert len(lines.free) == len(lines.key)
    assert bench.shard.queues[1].ready.lanes == bench.shard.queues[2].ready.lanes == {}


def test_no_tenant_is_remembered_for_messages_that_are_gone(bench: Bench) -> None:
    bench.send(1, "a", group="a")
    bench.receive(1)
    assert [view.state for view in bench.messages(1)] == [State.IN_FLIGHT]
    bench.shard.purge(1, bench.now)
    assert bench.shard.messages.loose_groups == bench.shard.queues[1].ready.in_flight == {}
