"""Idempotent producing: a producer's numbers tell a repetition, in every way a batch can be repeated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from batonq.core.commands import Accepted, Send
from batonq.core.ids import message_id
from batonq.core.records import Type
from batonq.core.shard.commands.numbered_sends import PRODUCER_IDLE_MS
from batonq.core.shard.state.producers import Producers
from batonq.errors import DeduplicationConflict, OverLimit
from tests.core.rig import Bench, make_send
from tests.support import ask


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.queue(1)
    yield made
    made.check()


def produce(bench: Bench, first: int, *bodies: str, producer: str = "p", **fields: Any) -> list[Any]:
    sends = [
        make_send(body, producer=producer, producer_sequence=first + at, **fields) for at, body in enumerate(bodies)
    ]
    return ask.send(bench.shard, 1, sends, bench.now)


def original(sequence: int) -> Accepted:
    return Accepted(sequence, message_id(0, sequence), True)


def test_a_plain_batch_is_one_run_and_one_record_more(bench: Bench) -> None:
    bench.commit()
    assert [result.duplicate for result in produce(bench, 1, "a", "b", "c")] == [False] * 3
    rows = bench.check()
    assert [row.type for row in rows] == [Type.SENT, Type.SENT, Type.SENT, Type.PRODUCED]
    assert (rows[3].until, rows[3].sequence, rows[3].w4) == (3, 3, 3)


def test_a_retry_of_the_last_batch_names_its_messages(bench: Bench) -> None:
    produce(bench, 1, "x", "y")
    first = produce(bench, 3, "a", "b", "c")
    assert produce(bench, 3, "a", "b", "c") == [original(result.sequence) for result in first]
    assert produce(bench, 1, "x", "y") == [Accepted(0, "", True)] * 2
    assert bench.waiting(1) == ["x", "y", "a", "b", "c"]
    assert bench.shard.counters(1).duplicates == 5


def test_of_a_batch_that_grew_only_the_new_ones_are_taken(bench: Bench) -> None:
    produce(bench, 1, "a", "b")
    bench.commit()
    results = produce(bench, 1, "a", "b", "c", "d")
    assert [result.duplicate for result in results] == [True, True, False, False]
    assert [row.type for row in bench.check()] == [Type.SENT, Type.SENT, Type.PRODUCED]
    assert bench.waiting(1) == ["a", "b", "c", "d"]
    assert produce(bench, 3, "c", "d") == [original(3), original(4)]


def test_numbers_may_have_gaps_and_producers_and_queues_are_told_apart(bench: Bench) -> None:
    bench.queue(2)
    produce(bench, 1, "a")
    assert not produce(bench, 10, "b")[0].duplicate
    assert produce(bench, 5, "c")[0] == Accepted(0, "", True)
    assert not produce(bench, 1, "d", producer="other")[0].duplicate
    send = make_send("e", producer="p", producer_sequence=1)
    assert not ask.send(bench.shard, 2, [send], bench.now)[0].duplicate  # type: ignore[union-attr]


def test_messages_that_need_a_decision_each_are_numbered_too(bench: Bench) -> None:
    bench.queue(1, fifo=True)
    first = produce(bench, 1, "a", "b", group="g")
    assert produce(bench, 1, "a", "b", "c", group="g")[:2] == [original(result.sequence) for result in first]
    assert bench.waiting(1) == ["a", "b", "c"]


def test_numbers_that_are_not_in_a_row(bench: Bench) -> None:
    produce(bench, 1, "a")
    numbers = [1, 2, 7, 2, 8]
    sends = [make_send(str(number), producer="p", producer_sequence=number) for number in numbers]
    results = ask.send(bench.shard, 1, sends, bench.now)
    assert [result.duplicate for result in results] == [True, False, False, True, False]  # type: ignore[union-attr]
    assert bench.waiting(1) == ["a", "2", "7", "8"]


def test_behind_a_message_that_must_wait_all_wait(bench: Bench) -> None:
    bench.queue(1, messages_max=2)
    results = produce(bench, 1, "a", "b", "c", "d")
    assert [getattr(result, "code", "") for result in results] == ["", "", "over_limit", "over_limit"]
    bench.delete(1, *bench.receive(1))
    again = produce(bench, 1, "a", "b", "c", "d")
    assert [result.duplicate for result in again] == [True, True, False, False]
    assert bench.waiting(1) == ["c", "d"]


def test_a_message_that_is_refused_for_good_holds_nothing_up(bench: Bench) -> None:
    bench.send(1, "x", dedup_id="k")
    sends = [
        make_send("a", producer="p", producer_sequence=1),
        make_send("other", producer="p", producer_sequence=2, dedup_id="k", strict_content=True),
        make_send("c", producer="p", producer_sequence=3),
    ]
    results = ask.send(bench.shard, 1, sends, bench.now)
    assert isinstance(results[1], DeduplicationConflict)
    assert bench.waiting(1) == ["x", "a", "c"]


def test_plain_bodies_are_numbered(bench: Bench) -> None:
    def send(first: int, *bodies: bytes) -> list[tuple[int, bool]]:
        numbers = range(first, first + len(bodies))
        (sent,) = bench.shard.send([Send(1, bodies, sender="me", producer="p", numbers=numbers)], bench.now)
        return [(one.sequence, one.duplicate) for one in sent if isinstance(one, Accepted)]

    assert send(1, b"a", b"b") == [(1, False), (2, False)]
    assert send(1, b"a", b"b") == [(1, True), (2, True)]
    assert send(2, b"b", b"c") == [(2, True), (3, False)]
    assert send(3, b"c") == [(3, True)]
    assert bench.waiting(1) == ["a", "b", "c"]


def test_numbers_survive_restarts_a_snapshot_and_a_dropped_front(bench: Bench) -> None:
    produce(bench, 1, "a", "b")
    produce(bench, 1, "z", producer="other")
    bench.check()
    bench.restart(bench.loaded())
    assert produce(bench, 1, "a", "b") == [original(1), original(2)]
    bench.delete(1, *bench.receive(1))
    bench.truncate(bench.next_frame)
    bench.restart(bench.replayed())
    assert produce(bench, 1, "a", "b", "c")[:2] == [original(1), original(2)]
    assert bench.waiting(1) == ["c"]


def test_an_idle_producer_is_forgotten(bench: Bench) -> None:
    produce(bench, 1, "a")
    produce(bench, 1, "z", producer="other")
    bench.later(PRODUCER_IDLE_MS - 1_000)
    assert produce(bench, 1, "a")[0].duplicate
    produce(bench, 2, "z", producer="other")
    bench.later(1_000)
    assert not produce(bench, 1, "a")[0].duplicate
    assert produce(bench, 2, "z", producer="other")[0].duplicate
    assert len(bench.shard.numbered.producers) == 2


def test_no_more_producers_are_remembered_than_the_limit(bench: Bench) -> None:
    bench.limit(producers_max=2)
    produce(bench, 1, "a", producer="a")
    produce(bench, 1, "b", producer="b")
    assert isinstance(produce(bench, 1, "c", producer="c")[0], OverLimit)
    assert not produce(bench, 2, "a", producer="a")[0].duplicate
    bench.later(PRODUCER_IDLE_MS)
    assert not produce(bench, 1, "c", producer="c")[0].duplicate


def test_the_table_saves_all_of_an_entry() -> None:
    table = Producers()
    table.put(2**64 - 1, 2**63 - 1, 2**48 - 1, 2**16 - 1, 2**32 - 1, 0)
    table.put(1, 0, 1, 1, 5, 0)
    other = Producers()
    other.load(table.save())
    assert other.entries() == table.entries()
    assert other.get(2**64 - 1, 0) == (2**63 - 1, 2**48 - 1, 2**16 - 1, 2**32 - 1)
    table.put(3, 7, 9, 1, 100, 5)
    assert [key for key, _ in table.entries()] == [2**64 - 1, 1, 3], "one that is not over holds up those behind it"
