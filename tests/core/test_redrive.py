"""Jobs that move messages: rate, cancel, failure, and what is counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from batonq.attribute_formats.arns import queue_arn
from batonq.core.commands import Chosen, Job
from batonq.core.ids import message_id
from batonq.core.limits import STEP_BYTES_MAX
from batonq.core.payload import Lineage, encode_payload
from batonq.core.records import State
from batonq.errors import JobConflict, JobNotFound, QueueDoesNotExist
from tests.core.rig import Bench, claim, deliver
from tests.support import ask

DEAD, TARGET, HOME = 1, 2, 5


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


def test_a_step_of_many_jobs_is_bounded_and_comes_to_all_of_them(bench: Bench) -> None:
    """Each of them has something to write, and what one step writes fits into a frame."""
    count = 2_000
    for number in range(count):
        bench.queue(1_000 + number)
        values: dict[str, Any] = {"destination": DEAD, "destination_shard": 0, "rate_per_s": 10}
        started = Job(f"job-{number}", 1_000 + number, state="", started_ms=0, to_move=0, **values)
        bench.shard.start_job(started, bench.now)
    bench.check()
    steps = 0
    while bench.shard.jobs.active:
        assert bench.shard.step_jobs(bench.now) is not None or not bench.shard.jobs.active
        assert bench.shard.frame.size <= STEP_BYTES_MAX + 8_192
        bench.check()
        bench.now += 1
        steps += 1
        assert steps < 100
    assert steps > 1 and {one.state for one in bench.shard.jobs.values()} == {"COMPLETED"}


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
    assert (job(bench).state, job(bench).failure) == ("FAILED", "queue_does_not_exist")
    assert [view.state for view in bench.messages(DEAD)] == [State.VISIBLE] * 2


@pytest.mark.parametrize("paused", [False, True])
def test_a_source_that_is_closed_fails_the_job(bench: Bench, paused: bool) -> None:
    bench.queue(TARGET)
    bench.send(DEAD, "a")
    start(bench)
    if paused:
        bench.shard.pause_job("job", "", bench.now)
    bench.shard.close_queue(DEAD, 1, bench.now)
    assert bench.shard.step_jobs(bench.now) is None
    assert (job(bench).state, job(bench).why) == ("FAILED", "The source queue was deleted.")
    with pytest.raises(QueueDoesNotExist):
        start(bench)


def test_one_job_a_source_at_a_time(bench: Bench) -> None:
    bench.queue(TARGET)
    bench.send(DEAD, "a")
    start(bench)
    with pytest.raises(JobConflict, match=r"Job job is running on this queue\. Cancel it, or wait"):
        start(bench)
    bench.shard.pause_job("job", "", bench.now)
    with pytest.raises(JobConflict, match=r"Job job is paused on this queue\. Resume or cancel it first\."):
        start(bench)
    bench.shard.cancel_job("job", bench.now)
    with pytest.raises(JobConflict, match=r"Job job is being cancelled on this queue\."):
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


# --- what died in its own queue -----------------------------------------------------------------


def die(bench: Bench, *bodies: str, **fields: Any) -> list[Any]:
    """Messages of HOME that used up their receives; HOME has no dead-letter queue."""
    bench.queue(HOME, max_receives=1, dead_letter_on_failure=True, **fields)
    accepted = bench.send(HOME, *bodies, group="g")
    while leases := bench.receive(HOME):
        ask.nack(
            bench.shard, HOME, [ask.Nack(claim(lease), 0, "no stock", "OutOfStock") for lease in leases], bench.now
        )
    assert {view.state for view in bench.messages(HOME)} == {State.DEAD}
    return accepted


def redrive_home(bench: Bench, **fields: Any) -> Job:
    values = {"destination": 0, "destination_shard": 0, "rate_per_s": 500, "only_dead": True} | fields
    bench.shard.start_job(Job("job", HOME, state="", started_ms=0, to_move=0, **values), bench.now)
    while bench.shard.step_jobs(bench.now) is not None:
        bench.later(100)
    return job(bench)


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("fifo", [False, True])
def test_what_died_begins_anew_in_its_own_queue(bench: Bench, fifo: bool, truncated: bool) -> None:
    failed_ms = bench.now
    accepted = die(bench, "a", "b", fifo=fifo)
    bench.later(5_000)
    if truncated:
        bench.truncate(bench.next_frame)
    done = redrive_home(bench)
    assert (done.state, done.to_move, done.moved) == ("COMPLETED", 2, 2)
    if truncated:
        bench.truncate(bench.next_frame)
    bench.check()
    views = bench.messages(HOME)
    assert [(view.state, view.receive_count, view.epoch, view.error_class) for view in views] == [
        (State.VISIBLE, 0, 0, "")
    ] * 2
    assert views[0].sent_ms == failed_ms + 5_000
    pasts = [Lineage.decode(bench.payload(view).lineage) for view in views]
    assert [past.first_id for past in pasts] == [one.message_id for one in accepted]
    assert not {message_id(0, view.sequence) for view in views} & {one.message_id for one in accepted}
    for past in pasts:
        name = "q5.fifo" if fifo else "q5"
        assert (past.message_id, past.first_queue, past.first_arn) == ("", HOME, queue_arn("tenant", name))
        assert (past.first_failure_ms, past.last_failure_ms, past.attempts) == (failed_ms, failed_ms, 1)
        assert (past.error_class, past.reason, past.moved) == ("OutOfStock", "no stock", "redrive")
    assert bench.bodies(bench.receive(HOME)) == ["a", "b"]


@pytest.mark.parametrize("destination", [0, TARGET])
def test_what_waits_in_a_queue_that_is_for_no_dead_letters_is_not_moved(bench: Bench, destination: int) -> None:
    bench.queue(TARGET)
    die(bench, "dead")
    bench.send(HOME, "waits", "waits too")
    done = redrive_home(bench, destination=destination)
    assert (done.state, done.to_move, done.moved) == ("COMPLETED", 1, 1)
    assert bench.waiting(TARGET) == (["dead"] if destination else [])
    assert bench.waiting(HOME) == ["waits", "waits too"] + ([] if destination else ["dead"])


def test_such_a_job_ends_when_none_is_dead_without_looking_at_those_that_wait(bench: Bench) -> None:
    bench.limit(job_scans_max=4)
    die(bench, "a")
    bench.send(HOME, *(str(number) for number in range(100)))
    began_ms = bench.now
    assert redrive_home(bench).moved == 1
    assert bench.now == began_ms


def test_what_died_among_dead_letters_goes_where_it_came_from(bench: Bench) -> None:
    bench.queue(DEAD, max_receives=1, dead_letter_on_failure=True)
    bench.queue(TARGET, max_receives=1, dead_letter_queue=DEAD, dead_letter_on_failure=True)
    bench.send(TARGET, "came")
    bench.send(DEAD, "was sent here")
    for queue in (TARGET, DEAD):
        bench.receive(queue)
        bench.later(30_000)
    bench.receive(DEAD)
    bench.later(30_000)
    assert [view.state for view in bench.messages(DEAD)] == [State.DEAD] * 2
    start(bench, destination=0, rate_per_s=500)
    while bench.shard.step_jobs(bench.now) is not None:
        bench.later(100)
    assert (bench.waiting(TARGET), bench.waiting(DEAD)) == (["came"], ["was sent here"])
    assert [view.state for view in bench.messages(DEAD)] == [State.VISIBLE]


def test_a_queue_that_is_full_has_room_for_its_own(bench: Bench) -> None:
    die(bench, "a", "b", messages_max=2)
    assert redrive_home(bench).moved == 2
    assert [view.state for view in bench.messages(HOME)] == [State.VISIBLE] * 2


def test_a_maximum_of_its_own_is_kept_where_it_was_sent(bench: Bench) -> None:
    bench.queue(HOME, dead_letter_on_failure=True)
    bench.send(HOME, "a", max_receives=2)
    for _ in range(2):
        bench.receive(HOME)
        bench.later(30_000)
    bench.truncate(bench.next_frame)
    redrive_home(bench)
    (view,) = bench.messages(HOME)
    assert (view.state, view.maximum) == (State.VISIBLE, 2)
    bench.check()
    bench.restart(bench.replayed())
    assert bench.messages(HOME)[0].maximum == 2


@pytest.mark.parametrize("truncated", [False, True])
def test_to_another_shard_it_takes_its_past_along(truncated: bool) -> None:
    home, away = Bench(0), Bench(1)
    away.queue(TARGET)
    (accepted,) = die(home, "a")
    home.shard.start_job(Job("job", HOME, TARGET, 1, 10, "", 0, 0, only_dead=True), home.now)
    home.shard.step_jobs(home.now)
    if truncated:
        home.truncate(home.next_frame)
        home.restart(home.replayed())
    deliver(home, away)
    home.shard.step_jobs(home.now)
    assert (job(home).state, job(home).moved, home.messages(HOME)) == ("COMPLETED", 1, [])
    (view,) = away.messages(TARGET)
    past = Lineage.decode(away.payload(view).lineage)
    assert (past.first_id, past.attempts, past.error_class) == (accepted.message_id, 1, "OutOfStock")
    home.check()
    away.check()


def test_what_dies_again_is_not_taken_twice_by_one_job(bench: Bench) -> None:
    die(bench, "a")
    bench.shard.start_job(Job("job", HOME, 0, 0, 1, "", 0, 0, only_dead=True), bench.now)
    bench.shard.step_jobs(bench.now)
    bench.receive(HOME)
    bench.later(30_000)
    assert [view.state for view in bench.messages(HOME)] == [State.DEAD]
    bench.shard.step_jobs(bench.now)
    assert [view.state for view in bench.messages(HOME)] == [State.DEAD]
    assert (job(bench).state, job(bench).moved) == ("COMPLETED", 1)


@pytest.mark.parametrize("far", [False, True])
def test_a_maximum_of_its_own_outlasts_the_dead_letters(far: bool) -> None:
    home = Bench(0)
    away = Bench(1) if far else home
    away.queue(DEAD, max_receives=9)
    home.queue(HOME, max_receives=9, dead_letter_queue=DEAD, dead_letter_shard=away.number, dead_letter_on_failure=True)
    home.send(HOME, "a", max_receives=2)

    def fail_twice() -> None:
        for receives in (1, 2):
            (lease,) = home.receive(HOME)
            assert (lease.receive_count, home.view(lease.slot).maximum) == (receives, 2)
            ask.nack(home.shard, HOME, [ask.Nack(claim(lease))], home.now)
        if far:
            deliver(home, away)

    fail_twice()
    (dead,) = away.messages(DEAD)
    assert dead.maximum == 9, "among the dead letters it is theirs that counts"
    away.truncate(away.next_frame)
    away.restart(away.replayed())
    away.shard.start_job(Job("job", DEAD, 0, 0, 10, "", 0, 0), away.now)
    away.shard.step_jobs(away.now)
    if far:
        deliver(away, home)
    assert [view.maximum for view in home.messages(HOME)] == [2]
    fail_twice()
    assert len(away.messages(DEAD)) == 1 and away.shard.jobs["job"].died_again == 1
    home.check()
    away.check()


def test_the_work_of_one_step_is_bounded_for_all_jobs_together(bench: Bench) -> None:
    bench.limit(job_moves_max=10)
    bench.limit(job_scans_max=30)
    bench.queue(TARGET)
    sources = range(10, 20)
    for source in sources:
        bench.queue(source)
        bench.send(source, *map(str, range(40)))
        bench.shard.start_job(Job(f"job{source}", source, TARGET, 0, 10_000, "", 0, 0), bench.now)
    bench.shard.step_jobs(bench.now)
    steps = 0
    while (again := bench.shard.step_jobs(bench.now)) is not None:
        before = bench.shard.counters(TARGET).arrived
        bench.later(again - bench.now)
        bench.shard.step_jobs(bench.now)
        assert bench.shard.counters(TARGET).arrived - before <= 10
        steps += 1
    assert [bench.shard.jobs[f"job{source}"].moved for source in sources] == [40] * 10, "none is left out"
    assert steps >= 19


def test_every_job_gets_its_turn_although_a_step_is_bounded(bench: Bench) -> None:
    bench.limit(job_moves_max=4)
    bench.queue(TARGET)
    for source in (10, 11):
        bench.queue(source)
        bench.send(source, *map(str, range(100)))
        bench.shard.start_job(Job(f"job{source}", source, TARGET, 0, 10_000, "", 0, 0), bench.now)
    for _ in range(20):
        bench.later(100)
        bench.shard.step_jobs(bench.now)
    moved = [bench.shard.jobs[f"job{source}"].moved for source in (10, 11)]
    assert sum(moved) >= 70 and abs(moved[0] - moved[1]) <= 4


def test_a_ramp_comes_to_its_rate(bench: Bench) -> None:
    bench.queue(TARGET)
    bench.send(DEAD, *map(str, range(300)))
    start(bench, rate_per_s=100, ramp_ms=2_000)
    moved = []
    for _ in range(4):
        before = job(bench).moved
        for _ in range(10):
            bench.later(100)
            bench.shard.step_jobs(bench.now)
        moved.append(job(bench).moved - before)
    assert moved[0] < 40 < moved[1] < 95 < moved[2] <= 101


def test_a_job_pauses_by_its_last_messages_not_by_all_that_it_ever_moved(bench: Bench) -> None:
    bench.queue(TARGET, max_receives=1, dead_letter_queue=DEAD, dead_letter_on_failure=True)
    bench.send(DEAD, *map(str, range(2_000)))
    start(bench, rate_per_s=1_000, pause_share=0.5)
    while job(bench).moved < 1_200:
        bench.later(100)
        bench.shard.step_jobs(bench.now)
        bench.delete(TARGET, *bench.receive(TARGET, 1_000))
    assert (job(bench).state, job(bench).died_again) == ("RUNNING", 0)
    for _ in range(20):
        bench.later(100)
        bench.shard.step_jobs(bench.now)
        ask.nack(bench.shard, TARGET, [ask.Nack(claim(lease)) for lease in bench.receive(TARGET, 1_000)], bench.now)
        if job(bench).state == "PAUSED":
            break
    assert job(bench).state == "PAUSED" and "dead-lettered again" in job(bench).why
    assert job(bench).died_again < 1_200


def test_a_dead_letter_knows_its_source_although_that_is_gone(bench: Bench) -> None:
    bench.queue(3, max_receives=1, dead_letter_queue=DEAD, dead_letter_on_failure=True)
    bench.send(3, "a")
    (lease,) = bench.receive(3)
    ask.nack(bench.shard, 3, [ask.Nack(claim(lease))], bench.now)
    (view,) = bench.messages(DEAD)
    bench.commit()
    past = Lineage.decode(bench.payload(view).lineage)
    assert (past.source_arn, past.moved) == (queue_arn("tenant", "q3"), "dead_letter")


def test_what_was_changed_and_refused_outlasts_the_front_of_the_log(bench: Bench) -> None:
    """The message begins with the record of its change when all before that is dropped."""
    bench.send(DEAD, "a", group="g", max_receives=3)
    bench.commit()
    start(bench, destination=99, selection="some")
    (view,) = bench.messages(DEAD)
    before = bench.next_frame
    changed = encode_payload(bench.payload(view)._replace(body=b"changed"))
    bench.shard.choose("job", 0, 1, view.sequence, [Chosen(view.slot, view.sequence, changed, 1)], bench.now)
    assert job(bench).state == "FAILED"
    bench.check()
    bench.truncate(before)
    assert all(frame >= before for frame in bench.frames)
    bench.restart(bench.replayed())
    assert bench.waiting(DEAD) == ["changed"]
    (after,) = bench.messages(DEAD)
    assert (after.expires_ms, after.sent_ms, after.maximum) == (view.expires_ms, view.sent_ms, 3)
    assert bench.payload(after).group == "g"
