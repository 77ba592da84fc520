"""Named requests: the same one again makes no second message, whatever happened in between."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from batonq.core.commands import Accepted, Once
from batonq.errors import BatonError, IdempotencyConflict, OverLimit
from tests.core.rig import Bench
from tests.support import ask

DAY_MS = 86_400_000
ONE = Once("key", "content", DAY_MS)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.queue(1)
    yield made
    made.check()


def message(text: str) -> ask.Message:
    return ask.message(text)


def sequences(results: list[Accepted | BatonError]) -> list[int]:
    return [result.sequence for result in results if isinstance(result, Accepted)]


def test_the_same_request_again_is_answered_as_the_first_time(bench: Bench) -> None:
    sends = [message("a"), message("b")]
    first, known = ask.send_once(bench.shard, 1, sends, bench.now, ONE)
    assert not known
    bench.later(DAY_MS - 1)
    again, known = ask.send_once(bench.shard, 1, sends, bench.now, ONE)
    assert known and again == first
    assert bench.shard.counters(1).sent == 2
    assert bench.shard.counters(1).duplicates == 2


def test_it_is_forgotten_after_its_window(bench: Bench) -> None:
    ask.send_once(bench.shard, 1, [message("a")], bench.now, ONE)
    bench.later(DAY_MS + 1000)
    _, known = ask.send_once(bench.shard, 1, [message("a")], bench.now, ONE)
    assert not known
    assert bench.shard.counters(1).sent == 2


def test_the_same_name_with_other_content_is_a_conflict(bench: Bench) -> None:
    ask.send_once(bench.shard, 1, [message("a")], bench.now, ONE)
    (refused,), _ = ask.send_once(bench.shard, 1, [message("b")], bench.now, ONE._replace(content="other"))
    assert isinstance(refused, IdempotencyConflict)
    assert bench.shard.counters(1).sent == 1


def test_another_name_and_another_queue_are_other_requests(bench: Bench) -> None:
    bench.queue(2)
    for queue, once in ((1, ONE), (1, ONE._replace(name="other")), (2, ONE)):
        _, known = ask.send_once(bench.shard, queue, [message("a")], bench.now, once)
        assert not known
    assert bench.shard.counters(1).sent == 2
    assert bench.shard.counters(2).sent == 1


def test_a_request_that_was_taken_in_part_sends_only_the_rest(bench: Bench) -> None:
    bench.queue(1, messages_max=2)
    sends = [message("a"), message("b"), message("c")]
    first, _ = ask.send_once(bench.shard, 1, sends, bench.now, ONE)
    assert isinstance(first[2], OverLimit)
    bench.queue(1, messages_max=10)
    again, known = ask.send_once(bench.shard, 1, sends, bench.now, ONE)
    assert known
    assert sequences(again)[:2] == sequences(first)
    assert len(sequences(again)) == 3
    assert bench.shard.counters(1).sent == 3
    assert ask.send_once(bench.shard, 1, sends, bench.now, ONE)[0] == again


def test_what_a_deduplication_key_kept_out_is_kept_out_again(bench: Bench) -> None:
    ask.send(bench.shard, 1, [ask.message("a", dedup_id="k")], bench.now)
    sends = [ask.message("a", dedup_id="k"), message("b")]
    first, _ = ask.send_once(bench.shard, 1, sends, bench.now, ONE)
    again, known = ask.send_once(bench.shard, 1, sends, bench.now, ONE)
    assert known and again == first
    assert isinstance(first[0], Accepted) and first[0].duplicate
    assert bench.shard.counters(1).sent == 2


def test_it_survives_a_restart_from_the_log(bench: Bench) -> None:
    first, _ = ask.send_once(bench.shard, 1, [message("a")], bench.now, ONE)
    bench.check()
    fresh = bench.replayed()
    again, known = ask.send_once(fresh, 1, [message("a")], bench.now, ONE)
    assert known and again == first


def test_too_many_are_refused_and_none_is_forgotten(bench: Bench) -> None:
    ask.send_once(bench.shard, 1, [message("a")], bench.now, ONE)
    bench.limit(idempotency_keys_max=2)
    (refused,), _ = ask.send_once(bench.shard, 1, [message("b")], bench.now, ONE._replace(name="other"))
    assert isinstance(refused, OverLimit)
    assert ask.send_once(bench.shard, 1, [message("a")], bench.now, ONE)[1]


KEYED = [ask.message("a", dedup_id="k"), ask.message("b", dedup_id="l")]


@pytest.mark.parametrize("sends", [KEYED, [message("c"), KEYED[0]], [KEYED[1], message("c"), message("d")]])
def test_a_request_of_duplicates_is_remembered_for_its_whole_window(bench: Bench, sends: list[ask.Message]) -> None:
    """The deduplication window is over long before the request's."""
    bench.queue(1, dedup_window_ms=300_000)
    ask.send(bench.shard, 1, KEYED, bench.now)
    first, known = ask.send_once(bench.shard, 1, sends, bench.now, ONE)
    sent = bench.shard.counters(1).sent
    assert not known
    for later_ms in (1_000, 300_000, DAY_MS - 302_000):
        bench.later(later_ms)
        again, known = ask.send_once(bench.shard, 1, sends, bench.now, ONE)
        assert known and again == first
    assert bench.shard.counters(1).sent == sent
    bench.check()
    assert ask.send_once(bench.replayed(), 1, sends, bench.now, ONE) == (first, True)


def test_a_repetition_after_more_was_taken_does_not_renew_the_window(bench: Bench) -> None:
    bench.queue(1, messages_max=1)
    sends = [message("a"), message("b")]
    ask.send_once(bench.shard, 1, sends, bench.now, ONE)
    bench.later(DAY_MS - 60_000)
    bench.queue(1)
    again, known = ask.send_once(bench.shard, 1, sends, bench.now, ONE)
    assert known and len(sequences(again)) == 2
    bench.later(120_000)
    later, known = ask.send_once(bench.shard, 1, sends, bench.now, ONE)
    assert not known and len(sequences(later)) == 2
