"""Where messages go when a queue lies on several shards: by key, by slot, by hints, and how a spread grows."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonq.core.catalog.machine import Catalog, Rules
from batonq.core.commands import Send
from batonq.core.ids import key_hash
from batonq.core.records import PLAIN_VERSION, SPREAD_VERSION
from batonq.core.shard.machine import Shard
from batonq.core.spread import (
    GROWTHS_MAX,
    NUMBER_BITS,
    SLOTS,
    Hint,
    Spread,
    divided,
    even,
    parse,
    shares,
)
from batonq.errors import InvalidAttributeValue
from batonq.queue_attributes import SPREAD_MAX
from tests.support import ask

ACCOUNT = "000000000000"
T0 = 1_700_000_000_000


def send(**fields: str) -> Send:
    return ask.batch(1, [ask.message("x", **fields)])


def catalog(shards: int, **rules: Any) -> Catalog:
    made = Catalog(Rules(**rules))
    made.take_ownership(1, T0)
    made.open_shards(shards, T0)
    return made


def arn(name: str) -> str:
    return f'{{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:{ACCOUNT}:{name}","maxReceiveCount":1}}'


# --- keys and slots -----------------------------------------------------------------------------


def test_a_key_is_the_group_of_a_fifo_queue_else_what_tells_a_repetition() -> None:
    full = send(group="g", dedup_id="d", producer="p")
    assert full.key_at(0, fifo=True) == "g"
    assert full.key_at(0, fifo=False) == "d"
    assert send(group="g", producer="p").key_at(0, fifo=False) == "p"
    assert send(group="tenant").key_at(0, fifo=False) == ""
    assert not ask.batch(1, [ask.message("x", group="tenant"), ask.message("y")]).is_keyed(fifo=False)
    assert ask.batch(1, [ask.message("x"), ask.message("y", dedup_id="d")]).is_keyed(fifo=False)


def test_slots_are_shared_out_evenly_and_a_key_stays_with_its_shard() -> None:
    spread = even([7, 3, 5])
    counts = [spread.slots.count(place) for place in range(3)]
    assert sum(counts) == SLOTS and max(counts) - min(counts) <= 1
    assert spread.of_key("order-17") == spread.of_hash(key_hash("order-17"))
    assert even([4]) == Spread((4,)) and even([4]).of_key("anything") == 4
    assert parse(spread.text()) == spread and parse(even([4]).text()) == Spread((4,))


@given(st.integers(1, 4), st.lists(st.integers(1, 4), min_size=1, max_size=4), st.randoms())
def test_growth_moves_as_few_slots_as_it_can_and_those_who_had_a_key_are_asked_first(
    first: int, growths: list[int], random: Random
) -> None:
    spread = even(range(first))
    ways = [[spread.of_hash(slot)] for slot in range(SLOTS)]
    for more in growths:
        before, have = spread, len(spread.shards)
        spread = spread.grown(range(have, have + more))
        counts = [spread.slots.count(place) for place in range(have + more)]
        assert sum(counts) == SLOTS and max(counts) - min(counts) <= 2
        for slot in range(SLOTS):
            shard = spread.of_hash(slot)
            if shard != before.of_hash(slot):
                assert shard >= have, "none moves between shards that had some"
                ways[slot].append(shard)
    assert [spread.asked(slot) for slot in range(SLOTS)] == ways
    gone: set[int] = set()
    for shard in random.sample(range(len(spread.shards)), len(spread.shards)):
        spread = spread.settled(shard)
        gone.add(shard)
        for slot in range(SLOTS):
            assert spread.asked(slot) == [each for each in ways[slot][:-1] if each not in gone] + ways[slot][-1:]
    assert not spread.before


# --- hints ---------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 4), max_size=6), st.integers(0, (1 << 64) - 1))
def test_the_numbers_of_a_key_rise_when_it_moves(growths: list[int], hashed: int) -> None:
    spread = Spread((7,))
    shards = [7]
    for count in growths:
        spread = spread.grown(range(100 + len(spread.shards), 100 + len(spread.shards) + count))
        shards.append(spread.of_hash(hashed))
    first = [spread.numbers_from(shard) for shard in shards]
    assert first == sorted(first) and first[0] == 0
    assert all(later - before >= 1 << NUMBER_BITS for before, later in pairwise(first) if later != before)
    assert Spread(tuple(range(SPREAD_MAX))).numbers_from(SPREAD_MAX - 1) + (1 << NUMBER_BITS) <= 1 << 53


def test_receives_go_to_the_highest_priority_then_the_oldest_and_here_breaks_ties() -> None:
    low, high = Hint(5, priority=1, since_ms=10), Hint(2, priority=9, since_ms=90)
    assert shares(4, [(0, low), (1, high)], 0, here=[0]) == {1: 2, 0: 2}
    assert shares(1, [(0, low), (1, high)], 0, here=[0]) == {1: 1}
    assert shares(1, [(0, low), (1, high)], 5, here=[]) == {0: 1}, "waiting is worth a step of priority"
    old, young = Hint(9, since_ms=1), Hint(9, since_ms=2)
    assert shares(3, [(0, young), (1, old)], 300, here=[0]) == {1: 3}
    assert list(shares(12, [(0, old), (1, old), (2, Hint(0))], 300, here=[1])) == [1, 0]
    assert shares(3, [(0, Hint(0))], 300, here=[0]) == {}


@given(st.integers(0, 1000), st.lists(st.integers(0, 100), min_size=1, max_size=8))
def test_parts_sum_up_to_the_whole(total: int, weights: list[int]) -> None:
    parts = divided(total, weights)
    assert sum(parts) == total and min(parts) >= 0 and len(parts) == len(weights)
    if any(weights):
        assert all(abs(part - total * weight / sum(weights)) < 1 for part, weight in zip(parts, weights, strict=True))


# --- the catalog ---------------------------------------------------------------------------------


def test_a_queue_is_made_on_so_many_shards_and_its_limits_are_divided() -> None:
    made = catalog(4)
    one = made.create_queue(ACCOUNT, "one", {}, {}, T0)
    assert one.shards == (0,) and one.slots == b"" and "slots" not in one.record()
    wide = made.create_queue(
        ACCOUNT, "wide", {"Baton.Spread": "3", "Baton.MaximumMessages": "100", "Baton.MaximumBytes": "0"}, {}, T0
    )
    assert wide.shards == (1, 2, 3) and wide.spread == even([1, 2, 3])
    assert (wide.policy.messages_max, wide.policy.bytes_max, wide.policy.in_flight_max) == (33, 0, 40_000)
    assert set(made.policies_for_shard(2)) == {wide.number}
    made.validate()
    for refused in ({"Baton.Spread": "5"}, {"Baton.Spread": "0"}, {"Baton.Spread": "3", "Baton.MaximumMessages": "2"}):
        with pytest.raises(InvalidAttributeValue):
            made.create_queue(ACCOUNT, "other", refused, {}, T0)


def test_a_spread_grows_and_never_shrinks() -> None:
    made = catalog(4)
    work = made.create_queue(ACCOUNT, "work", {}, {}, T0)
    version = work.policy_version
    made.changed.clear()
    grown = made.set_attributes(work.number, {"Baton.Spread": "3"}, T0)
    assert grown.shards == (0, 1, 2) and grown.before == bytes(SLOTS), "the first shard is asked about all keys"
    assert grown.policy_version > version and made.changed == {work.number: {0, 1, 2}}
    assert made.set_attributes(work.number, {"Baton.Spread": "3", "DelaySeconds": "1"}, T0).shards == (0, 1, 2)
    assert made.set_attributes(work.number, {"DelaySeconds": "0"}, T0).shards == (0, 1, 2)
    for refused in ("1", "2", "", "5"):
        with pytest.raises(InvalidAttributeValue):
            made.set_attributes(work.number, {"Baton.Spread": refused}, T0)
    made.validate()


def test_a_fifo_queue_on_several_shards_counts_duplicates_by_group() -> None:
    made = catalog(4)
    fifo = {"FifoQueue": "true", "Baton.Spread": "2"}
    with pytest.raises(InvalidAttributeValue, match="messageGroup"):
        made.create_queue(ACCOUNT, "a.fifo", fifo, {}, T0)
    wide = made.create_queue(ACCOUNT, "a.fifo", {**fifo, "DeduplicationScope": "messageGroup"}, {}, T0)
    assert len(wide.shards) == 2
    with pytest.raises(InvalidAttributeValue, match="messageGroup"):
        made.set_attributes(wide.number, {"DeduplicationScope": "queue"}, T0)


def test_a_hot_queue_has_shards_of_its_own() -> None:
    made = catalog(4)
    made.create_queue(ACCOUNT, "cold", {}, {}, T0)
    hot = made.create_queue(ACCOUNT, "hot", {"Baton.OwnShards": "true", "Baton.Spread": "2"}, {}, T0)
    assert hot.shards == (1, 2)
    assert [made.create_queue(ACCOUNT, name, {}, {}, T0).shard for name in "abc"] == [3, 0, 3]
    with pytest.raises(InvalidAttributeValue, match="hold no queue"):
        made.set_attributes(hot.number, {"Baton.Spread": "3"}, T0)
    made.open_shards(5, T0)
    assert made.set_attributes(hot.number, {"Baton.Spread": "3"}, T0).shards == (1, 2, 4)
    made.validate()
    made.delete_queue(hot.number, T0)
    assert made.create_queue(ACCOUNT, "d", {}, {}, T0).shard == 1
    made.validate()


def test_a_shard_is_left_to_the_other_queues() -> None:
    made = catalog(1)
    own = {"Baton.OwnShards": "true"}
    with pytest.raises(InvalidAttributeValue, match=r"no shard for other queues.*--shards"):
        made.create_queue(ACCOUNT, "hot", own, {}, T0)
    hot = made.create_queue(ACCOUNT, "hot", {}, {}, T0)
    with pytest.raises(InvalidAttributeValue, match="no shard for other queues"):
        made.set_attributes(hot.number, own, T0)
    made.open_shards(3, T0)
    assert made.set_attributes(hot.number, own, T0).own_shards
    made.set_attributes(hot.number, {"VisibilityTimeout": "9", **own}, T0)
    made.set_attributes(hot.number, {"Baton.Spread": "2"}, T0)
    with pytest.raises(InvalidAttributeValue, match="no shard for other queues"):
        made.create_queue(ACCOUNT, "warm", own, {}, T0)
    with pytest.raises(InvalidAttributeValue, match="no shard for other queues"):
        made.set_attributes(hot.number, {"Baton.Spread": "3"}, T0)
    assert made.create_queue(ACCOUNT, "cold", {}, {}, T0).shard == 2
    made.validate()


def test_policies_follow_a_dead_letter_queue_that_grows() -> None:
    made = catalog(3)
    dead = made.create_queue(ACCOUNT, "dead", {}, {}, T0)
    work = made.create_queue(ACCOUNT, "work", {"RedrivePolicy": arn("dead")}, {}, T0)
    assert (work.policy.dead_letter_shard, work.policy.dead_letter_spread) == (0, "")
    dead = made.set_attributes(dead.number, {"Baton.Spread": "2"}, T0)
    work = made.queue_by_number(work.number)
    assert parse(work.policy.dead_letter_spread) == dead.spread._replace(before=b"")
    made.validate()


def test_the_rules_may_spread_every_new_standard_queue() -> None:
    made = catalog(3, spread=4)
    assert made.create_queue(ACCOUNT, "a", {}, {}, T0).attributes == {"Baton.Spread": "3"}
    assert made.create_queue(ACCOUNT, "b", {"Baton.Spread": "1"}, {}, T0).shards == (0,)
    assert made.create_queue(ACCOUNT, "c", {"Baton.MaximumMessages": "2"}, {}, T0).shards == (1, 2)
    assert len(made.create_queue(ACCOUNT, "d.fifo", {"FifoQueue": "true"}, {}, T0).shards) == 1
    made.validate()


def test_a_spread_survives_the_log_and_a_base() -> None:
    made = catalog(4)
    made.create_queue(ACCOUNT, "dead", {"Baton.Spread": "2"}, {}, T0)
    made.create_queue(ACCOUNT, "work", {"RedrivePolicy": arn("dead"), "Baton.OwnShards": "true"}, {}, T0)
    based = Catalog()
    based._apply_base(made.version, T0, made.dump())
    based.validate()
    assert based.dump() == made.dump()


def test_only_what_is_about_a_spread_queue_is_written_in_the_newest_format() -> None:
    made = catalog(3)
    dead = made.create_queue(ACCOUNT, "dead", {}, {}, T0)
    work = made.create_queue(ACCOUNT, "work", {"RedrivePolicy": arn("dead")}, {}, T0)
    source, target = Shard(work.shard), Shard(dead.shard)
    source.set_policy(work.policy, T0)
    assert (made.format, source.format, target.format) == (PLAIN_VERSION,) * 3
    made.spread_refused = "Not yet."
    with pytest.raises(InvalidAttributeValue, match=r"Not yet\."):
        made.set_attributes(dead.number, {"Baton.Spread": "2"}, T0)
    made.spread_refused = ""
    made.set_attributes(dead.number, {"Baton.Spread": "2"}, T0)
    source.set_policy(made.queues[work.number].policy, T0)
    target.set_policy(made.queues[dead.number].policy, T0)
    assert (made.format, source.format, target.format) == (SPREAD_VERSION,) * 3
    again, restored = Catalog(), Shard(source.number)
    again._apply_base(made.version, made.last_time_ms, made.dump())
    restored.load(source.save())
    assert (again.format, restored.format) == (SPREAD_VERSION, SPREAD_VERSION)


def test_a_growth_is_over_when_the_shards_that_gave_something_up_say_so() -> None:
    made = catalog(4)
    fifo = {"FifoQueue": "true", "DeduplicationScope": "messageGroup"}
    queue = made.create_queue(ACCOUNT, "a.fifo", fifo, {}, T0)
    assert queue.policy.spread == ""
    grown = made.set_attributes(queue.number, {"Baton.Spread": "2"}, T0)
    assert made.growing == {queue.number} and parse(grown.policy.spread).slots == grown.slots
    made.validate()
    based = Catalog()
    based._apply_base(made.version, T0, made.dump())
    assert based.dump() == made.dump() and based.growing == made.growing
    version = grown.policy_version
    assert made.settle_spread(queue.number, 1, T0).before, "the other shard gave nothing up"
    settled = made.settle_spread(queue.number, 0, T0)
    assert not settled.before and settled.policy_version == version and not made.growing
    assert len(made.set_attributes(queue.number, {"Baton.Spread": "3"}, T0).shards) == 3
    made.validate()


def test_a_queue_grows_so_often_at_a_time() -> None:
    made = catalog(GROWTHS_MAX + 2)
    queue = made.create_queue(ACCOUNT, "a", {}, {}, T0)
    for spread in range(2, GROWTHS_MAX + 2):
        queue = made.set_attributes(queue.number, {"Baton.Spread": str(spread)}, T0)
    made.validate()
    with pytest.raises(InvalidAttributeValue, match="changed too often"):
        made.set_attributes(queue.number, {"Baton.Spread": str(GROWTHS_MAX + 2)}, T0)
