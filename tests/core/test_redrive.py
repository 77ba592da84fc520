"""Jobs that move messages: rate, cancel, failure, and what is counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from batonq.core.commands import Job
from batonq.core.records import State
from batonq.errors import JobConflict, JobNotFound, QueueDoesNotExist
from tests.core.rig import Bench, deliver

DEAD, TARGET = 1, 2


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.queue(DEAD)
    yield made
    made.check()


def start(bench: Bench, **fields: Any) -> Job:
    values = {"destination": TARGET, "destination_shard": 0, "rate_per_s": 10} | fields
    return bench.shard.start_job(Job("job", DEAD, state="", started_ms=0, to_move=0, **values), bench.now)


def job(bench: Bench) -> Job:
    return bench.shard.jobs["job"]


def test_a_job_moves_what_was_there_when_it_began(bench: Bench) -> None:
    bench.queue(TARGET)
    bench.send(DEAD, "a", "b", "c")
    start(bench, rate_per_s=500)
    bench.send(DEAD, "later")
    while bench.shard.step_jobs(bench.now) is not None:
        bench.later(100)
    assert (bench.waiting(DEAD), bench.waiting(TARGET)) == (["later"], ["a", "b", "c"])
    assert (job(bench).state, job(bench).to_move, job(bench).moved) == ("COMPLETED", 3, 3)


def test_the_rate_is_kept(bench: Bench) -> None:
    bench.queue(TARGET)
    bench.send(DEAD, *(str(number) for number in range(50)))
    start(bench, rate_per_s=10)
    moved = []
    for _ in range(5):
        for _ in range(10):
            bench.shard.step_jobs(bench.now)
            bench.later(100)
        moved.append(len(bench.messages(TARGET)))
    assert moved == [10, 20, 30, 40, 50]


def test_a_long_pause_does_not_make_a_burst(bench: Bench) -> None:
    bench.queue(TARGET)
    bench.send(DEAD, *(str(number) for number in range(50)))
    start(bench, rate_per_s=10)
    bench.shard.step_jobs(bench.now)
    bench.later(3_600_000)
    bench.shard.step_jobs(bench.now)
    assert len(bench.messages(TARGET)) == 1 + 5, "at most half a second's worth at once"


def test_redriven_messages_are_new(bench: Bench) -> None:
    bench.queue(TARGET)
    bench.send(DEAD, "a")
    bench.receive(DEAD)
    bench.later(30_000)
    start(bench)
    bench.shard.step_jobs(bench.now)
    (view,) = bench.messages(TARGET)
    assert (view.sent_ms, view.receive_count, view.first_received_ms) == (bench.now, 0, 0)


def test_messages_in_flight_and_delayed_are_passed_over(bench: Bench) -> None:
    bench.queue(TARGET)
    bench.send(DEAD, "held")
    bench.receive(DEAD)
    bench.send(DEAD, "delayed", delay_ms=60_000)
    bench.send(DEAD, "ready")
    start(bench)
    bench.shard.step_jobs(bench.now)
    assert (bench.waiting(TARGET), bench.waiting(DEAD)) == (["ready"], ["held", "delayed"])
    assert job(bench).state == "COMPLETED"


def test_without_a_destination_each_goes_where_it_came_from(bench: Bench) -> None:
    for source in (3, 4):
        bench.queue(source, max_receives=1, dead_letter_queue=DEAD, dead_letter_on_failure=True)
        bench.send(source, f"of {source}")
        bench.receive(source)
    bench.later(30_000)
    bench.send(DEAD, "of nowhere")
    start(bench, destination=0, rate_per_s=100)
    while bench.shard.step_jobs(bench.now) is not None:
        bench.later(100)
    assert [bench.waiting(queue) for queue in (3, 4, DEAD)] == [["of 3"], ["of 4"], ["of nowhere"]]
    assert job(bench).moved == 2


def test_a_cancelled_job_moves_nothing_more(bench: Bench) -> None:
    bench.queue(TARGET)
    bench.send(DEAD, "a", "b")
    start(bench)
    bench.shard.step_jobs(bench.now)
    assert bench.shard.cancel_job("job", bench.now).state == "CANCELLING"
    bench.later(1_000)
    assert bench.shard.step_jobs(bench.now) is None
    assert (job(bench).state, job(bench).moved, bench.waiting(DEAD)) == ("CANCELLED", 1, ["b"])
    with pytest.raises(JobNotFound):
        bench.shard.cancel_job("job", bench.now)


def test_a_destination_that_is_gone_fails_the_job(bench: Bench) -> None:
    bench.send(DEAD, "a", "b")
    start(bench, destination=99)
    assert bench.shard.step_jobs(bench.now) is None
    assert (job(bench).state, job(bench).failure) == ("FAILED", "AWS.SimpleQueueService.NonExistentQueue")
    assert [view.state for view in bench.messages(DEAD)] == [State.VISIBLE] * 2


def test_a_source_that_is_closed_fails_the_job(bench: Bench) -> None:
    bench.queue(TARGET)
    bench.send(DEAD, "a")
    start(bench)
    bench.shard.close_queue(DEAD, 1, bench.now)
    assert bench.shard.step_jobs(bench.now) is None
    assert job(bench).state == "FAILED"
    with pytest.raises(QueueDoesNotExist):
        start(bench)


def test_one_job_a_source_at_a_time(bench: Bench) -> None:
    bench.queue(TARGET)
    bench.send(DEAD, "a")
    start(bench)
    with pytest.raises(JobConflict):
        start(bench)


def test_a_job_to_another_shard_is_complete_when_all_has_arrived() -> None:
    home, away = Bench(0), Bench(1)
    home.queue(DEAD)
    away.queue(TARGET)
    home.send(DEAD, "a")
    start(home, destination_shard=1)
    assert home.shard.step_jobs(home.now) is not None
    assert (job(home).state, job(home).moved) == ("RUNNING", 0)
    deliver(home, away)
    assert home.shard.step_jobs(home.now) is None
    assert (job(home).state, job(home).moved) == ("COMPLETED", 1)
    assert away.waiting(TARGET) == ["a"]
    home.check()
    away.check()


def test_a_job_goes_on_after_a_restart(bench: Bench) -> None:
    bench.queue(TARGET)
    bench.send(DEAD, "a", "b", "c")
    start(bench)
    bench.shard.step_jobs(bench.now)
    bench.check()
    bench.restart(bench.follower)
    while bench.shard.step_jobs(bench.now) is not None:
        bench.later(100)
    assert (bench.waiting(TARGET), job(bench).moved) == (["a", "b", "c"], 3)


def test_ten_ended_jobs_are_remembered(bench: Bench) -> None:
    bench.queue(TARGET)
    for number in range(12):
        bench.shard.start_job(Job(f"job{number}", DEAD, TARGET, 0, 10, "", 0, 0), bench.now)
        assert bench.shard.step_jobs(bench.now) is None
    assert list(bench.shard.jobs) == [f"job{number}" for number in range(2, 12)]
