"""ReceiveRequestAttemptId: for five minutes the same id gives the same leases, unless one of them ended or changed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from batonq.core.commands import Lease, Leases, Receive
from batonq.core.shard.state.attempts import ATTEMPT_WINDOW_MS
from tests.core.rig import Bench, claim
from tests.support import ask

HOUR_MS = 3_600_000


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.queue(1, fifo=True)
    yield made
    made.check()


def receipts(leases: list[Lease]) -> list[tuple[int, int]]:
    return [(lease.sequence, lease.epoch) for lease in leases]


def test_the_same_attempt_gives_the_same_leases_with_a_fresh_deadline(bench: Bench) -> None:
    bench.send(1, "a", "b", group="g")
    first = bench.receive(1, attempt="A")
    bench.later(20_000)
    again = bench.receive(1, attempt="A")
    assert receipts(again) == receipts(first)
    assert [lease.deadline_ms for lease in again] == [bench.now + 30_000] * 2
    assert [lease.receive_count for lease in again] == [1, 1]


def test_another_attempt_or_none_gets_nothing_of_a_locked_group(bench: Bench) -> None:
    bench.send(1, "a", "b", group="g")
    bench.receive(1, 1, attempt="A")
    assert bench.receive(1, attempt="B") == bench.receive(1) == []


def test_the_limit_of_the_second_call_does_not_matter(bench: Bench) -> None:
    bench.send(1, "a", "b", group="g")
    first = bench.receive(1, attempt="A")
    assert receipts(bench.receive(1, 1, attempt="A")) == receipts(first)


@pytest.mark.parametrize("end", ["delete", "change", "release", "nack", "expiry", "purge"])
def test_an_attempt_is_over_when_one_of_its_leases_is(bench: Bench, end: str) -> None:
    bench.send(1, "a", group="g")
    bench.send(1, "b", group="h")
    one, two = bench.receive(1, attempt="A")
    if end == "delete":
        bench.delete(1, one)
    elif end == "change":
        ask.change_visibility(bench.shard, 1, [(claim(one), HOUR_MS)], bench.now)
    elif end == "release":
        ask.change_visibility(bench.shard, 1, [(claim(one), 0)], bench.now)
    elif end == "nack":
        ask.nack(bench.shard, 1, [ask.Nack(claim(one))], bench.now)
    elif end == "expiry":
        bench.later(30_000)
    else:
        bench.shard.purge(1, bench.now)
    again = bench.receive(1, attempt="A")
    expected = {"release": ["a"], "nack": ["a"], "expiry": ["a", "b"]}.get(end, [])
    assert bench.bodies(again) == expected
    assert all(lease.epoch == 2 for lease in again)
    assert two not in again


def test_after_five_minutes_the_id_is_free_again(bench: Bench) -> None:
    bench.send(1, "a", group="g")
    bench.receive(1, visibility_ms=HOUR_MS, attempt="A")
    bench.later(ATTEMPT_WINDOW_MS)
    assert bench.receive(1, attempt="A") == []
    bench.send(1, "b", group="h")
    assert bench.bodies(bench.receive(1, attempt="A")) == ["b"]


def test_the_end_of_an_old_lease_does_not_end_a_newer_attempt_of_the_same_id(bench: Bench) -> None:
    bench.send(1, "a", group="g")
    (old,) = bench.receive(1, visibility_ms=HOUR_MS, attempt="A")
    bench.later(ATTEMPT_WINDOW_MS)
    bench.send(1, "b", group="h")
    newer = bench.receive(1, attempt="A")
    bench.delete(1, old)
    assert receipts(bench.receive(1, attempt="A")) == receipts(newer)


def test_an_extension_that_is_not_the_holders_doing_leaves_the_attempt_as_it_is(bench: Bench) -> None:
    bench.send(1, "a", group="g")
    (lease,) = bench.receive(1, attempt="A")
    ask.change_visibility(bench.shard, 1, [(claim(lease), 60_000)], bench.now, True, by_attempt=True)
    bench.check()
    assert receipts(bench.receive(1, attempt="A")) == receipts([lease])
    ask.change_visibility(bench.shard, 1, [(claim(lease), 60_000)], bench.now, True)
    bench.check()
    assert bench.receive(1, attempt="A") == []


def test_receives_by_one_attempt_that_came_together_and_whose_leases_end_at_once(bench: Bench) -> None:
    for group in "abc":
        bench.send(1, group, group=group)
    first, second = bench.shard.receive([Receive(1, count, 0, "h", "A") for count in (1, 2)], bench.now)
    assert isinstance(first, Leases) and isinstance(second, Leases)
    assert bench.shard.attempts.by_key[1, "A"].leases == tuple(second.claims())
    bench.check()  # whoever takes over knows the same


def test_attempts_are_told_apart_by_queue(bench: Bench) -> None:
    bench.queue(2, fifo=True)
    bench.send(1, "a", group="g")
    bench.send(2, "b", group="g")
    assert bench.bodies(bench.receive(1, attempt="A")) == ["a"]
    assert bench.bodies(bench.receive(2, attempt="A")) == ["b"]


def test_a_standard_queue_knows_no_attempts(bench: Bench) -> None:
    bench.queue(2)
    bench.send(2, "a", "b")
    assert bench.bodies(bench.receive(2, 1, attempt="A")) == ["a"]
    assert bench.bodies(bench.receive(2, 1, attempt="A")) == ["b"]
    assert bench.shard.attempts.by_key == {}


def test_no_more_attempts_are_remembered_than_the_limit(bench: Bench) -> None:
    bench.limit(attempts_max=2)
    for group in "abc":
        bench.send(1, group, group=group)
        assert len(bench.receive(1, visibility_ms=HOUR_MS, attempt=group)) == 1
    assert len(bench.shard.attempts.by_key) == 2
    bench.check()
    bench.later(ATTEMPT_WINDOW_MS)
    bench.send(1, "d", group="d")
    bench.receive(1, visibility_ms=HOUR_MS, attempt="d")
    assert list(bench.shard.attempts.by_key) == [(1, "d")]


def test_a_restart_keeps_attempts(bench: Bench) -> None:
    bench.send(1, "a", "b", group="g")
    first = bench.receive(1, attempt="A")
    for successor in ("follower", "snapshot"):
        bench.commit()
        bench.restart(bench.follower if successor == "follower" else bench.loaded())
        assert receipts(bench.receive(1, attempt="A")) == receipts(first)
    bench.truncate(bench.next_frame)
    bench.restart(bench.replayed())
    assert receipts(bench.receive(1, attempt="A")) == receipts(first)
