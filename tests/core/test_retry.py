"""Retry policies: what they say, and what a nack makes of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from batonq.core.records import State
from batonq.core.retry import parse_retry, unit_hash
from batonq.errors import InvalidInput
from tests.core.rig import Bench, claim
from tests.support import ask


def policy(**fields: Any) -> str:
    return json.dumps(fields)


EXPONENTIAL = policy(kind="exponential", baseSeconds=1, factor=3, maxSeconds=20)
SCHEDULE = policy(kind="schedule", delaysSeconds=[60, 300, 0.5])


@pytest.mark.parametrize(
    ("text", "delays"),
    [
        (EXPONENTIAL, [1_000, 3_000, 9_000, 20_000, 20_000]),
        (SCHEDULE, [60_000, 300_000, 500, 500, 500]),
        (policy(kind="exponential"), [1_000, 2_000, 4_000, 8_000, 16_000]),
    ],
)
def test_each_failure_has_its_delay(text: str, delays: list[int]) -> None:
    retry = parse_retry(text)
    assert [retry.delay_ms(attempt, 7, attempt) for attempt in range(1, 6)] == delays
    assert retry.delay_ms(100_000, 7, 1) in (delays[-1], 3_600_000)


def test_jitter_spreads_and_never_leaves_its_share() -> None:
    retry = parse_retry(policy(kind="schedule", delaysSeconds=[100], jitter=0.25))
    delays = [retry.delay_ms(1, sequence, 1) for sequence in range(1, 1_001)]
    assert min(delays) >= 75_000 and max(delays) <= 125_000
    assert len(set(delays)) > 900
    assert 98_000 < sum(delays) / len(delays) < 102_000
    assert delays == [retry.delay_ms(1, sequence, 1) for sequence in range(1, 1_001)]


def test_the_hash_is_the_same_for_ever() -> None:
    """It decides when messages come back, and a follower of another release must agree."""
    assert [round(unit_hash(sequence, 1), 6) for sequence in (1, 2, 3)] == [0.566562, 0.745782, 0.971003]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("not json", "not valid JSON"),
        ("[]", "kind must be"),
        (policy(kind="linear"), "kind must be"),
        (
            policy(kind="exponential", delaysSeconds=[1]),
            "delaysSeconds is not a field of a retry policy of kind exponential",
        ),
        (policy(kind="exponential", baseSeconds=10, maxSeconds=5), "maxSeconds must be at least baseSeconds"),
        (policy(kind="exponential", factor=0.5), "factor must be"),
        (policy(kind="exponential", jitter=2), "jitter must be"),
        (policy(kind="exponential", baseSeconds=True), "baseSeconds must be"),
        (policy(kind="schedule"), "delaysSeconds must be"),
        (policy(kind="schedule", delaysSeconds=[]), "delaysSeconds must be"),
        (policy(kind="schedule", delaysSeconds=["1"]), "delaysSeconds must be"),
        (policy(kind="schedule", delaysSeconds=[10**9]), "delaysSeconds must be"),
    ],
)
def test_what_is_no_policy_is_refused_with_an_example(text: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as caught:
        parse_retry(text)
    assert "baseSeconds" in caught.value.message


def test_a_nack_without_a_delay_waits_as_the_policy_says() -> None:
    bench = Bench()
    bench.queue(1, retry=EXPONENTIAL)
    bench.send(1, "a")
    for delay_ms in (1_000, 3_000, 9_000):
        (lease,) = bench.receive(1)
        assert ask.nack(bench.shard, 1, [ask.Nack(claim(lease))], bench.now) == [None]
        (view,) = bench.messages(1)
        assert (view.state, view.until_ms) == (State.DELAYED, bench.now + delay_ms)
        bench.check()
        bench.later(delay_ms)
    (lease,) = bench.receive(1)
    ask.nack(bench.shard, 1, [ask.Nack(claim(lease), 0)], bench.now)
    assert bench.messages(1)[0].state == State.VISIBLE


def test_without_a_policy_a_nack_brings_the_message_back_at_once() -> None:
    bench = Bench()
    bench.queue(1)
    bench.send(1, "a")
    (lease,) = bench.receive(1)
    ask.nack(bench.shard, 1, [ask.Nack(claim(lease))], bench.now)
    assert bench.messages(1)[0].state == State.VISIBLE


def test_a_delay_never_outlasts_the_retention() -> None:
    bench = Bench()
    bench.queue(1, retry=SCHEDULE, retention_ms=30_000)
    bench.send(1, "a")
    (lease,) = bench.receive(1)
    ask.nack(bench.shard, 1, [ask.Nack(claim(lease))], bench.now)
    assert bench.messages(1)[0].until_ms == bench.now + 30_000
