"""The index finds exactly the subscriptions that match, and asks only those that can."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batonq.core.payload import Attribute
from batonq.core.topics import filters
from batonq.core.topics.filter_index import FilterIndex
from batonq.core.topics.filters import parse_filter
from batonq.core.topics.message_values import BodyValues, Paths
from batonq.core.topics.ranges import RangeTable
from batonq.errors import InvalidInput
from tests.core.filter_model import ATTRIBUTES, BODY, Message, messages, naive_matches, numbers, policies


def no_body(paths: Paths) -> BodyValues:
    raise AssertionError("the body was read")


scoped = st.sampled_from([ATTRIBUTES, BODY]).flatmap(lambda scope: st.tuples(policies(scope), st.just(scope)))
changes = st.lists(st.tuples(st.integers(0, 8), st.none() | scoped), min_size=1, max_size=30)


@settings(max_examples=200)
@given(changes, st.lists(messages, min_size=1, max_size=4))
def test_the_index_finds_what_a_scan_finds(some: list[tuple[int, tuple[str, str] | None]], sent: list[Message]) -> None:
    index = FilterIndex()
    expected: dict[int, tuple[str, str] | None] = {}
    for at, (number, policy) in enumerate(some):
        if number in expected and at % 3 == 0:
            index.remove(number)
            del expected[number]
            continue
        try:
            index.put(number, None if policy is None else parse_filter(*policy))
        except InvalidInput:  # too complex
            continue
        expected[number] = policy
        for message in sent:
            found = index.matching(message.encoded(), partial(BodyValues, message.body))
            assert [*found] == sorted(
                one for one, policy in expected.items() if policy is None or naive_matches(*policy, message)
            )
    assert len(index) == len(expected)
    for number in [*expected]:
        index.remove(number)
    assert len(index) == 0
    for message in sent:
        assert not index.matching(message.encoded(), partial(BodyValues, message.body))


@settings(max_examples=100)
@given(st.lists(st.tuples(numbers, numbers), max_size=120), st.lists(numbers, max_size=5), st.data())
def test_ranges_contain_what_a_comparison_says(ends: list[tuple[float, float]], points: list[float], data: Any) -> None:
    table: RangeTable[int] = RangeTable()
    expected: dict[int, tuple[tuple[float, int], tuple[float, int]]] = {}
    for at, (one, other) in enumerate(ends):
        low, high = (min(one, other), at % 2), (max(one, other), -(at % 2))
        table.add(low, high, at)
        expected[at] = (low, high)
        if at % 5 == 4:
            gone = data.draw(st.sampled_from(sorted(expected)))
            table.discard(*expected.pop(gone), gone)
        if at % 10 == 0:
            for point in points:
                found = sorted(item for items in table.containing((point, 0)) for item in items)
                assert found == [at for at, (low, high) in sorted(expected.items()) if low <= (point, 0) <= high]


def orders(count: int) -> FilterIndex:
    """Subscriptions for one shop each, of which ten are for shop-0."""
    index = FilterIndex()
    for number in range(count):
        shop = f"shop-{max(0, number - 9)}"
        policy = {"shop": [shop], "event": ["order", "refund"], "price": [{"numeric": [">", 10]}]}
        index.put(number, parse_filter(json.dumps(policy), ATTRIBUTES))
    return index


ORDER = {
    "shop": Attribute("shop", "String", b"shop-0", False),
    "event": Attribute("event", "String", b"order", False),
    "price": Attribute("price", "Number", b"12.5", False),
}


@pytest.mark.parametrize(
    "policy",
    [
        {"shop": ["shop-{}"], "event": ["order"]},
        {"event": ["order"], "shop": [{"prefix": "shop-{}."}]},
        {"event": ["order"], "shop": [{"suffix": ".{}-shop"}]},
        {"event": [{"exists": True}], "shop": [{"equals-ignore-case": "SHOP-{}"}]},
        {"event": [{"anything-but": "refund"}], "price": [{"numeric": [">", "#", "<", "#+1"]}]},
        {"event": ["order"], "address": [{"cidr": "10.1.{}.0/24"}]},
        {"$or": [{"shop": ["shop-{}"]}, {"shop": ["store-{}"]}], "refund": [{"exists": False}]},
    ],
)
def test_subscriptions_that_cannot_match_are_not_checked(
    policy: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    index = FilterIndex()
    for number in range(250):
        text = (
            json.dumps(policy).replace("{}", str(number)).replace('"#+1"', str(number + 1)).replace('"#"', str(number))
        )
        index.put(number, parse_filter(text, ATTRIBUTES))
    checked = 0
    holds = filters.Term.holds

    def counted(term: filters.Term, values: Any) -> bool:
        nonlocal checked
        checked += 1
        return holds(term, values)

    monkeypatch.setattr(filters.Term, "holds", counted)
    others = {"event": "order", "price": "77.5", "shop": "shop-77", "address": "10.1.77.1"}
    if "prefix" in str(policy):
        others["shop"] = "shop-77.north"
    if "suffix" in str(policy):
        others["shop"] = "north.77-shop"
    message = {
        name: Attribute(name, "Number" if name == "price" else "String", text.encode(), False)
        for name, text in others.items()
    }
    assert [*index.matching(message, no_body)] == [77]
    assert checked <= 10


def test_ten_of_many_are_found() -> None:
    assert [*orders(2_000).matching(ORDER, no_body)] == [*range(10)]


def test_a_body_is_read_only_for_filters_on_the_body() -> None:
    index = orders(20)
    index.put(100, None)

    assert [*index.matching(ORDER, no_body)] == [*range(10), 100]
