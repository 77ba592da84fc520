"""Tables that are full: nothing is refused for longer than what is in them was promised to be remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from batonq.core.commands import Accepted, Once, Send, Sent
from batonq.core.ids import AWAY, key_hash, request_hash
from batonq.core.shard.commands.numbered_sends import PRODUCER_IDLE_MS
from batonq.core.shard.commands.remembered_requests import SDK_NAME_WINDOW_MS
from batonq.core.shard.state.attempts import ATTEMPT_WINDOW_MS
from batonq.errors import OverLimit
from tests.core.rig import Bench, make_send
from tests.support import ask

MINUTE_MS = 60_000
DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.queue(1, retention_ms=14 * DAY_MS, in_flight_max=1_000)
    made.queue(2, retention_ms=14 * DAY_MS, dedup_window_ms=14 * DAY_MS)
    made.queue(3, fifo=True, retention_ms=14 * DAY_MS)
    yield made
    made.check()


def named(bench: Bench, name: str, *bodies: str, window_ms: int = DAY_MS) -> list[Any]:
    sends = [make_send(body) for body in bodies or ("x",)]
    return ask.send_once(bench.shard, 1, sends, bench.now, Once(name, ",".join(bodies), window_ms))[0]


def keyed(bench: Bench, key: str, queue: int = 1) -> Any:
    return bench.send(queue, key, dedup_id=key)[0]


def produced(bench: Bench, producer: str) -> Any:
    return bench.send(1, "x", producer=producer, producer_sequence=1)[0]


def by_sdk(bench: Bench, name: str, *bodies: str) -> list[Any]:
    sends = [make_send(body) for body in bodies or ("x",)]
    return ask.send(bench.shard, 1, sends, bench.now, request_hash(1, name))


FILLS: dict[str, tuple[Callable[[Bench, str], Any], int]] = {
    "Idempotency-Keys": (lambda bench, name: named(bench, name)[0], DAY_MS),
    "deduplication ids": (keyed, 5 * MINUTE_MS),
    "producers": (produced, PRODUCER_IDLE_MS),
}


@pytest.mark.parametrize("kind", FILLS)
@pytest.mark.parametrize("later_ms", [0, YEAR_MS])
def test_a_full_table_takes_as_many_again_when_its_entries_have_expired(bench: Bench, kind: str, later_ms: int) -> None:
    fill, window_ms = FILLS[kind]
    bench.queue(1, dedup_window_ms=window_ms, retention_ms=14 * DAY_MS)
    bench.limit(idempotency_keys_max=6, dedup_entries_max=3, producers_max=3)
    for turn in range(5):
        results = [fill(bench, f"{turn} {number}") for number in range(6)]
        assert [type(result) for result in results] == [Accepted] * 3 + [OverLimit] * 3
        assert isinstance(fill(bench, f"{turn} 0"), Accepted), "what is remembered is answered"
        bench.check()
        if turn == 2:
            bench.restart(bench.loaded())
            bench.limit(idempotency_keys_max=6, dedup_entries_max=3, producers_max=3)
        if turn == 3:
            bench.restart(bench.replayed())
            bench.limit(idempotency_keys_max=6, dedup_entries_max=3, producers_max=3)
        bench.later(window_ms - 1_000)
        assert isinstance(fill(bench, "too early"), OverLimit)
        bench.later(later_ms + 2_000)


def test_entries_that_stay_long_keep_no_room_that_others_have_left(bench: Bench) -> None:
    bench.limit(dedup_entries_max=4)
    bench.queue(1, dedup_window_ms=5 * MINUTE_MS, retention_ms=14 * DAY_MS)
    assert isinstance(keyed(bench, "long", queue=2), Accepted)
    for turn in range(10):
        results = [keyed(bench, f"{turn} {number}") for number in range(4)]
        assert [type(result) for result in results] == [Accepted] * 3 + [OverLimit]
        bench.check()
        bench.later(5 * MINUTE_MS + 1_000)
    assert keyed(bench, "long", queue=2).duplicate


def test_a_key_that_lives_with_its_message_makes_room_when_that_is_gone(bench: Bench) -> None:
    bench.limit(dedup_entries_max=2)
    bench.queue(4, dedup_lives=True, dedup_window_ms=MINUTE_MS, retention_ms=14 * DAY_MS)
    for turn in range(5):
        assert isinstance(keyed(bench, f"{turn} a", queue=4), Accepted)
        assert isinstance(keyed(bench, f"{turn} b", queue=4), Accepted)
        bench.later(DAY_MS)
        assert isinstance(keyed(bench, "c", queue=4), OverLimit)
        assert keyed(bench, f"{turn} a", queue=4).duplicate
        bench.delete(4, *bench.receive(4))
        bench.check()


def test_receive_attempts_are_remembered_again_when_older_ones_are_over(bench: Bench) -> None:
    bench.limit(attempts_max=1)
    for turn in range(3):
        for group in "abc":
            bench.send(3, "x", group=f"{turn} {group}", dedup_id=f"{turn} {group}")
        first = bench.receive(3, 1, visibility_ms=2 * ATTEMPT_WINDOW_MS, attempt=f"{turn} first")
        assert len(bench.receive(3, 1, visibility_ms=2 * ATTEMPT_WINDOW_MS, attempt=f"{turn} second")) == 1
        assert [one.slot for one in bench.receive(3, 1, attempt=f"{turn} first")] == [one.slot for one in first]
        bench.later(ATTEMPT_WINDOW_MS)
        bench.check()


def test_requests_of_sdks_leave_idempotency_keys_their_room(bench: Bench) -> None:
    bench.limit(idempotency_keys_max=4, sdk_names_max=3)
    for number in range(50):
        assert isinstance(by_sdk(bench, str(number))[0], Accepted)
    assert isinstance(named(bench, "a")[0], Accepted)
    assert isinstance(named(bench, "b")[0], Accepted)
    assert isinstance(named(bench, "c")[0], OverLimit)
    for number in range(50):
        assert isinstance(by_sdk(bench, f"more {number}")[0], Accepted)
    bench.check()
    assert named(bench, "a") == named(bench, "a")
    assert bench.shard.counters(1).sent == 102


@pytest.mark.parametrize("room", [1, 2, 5])
def test_the_newest_requests_of_sdks_are_remembered_and_none_is_refused(bench: Bench, room: int) -> None:
    bench.limit(sdk_names_max=room)
    for number in range(20):
        first = by_sdk(bench, str(number))[0]
        for known in range(max(0, number - room + 1), number):
            assert by_sdk(bench, str(known))[0].duplicate
        assert by_sdk(bench, str(number))[0].sequence == first.sequence
        bench.check()
    assert not by_sdk(bench, "0")[0].duplicate, "as after two minutes"
    assert bench.shard.counters(1).sent == 21


def sequences(sent: Sent) -> list[int]:
    return [one.sequence for one in sent if isinstance(one, Accepted)]


def test_plain_batches_of_sdks_are_bounded_alike(bench: Bench) -> None:
    bench.limit(sdk_names_max=3)
    for number in range(0, 20, 2):
        requests = [Send(1, [b"a", b"b"], request=number + 1), Send(1, [b"c"], request=number + 2)]
        first = [sequences(told) for told in bench.shard.send(requests, bench.now)]
        assert first == [sequences(told) for told in bench.shard.send(requests, bench.now)]
        (again,) = bench.shard.send([Send(1, [b"c"], request=number + 2)], bench.now)
        assert sequences(again) == first[1]
    bench.check()
    assert bench.shard.counters(1).sent == 30
    assert len(bench.shard.requests.table) == 3


def test_a_request_that_was_taken_in_part_is_known_whole_or_not_at_all(bench: Bench) -> None:
    """A message that was taken is never said to have been refused."""
    bodies = ("a", "b", "c", "d")
    for room in range(1, 8):
        bench.limit(sdk_names_max=room)
        bench.queue(1, messages_max=bench.shard.queues[1].messages + 3)
        results = by_sdk(bench, f"part {room}", *bodies)
        assert [isinstance(result, Accepted) for result in results] == [True, True, True, False]
        bench.queue(1)
        again = by_sdk(bench, f"part {room}", *bodies)
        if room >= 4:
            assert [result.sequence for result in again[:3]] == [result.sequence for result in results[:3]]
            assert isinstance(again[3], OverLimit)
        else:
            assert all(isinstance(result, Accepted) and not result.duplicate for result in again)
        bench.check()


def test_a_request_that_was_asked_for_elsewhere_is_not_taken_later_whatever_the_room(bench: Bench) -> None:
    bench.limit(sdk_names_max=1)
    for number in range(5):
        by_sdk(bench, str(number))
        away = key_hash(number) | AWAY
        assert ask.send(bench.shard, 1, [], bench.now, away) == []
        sent = bench.shard.counters(1).sent
        ask.send(bench.shard, 1, [make_send("x")], bench.now, away)
        assert bench.shard.counters(1).sent == sent
        bench.check()


def test_a_name_without_messages_here_is_refused_when_there_is_no_room(bench: Bench) -> None:
    """Its messages go to other shards, which must not take them before the name is remembered."""
    bench.limit(idempotency_keys_max=2)
    named(bench, "a")
    (refused,), _ = ask.send_once(bench.shard, 1, [], bench.now, Once("b", "", DAY_MS))
    assert isinstance(refused, OverLimit)
    bench.later(DAY_MS + 1_000)
    assert ask.send_once(bench.shard, 1, [], bench.now, Once("b", "", DAY_MS)) == ([], False)


def test_an_idempotency_key_with_a_short_window_is_no_request_of_an_sdk(bench: Bench) -> None:
    bench.limit(sdk_names_max=2, idempotency_keys_max=4)
    first = named(bench, "a", window_ms=SDK_NAME_WINDOW_MS)
    for number in range(10):
        by_sdk(bench, str(number))
    bench.later(SDK_NAME_WINDOW_MS - 1_000)
    assert named(bench, "a", window_ms=SDK_NAME_WINDOW_MS) == first


def test_work_is_bounded_when_everything_in_a_table_has_expired(bench: Bench) -> None:
    """The first send after a long pause does not pay for all that has expired meanwhile."""
    for number in range(3_000):
        keyed(bench, str(number))
    bench.later(YEAR_MS)
    before = len(bench.shard.dedup.table)
    keyed(bench, "new")
    assert before - 10 < len(bench.shard.dedup.table) <= before
    for number in range(3_000):
        keyed(bench, f"new {number}")
    assert len(bench.shard.dedup.table) <= 3_002


def test_requests_before_and_after_a_restart_have_their_shares(bench: Bench) -> None:
    for number in range(4):
        by_sdk(bench, str(number))
    first = named(bench, "a")
    bench.check()
    bench.truncate(bench.next_frame)
    for make in (bench.loaded, bench.replayed):
        bench.restart(make())
        bench.limit(idempotency_keys_max=2, sdk_names_max=4)
        assert [by_sdk(bench, str(number))[0].duplicate for number in range(4)] == [True] * 4
        assert named(bench, "a") == first
        assert isinstance(named(bench, "b")[0], OverLimit)
        bench.check()


def test_an_id_that_a_purge_forgot_needs_no_more_room() -> None:
    bench = Bench()
    bench.limit(dedup_entries_max=3)
    bench.queue(1)
    for key in "abc":
        bench.send(1, "x", dedup_id=key)
    bench.shard.purge(1, bench.now)
    for key in "abc":
        (sent,) = bench.send(1, "y", dedup_id=key)
        assert isinstance(sent, Accepted) and not sent.duplicate
    assert len(bench.shard.dedup.table) == 3
    bench.check()
