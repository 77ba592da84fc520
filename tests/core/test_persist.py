"""What survives: snapshots, a dropped front, and logs that do not fit, which are refused and not guessed at."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

import pytest

from batonq.core import sections
from batonq.core.commands import Arrival
from batonq.core.policy import QueuePolicy
from batonq.core.records import Reason, State, Type
from batonq.core.shard.machine import Shard
from batonq.errors import LogCorrupt
from tests.core.rig import Bench, claim, make_send
from tests.support import ask


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.queue(1)
    yield made
    made.check()


def row(kind: int, **words: int) -> array[int]:
    values = {"w0": kind | 1 << 32, **{f"w{number}": 0 for number in range(1, 8)}} | words
    return array("Q", [values[f"w{number}"] for number in range(8)])


# --- snapshots --------------------------------------------------------------------------------------


def test_a_snapshot_is_the_state_and_goes_on_like_it(bench: Bench) -> None:
    bench.queue(2, fifo=True)
    for number in range(20):
        bench.send(1, str(number), group=f"g{number % 3}" if number % 2 else "", priority=number % 4)
        bench.send(2, str(number), group=f"g{number % 3}")
    leases = bench.receive(1, 5)
    bench.receive(2, 4)
    ask.nack(bench.shard, 1, [ask.Nack(claim(leases[0]), 1_000, "why", "E")], bench.now)
    loaded = bench.loaded()
    loaded.validate()
    assert loaded.save() == bench.shard.save()
    order = [lease.sequence for lease in bench.receive(1, 100)]
    loaded.begin_frame(1)
    again = [lease.sequence for lease in ask.receive(loaded, 1, 100, None, bench.now)]
    assert sorted(again) == sorted(order)


def test_a_snapshot_passes_through_bytes(bench: Bench) -> None:
    bench.send(1, "a", "b")
    packed = sections.pack(bench.shard.save())
    fresh = Shard(0)
    fresh.load(sections.unpack(packed))
    assert fresh.dump(bench.now) == bench.shard.dump(bench.now)


# --- a dropped front --------------------------------------------------------------------------------


def test_only_what_the_dropped_frames_hold_is_carried(bench: Bench) -> None:
    bench.send(1, "old", "older")
    bench.delete(1, bench.receive(1, 1)[0])
    bench.check()
    boundary = bench.next_frame
    bench.send(1, "new")
    bench.check()
    bench.truncate(boundary)
    carried = [r.sequence for f in bench.frames.values() for r in f.rows() if r.type is Type.CARRIED]
    assert carried == [2]
    assert bench.waiting(1) == ["older", "new"]


def test_a_carried_message_is_no_second_send(bench: Bench) -> None:
    bench.send(1, "a")
    bench.truncate(bench.next_frame)
    bench.truncate(bench.next_frame)
    assert bench.shard.counters(1).sent == 1
    assert bench.replayed().counters(1).sent == 1
    assert bench.waiting(1) == ["a"]


def test_commands_between_carrying_and_base_are_not_lost() -> None:
    """Compaction goes in steps, and the shard serves meanwhile."""
    bench = Bench()
    bench.queue(1, max_receives=1, dead_letter_on_failure=True, dead_letter_queue=9, dead_letter_shard=1)
    bench.send(1, "held", "owed", "deleted", "waiting")
    leases = bench.receive(1, 3)
    ask.nack(bench.shard, 1, [ask.Nack(claim(leases[1]), 0, "why", "E", True)], bench.now)
    bench.check()
    boundary = bench.next_frame
    shard, columns = bench.shard, bench.shard.columns
    for view in bench.messages(1):
        payload = bench.frames[view.position >> 16].part(columns.extent[view.slot])
        shard.carry(view.slot, payload, [], bench.now)
    bench.check()
    bench.delete(1, leases[2])
    shard.settle(1, [(1, Reason.REFUSED_FULL)], bench.now)
    bench.send(1, "late")
    bench.receive(1, 1)
    bench.check()
    shard.write_base(boundary, bench.now)
    bench.check()
    for number in [number for number in bench.frames if number < boundary]:
        del bench.frames[number]
    fresh = bench.replayed()
    fresh.validate()
    assert fresh.dump(bench.now) == shard.dump(bench.now)
    bench.restart(fresh)
    states = [State(view.state).name for view in bench.messages(1)]
    assert states == ["IN_FLIGHT", "DELAYED", "IN_FLIGHT", "VISIBLE"]
    bench.later(1_000)
    assert bench.messages(1)[1].state == State.OWED, "what was refused is tried again"
    bench.check()


def test_a_base_that_counts_other_messages_is_damage(bench: Bench) -> None:
    bench.send(1, "a")
    bench.check()
    boundary = bench.next_frame
    bench.shard.write_base(boundary, bench.now)  # nothing was carried
    bench.commit()
    fresh = Shard(0)
    fresh.before_base = boundary
    with pytest.raises(LogCorrupt, match="there are 0 messages, the Base says 1"):
        fresh.apply_frame(*bench.frames[boundary])


def test_a_base_for_a_later_truncation_says_nothing_new(bench: Bench) -> None:
    bench.send(1, "a")
    bench.shard.write_base(bench.next_frame, bench.now)
    bench.check()
    assert bench.replayed().dump(bench.now) == bench.shard.dump(bench.now)


def long_base(bench: Bench) -> tuple[int, int]:
    """A Base that takes several frames: the frame before which the log may be dropped, and its own first one."""
    bench.send(1, *(f"message {number}" for number in range(200)))
    for number in range(100, 140):
        bench.shard.set_policy(QueuePolicy(number, "tenant", f"queue-{number}"), bench.now)
    bench.receive(1, 50)
    bench.check()
    boundary = bench.next_frame
    for view in bench.messages(1):
        payload = bench.frames[view.position >> 16].part(bench.shard.columns.extent[view.slot])
        bench.shard.carry(view.slot, payload, [], bench.now)
    bench.check()
    bench.send(1, "in the frame of the first part")
    first = bench.next_frame
    assert bench.shard.write_base(boundary, bench.now, frame_bytes_max=6_000) > 6_000
    bench.send(1, "in the frame of the last part")
    bench.check()
    assert bench.next_frame - first > 3
    assert all(len(bench.frames[number].variable) <= 6_000 for number in range(first, bench.next_frame))
    return boundary, first


def drop(bench: Bench, boundary: int) -> None:
    for number in [number for number in bench.frames if number < boundary]:
        del bench.frames[number]


def test_a_base_that_is_too_long_for_a_frame_goes_in_parts(bench: Bench) -> None:
    boundary, _ = long_base(bench)
    assert bench.replayed().dump(bench.now) == bench.shard.dump(bench.now), "it says nothing new to those who know"
    drop(bench, boundary)
    fresh = bench.replayed()
    fresh.validate()
    assert fresh.dump(bench.now) == bench.shard.dump(bench.now)
    bench.restart(fresh)
    bench.check()


def test_an_owner_may_die_between_two_parts_of_a_base(bench: Bench) -> None:
    boundary, first = long_base(bench)
    del bench.frames[bench.next_frame - 1]  # the last part, and what came with it, were never written
    bench.next_frame -= 1
    successor = bench.replayed()
    successor.begin_frame(bench.next_frame)
    bench.shard = successor
    bench.follower = bench.replayed()
    successor.take_ownership(successor.epoch + 1, bench.now, 0)
    bench.check()
    successor.write_base(boundary, bench.now, frame_bytes_max=6_000)
    bench.check()
    drop(bench, boundary)
    assert bench.replayed().dump(bench.now) == successor.dump(bench.now)
    assert bench.frames[first].rows()[0].type == Type.SENT


def test_a_part_of_a_base_that_is_missing_is_damage(bench: Bench) -> None:
    boundary, first = long_base(bench)
    drop(bench, boundary)
    del bench.frames[first + 1]
    with pytest.raises(LogCorrupt, match="part 2 of a Base follows 1 parts"):
        bench.replayed()


# --- logs that do not fit -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (row(200), "unknown record type 200"),
        (row(Type.LEASED, w1=77), "names message 77, which is not there"),
        (row(Type.DELETED, w1=1, w7=5), "names message 1, which is not there"),
        (row(Type.EXTENDED, w1=1), "EXTENDED cannot happen to message 1, which is VISIBLE"),
        (row(Type.SETTLED, w1=1), "SETTLED cannot happen to message 1, which is VISIBLE"),
        (row(Type.SENT, w1=9), "message 9 takes slot 0, where message 1 is"),
        (row(Type.SENT, w0=Type.SENT | 8 << 32, w1=9, w7=9), "queue 8, which this shard does not have"),
        (row(Type.OWED, w1=1, w3=1 | 5 << 16), "channel entry 5 to shard 1 follows 0"),
        (row(Type.CARRIED, w1=44, w7=3), "message 44 is carried, but is not there"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(bench: Bench, words: array[int], says: str) -> None:
    bench.send(1, "a")
    bench.check()
    fresh = bench.replayed()
    with pytest.raises(LogCorrupt, match=says):
        fresh.apply_frame(bench.next_frame, words, b"")


def test_a_gap_in_a_channel_is_refused(bench: Bench) -> None:
    payload = ask.payload(make_send("a"), bench.now)
    arrival = Arrival(1, 2, 1, Reason.DEAD_LETTER, 0, bench.now, 1, payload, "", False)
    with pytest.raises(LogCorrupt, match="entry 2 from shard 1 follows 0: entries are missing in the channel"):
        bench.shard.arrive([arrival], bench.now)


def test_limits_of_a_queue(bench: Bench) -> None:
    bench.queue(2, messages_max=2, bytes_max=1_000)
    results: list[Any] = bench.send(2, "a", "b" * 2_000, "c", "d")
    assert [getattr(result, "code", "taken") for result in results] == ["taken", "over_limit", "taken", "over_limit"]
    assert "messages, its limit" in str(results[3])
    assert "bytes, and its limit is 1000" in str(results[1])
