"""Schedules in a shard, compared with a naive model through random histories: changes, stale firings, full queues,
replay, snapshots and truncation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from batonq.core.commands import ChangeVisibility, Lease, Send
from batonq.core.policy import QueuePolicy
from batonq.core.records import PLAIN_VERSION, SCHEDULES_VERSION, SentFlag, State, Type
from batonq.core.schedule import ALL_BYTES_MAX, LATE_MS, SCHEDULE_BYTES_MAX, SCHEDULES_MAX, STAYS, Schedule
from batonq.core.shard.commands.schedules import Firing
from batonq.core.shard.state.schedule_book import ScheduleBook
from batonq.core.spread import even
from batonq.errors import (
    NotOwner,
    OverLimit,
    QueueDoesNotExist,
    ScheduleExists,
    ScheduleNotFound,
    TooLarge,
)
from tests.core.rig import Bench, assert_same_state

RATE_MS = 10_000
NAMES = ("a", "b", "c")
DAY_MS = 86_400_000


def schedule(bench: Bench, name: str = "a", queue: int = 1, **fields: Any) -> Schedule:
    values: dict[str, Any] = {"timing": "{}", "message": "{}", "next_ms": bench.now + RATE_MS, "revision": 1, **fields}
    return Schedule(queue=queue, name=name, **values)


def due(one: Schedule, **fields: Any) -> Firing:
    values: dict[str, Any] = {"revision": one.revision, "expected_ms": one.next_ms, "due_ms": one.next_ms}
    return Firing(**{**values, "next_ms": one.next_ms + RATE_MS, **fields})


def body(text: str, queue: int = 1, group: str = "") -> Send:
    return Send(queue, [text.encode()], groups=[group] if group else ())


def change(lease: Lease, visibility_ms: int) -> ChangeVisibility:
    return ChangeVisibility(1, [(lease.slot, lease.sequence, lease.epoch)], [visibility_ms])


class Histories(RuleBasedStateMachine):
    """The model: what each schedule is, and the due times that became messages."""

    bench: Bench

    @initialize()
    def begin(self) -> None:
        self.bench = Bench()
        self.bench.queue(1, messages_max=5)
        self.model: dict[str, dict[str, Any]] = {}
        self.sent: list[str] = []
        self.waiting = 0

    def expected(self, name: str) -> Schedule:
        found = self.bench.shard.schedules.find(1, name)
        assert found is not None
        return found

    @rule(name=st.sampled_from(NAMES), paused=st.booleans())
    def create(self, name: str, paused: bool) -> None:
        made = schedule(self.bench, name, paused=paused)
        if name in self.model:
            with pytest.raises(ScheduleExists):
                self.bench.shard.create_schedule(made, self.bench.now)
            return
        self.bench.shard.create_schedule(made, self.bench.now)
        self.model[name] = {"next": made.next_ms, "fired": 0, "skipped": 0, "paused": paused, "why": ""}

    @rule(name=st.sampled_from(NAMES), paused=st.booleans(), stale=st.booleans())
    def change(self, name: str, paused: bool, stale: bool) -> None:
        if name not in self.model:
            return
        now = self.expected(name)
        new = replace(now, paused=paused, revision=now.revision + (2 if stale else 1), next_ms=self.bench.now + RATE_MS)
        new = replace(new, why="", why_code="", waiting_ms=0)
        if stale:
            with pytest.raises(ScheduleNotFound):
                self.bench.shard.change_schedule(new, self.bench.now)
            return
        self.bench.shard.change_schedule(new, self.bench.now)
        self.model[name] |= {"paused": paused, "next": new.next_ms, "why": ""}

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        if name in self.model:
            self.bench.shard.delete_schedule(1, name, self.bench.now)
            del self.model[name]
        else:
            with pytest.raises(ScheduleNotFound):
                self.bench.shard.delete_schedule(1, name, self.bench.now)

    @rule(
        name=st.sampled_from(NAMES),
        wrong=st.sampled_from(("", "", "", "revision", "expected_ms")),
        skips=st.integers(0, 3),
        silent=st.booleans(),
        ends=st.integers(0, 5),
    )
    def fire(self, name: str, wrong: str, skips: int, silent: bool, ends: int) -> None:
        if name not in self.model:
            assert self.bench.shard.fire(1, name, Firing(1, 1, 1, 2), body("x"), self.bench.now) is None
            return
        model, now = self.model[name], self.expected(name)
        due_ms = now.next_ms + skips * RATE_MS
        self.bench.now = max(self.bench.now, due_ms)
        next_ms = 0 if not ends else due_ms + RATE_MS
        firing = due(now, due_ms=due_ms, next_ms=next_ms, skipped=skips + silent)
        if wrong:
            firing = firing._replace(**{wrong: getattr(firing, wrong) + 1})
        text = f"{name} {due_ms}"
        fired = self.bench.shard.fire(1, name, firing, None if silent else body(text), self.bench.now)
        if wrong or model["paused"] or not model["next"]:
            assert fired is None
        elif not silent and self.waiting >= 5:
            assert fired is not None and "is full" in fired.why
            model["why"] = fired.why
        else:
            model |= {"next": next_ms, "skipped": model["skipped"] + skips + silent, "why": ""}
            if not silent:
                model["fired"] += 1
                self.sent.append(text)
                self.waiting += 1

    @rule(ms=st.sampled_from((1, 5_000, 60_000)))
    def later(self, ms: int) -> None:
        self.bench.later(ms)

    @rule()
    def consume(self) -> None:
        for lease in self.bench.receive(1, 10):
            self.bench.delete(1, lease)
        self.waiting = 0

    @rule(way=st.sampled_from(("replay", "snapshot")))
    def restart(self, way: str) -> None:
        self.bench.commit()
        self.bench.restart(self.bench.replayed() if way == "replay" else self.bench.loaded())

    @rule()
    def truncate(self) -> None:
        self.bench.commit()
        self.bench.truncate(self.bench.next_frame)

    @invariant()
    def the_shard_is_as_the_model_says(self) -> None:
        for row in self.bench.check():
            if row.type is Type.SENT:
                assert row.flags & SentFlag.SCHEDULED
        found = {one.name: one for one in self.bench.shard.schedules.of_queue(1)}
        assert found.keys() == self.model.keys()
        for name, model in self.model.items():
            one = found[name]
            assert (one.next_ms, one.fired, one.skipped) == (model["next"], model["fired"], model["skipped"])
            assert (one.paused, one.why) == (model["paused"], model["why"])
        times = [model["next"] for model in self.model.values() if model["next"] and not model["paused"]]
        assert self.bench.shard.schedules.next_due() == min(times, default=None)
        assert len(self.sent) == len(set(self.sent)), "a due time was fired twice"
        assert self.bench.shard.counters(1).sent == len(self.sent)


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestHistories = Histories.TestCase


def test_a_firing_writes_the_message_and_the_next_due_time_in_one_frame() -> None:
    bench = Bench()
    bench.queue(1)
    assert bench.shard.format == PLAIN_VERSION
    one = bench.shard.create_schedule(schedule(bench), bench.now)
    assert bench.shard.format == SCHEDULES_VERSION
    bench.commit()
    bench.later(RATE_MS)
    fired = bench.shard.fire(1, "a", due(one), body("hello"), bench.now)
    rows = bench.commit()
    assert [row.type for row in rows] == [Type.SENT, Type.SCHEDULE_SET]
    assert rows[1].sequence == rows[0].sequence and rows[1].until == one.next_ms + RATE_MS
    assert fired is not None and (fired.fired, fired.late, fired.last_due_ms) == (1, 0, one.next_ms)
    assert bench.shard.fire(1, "a", due(one), body("again"), bench.now) is None
    assert bench.waiting(1) == ["hello"]


def test_a_late_firing_counts_as_late() -> None:
    bench = Bench()
    bench.queue(1)
    one = bench.shard.create_schedule(schedule(bench), bench.now)
    bench.later(RATE_MS + LATE_MS + 1)
    fired = bench.shard.fire(1, "a", due(one), body("x"), bench.now)
    assert fired is not None and fired.late == 1
    assert (bench.shard.schedules.fired, bench.shard.schedules.late) == ({1: 1}, {1: 1})
    bench.check()


def test_a_refused_firing_waits_and_says_why_once() -> None:
    bench = Bench()
    bench.queue(1, messages_max=1)
    bench.send(1, "in the way")
    one = bench.shard.create_schedule(schedule(bench), bench.now)
    bench.later(RATE_MS)
    bench.check()
    waits = bench.shard.fire(1, "a", due(one), body("x"), bench.now)
    assert waits is not None and "is full" in waits.why and waits.waiting_ms == bench.now
    assert [row.type for row in bench.check()] == [Type.SCHEDULE_SET]
    bench.later(1_000)
    assert bench.shard.fire(1, "a", due(one), body("x"), bench.now) == waits
    assert bench.check() == []
    (lease,) = bench.receive(1)
    bench.delete(1, lease)
    fired = bench.shard.fire(1, "a", due(one), body("x"), bench.now)
    assert fired is not None and not fired.why and not fired.waiting_ms and fired.fired == 1
    bench.check()


def test_schedules_end_with_their_queue() -> None:
    bench = Bench()
    bench.queue(1)
    bench.queue(2)
    bench.shard.create_schedule(schedule(bench), bench.now)
    bench.shard.create_schedule(schedule(bench, queue=2), bench.now)
    bench.shard.close_queue(1, 5, bench.now)
    assert [one.queue for one in bench.shard.schedules] == [2]
    with pytest.raises(QueueDoesNotExist):
        bench.shard.create_schedule(schedule(bench), bench.now)
    bench.check()
    bench.truncate(bench.next_frame)
    assert_same_state(bench.replayed(), bench.shard, bench.now)
    bench.shard.delete_schedule(2, "a", bench.now)
    assert not bench.shard.schedules and bench.shard.schedules.bytes == 0
    bench.truncate(bench.next_frame)
    bench.check()
    assert bench.replayed().format == PLAIN_VERSION, "a log without schedules can be read by earlier releases again"


def test_limits() -> None:
    bench = Bench()
    bench.queue(1)
    with pytest.raises(TooLarge, match=str(SCHEDULE_BYTES_MAX)):
        bench.shard.create_schedule(schedule(bench, message="x" * SCHEDULE_BYTES_MAX), bench.now)
    book = bench.shard.schedules
    book.bytes += ALL_BYTES_MAX
    with pytest.raises(OverLimit, match="Delete some"):
        bench.shard.create_schedule(schedule(bench), bench.now)
    book.bytes -= ALL_BYTES_MAX
    for number in range(SCHEDULES_MAX):
        book._keep(schedule(bench, f"s{number}"), None)
    with pytest.raises(OverLimit, match="10,000 schedules"):
        bench.shard.create_schedule(schedule(bench), bench.now)
    assert len(book.due(bench.now + RATE_MS, 7)) == 7


def test_schedules_that_are_due_are_found_without_looking_at_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.queue(1)
    book = bench.shard.schedules
    for number in range(50):
        later = schedule(bench, f"s{number}", next_ms=bench.now + DAY_MS)
        bench.shard.create_schedule(later, bench.now)
    for name in ("b", "a", "c"):
        bench.shard.create_schedule(schedule(bench, name), bench.now)
    for paused in (True, False):  # its due time is noted twice now
        known = book.find(1, "a")
        assert known is not None
        bench.shard.change_schedule(replace(known, paused=paused, revision=known.revision + 1), bench.now)
    monkeypatch.setattr(ScheduleBook, "__iter__", lambda book: pytest.fail("all schedules were looked at"))
    for _ in range(2):
        assert [one.name for one in book.due(bench.now + RATE_MS, 7)] == ["a", "b", "c"]
        assert [one.name for one in book.due(bench.now + RATE_MS, 2)] == ["a", "b"]
        assert book.due(bench.now, 7) == [] and book.next_due() == bench.now + RATE_MS
    monkeypatch.undo()
    bench.check()


def test_a_schedule_moves_with_its_group() -> None:
    """A FIFO queue has more shards now: a schedule stays where its group has messages, then moves on."""
    bench = Bench()
    bench.queue(1, fifo=True)
    one = bench.shard.create_schedule(schedule(bench, group="g"), bench.now)
    bench.later(RATE_MS)
    after = bench.shard.fire(1, "a", due(one), body("first", group="g"), bench.now)
    assert after is not None
    grown = even((0,)).grown((1, 2, 3))
    group = next(f"g{number}" for number in range(1_000) if grown.of_key(f"g{number}") == 2)
    bench.shard.change_schedule(replace(after, group=group, revision=2), bench.now)
    bench.send(1, "keeps the group here", group=group)
    policy = QueuePolicy(1, "tenant", "q1.fifo", fifo=True, spread=grown.text())
    bench.shard.set_policy(policy, bench.now)
    stays = bench.shard.schedules.find(1, "a")
    assert stays is not None and bench.shard.schedule_moves_to(stays) == STAYS
    assert bench.shard.holds_moved(1, bench.now)
    for _ in range(2):
        for lease in bench.receive(1):
            bench.delete(1, lease)
    assert bench.shard.schedule_moves_to(stays) == 2
    assert bench.shard.holds_moved(1, bench.now), "the schedule must not be forgotten with the shard"
    bench.later(RATE_MS)
    waits = bench.shard.fire(1, "a", due(stays), body("x", group=group), bench.now)
    assert waits is not None and waits.why_code == NotOwner.code
    with pytest.raises(NotOwner):
        bench.shard.create_schedule(schedule(bench, "b", group=group), bench.now)

    there = Bench(2, bench.now)
    there.shard.set_policy(policy, there.now)
    moving = bench.shard.begin_move(1, "a", 2, bench.now)
    assert not moving.fires and bench.shard.fire(1, "a", due(moving), body("x", group=group), bench.now) is None
    for _ in range(2):  # done again after a crash, it changes nothing
        adopted = there.shard.adopt_schedule(moving, there.now)
    assert adopted.fires and adopted.next_ms == moving.next_ms and not adopted.why
    bench.shard.delete_schedule(1, "a", bench.now)
    assert not bench.shard.holds_moved(1, bench.now)
    assert there.shard.fire(1, "a", due(adopted), body("x", group=group), there.now) is not None
    again = there.shard.adopt_schedule(moving, there.now)
    assert again.fired == 2, "what has happened since is not undone"
    bench.check()
    there.check()


def test_a_schedule_of_a_standard_queue_moves_when_the_queue_leaves() -> None:
    bench = Bench()
    bench.queue(1)
    one = bench.shard.create_schedule(schedule(bench), bench.now)
    spread = even((0,)).grown((1,))
    bench.shard.set_policy(QueuePolicy(1, "tenant", "q1", spread=spread.text()), bench.now)
    assert bench.shard.schedule_moves_to(one) == STAYS
    left = even((0,)).moved((4, 5))
    bench.shard.set_policy(QueuePolicy(1, "tenant", "q1", spread=left.text()), bench.now)
    assert bench.shard.schedule_moves_to(one) == 4 and bench.shard.holds_moved(1, bench.now)
    bench.check()


def test_the_age_of_a_delayed_message_counts_from_when_it_became_visible() -> None:
    bench = Bench()
    bench.queue(1, retention_ms=DAY_MS)
    bench.send(1, "late", delay_ms=100 * DAY_MS)
    assert bench.shard.counters(1).oldest_visible_ms == 0
    visible_ms = bench.later(100 * DAY_MS)
    bench.later(5_000)
    assert bench.shard.counters(1).oldest_visible_ms == visible_ms
    bench.receive(1, visibility_ms=1_000)
    bench.later(10_000)
    assert 0 <= bench.shard.counters(1).oldest_visible_ms - visible_ms <= 1_000
    bench.send(1, "sent now")
    bench.later(7_000)
    (lease,) = bench.receive(1, 1)
    bench.delete(1, lease)
    assert bench.shard.counters(1).oldest_visible_ms == bench.now - 7_000
    bench.check()


@pytest.mark.parametrize("fifo", [False, True])
def test_a_message_can_be_delayed_for_a_year(fifo: bool) -> None:
    """Received, extended, truncated and restarted after a year, with a lease whose length is still limited."""
    bench = Bench()
    bench.queue(1, fifo=fifo)
    bench.send(1, "late", delay_ms=366 * DAY_MS, group="g")
    bench.check()
    bench.truncate(bench.next_frame)
    bench.restart(bench.loaded())
    bench.later(366 * DAY_MS - 1)
    assert bench.receive(1) == []
    bench.later(1)
    began = bench.now
    (lease,) = bench.receive(1)
    (view,) = bench.messages(1)
    assert view.state == State.IN_FLIGHT and 0 <= began - view.first_received_ms < 128
    bench.later(10_000)
    bench.shard.change_visibility(change(lease, 60_000), bench.now)
    assert bench.view(lease.slot).until_ms == bench.now + 60_000
    (refused,) = bench.shard.change_visibility(change(lease, 43_200_000), bench.now)
    assert "longer than" in str(refused)
    bench.check()
    bench.truncate(bench.next_frame)
    assert_same_state(bench.replayed(), bench.shard, bench.now)
    assert bench.delete(1, lease) == [None]
    bench.check()
