"""Jobs whose steps are short: they come to their end all the same."""

from __future__ import annotations

import pytest

from batonq.core.commands import Job
from batonq.core.shard.state import job_book as jobbook
from tests.core.rig import Bench

QUEUE = 1


def start(bench: Bench, queue: int = QUEUE) -> str:
    """A job that gives every message that died another try, where it is."""
    job = Job(f"job of {queue}", queue, 0, 0, 1_000, "RUNNING", 0, 0, only_dead=True)
    return bench.shard.start_job(job, bench.now).id


def step(bench: Bench, steps: int) -> None:
    for _ in range(steps):
        bench.shard.step_jobs(bench.later(100))
        bench.check()


def with_dead(bench: Bench, living: int, dead: int, queue: int = QUEUE) -> None:
    """The dead ones came last."""
    bench.queue(queue)
    bench.send(queue, *(f"living {number}" for number in range(living)))
    bench.receive(queue, living, visibility_ms=3_600_000)
    bench.send(queue, *(f"dead {number}" for number in range(dead)), max_receives=1)
    for _ in range(2):
        bench.receive(queue, dead, visibility_ms=1)
        bench.later(2)
    assert bench.shard.counters(queue).dead == dead


@pytest.mark.parametrize("scans", [1, 2, 5])
@pytest.mark.parametrize("restart", [False, True])
def test_a_job_comes_back_to_its_place_by_steps_that_are_shorter_than_the_way(scans: int, restart: bool) -> None:
    bench = Bench()
    with_dead(bench, living=20, dead=6)
    bench.limit(job_scans_max=scans, job_moves_max=1)
    job_id = start(bench)
    step(bench, 24 // scans)
    assert 0 < bench.shard.jobs[job_id].cursor < bench.shard.jobs[job_id].through_sequence
    if restart:  # the place is not in the log
        bench.restart(bench.replayed())
        bench.limit(job_scans_max=scans, job_moves_max=1)
    step(bench, 40 // scans + 10)
    job = bench.shard.jobs[job_id]
    assert (job.state, job.moved) == ("COMPLETED", 6)
    assert bench.shard.counters(QUEUE).dead == 0


def test_jobs_that_share_short_steps_all_come_to_their_end() -> None:
    bench = Bench()
    bench.limit(job_scans_max=1, job_moves_max=1)
    queues = (1, 2, 3)
    for queue in queues:
        with_dead(bench, living=3, dead=3, queue=queue)
    jobs = [start(bench, queue) for queue in queues]
    step(bench, 40)
    assert [(bench.shard.jobs[job].state, bench.shard.jobs[job].moved) for job in jobs] == [("COMPLETED", 3)] * 3


def test_a_job_that_fails_when_too_many_are_remembered_is_not_the_one_that_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jobbook, "TOTAL_MAX", 1)
    bench = Bench()
    for queue in (1, 2):
        with_dead(bench, living=0, dead=1, queue=queue)
    oldest = Job("oldest", 1, 99, 0, 1_000, "RUNNING", 0, 0, only_dead=True)  # to a queue that is not there
    bench.shard.start_job(oldest, bench.now)
    bench.shard.pause_job(start(bench, 2), "", bench.now)
    step(bench, 5)
    assert bench.shard.jobs["oldest"].state == "FAILED"
    assert bench.shard.counters(1).dead == 1
