"""Replay jobs in the core: where they begin and end, what they record, and what a follower makes of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from batonq.core.commands import Accepted, Job, Send
from batonq.core.payload import Lineage, decode
from batonq.core.records import PLAIN_VERSION, REPLAYING_VERSION, SentFlag, Type
from batonq.core.shard.commands.replay_jobs import Replayed
from batonq.core.shard.state.job_book import REPLAY
from batonq.errors import JobConflict, NotRetained
from tests.core.rig import Bench

SOURCE, TARGET = 1, 2
DAY_MS = 86_400_000


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.queue(SOURCE, retain_ms=DAY_MS)
    made.queue(TARGET)
    yield made
    made.check()


def start(bench: Bench, job_id: str = "job", *, after: int = 0, through: int = 0, **fields: int) -> Job:
    job = Job(job_id, SOURCE, TARGET, 0, 1_000, "RUNNING", 0, 0, kind=REPLAY, selection="all", cursor=after)
    for name, value in {"through_sequence": through, **fields}.items():
        setattr(job, name, value)
    return bench.shard.start_job(job, bench.now)


def positions(bench: Bench) -> list[int]:
    retained = bench.shard.retained_of(SOURCE, bench.now)
    return [position for position, _ in retained.entries()]


def step(bench: Bench) -> int:
    """How many messages node/ may send for the job now."""
    bench.shard.step_jobs(bench.later(1_000))
    bench.check()
    return bench.shard.to_examine.get("job", 0)


def advance(bench: Bench, done: Replayed) -> Job:
    bench.shard.replayed("job", bench.shard.jobs["job"].cursor, done, bench.now)
    bench.check()
    return bench.shard.jobs["job"]


def test_a_job_covers_what_is_retained_at_its_start(bench: Bench) -> None:
    bench.send(SOURCE, *"abcde")
    at = positions(bench)
    assert start(bench, "job").to_move == 5
    bench.send(SOURCE, "later")
    assert bench.shard.jobs["job"].through_sequence == at[-1]
    with pytest.raises(JobConflict, match="is running on this queue"):
        start(bench, "other")
    bench.shard.cancel_job("job", bench.now)
    step(bench)
    assert start(bench, "part", after=at[0], through=at[3]).to_move == 3
    bench.shard.cancel_job("part", bench.now)
    step(bench)
    empty = start(bench, "empty", after=at[4] + (9 << 16))
    assert empty.to_move == 0
    bench.shard.step_jobs(bench.later(1_000))
    assert bench.shard.jobs["empty"].state == "COMPLETED"


def test_progress_is_recorded_until_the_end(bench: Bench) -> None:
    bench.send(SOURCE, *"abcd")
    at = positions(bench)
    start(bench)
    assert step(bench) > 0
    job = advance(bench, Replayed(at[1], 2, 1))
    assert (job.cursor, job.examined, job.matched, job.moved, job.state) == (at[1], 2, 1, 1, "RUNNING")
    bench.shard.replayed("job", at[0], Replayed(at[3], 3, 3), bench.now)  # from where the job no longer is
    assert bench.shard.jobs["job"] == job
    advance(bench, Replayed(at[3], 2, 2))
    step(bench)
    done = bench.shard.jobs["job"]
    assert (done.state, done.examined, done.moved, done.not_found) == ("COMPLETED", 4, 3, 0)
    assert bench.replayed().jobs["job"] == bench.loaded().jobs["job"] == done


def test_a_refusal_makes_it_wait_longer_each_time(bench: Bench) -> None:
    bench.send(SOURCE, *"ab")
    at = positions(bench)
    start(bench)
    step(bench)
    pauses = []
    for _ in range(9):
        job = advance(bench, Replayed(bench.shard.jobs["job"].cursor, 0, 0, "Queue q2 is full."))
        assert (job.state, job.why) == ("RUNNING", "Queue q2 is full.")
        pauses.append(job.again_ms - bench.now)
        assert bench.shard.step_jobs(bench.now) == job.again_ms and not bench.shard.to_examine
        bench.now = job.again_ms
    assert pauses == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000]
    job = advance(bench, Replayed(at[1], 2, 2))
    assert (job.why, job.tries, job.again_ms) == ("", 0, 0)


def test_what_was_sent_is_counted_although_the_job_was_paused_or_cancelled(bench: Bench) -> None:
    bench.send(SOURCE, *"abcd")
    at = positions(bench)
    start(bench)
    step(bench)
    bench.shard.pause_job("job", "by request", bench.now)
    assert advance(bench, Replayed(at[1], 2, 2)).moved == 2
    bench.shard.resume_job("job", bench.now)
    step(bench)
    bench.shard.cancel_job("job", bench.now)
    bench.shard.step_jobs(bench.later(1_000), {"job"})  # node/ is sending for it
    assert bench.shard.jobs["job"].state == "CANCELLING"
    assert advance(bench, Replayed(at[2], 1, 1)).moved == 3
    step(bench)
    assert (bench.shard.jobs["job"].state, bench.shard.jobs["job"].moved) == ("CANCELLED", 3)


def test_a_maximum_ends_it(bench: Bench) -> None:
    bench.send(SOURCE, *"abcd")
    at = positions(bench)
    start(bench, max_messages=2)
    step(bench)
    assert step(bench) == 2
    advance(bench, Replayed(at[1], 2, 2))
    step(bench)
    done = bench.shard.jobs["job"]
    assert (done.state, done.moved, done.not_found) == ("COMPLETED", 2, 0)


def test_messages_that_left_the_history_are_not_found(bench: Bench) -> None:
    bench.send(SOURCE, *"abc")
    start(bench)
    bench.shard.pause_job("job", "", bench.now)
    bench.later(2 * DAY_MS)
    bench.shard.resume_job("job", bench.now)
    step(bench)
    advance(bench, Replayed(bench.shard.jobs["job"].through_sequence, 0, 0))
    step(bench)
    done = bench.shard.jobs["job"]
    assert (done.state, done.moved, done.not_found, done.examined) == ("COMPLETED", 0, 3, 3)


def test_a_queue_without_history(bench: Bench) -> None:
    bench.queue(SOURCE, retain_ms=0)
    with pytest.raises(NotRetained):
        start(bench)
    assert not bench.shard.jobs


def test_a_replayed_message_is_marked_and_accepted_once(bench: Bench) -> None:
    fresh = Bench()
    fresh.queue(TARGET)
    assert fresh.shard.format == PLAIN_VERSION
    lineage = Lineage(first_queue=SOURCE, first_id="x", moved="replay")
    command = Send(
        TARGET, [b"a", b"b"], producer="replay:job:0", numbers=[65_536, 70_000], lineages=[lineage.encode()] * 2
    )
    (sent,) = fresh.shard.send([command], fresh.now)
    assert [one.duplicate for one in sent.results() if isinstance(one, Accepted)] == [False, False]
    assert fresh.shard.format == REPLAYING_VERSION
    rows = [row for row in fresh.check() if row.type == Type.SENT]
    assert all(row.flags & SentFlag.REPLAYED for row in rows)
    assert [Lineage.decode(decode(row.variable).lineage) for row in rows] == [lineage, lineage]
    (sent,) = fresh.shard.send([command], fresh.now)
    assert [one.duplicate for one in sent.results() if isinstance(one, Accepted)] == [True, True]
    assert fresh.waiting(TARGET) == ["a", "b"]
    fresh.check()
