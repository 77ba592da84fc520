"""What a purge does to deduplication ids: those of the messages that it is about are forgotten, later ones are not."""

from __future__ import annotations

import pytest

from batonq.core.commands import Accepted
from batonq.core.records import Type
from tests.core.rig import Bench, make_send
from tests.support import ask


def keyed(bench: Bench, queue: int, key: str) -> Accepted:
    (result,) = ask.send(bench.shard, queue, [make_send("x", dedup_id=key, group="g")], bench.now)
    assert isinstance(result, Accepted)
    return result


@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("lives", [False, True])
def test_an_id_that_was_sent_during_a_purge_is_known_after_it(fifo: bool, lives: bool) -> None:
    bench = Bench()
    bench.limit(purge_step_max=1)
    queue = bench.queue(2, fifo=fifo, dedup_lives=lives)
    for number in range(3):
        keyed(bench, queue, f"before {number}")
    through = bench.shard.next_sequence - 1
    meanwhile = None
    done = False
    while not done:
        _, done = bench.shard.purge(queue, bench.now, through)
        sent = keyed(bench, queue, "meanwhile")
        assert meanwhile is None or (sent.duplicate and sent.sequence == meanwhile.sequence)
        meanwhile = meanwhile or sent
    bench.check()
    assert meanwhile is not None
    for successor in (bench.replayed, bench.loaded):  # by its log, and by a snapshot
        again = keyed(bench, queue, "meanwhile")
        assert again.duplicate and again.sequence == meanwhile.sequence
        bench.commit()
        bench.restart(successor())
    for number in range(3):  # these can be sent again, once
        assert not keyed(bench, queue, f"before {number}").duplicate
        assert keyed(bench, queue, f"before {number}").duplicate
    bench.check()


def test_each_purge_forgets_what_was_sent_before_it() -> None:
    bench = Bench()
    queue = bench.queue(2)
    for _ in range(3):
        assert not keyed(bench, queue, "key").duplicate
        assert keyed(bench, queue, "key").duplicate
        assert bench.shard.purge(queue, bench.now) == (1, True)
        bench.check()


def test_a_purge_in_a_log_of_an_older_release_forgets_all_ids() -> None:
    """Its record does not say up to which message, so that ids have another scope from there on."""
    bench = Bench()
    queue = bench.queue(2)
    keyed(bench, queue, "key")
    bench.shard.frame.add(Type.QUEUE_PURGED | queue << 32, bench.shard.next_sequence, bench.now, 1, 1, 0, 0, 0)
    bench.shard.messages.on_purged(bench.shard.queues[queue], bench.shard.next_sequence, bench.now, True)
    assert not keyed(bench, queue, "key").duplicate
    bench.check()
    assert keyed(bench, queue, "key").duplicate
    assert bench.shard.purge(queue, bench.now) == (1, True)
    assert not keyed(bench, queue, "key").duplicate
    bench.check()
