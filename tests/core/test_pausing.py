"""Paused, paced and restricted queues: what they deliver and take, and what others send them."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonq.core.commands import Accepted, Job
from batonq.core.policy import QueuePolicy
from batonq.core.records import PACING_VERSION, PLAIN_VERSION, Reason
from batonq.core.shard.commands.operator import Destination
from batonq.core.shard.state.pace import TOLERANCE_MS, Pace
from batonq.core.spread import Spread
from batonq.errors import QueuePaused
from tests.core.rig import Bench, deliver
from tests.support import ask


def set_policy(bench: Bench, **fields: Any) -> None:
    """Change some settings of queue 1."""
    bench.shard.set_policy(replace(bench.shard.queues[1].policy, **fields), bench.now)


# --- pausing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("paused", ["delivery", "both"])
def test_a_queue_whose_delivery_is_paused_gives_nothing_until_it_is_resumed(fifo: bool, paused: str) -> None:
    bench = Bench()
    bench.queue(1, fifo=fifo)
    bench.send(1, "a", "b", group="g")
    set_policy(bench, paused=paused)
    assert bench.receive(1) == [] and not bench.shard.hint(1).visible
    set_policy(bench, paused="")
    assert bench.shard.hint(1).visible == 2
    assert bench.bodies(bench.receive(1)) == ["a", "b"]
    bench.check()


@pytest.mark.parametrize("paused", ["sends", "both"])
def test_sends_to_a_paused_queue_are_refused_and_say_so(paused: str) -> None:
    bench = Bench()
    bench.queue(1, paused=paused)
    (refused,) = bench.send(1, "a")
    assert isinstance(refused, QueuePaused)
    assert (refused.status, refused.retryable) == (409, True) and "q1" in refused.message
    assert bench.waiting(1) == []
    bench.check()


def test_a_repeated_send_is_answered_while_sends_are_paused() -> None:
    bench = Bench()
    bench.queue(1, dedup_window_ms=60_000)
    (first,) = bench.send(1, "a", dedup_id="k")
    assert isinstance(first, Accepted)
    set_policy(bench, paused="sends")
    assert bench.send(1, "a", dedup_id="k") == [first._replace(duplicate=True)]
    assert isinstance(bench.send(1, "b", dedup_id="l")[0], QueuePaused)


def test_a_drained_queue_delivers_what_it_has() -> None:
    bench = Bench()
    bench.queue(1)
    bench.send(1, "a", "b")
    set_policy(bench, paused="sends")
    assert bench.bodies(bench.receive(1)) == ["a", "b"]


def test_a_lease_ends_as_usual_while_delivery_is_paused() -> None:
    bench = Bench()
    bench.queue(1, visibility_ms=1_000)
    bench.send(1, "a")
    (lease,) = bench.receive(1)
    set_policy(bench, paused="both")
    assert bench.delete(1, lease) == [None]
    assert bench.shard.counters(1).deleted == 1


def test_an_attempt_that_is_repeated_gets_its_leases_although_delivery_is_paused() -> None:
    bench = Bench()
    bench.queue(1, fifo=True)
    bench.send(1, "a", group="g")
    (lease,) = bench.receive(1, attempt="A")
    set_policy(bench, paused="delivery")
    assert [again.sequence for again in bench.receive(1, attempt="A")] == [lease.sequence]


@pytest.mark.parametrize("shards", [1, 2])
def test_dead_letters_wait_for_a_paused_dead_letter_queue(shards: int) -> None:
    source = Bench(0)
    there = source if shards == 1 else Bench(1)
    there.queue(2, paused="sends")
    source.queue(1, max_receives=1, dead_letter_queue=2, dead_letter_shard=shards - 1, dead_letter_on_failure=True)
    source.send(1, "a")
    source.receive(1, visibility_ms=0)
    source.later(1)
    if shards == 2:
        assert deliver(source, there) == [(1, Reason.REFUSED_PAUSED)]
    assert source.shard.counters(1).delayed == 1 and there.waiting(2) == []
    assert "paused" in source.shard.alarms[-1].text
    assert source.shard.format == PACING_VERSION
    there.queue(2)
    source.later(1_000)
    if shards == 2:
        deliver(source, there)
    assert there.waiting(2) == ["a"]
    source.check()
    there.check()


def test_a_redrive_waits_until_its_destination_takes_messages_again() -> None:
    bench = Bench()
    bench.queue(1, paused="sends")
    bench.queue(2)
    bench.send(2, "a", "b")
    bench.shard.start_job(Job("j", 2, 1, 0, 100, "", 0, 0), bench.now)
    bench.later(1_000)
    bench.shard.step_jobs(bench.now)
    job = bench.shard.jobs["j"]
    assert (job.state, job.moved) == ("RUNNING", 0) and "paused" in job.why
    set_policy(bench, paused="")
    for _ in range(3):
        bench.later(60_000)
        bench.shard.step_jobs(bench.now)
    assert sorted(bench.waiting(1)) == ["a", "b"] and bench.shard.jobs["j"].state == "COMPLETED"
    bench.check()


def test_an_operator_is_told_that_the_queue_of_a_dead_letter_is_paused() -> None:
    bench = Bench()
    bench.queue(1, paused="sends")
    bench.queue(2)
    bench.send(2, "a")
    (view,) = bench.messages(2)
    with pytest.raises(QueuePaused):
        bench.shard.retry_message(2, view.slot, view.sequence, Destination(1, 0), bench.now)
    assert bench.waiting(2) == ["a"]


def test_a_dead_message_starts_again_in_its_own_paused_queue() -> None:
    bench = Bench()
    bench.queue(1, max_receives=1, dead_letter_on_failure=True)
    bench.send(1, "a")
    bench.receive(1, visibility_ms=0)
    bench.later(1)
    assert bench.shard.counters(1).dead == 1
    set_policy(bench, paused="sends")
    (view,) = bench.messages(1)
    bench.shard.retry_message(1, view.slot, view.sequence, None, bench.now)
    assert bench.bodies(bench.receive(1)) == ["a"]


# --- one group, or a minimum priority ---------------------------------------------------------------


@pytest.mark.parametrize("fifo", [False, True])
def test_only_one_group_is_delivered(fifo: bool) -> None:
    bench = Bench()
    bench.queue(1, fifo=fifo, only_group="vip")
    bench.send(1, "a", group="other")
    assert not bench.shard.hint(1).visible
    bench.send(1, "b", "c", group="vip")
    if not fifo:
        bench.send(1, "d")
    assert bench.shard.hint(1).visible
    assert bench.bodies(bench.receive(1)) == ["b", "c"]
    assert bench.receive(1) == []
    set_policy(bench, only_group="")
    assert sorted(bench.bodies(bench.receive(1))) == (["a"] if fifo else ["a", "d"])
    bench.check()


def test_a_locked_group_that_alone_may_be_delivered_stays_locked() -> None:
    bench = Bench()
    bench.queue(1, fifo=True, only_group="vip")
    bench.send(1, "a", "b", group="vip")
    (first,) = bench.receive(1, 1)
    assert bench.receive(1) == [] and not bench.shard.hint(1).visible
    bench.delete(1, first)
    assert bench.bodies(bench.receive(1)) == ["b"]


def test_returned_messages_of_the_only_group_are_delivered_again() -> None:
    bench = Bench()
    bench.queue(1, only_group="vip")
    bench.send(1, "a", group="vip", priority=9)
    bench.send(1, "b", group="vip", priority=200)
    assert bench.bodies(bench.receive(1, visibility_ms=0)) == ["b", "a"]
    bench.later(1)
    assert sorted(bench.bodies(bench.receive(1))) == ["a", "b"]


@pytest.mark.parametrize("ageing_ms", [0, 1_000])
def test_only_messages_of_a_minimum_priority_are_delivered(ageing_ms: int) -> None:
    bench = Bench()
    bench.queue(1, priority_min=100, ageing_ms=ageing_ms)
    bench.send(1, "low", priority=99)
    bench.later(1_000_000)
    assert not bench.shard.hint(1).visible
    bench.send(1, "just", priority=100)
    bench.send(1, "high", priority=200)
    assert bench.shard.hint(1).visible
    assert bench.bodies(bench.receive(1)) == ["high", "just"]
    assert bench.receive(1) == []
    set_policy(bench, priority_min=0)
    assert bench.bodies(bench.receive(1)) == ["low"]
    bench.check()


def test_a_fifo_group_ends_before_its_first_message_below_the_minimum_priority() -> None:
    bench = Bench()
    bench.queue(1, fifo=True, priority_min=100)
    bench.send(1, "a", group="g", priority=100)
    bench.send(1, "b", group="g", priority=5)
    bench.send(1, "c", group="g", priority=100)
    (first,) = bench.receive(1)
    assert bench.bodies([first]) == ["a"]
    bench.delete(1, first)
    assert bench.receive(1) == [] and not bench.shard.hint(1).visible


# --- pacing ------------------------------------------------------------------------------------------


@given(
    rate=st.integers(1, 5_000),
    shards=st.integers(1, 7),
    steps=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 10)), min_size=1, max_size=300),
)
def test_no_window_of_time_has_more_deliveries_than_the_cap_allows(
    rate: int, shards: int, steps: list[tuple[int, int]]
) -> None:
    pace = Pace(rate, shards)
    now, taken = 1_700_000_000_000, []
    for later_ms, wanted in steps:
        now += later_ms
        count = min(wanted, pace.available(now))
        pace.take(count, now)
        taken += [now] * count
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            window_ms = taken[last] - taken[first] + TOLERANCE_MS
            assert (last - first) * 1000 * shards <= window_ms * rate, "more than the cap in some window"


@given(
    rate=st.integers(1, 5_000),
    shards=st.integers(1, 7),
    late=st.lists(st.integers(0, TOLERANCE_MS - 10), min_size=1, max_size=50),
)
def test_the_cap_is_exact_on_average_although_every_receive_is_late(rate: int, shards: int, late: list[int]) -> None:
    pace = Pace(rate, shards)
    start = now = 1_700_000_000_000
    pace.take(pace.available(now), now)
    taken, turns = 0, 0
    while turns < 500:
        now = pace.due_ms(now) + late[turns % len(late)]
        count = pace.available(now)
        assert count, "nothing is available when it is due"
        pace.take(count, now)
        taken += count
        turns += 1
    assert abs(taken - (now - start) * rate / 1000 / shards) <= 1


def test_a_cap_that_changes_keeps_what_was_delivered_before() -> None:
    pace = Pace(10)
    now = 1_700_000_000_000
    pace.take(pace.available(now), now)
    assert not pace.available(now)
    faster = Pace(20, 1, pace)
    assert not faster.available(now) and faster.available(now + 100)


def test_a_paced_queue_delivers_at_its_rate_and_wakes_who_waits() -> None:
    bench = Bench()
    bench.queue(1, deliveries_per_s=10)
    bench.send(1, *map(str, range(40)))
    start = bench.now
    times: list[int] = []
    while len(times) < 40:
        times += [bench.now] * len(bench.receive(1))
        assert bench.receive(1) == [] and not bench.shard.hint(1).visible
        due = bench.shard.next_due()
        assert due is not None and due > bench.now
        bench.shard.woken.clear()
        bench.later(due - bench.now)
        if len(times) < 40:
            assert bench.shard.woken == {1}, "the queue is woken when its cap allows a message"
    assert times == [start + 100 * at for at in range(40)], "one every 100 ms, not ten at once"
    bench.check()


def test_a_queue_is_not_woken_for_its_pace_when_it_is_empty_or_paused() -> None:
    bench = Bench()
    bench.queue(1, deliveries_per_s=10)
    bench.send(1, "a")
    bench.receive(1)
    assert bench.receive(1) == [] and not bench.shard.paced
    bench.send(1, "b")
    set_policy(bench, paused="delivery")
    assert bench.receive(1) == [] and not bench.shard.paced


def test_the_shards_of_a_queue_share_its_cap() -> None:
    spread = Spread((0,)).grown((1, 2, 3)).now.text()
    bench = Bench()
    bench.queue(1, deliveries_per_s=10, spread=spread)
    bench.send(1, *map(str, range(200)))
    count = 0
    for _ in range(60_000 // 50):
        count += len(bench.receive(1, visibility_ms=600_000))
        bench.later(50)
    assert 150 <= count <= 151, "a quarter of ten per second, for a minute"
    bench.check()


def test_a_new_owner_keeps_the_settings_and_starts_with_room_for_one() -> None:
    bench = Bench()
    bench.queue(1, deliveries_per_s=1, priority_min=3, only_group="g")
    bench.send(1, "a", "b", "c", group="g", priority=3)
    assert len(bench.receive(1)) == 1
    for successor in (bench.loaded, bench.replayed):
        bench.check()
        bench.restart(successor())
        assert bench.shard.queues[1].policy.priority_min == 3
        assert len(bench.receive(1)) == 1 and bench.receive(1) == []


# --- the log -----------------------------------------------------------------------------------------


def test_a_log_is_written_in_the_new_format_only_once_a_queue_is_restricted() -> None:
    bench = Bench()
    bench.queue(1)
    assert bench.shard.format == PLAIN_VERSION
    set_policy(bench, paused="delivery")
    assert bench.shard.format == PACING_VERSION
    bench.check()
    assert bench.follower.format == bench.loaded().format == bench.replayed().format == PACING_VERSION


def test_a_policy_without_restrictions_is_written_as_before() -> None:
    plain = QueuePolicy(1, "tenant", "q")
    assert b"paused" not in plain.encode() and b"only_group" not in plain.encode()
    restricted = replace(plain, paused="sends", deliveries_per_s=5, only_group="g", priority_min=1)
    assert QueuePolicy.decode(restricted.encode()) == restricted
    assert QueuePolicy.decode(plain.encode()) == plain


# --- what a hint says --------------------------------------------------------------------------------


@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_hint_promises_messages_exactly_if_a_receive_gets_some(fifo: bool, seed: int) -> None:
    """Otherwise a long poll on several shards would miss messages, or try again and again in vain."""
    random, bench = Random(seed), Bench()
    bench.queue(1, fifo=fifo)
    held: list[Any] = []
    for _ in range(60):
        choice = random.random()
        if choice < 0.35:
            group = random.choice(("a", "b", "c")) if fifo or random.random() < 0.6 else ""
            bench.send(1, "x", group=group, priority=random.choice((0, 100, 200)))
        elif choice < 0.6:
            held += bench.receive(1, random.choice((1, 3)))
        elif choice < 0.75 and held:
            bench.delete(1, held.pop(random.randrange(len(held))))
        else:
            set_policy(
                bench,
                paused=random.choice(("", "", "sends", "delivery", "both")),
                only_group=random.choice(("", "", "a")),
                priority_min=random.choice((0, 0, 100, 150)),
                in_flight_max=random.choice((120_000, 120_000, 2)) if fifo else 120_000,
            )
        bench.later(random.choice((0, 1, 31_000)))
        bench.check()
        promised = bench.shard.hint(1).visible
        copy = bench.loaded()
        copy.begin_frame(bench.next_frame)
        found = ask.receive(copy, 1, 10, None, bench.now, "h", "")
        assert bool(found) == bool(promised)
