"""The busiest groups in bounded space: none that is busy is missing, and old messages count for less."""

from __future__ import annotations

from array import array
from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from batonq.core.shard.state.busy_groups import EVERY_ONE, GROUPS_KEPT, STRIDE, BusyGroups
from tests.core.rig import Bench


@given(st.lists(st.lists(st.integers(1, 1_000), min_size=1, max_size=50), max_size=40))
@settings(max_examples=50)
def test_a_group_with_a_large_share_always_has_a_counter(runs: list[list[int]]) -> None:
    busy = BusyGroups()
    seen: Counter[int] = Counter()
    for position, groups in enumerate(runs):
        busy.add(array("Q", groups), position << 16)
        seen.update(groups)
        if seen.total() > EVERY_ONE:
            break  # from here on not every message is counted
        assert len(busy.counts) <= 2 * GROUPS_KEPT and busy.counts.keys() == busy.positions.keys()
        for group, count in seen.items():
            if count * GROUPS_KEPT > seen.total():
                assert group in busy.counts, "a busy group is missing"
            assert busy.counts.get(group, 0) <= count


def test_shares_are_close_although_only_some_messages_are_counted() -> None:
    random, busy = Random(1), BusyGroups()
    for position in range(5_000):
        groups = [7 if random.random() < 0.6 else random.randrange(1_000, 100_000) for _ in range(10)]
        busy.add(array("Q", groups), position << 16)
    ((group, share, _), *_) = busy.busiest(10)
    assert group == 7 and 0.5 < share < 0.65
    assert len(busy.counts) <= 2 * GROUPS_KEPT


def test_single_messages_are_counted_one_in_a_few() -> None:
    busy = BusyGroups()
    for position in range(EVERY_ONE + 7 * STRIDE):
        busy.add(array("Q", [1]), position)
    assert EVERY_ONE + 5 <= busy.total <= EVERY_ONE + 8


def test_old_messages_count_for_less() -> None:
    busy = BusyGroups()
    for group in (1, 2):
        for position in range(4_000 if group == 1 else 60_000):
            busy.add(array("Q", [group] * 10), position << 16)
    assert busy.busiest(1)[0][0] == 2 and busy.busiest(1)[0][1] > 0.9


def test_messages_without_a_group_are_not_counted() -> None:
    bench = Bench()
    bench.queue(1)
    bench.send(1, "a", "b")
    assert bench.shard.busiest_groups(1, 10) == [] and bench.shard.counted_groups(1) == 0
    bench.send(1, "c", "d", group="g")
    bench.send(1, "e", group="h")
    first, second = bench.shard.busiest_groups(1, 10)
    assert (first.waiting, second.waiting) == (2, 1) and first.share == 2 / 3
    bench.receive(1)
    assert [group.waiting for group in bench.shard.busiest_groups(1, 10)] == [0, 0]
    bench.commit()
    assert bench.row(first.position).sequence == 3
