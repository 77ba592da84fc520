"""Durability classes: queues lie on shards of the kind that they name, and may change to another."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonq.core.catalog.machine import Catalog, Rules
from batonq.core.records import PLAIN_VERSION, SPREAD_VERSION
from batonq.core.shard.machine import Shard
from batonq.core.spread import NUMBER_BITS, PLACES_MAX, SLOTS, Spread, even, parse, takes
from batonq.errors import InvalidAttributeValue, InvalidInput
from tests.core.catalog_bench import ACCOUNT, T0, Bench, redrive_to

FIFO = {"FifoQueue": "true", "DeduplicationScope": "messageGroup"}


def bench(three: int = 2, one: int = 2, **rules: Any) -> Bench:
    """Shards 0 and 1 have three replicas, 2 and 3 one."""
    made = Bench(Rules(replicas=3, **rules), shards=three)
    made.catalog.open_shards(one, T0, replicas=1)
    return made


# --- kinds of shards ------------------------------------------------------------------------------


def test_shards_of_a_kind_can_become_more_and_never_fewer() -> None:
    made = bench()
    catalog = made.catalog
    assert [catalog.replicas_of(shard) for shard in catalog.shards] == [3, 3, 1, 1]
    assert catalog.open_shards(3, T0, replicas=3) == [4]
    assert catalog.open_shards(1, T0, replicas=5) == [5]
    assert catalog.open_shards(3, T0, replicas=3) == []
    assert catalog.shards_of(3) == [0, 1, 4] and catalog.shards_of(1) == [2, 3] and catalog.shards_of(5) == [5]
    with pytest.raises(InvalidInput, match="cannot be changed from 3 to"):
        catalog.open_shards(2, T0, replicas=3)
    made.check()


def test_a_shard_says_its_kind_only_if_it_is_not_the_log_s_own() -> None:
    made = bench()
    assert [shard.record().get("replicas") for shard in made.catalog.shards.values()] == [None, None, 1, 1]
    assert made.catalog.open_shards(3, T0) == made.catalog.shards_of(3)[2:] == [4]


# --- placing --------------------------------------------------------------------------------------


def test_a_queue_lies_on_shards_of_its_class_and_without_one_on_those_of_the_first_kind() -> None:
    made = bench()
    assert [made.create(f"q{number}").shard for number in range(3)] == [0, 1, 0]
    assert [made.create(f"one{number}", Baton_Durability="1").shard for number in range(3)] == [2, 3, 2]
    assert made.create("wide", Baton_Durability="1", Baton_Spread="2").shards == (3, 2)
    assert made.create("three", Baton_Durability="3").shard == 1
    made.check()


def test_a_class_without_a_shard_is_refused_with_what_to_do() -> None:
    made = bench()
    with pytest.raises(InvalidAttributeValue, match=r"no shard has 5 replicas.*one of 1, 3.*--other-shards 5:2"):
        made.create("q", Baton_Durability="5")
    with pytest.raises(InvalidAttributeValue, match="Must be 1, 3, 5"):
        made.create("q", Baton_Durability="2")
    with pytest.raises(InvalidAttributeValue, match="needs 3 more shards"):
        made.create("q", Baton_Durability="1", Baton_Spread="3")
    assert not made.catalog.queues


def test_growth_and_defaults_of_a_spread_stay_within_a_kind() -> None:
    made = bench(three=3, one=2, spread=3)
    assert made.create("three").shards == (0, 1, 2)
    one = made.create("one", Baton_Durability="1")
    assert one.shards == (3, 4) and one.attributes["Baton.Spread"] == "2"
    own = made.create("narrow", Baton_Durability="1", Baton_Spread="1")
    assert set(made.catalog.set_attributes(own.number, {"Baton.Spread": "2"}, T0).shards) == {3, 4}
    with pytest.raises(InvalidAttributeValue, match="needs 1 more shards"):
        made.catalog.set_attributes(own.number, {"Baton.Spread": "3"}, T0)
    with pytest.raises(InvalidAttributeValue, match="that hold no queue"):
        made.create("hot", Baton_Durability="1", Baton_OwnShards="true")
    made.check()


# --- changing the class ---------------------------------------------------------------------------


def test_a_queue_that_changes_its_class_takes_everything_new_elsewhere_and_leaves_in_time() -> None:
    made = bench()
    catalog = made.catalog
    dead = made.create("dead", Baton_MaximumMessages="9")
    work = made.create("work", RedrivePolicy=redrive_to("dead"))
    moved = catalog.set_attributes(dead.number, {"Baton.Durability": "1"}, T0)
    assert moved.shards == (0, 2) and moved.spread.taking == (2,) and dead.number in catalog.growing
    assert {moved.spread.of_hash(slot) for slot in range(SLOTS)} == {2}
    assert moved.spread.asked(7) == [0, 2], "what was sent before is known there"
    assert not takes(moved.policy.spread, 0) and takes(moved.policy.spread, 2)
    assert moved.policy.messages_max == 4
    linked = catalog.queue_by_number(work.number)
    assert linked.policy.dead_letter_shard == 2 and parse(linked.policy.dead_letter_spread).taking == (2,)
    made.check()
    left = catalog.settle_spread(dead.number, 0, T0)
    assert left.shards == (2,) and left.spread == Spread((2,)) and not catalog.growing
    assert left.policy.messages_max == 9 and left.policy.spread == ""
    assert catalog.queue_by_number(work.number).policy.dead_letter_shard == 2
    assert dead.number not in catalog.policies_for_shard(0)
    made.check()


def test_a_class_that_a_queue_has_already_moves_nothing() -> None:
    made = bench()
    queue = made.create("q")
    assert made.catalog.set_attributes(queue.number, {"Baton.Durability": "3"}, T0).shards == queue.shards
    assert made.catalog.set_attributes(queue.number, {"Baton.Durability": ""}, T0).shards == queue.shards
    moved = made.catalog.set_attributes(queue.number, {"Baton.Durability": "1"}, T0)
    assert made.catalog.set_attributes(queue.number, {"DelaySeconds": "1"}, T0).shards == moved.shards
    back = made.catalog.set_attributes(queue.number, {"Baton.Durability": ""}, T0)
    assert back.spread.taking == (1,), "not the one that it is leaving"
    made.check()


def test_a_class_and_a_wider_spread_may_be_given_at_once() -> None:
    made = bench(three=4)
    queue = made.create("q", Baton_Durability="1", Baton_Spread="2")
    moved = made.catalog.set_attributes(queue.number, {"Baton.Durability": "3", "Baton.Spread": "3"}, T0)
    assert moved.spread.taking == (0, 1, 2)
    grown = made.catalog.set_attributes(queue.number, {"Baton.Spread": "4"}, T0)
    assert grown.spread.taking == (0, 1, 2, 3) and len(grown.shards) == 6
    made.check()


def test_a_fifo_queue_changes_its_class_only_if_its_groups_are_apart() -> None:
    made = bench()
    apart = made.catalog.create_queue(ACCOUNT, "apart.fifo", FIFO, {}, T0)
    assert made.catalog.set_attributes(apart.number, {"Baton.Durability": "1"}, T0).spread.taking == (2,)
    whole = made.create("whole.fifo", FifoQueue="true")
    with pytest.raises(InvalidAttributeValue, match="only with «DeduplicationScope messageGroup»"):
        made.catalog.set_attributes(whole.number, {"Baton.Durability": "1"}, T0)
    made.check()


def test_the_numbers_of_a_fifo_queue_rise_when_it_leaves_a_shard() -> None:
    made = bench()
    queue = made.catalog.create_queue(ACCOUNT, "q.fifo", FIFO, {}, T0)
    made.catalog.set_attributes(queue.number, {"Baton.Durability": "1"}, T0)
    left = made.catalog.settle_spread(queue.number, 0, T0)
    assert (left.shards, left.left, left.link.spread) == ((2,), 1, "")
    shard = Shard(2)
    shard.set_policy(left.policy, T0)
    assert shard.numbers_from(queue.number) == 1 << NUMBER_BITS and not shard.holds_moved(queue.number, T0)
    assert left.spread.place_of_number(7) == (0, 0), "what was on the other shard comes before all that is left"
    assert left.spread.place_of_number(1 << NUMBER_BITS | 7) == (0, 7)
    back = made.catalog.set_attributes(queue.number, {"Baton.Durability": ""}, T0)
    assert parse(back.policy.spread).numbers_from(back.spread.first) == 2 << NUMBER_BITS
    made.check()


def test_a_fifo_queue_has_no_more_shards_in_its_life_than_there_are_numbers_for() -> None:
    made = bench()
    queue = made.catalog.create_queue(ACCOUNT, "q.fifo", FIFO, {}, T0)
    for at in range(PLACES_MAX - 1):
        moved = made.catalog.set_attributes(queue.number, {"Baton.Durability": "3" if at % 2 else "1"}, T0)
        made.catalog.settle_spread(queue.number, moved.shards[0], T0)
    last = made.catalog.queue_by_number(queue.number)
    assert last.spread.numbers_from(last.shard) + (1 << NUMBER_BITS) == 1 << 53
    with pytest.raises(InvalidAttributeValue, match="create a new queue"):
        made.catalog.set_attributes(queue.number, {"Baton.Durability": "3"}, T0)
    made.check()


def test_only_what_is_about_classes_is_written_in_the_newest_format() -> None:
    plain = Catalog(Rules(replicas=3))
    plain.open_shards(2, T0)
    queue = plain.create_queue(ACCOUNT, "q", {}, {}, T0)
    assert plain.format == PLAIN_VERSION
    plain.spread_refused = "Not yet."
    with pytest.raises(InvalidInput, match=r"Not yet\."):
        plain.open_shards(1, T0, replicas=1)
    for values in ({"Baton.Durability": "3"}, {"Baton.Durability": "3", "DelaySeconds": "1"}):
        with pytest.raises(InvalidAttributeValue, match=r"Not yet\."):
            plain.create_queue(ACCOUNT, "named", values, {}, T0)
        with pytest.raises(InvalidAttributeValue, match=r"Not yet\."):
            plain.set_attributes(queue.number, values, T0)
    assert plain.open_shards(3, T0) == [2] and plain.format == PLAIN_VERSION
    plain.spread_refused = ""
    plain.set_attributes(queue.number, {"Baton.Durability": "3"}, T0)
    kinds = Catalog(Rules(replicas=3))
    kinds.open_shards(1, T0, replicas=1)
    for made in (plain, kinds):
        assert made.format == SPREAD_VERSION
        again = Catalog(Rules(replicas=3))
        again._apply_base(made.version, made.last_time_ms, made.dump())
        assert again.format == SPREAD_VERSION and again.dump() == made.dump()


@given(st.integers(1, 4), st.lists(st.tuples(st.booleans(), st.integers(1, 3)), min_size=1, max_size=5), st.randoms())
def test_through_any_growths_and_moves_a_key_is_asked_of_those_who_had_it(
    first: int, steps: list[tuple[bool, int]], random: Random
) -> None:
    spread = even(range(first))
    ways = [[spread.of_hash(slot)] for slot in range(SLOTS)]
    last = first
    for moves, more in steps:
        shards = range(last, last + more)
        last += more
        before = spread
        spread = spread.moved(shards) if moves else spread.grown(shards)
        expected = tuple(shards) if moves else (*before.taking, *shards)
        assert spread.taking == expected
        counts = [sum(spread.of_hash(slot) == shard for slot in range(SLOTS)) for shard in spread.taking]
        assert sum(counts) == SLOTS and max(counts) - min(counts) <= 2
        for slot in range(SLOTS):
            if spread.of_hash(slot) != ways[slot][-1]:
                ways[slot].append(spread.of_hash(slot))
    assert [spread.asked(slot) for slot in range(SLOTS)] == ways
    taking, gone = spread.taking, set()
    for shard in random.sample(range(last), last):
        spread = spread.settled(shard)
        gone.add(shard)
        left = next(each for each in range(last) if each in taking or each not in gone)
        assert spread.taking == taking and spread.shards == tuple(range(left, last)) and spread.left == left
        assert all(spread.numbers_from(each) == each << NUMBER_BITS for each in spread.shards)
        assert parse(spread.text()) == spread
        for slot in range(SLOTS):
            assert spread.asked(slot) == [each for each in ways[slot][:-1] if each not in gone] + ways[slot][-1:]
    assert spread.before == b"" and spread.shards == taking
