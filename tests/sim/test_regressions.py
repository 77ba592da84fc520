"""What the simulator found, each as the shortest course of events that shows it."""

from __future__ import annotations

import pytest

from batonq.core.commands import Accepted, Claim, Job
from batonq.core.limits import DEFAULT_LIMITS, ShardLimits
from batonq.core.policy import QueuePolicy
from batonq.core.shard.machine import Shard
from batonq.core.shard.state import job_book as jobbook
from batonq.core.shard.state.journal import Journal
from batonq.errors import OverLimit
from batonq.log.frames import build
from tests.support import ask

NOW_MS = 1_700_000_000_000
QUEUE = 1


def send(shard: Shard, count: int) -> None:
    ask.send(shard, QUEUE, [ask.message("hello") for _ in range(count)], NOW_MS)


def replay(live: Shard, frames: list[tuple[int, bytes, bytes]]) -> Shard:
    """The state after the front before these frames was dropped."""
    again = Shard(live.number)
    again.before_base = frames[0][0]
    for number, rows, variable in frames:
        frame = build(
            cluster=1,
            region=0,
            shard=live.number,
            epoch=1,
            number=number,
            time_ms=NOW_MS,
            previous_digest=bytes(16),
            rows=rows,
            variable=variable,
        )
        again.apply_frame(number, frame.words(), variable)
    return again


def test_slots_that_only_the_dropped_front_used_are_free() -> None:
    shard = Shard(0)
    shard.take_ownership(1, NOW_MS, 0)
    shard.set_policy(QueuePolicy(QUEUE, "000000000000", "orders"), NOW_MS)
    send(shard, 3)
    leases = ask.receive(shard, QUEUE, 10, None, NOW_MS, "tester")
    ask.delete(shard, QUEUE, [Claim(lease.slot, lease.sequence, lease.epoch) for lease in leases], NOW_MS)
    shard.begin_frame(2)
    shard.write_base(2, NOW_MS)
    send(shard, 1)  # into the highest of the three slots that are free
    again = replay(shard, [(2, *shard.seal())])
    again.validate()
    assert again.dump(NOW_MS) == shard.dump(NOW_MS)


def test_a_base_moves_the_time_that_a_new_owner_begins_with() -> None:
    shard = Shard(0)
    shard.take_ownership(1, NOW_MS, 0)
    shard.set_policy(QueuePolicy(QUEUE, "000000000000", "orders"), NOW_MS)
    shard.begin_frame(2)
    shard.write_base(2, NOW_MS + 50)
    again = Shard(0)
    again.load(shard.save())  # as a clean stop saves it
    again.begin_frame(3)
    again.take_ownership(2, NOW_MS + 10, 0)  # by a clock that was set back meanwhile
    assert again.last_time_ms == NOW_MS + 50


def test_a_shard_that_was_over_its_limit_takes_messages_again_when_some_are_gone() -> None:
    """What moves within the shard is not limited, and takes slots beyond the limit: those are freed last, and next."""
    shard = Shard(0, ShardLimits(slots_max=3))
    shard.take_ownership(1, NOW_MS, 0)
    shard.set_policy(QueuePolicy(2, "000000000000", "dead"), NOW_MS)
    shard.set_policy(QueuePolicy(QUEUE, "000000000000", "orders", max_receives=1, dead_letter_queue=2), NOW_MS)
    send(shard, 3)
    ask.receive(shard, QUEUE, 3, 1_000, NOW_MS, "tester")
    later_ms = NOW_MS + 2_000
    ask.receive(
        shard, QUEUE, 3, None, later_ms, "tester"
    )  # none is left: all go to the dead letters, the first to slot 3
    leases = ask.receive(shard, 2, 3, None, later_ms, "tester")
    last = max(leases, key=lambda lease: lease.slot)
    assert last.slot == 3
    others = [lease for lease in leases if lease is not last]
    for lease in (*others, last):
        ask.delete(shard, 2, [Claim(lease.slot, lease.sequence, lease.epoch)], later_ms)
    assert shard.counters(2).visible == 0
    plain, delayed = ask.message("hello"), ask.message("hello", delay_ms=1)
    for sends in ([delayed], [plain, plain]):  # one by one, and as a run
        assert all(isinstance(result, Accepted) for result in ask.send(shard, QUEUE, sends, later_ms))
    results = [ask.send(shard, QUEUE, [plain], later_ms)[0] for _ in range(3)]
    assert isinstance(results[-1], OverLimit)


def test_a_full_book_of_jobs_is_loaded_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that are not over took the room of those that are, but not when the same book was loaded."""
    monkeypatch.setattr(jobbook, "TOTAL_MAX", 2)
    book = jobbook.JobBook(Journal(0, DEFAULT_LIMITS))
    book.put(job("first", 1, "RUNNING"))
    for at in range(4):
        book.put(job(f"job {at}", 2 + at, "RUNNING"))
        book.put(job(f"job {at}", 2 + at, "COMPLETED"))
    assert list(book) == ["first", "job 2", "job 3"]
    loaded = jobbook.JobBook(Journal(0, DEFAULT_LIMITS))
    loaded.load(one.values() for one in book.values())
    assert list(loaded) == list(book)


def job(name: str, source: int, state: str) -> Job:
    return Job(name, source, 0, 0, 1, state, 0, 0, key=source)
