"""The histograms of a shard: what is counted, and that messages which are alike count like those that are not."""

from __future__ import annotations

from random import Random

import pytest

from batonq.core.shard.state.columns import Columns
from batonq.core.shard.state.latencies import RECEIVES_MAX, Latencies, QueueLatencies
from tests.core.rig import Bench


def filled(counts: list[int]) -> dict[int, int]:
    return {at: count for at, count in enumerate(counts) if count}


def values(found: QueueLatencies) -> tuple[object, ...]:
    return tuple(getattr(found, name) for name in QueueLatencies.__slots__)


@pytest.mark.parametrize("fifo", [False, True])
def test_waiting_handling_and_the_whole_are_measured(fifo: bool) -> None:
    bench = Bench()
    bench.queue(1, fifo=fifo)
    fields = {"group": "g", "dedup_id": "d"} if fifo else {}
    bench.send(1, "a", **fields)
    bench.later(100)
    (lease,) = bench.receive(1)
    bench.later(30)
    bench.delete(1, lease)
    bench.check()
    found = bench.shard.latencies.queues[1]
    assert (filled(found.waited), filled(found.handled), filled(found.lived)) == ({7: 1}, {5: 1}, {8: 1})
    assert (found.waited_ms, found.handled_ms, found.lived_ms) == (100, 30, 130)
    assert (filled(found.receives), found.receives_sum, found.retried) == ({1: 1}, 1, 0)
    assert not bench.follower.latencies.queues, "only the owner counts"


def test_a_message_that_is_received_again_waits_once() -> None:
    bench = Bench()
    bench.queue(1)
    bench.send(1, "a")
    bench.later(8)
    bench.receive(1, visibility_ms=1_000)
    bench.later(1_500)
    (lease,) = bench.receive(1)
    bench.later(3)
    bench.delete(1, lease)
    found = bench.shard.latencies.queues[1]
    assert (filled(found.waited), found.waited_ms, found.retried) == ({4: 1}, 8, 1)
    assert (found.handled_ms, found.lived_ms) == (3, 1_511), "handling begins with the last receive"
    assert (filled(found.receives), found.receives_sum) == ({2: 1}, 2)


def test_a_delete_of_nothing_counts_nothing() -> None:
    bench = Bench()
    bench.queue(1)
    bench.send(1, "a", "b")
    first, second = bench.receive(1)
    bench.delete(1, first)
    bench.delete(1, first, second)
    assert sum(bench.shard.latencies.queues[1].lived) == 2


def test_a_deleted_queue_is_forgotten() -> None:
    bench = Bench()
    bench.queue(1)
    bench.send(1, "a")
    bench.delete(1, *bench.receive(1))
    bench.shard.close_queue(1, 1, bench.now)
    bench.shard.purge(1, bench.now, None)
    bench.commit()
    assert 1 not in bench.shard.queues and 1 not in bench.shard.latencies.queues


@pytest.mark.parametrize("seed", range(20))
def test_runs_count_like_messages_one_by_one(seed: int) -> None:
    random = Random(seed)
    columns = Columns()
    count = random.randrange(1, 40)
    columns.use(0, count)
    alike = random.random() < 0.3
    for slot in range(count):
        columns.sent[slot] = 1_000 if alike else 1_000 + random.randrange(50)
        columns.leased[slot] = 7 if alike else random.randrange(60)
        columns.count[slot] = 1 if alike else random.choice((1, 1, 2, 40))
    now = 1_000 + 60 + random.choice((60, 5_000, 10**9))
    single, together, apart = Latencies(), Latencies(), Latencies()
    slots = [*range(count)]
    for slot in slots:
        single.received(1, columns, [slot], now)
        single.deleted(1, columns, [slot], now)
    together.received(1, columns, slots, now)
    together.deleted(1, columns, range(count), now)
    random.shuffle(slots)
    apart.received(1, columns, slots, now)
    apart.deleted(1, columns, slots, now)
    assert values(single.of(1)) == values(together.of(1)) == values(apart.of(1))
    assert sum(single.of(1).lived) == count and single.of(1).receives[RECEIVES_MAX] == [*columns.count[:count]].count(
        40
    )


def test_counting_can_be_switched_off() -> None:
    bench = Bench()
    bench.queue(1)
    bench.shard.latencies.on = False
    bench.send(1, "a")
    bench.delete(1, *bench.receive(1))
    assert not bench.shard.latencies.queues
