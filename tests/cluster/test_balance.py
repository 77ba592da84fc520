"""Who should own what: plain numbers in, a decision out."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batonq.node.cluster import balance
from batonq.node.cluster.balance import Load, Move

WEIGHTS = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d"]),
    st.dictionaries(st.integers(0, 31), st.floats(1, 50), max_size=8),
    min_size=1,
)


def test_the_node_with_most_gives_to_the_one_with_least() -> None:
    weights = {"a": {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}, "b": {4: 1.0, 5: 1.0}, "c": {}}
    assert balance.next_move(weights) == Move(0, "a", "c")


def test_nodes_that_differ_by_one_idle_shard_are_left_alone() -> None:
    assert balance.next_move({"a": {0: 1.0, 1: 1.0}, "b": {2: 1.0}}) is None
    assert balance.next_move({"a": {0: 1.0}}) is None
    assert balance.next_move({}) is None


def test_it_is_load_that_counts_not_how_many_shards() -> None:
    weights = {"a": {0: 9.0, 1: 4.0}, "b": {2: 1.0, 3: 1.0, 4: 1.0}}
    assert balance.next_move(weights) == Move(1, "a", "b")


def test_one_shard_that_is_all_the_load_stays() -> None:
    assert balance.next_move({"a": {0: 50.0}, "b": {}}) is None


def test_a_node_that_is_drained_is_given_nothing() -> None:
    weights = {"a": {0: 1.0, 1: 1.0, 2: 1.0}, "b": {}, "c": {3: 1.0}}
    assert balance.next_move(weights, full=["b"]) == Move(0, "a", "c")
    assert balance.lightest(weights, ["a", "b"]) == "c"
    assert balance.lightest({"a": {}}, ["a"]) is None


@given(WEIGHTS)
@example({"a": {}, "b": {0: 11.0, 1: 11.0, 2: 5.412350159413995}})  # the last would only change sides
def test_moving_comes_to_an_end_and_each_move_evens_things_out(weights: dict[str, dict[int, float]]) -> None:
    seen: set[int] = set()
    shards: dict[str, dict[int, float]] = {}
    for node, held in weights.items():  # a shard has one owner
        shards[node] = {number: weight for number, weight in held.items() if number not in seen}
        seen |= held.keys()
    for _ in range(200):
        move = balance.next_move(shards)
        if move is None:
            return
        before = [sum(shards[move.source].values()), sum(shards[move.target].values())]
        shards[move.target][move.shard] = shards[move.source].pop(move.shard)
        after = [sum(shards[move.source].values()), sum(shards[move.target].values())]
        assert max(after) < max(before)
    raise AssertionError("shards move round and round")


def test_who_has_more_waits_longer() -> None:
    waits = [balance.backoff_s(owned, 0.0) for owned in range(30)]
    assert waits == sorted(waits) and waits[0] < waits[3] and waits[-1] <= balance.BACKOFF_MAX_S


@pytest.mark.parametrize(
    ("others", "off"), [([], 0), ([10, 20], -10), ([60_000, 60_100], -60_000), ([-5_000, -5_001, 3], 2_500)]
)
def test_the_clock_is_compared_with_the_median(others: list[int], off: int) -> None:
    assert abs(balance.clock_off_ms(others) - off) <= 1


def test_each_kind_of_load_weighs() -> None:
    idle = Load().weight
    for load in (Load(rows_per_s=5_000), Load(reads_per_s=5_000), Load(bytes=8 << 30), Load(leases=100_000)):
        assert load.weight >= idle + 1
