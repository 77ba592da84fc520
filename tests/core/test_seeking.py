"""Peek: a page of a queue is found without walking to it from the head, in steps of a bounded length."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from batonq.core.records import Reason, State
from batonq.core.shard.state import queue_search as seeking
from batonq.core.shard.state.columns import NIL
from tests.core.rig import Bench, claim, deliver
from tests.support import ask

ONE, OTHER = 1, 2


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.queue(ONE)
    made.queue(OTHER)
    yield made
    made.check()


def fill(bench: Bench, count: int) -> list[int]:
    """Two queues, turn and turn about; the sequences of the first."""
    for number in range(count):
        bench.send(ONE, str(number))
        bench.send(OTHER, "other")
        bench.commit()
    return [view.sequence for view in bench.messages(ONE)]


def pages(bench: Bench, limit: int) -> list[int]:
    found: list[int] = []
    after = 0
    while views := bench.shard.peek(ONE, after, limit):
        found += [view.sequence for view in views]
        after = found[-1]
    return found


def test_pages_in_order_of_arrival(bench: Bench) -> None:
    sequences = fill(bench, 25)
    assert pages(bench, 10) == pages(bench, 1) == sequences
    assert [view.sequence for view in bench.shard.peek(ONE, sequences[3] + 1, 1)] == [sequences[4]]
    assert bench.shard.peek(ONE, sequences[-1], 10) == bench.shard.peek(ONE, 1 << 62, 10) == []


def test_steps_are_short_and_go_on_where_they_were_cut(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    sequences = fill(bench, 25)
    monkeypatch.setattr(seeking, "SEEK_STEP", 4)
    assert pages(bench, 3) == sequences
    slot, found = bench.shard.seek(ONE, sequences[9])
    assert not found and bench.shard.columns.sequence[slot] == sequences[4]
    slot, found = bench.shard.seek(ONE, sequences[9], slot, sequences[4])
    assert not found and bench.shard.columns.sequence[slot] == sequences[8]
    slot, found = bench.shard.seek(ONE, sequences[9], slot, sequences[8])
    assert found and bench.shard.columns.sequence[slot] == sequences[10]


def test_a_place_whose_message_has_gone_is_looked_for_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    sequences = fill(bench, 25)
    monkeypatch.setattr(seeking, "SEEK_STEP", 4)
    slot, _ = bench.shard.seek(ONE, sequences[9])
    bench.delete(ONE, *bench.receive(ONE, 10))
    bench.send(OTHER, "takes the slot")
    found = False
    sequence = sequences[4]
    while not found:
        slot, found = bench.shard.seek(ONE, sequences[9], slot, sequence)
        sequence = bench.shard.columns.sequence[slot]
    assert sequence == sequences[10]
    bench.shard.purge(ONE, bench.now)
    assert bench.shard.seek(ONE, sequences[9], slot, sequence) == (NIL, True)


def test_the_walk_to_a_page_is_a_small_part_of_the_queue(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeking, "PROBES", 64)
    sequences = fill(bench, 4_000)
    state = bench.shard.queues[ONE]
    walks = []
    for at in range(0, 4_000, 37):
        slot = bench.shard.search.near(state, sequences[at])
        walks.append(at - sequences.index(bench.shard.columns.sequence[slot]))
    assert min(walks) >= 0, "never behind what is looked for"
    assert max(walks) <= 4_000 // 10, "the slots that are looked at lie evenly, between another queue's too"


# --- what a view tells beside the lease -----------------------------------------------------------


def test_a_view_says_what_stands_before_a_message_of_a_group(bench: Bench) -> None:
    bench.queue(3, fifo=True)
    bench.send(3, "a", "b", group="g")
    bench.send(3, "c", group="h")
    assert [view.ahead for view in bench.messages(3)] == [0, State.VISIBLE, 0]
    (lease,) = bench.receive(3, 1)
    assert [view.ahead for view in bench.messages(3)] == [0, State.IN_FLIGHT, 0]
    ask.nack(bench.shard, 3, [ask.Nack(claim(lease), 60_000, "", "")], bench.now)
    assert [view.ahead for view in bench.messages(3)] == [0, State.DELAYED, 0]


def test_a_view_says_where_a_message_goes_and_how_often_it_was_refused() -> None:
    home, away = Bench(0), Bench(1)
    home.queue(ONE, max_receives=1, dead_letter_queue=OTHER, dead_letter_shard=1, dead_letter_on_failure=True)
    home.send(ONE, "a")
    home.receive(ONE)
    failed_ms = home.later(30_000)
    (view,) = home.messages(ONE)
    assert (view.state, view.moves_to, view.moves_for, view.maximum) == (State.OWED, OTHER, Reason.DEAD_LETTER, 1)
    assert (view.first_failure_ms, view.last_failure_ms) == (failed_ms, failed_ms)
    deliver(home, away)
    (view,) = home.messages(ONE)
    assert (view.state, view.moves_to, view.moves_for, view.refusals) == (State.DELAYED, 0, Reason.DEAD_LETTER, 1)
    home.check()
    away.check()


def test_a_long_way_from_a_known_place_is_shortened(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeking, "SEEK_STEP", 40)
    monkeypatch.setattr(seeking, "FAR", 10)
    monkeypatch.setattr(seeking, "PROBES", 64)
    sequences = fill(bench, 1_000)
    head = bench.shard.queue_state(ONE).head
    slot, found = bench.shard.seek(ONE, sequences[900] - 1, head, sequences[0])
    while not found:
        came_to = bench.shard.columns.sequence[slot]
        assert came_to > sequences[700], "it walked from where it was"
        slot, found = bench.shard.seek(ONE, sequences[900] - 1, slot, came_to)
    assert bench.shard.columns.sequence[slot] == sequences[900]
