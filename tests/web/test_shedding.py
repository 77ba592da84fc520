"""Who is let in at which depth."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonq.errors import InvalidInput
from batonq.web import Rule, Shedder


def status(shedder: Shedder, depth: int | None, method: str = "POST", path: str = "/uploads") -> int:
    """200 stands for: let in."""
    rule = shedder.concerns(method, path)
    refusal = None if rule is None else shedder.judge(rule, depth)
    return 200 if refusal is None else refusal.status


def test_beyond_the_high_water_mark() -> None:
    shedder = Shedder([Rule(high_water=15_000)])
    assert [status(shedder, depth) for depth in (0, 15_000, 15_001)] == [200, 200, 429]
    assert (shedder.let_in, shedder.refused) == (2, 1)


def test_reads_are_not_refused() -> None:
    shedder = Shedder([Rule(high_water=1)])
    assert status(shedder, 10**6, "GET") == 200
    assert status(shedder, 10**6, "HEAD") == 200
    assert shedder.let_in == 0  # they are no concern of the rules


def test_a_rule_for_each_route_and_load_is_shed_in_steps() -> None:
    shedder = Shedder([Rule(1_000, "/free/*", at=0.5), Rule(1_000, "/paid/*"), Rule(1_000, "/batch", at=0.8)])
    seen = {
        depth: [status(shedder, depth, path=path) for path in ("/free/a", "/batch", "/paid/a", "/other")]
        for depth in (500, 501, 801, 1_001)
    }
    assert seen == {
        500: [200, 200, 200, 200],
        501: [429, 200, 200, 200],
        801: [429, 429, 200, 200],
        1_001: [429, 429, 429, 200],
    }


def test_the_first_rule_that_matches_counts() -> None:
    shedder = Shedder([Rule(10**9, "/health", methods=("POST",)), Rule(1)])
    assert status(shedder, 100, path="/health") == 200
    assert status(shedder, 100, path="/else") == 429


def test_retry_after_is_when_there_will_be_room() -> None:
    rule = Rule(high_water=1_000, drain_rate=50)
    assert [rule.wait_s(depth) for depth in (1_001, 1_100, 6_000, 10**9)] == [1, 2, 100, 300]
    assert Rule(high_water=1_000, retry_after_s=7).wait_s(10**9) == 7


def test_a_depth_that_is_not_known() -> None:
    assert status(Shedder([Rule(1)]), None) == 200
    shut = Shedder([Rule(1)], open_when_unknown=False)
    assert status(shut, None) == 503
    assert (shut.unknown, shut.refused) == (1, 1)


@given(st.integers(1, 10**6), st.floats(0.01, 1), st.integers(0, 10**7))
def test_a_refusal_is_sound(high_water: int, at: float, depth: int) -> None:
    refusal = Shedder([Rule(high_water, at=at, drain_rate=3)]).judge(Rule(high_water, at=at, drain_rate=3), depth)
    assert (refusal is not None) == (depth > high_water * at)
    if refusal is not None:
        assert 1 <= refusal.retry_after_s <= 300
        assert json.loads(refusal.body())["status"] == 429


@pytest.mark.parametrize(
    "rule",
    [{"high_water": 0}, {"high_water": 1, "at": 0}, {"high_water": 1, "at": 2}, {"high_water": 1, "drain_rate": 0}],
)
def test_rules_that_make_no_sense_are_refused(rule: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        Rule(**rule)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        Shedder([])
