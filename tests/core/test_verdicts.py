"""What a shard answers about channel entries that a source asks for again: what it answered at first, or nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from batonq.core.commands import Arrival
from batonq.core.limits import VERDICTS_KEPT
from batonq.core.payload import Payload, encode_payload
from batonq.core.records import Reason
from batonq.core.shard.state.channel_end import Incoming
from batonq.errors import LogCorrupt
from tests.core.rig import Bench, deliver

SOURCE, DEAD, FULL, GONE = 1, 2, 3, 99
OLD_REFUSALS_MAX = 65_536  # of all sources together, in releases that forgot the others

PAYLOAD = encode_payload(Payload(0, "", "", "", "", b"", b"", b"payload", b""))


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.queue(DEAD)
    made.queue(FULL, messages_max=1)
    yield made
    made.check()


def entry(source: int, number: int, queue: int) -> Arrival:
    return Arrival(source, number, queue, Reason.DEAD_LETTER, 0, 0, 1, PAYLOAD, "", False)


def window(source: int, first: int, *queues: int) -> list[Arrival]:
    return [entry(source, first + at, queue) for at, queue in enumerate(queues)]


def refuse_many(bench: Bench, source: int, count: int) -> None:
    """A source has its first entries refused."""
    for start in range(1, count + 1, 1_000):
        numbers = range(start, min(start + 1_000, count + 1))
        bench.shard.arrive([entry(source, number, GONE) for number in numbers], bench.now)
        bench.commit()


def test_a_refused_dead_letter_is_not_lost_however_many_of_others_are_refused_meanwhile(bench: Bench) -> None:
    """Its source died before it had written what the destination answered."""
    source = Bench(1)
    source.queue(SOURCE, max_receives=1, dead_letter_queue=GONE, dead_letter_shard=0)
    source.send(SOURCE, "a", "b", "c")
    source.receive(SOURCE)
    source.later(30_000)
    source.receive(SOURCE)
    source.commit()
    owed = [source.arrival(one) for one in source.shard.pending_entries(0, 0, 100)]
    assert len(owed) == 3
    first = bench.shard.arrive(owed, bench.now)
    assert [verdict for _, verdict in first] == [Reason.REFUSED_NO_QUEUE] * 3
    refuse_many(bench, 2, OLD_REFUSALS_MAX + 1)
    source.restart(source.replayed())
    assert deliver(source, bench) == first
    assert source.waiting(SOURCE) == ["a", "b", "c"]
    source.check()


def test_every_entry_of_a_window_gets_its_own_verdict_again(bench: Bench) -> None:
    queues = (DEAD, GONE, FULL, FULL, DEAD, GONE)
    entries = window(1, 1, *queues)
    first = bench.shard.arrive(entries, bench.now)
    assert [verdict for _, verdict in first] == [
        Reason.ACCEPTED,
        Reason.REFUSED_NO_QUEUE,
        Reason.ACCEPTED,
        Reason.REFUSED_FULL,
        Reason.ACCEPTED,
        Reason.REFUSED_NO_QUEUE,
    ]
    bench.check()
    for make in (bench.loaded, bench.replayed):
        bench.restart(make())
        assert bench.shard.arrive(entries, bench.now) == first
        assert bench.shard.arrive(entries[2:4], bench.now) == first[2:4]
        bench.check()
    bench.truncate(bench.next_frame)
    bench.restart(bench.replayed())
    assert bench.shard.arrive(entries, bench.now) == first
    assert bench.shard.counters(DEAD).arrived == 2


def test_of_an_entry_that_is_forgotten_neither_is_said_and_nothing_is_done(bench: Bench) -> None:
    refuse_many(bench, 1, VERDICTS_KEPT + 1)
    with pytest.raises(LogCorrupt, match=r"no longer knows whether it accepted entry 1 from shard 1"):
        bench.shard.arrive([entry(1, 1, GONE), entry(1, 2, GONE)], bench.now)
    assert not bench.check(), "nothing was written"
    assert bench.shard.arrive([entry(1, 2, GONE)], bench.now) == [(2, Reason.REFUSED_NO_QUEUE)]


@pytest.mark.parametrize("kept", [1, 2, 5])
def test_a_window_as_long_as_what_is_remembered_is_answered(bench: Bench, kept: int) -> None:
    bench.limit(verdicts_max=kept)
    number = 1
    for turn in range(20):
        queues = [GONE if (turn + at) % 3 else DEAD for at in range(1 + turn % kept)]
        entries = window(1, number, *queues)
        first = bench.shard.arrive(entries, bench.now)
        assert bench.shard.arrive(entries, bench.now) == first
        if number > kept:
            with pytest.raises(LogCorrupt):
                bench.shard.arrive([entry(1, number + len(queues) - 1 - kept, DEAD)], bench.now)
        number += len(queues)
        bench.check()


def test_entries_must_follow_each_other(bench: Bench) -> None:
    bench.shard.arrive(window(1, 1, DEAD, DEAD), bench.now)
    for numbers in ((4,), (3, 5), (2, 4), (2, 2), (3, 3), (2, 1)):
        with pytest.raises(LogCorrupt, match="entries are missing in the channel"):
            bench.shard.arrive([entry(1, number, DEAD) for number in numbers], bench.now)
    bench.shard.arrive(window(1, 2, DEAD, DEAD), bench.now)
    assert bench.shard.counters(DEAD).arrived == 3


def old_facts(bench: Bench, refused: list[list[int]]) -> dict[str, bytes]:
    """A snapshot as older releases made it: without a word of how much is known."""
    saved = dict(bench.shard.save())
    facts = json.loads(saved["facts"])
    del facts["verdicts_from"]
    facts["refused_numbers"] = refused
    saved["facts"] = json.dumps(facts).encode()
    return saved


def test_what_older_releases_saved_is_read(bench: Bench) -> None:
    entries = window(1, 1, DEAD, GONE, DEAD)
    first = bench.shard.arrive(entries, bench.now)
    bench.commit()
    saved = old_facts(bench, [[1, 2, int(Reason.REFUSED_NO_QUEUE)]])
    fresh = bench.replayed()
    fresh.load(saved)
    assert fresh.arrive(entries, bench.now) == first


def test_what_older_releases_may_have_forgotten_is_not_answered(bench: Bench) -> None:
    """They had as many refusals as they kept, so they may have had more."""
    bench.shard.arrive(window(1, 1, DEAD, GONE, GONE, DEAD), bench.now)
    bench.shard.arrive(window(2, 1, GONE, DEAD), bench.now)
    bench.commit()
    verdict = int(Reason.REFUSED_NO_QUEUE)
    others = [[7, number, verdict] for number in range(1, OLD_REFUSALS_MAX)]
    fresh = bench.replayed()
    fresh.load(old_facts(bench, [[1, 3, verdict], *others]))
    assert fresh.arrive(window(1, 3, GONE, DEAD), bench.now) == [(3, verdict), (4, Reason.ACCEPTED)]
    for forgotten in (entry(1, 2, GONE), entry(1, 1, DEAD), entry(2, 1, GONE), entry(2, 2, DEAD)):
        with pytest.raises(LogCorrupt):
            fresh.arrive([forgotten], bench.now)
    assert fresh.arrive([entry(2, 3, DEAD)], bench.now) == [(3, Reason.ACCEPTED)]


def test_the_memory_of_a_channel_is_bounded() -> None:
    incoming = Incoming()
    for number in range(1, 3 * VERDICTS_KEPT + 1):
        incoming.note(number, Reason.REFUSED_FULL if number % 2 else Reason.ACCEPTED)
    assert incoming.verdict(2 * VERDICTS_KEPT) == 0
    assert incoming.verdict(2 * VERDICTS_KEPT + 1) == Reason.REFUSED_FULL
    assert incoming.verdict(3 * VERDICTS_KEPT) == Reason.ACCEPTED
    assert incoming.verdict(3 * VERDICTS_KEPT + 1) == 0
    assert len(incoming.refusals()) == VERDICTS_KEPT // 2
