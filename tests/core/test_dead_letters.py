"""Dead letters: when a message becomes one, what it keeps, and what happens when it cannot be taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from batonq.attribute_formats.arns import queue_arn
from batonq.core.commands import Job
from batonq.core.ids import message_id
from batonq.core.payload import Lineage
from batonq.core.records import Reason, State, Type
from tests.core.rig import Bench, claim, deliver
from tests.support import ask

SOURCE, DEAD = 1, 2


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.check()


def fail(bench: Bench, times: int = 1, queue: int = SOURCE) -> None:
    """Receive all there is, and let the leases run out."""
    for _ in range(times):
        bench.receive(queue)
        bench.later(30_000)


def lineage(bench: Bench, queue: int = DEAD) -> Lineage:
    bench.commit()
    (view,) = bench.messages(queue)
    return Lineage.decode(bench.payload(view).lineage)


# --- when -------------------------------------------------------------------------------------


def test_at_the_receive_that_would_exceed_the_maximum(bench: Bench) -> None:
    bench.queue(SOURCE, max_receives=2, dead_letter_queue=DEAD)
    bench.queue(DEAD)
    bench.send(SOURCE, "a")
    fail(bench, 2)
    assert bench.waiting(SOURCE) == ["a"]
    assert bench.receive(SOURCE) == []
    assert (bench.waiting(SOURCE), bench.waiting(DEAD)) == ([], ["a"])


def test_at_the_failure_that_uses_up_the_last_attempt(bench: Bench) -> None:
    bench.queue(SOURCE, max_receives=2, dead_letter_queue=DEAD, dead_letter_on_failure=True)
    bench.queue(DEAD)
    bench.send(SOURCE, "a")
    fail(bench, 2)
    assert (bench.waiting(SOURCE), bench.waiting(DEAD)) == ([], ["a"])


def test_the_last_attempt_can_still_be_acknowledged(bench: Bench) -> None:
    bench.queue(SOURCE, max_receives=1, dead_letter_queue=DEAD, dead_letter_on_failure=True)
    bench.queue(DEAD)
    bench.send(SOURCE, "a")
    assert bench.delete(SOURCE, *bench.receive(SOURCE)) == [None]
    assert bench.waiting(DEAD) == []


def test_a_message_with_a_maximum_of_its_own(bench: Bench) -> None:
    bench.queue(SOURCE, max_receives=3, dead_letter_queue=DEAD, dead_letter_on_failure=True)
    bench.queue(DEAD)
    bench.send(SOURCE, "own", max_receives=1)
    bench.send(SOURCE, "queue's")
    fail(bench)
    assert (bench.waiting(SOURCE), bench.waiting(DEAD)) == (["queue's"], ["own"])


def test_a_nack_can_ask_for_it_at_once(bench: Bench) -> None:
    bench.queue(SOURCE, dead_letter_queue=DEAD)
    bench.queue(DEAD)
    bench.send(SOURCE, "a")
    (lease,) = bench.receive(SOURCE)
    ask.nack(
        bench.shard, SOURCE, [ask.Nack(claim(lease), 5_000, "no such user", "KeyError", dead_letter=True)], bench.now
    )
    assert bench.waiting(DEAD) == ["a"]
    past = lineage(bench)
    assert (past.error_class, past.reason) == ("KeyError", "no such user")


def test_receives_in_the_source_do_not_count_against_the_maximum_of_the_dead_letter_queue(bench: Bench) -> None:
    bench.queue(SOURCE, max_receives=1, dead_letter_queue=DEAD, dead_letter_on_failure=True)
    bench.queue(DEAD, max_receives=1, dead_letter_on_failure=True)
    bench.send(SOURCE, "a")
    fail(bench)
    (lease,) = bench.receive(DEAD)
    assert (lease.receive_count, lease.epoch) == (2, 1)


# --- what it keeps ----------------------------------------------------------------------------


def test_a_standard_dead_letter_keeps_id_sent_time_and_count(bench: Bench) -> None:
    bench.queue(SOURCE, max_receives=1, dead_letter_queue=DEAD, dead_letter_on_failure=True)
    bench.queue(DEAD, retention_ms=600_000)
    sent_ms = bench.now
    (accepted,) = bench.send(SOURCE, "a", trace="Root=1", group="g", priority=7)
    fail(bench)
    (lease,) = bench.receive(DEAD)
    bench.commit()
    payload = bench.payload(lease)
    assert (lease.sent_ms, lease.receive_count, lease.priority) == (sent_ms, 2, 7)
    assert (payload.trace, payload.group, payload.body) == ("Root=1", "g", b"a")
    assert bench.view(lease.slot).expires_ms == sent_ms + 600_000, "its retention runs from the first enqueue"
    past = Lineage.decode(payload.lineage)
    assert past.message_id == past.first_id == accepted.message_id
    assert (past.first_queue, past.source_queue, past.attempts, past.moved) == (SOURCE, SOURCE, 1, "dead_letter")
    assert past.first_failure_ms == past.last_failure_ms == sent_ms + 30_000


def test_a_fifo_dead_letter_has_a_new_enqueue_time_and_its_id_as_dedup_id(bench: Bench) -> None:
    bench.queue(SOURCE, fifo=True, max_receives=1, dead_letter_queue=DEAD, dead_letter_on_failure=True)
    bench.queue(DEAD, fifo=True, retention_ms=600_000)
    (accepted,) = bench.send(SOURCE, "a", group="g", dedup_id="d")
    fail(bench)
    (lease,) = bench.receive(DEAD)
    bench.commit()
    payload = bench.payload(lease)
    assert lease.sent_ms == payload.sent_ms == bench.now
    assert (payload.dedup_id, payload.group) == (accepted.message_id, "g")
    assert bench.view(lease.slot).expires_ms == bench.now + 600_000


def test_first_and_last_failure_and_the_last_error_are_kept(bench: Bench) -> None:
    bench.queue(SOURCE, max_receives=3, dead_letter_queue=DEAD, dead_letter_on_failure=True)
    bench.queue(DEAD)
    bench.send(SOURCE, "a")
    first_ms = bench.later(1_000)
    (lease,) = bench.receive(SOURCE)
    ask.nack(bench.shard, SOURCE, [ask.Nack(claim(lease), 0, "first", "OSError")], bench.now)
    (lease,) = bench.receive(SOURCE)
    ask.nack(bench.shard, SOURCE, [ask.Nack(claim(lease), 0, "second", "ValueError")], bench.now)
    fail(bench)  # runs out without a word: what is known of the error stays
    past = lineage(bench)
    assert (past.first_failure_ms, past.last_failure_ms) == (first_ms, bench.now)
    assert (past.error_class, past.reason, past.attempts) == ("ValueError", "second", 3)


def test_class_and_reason_are_of_one_failure(bench: Bench) -> None:
    bench.queue(SOURCE, dead_letter_queue=DEAD)
    bench.queue(DEAD, dead_letter_queue=3)
    bench.queue(3)
    bench.send(SOURCE, "a")
    for queue, error_class, reason in ((SOURCE, "KeyError", "no such user"), (DEAD, "TypeError", "")):
        (lease,) = bench.receive(queue)
        ask.nack(bench.shard, queue, [ask.Nack(claim(lease), 0, reason, error_class, dead_letter=True)], bench.now)
    past = lineage(bench, 3)
    assert (past.error_class, past.reason) == ("TypeError", "")


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("remote", [False, True])
def test_the_past_goes_through_dead_letters_and_redrive(remote: bool, truncated: bool) -> None:
    """Source, dead letters, back, dead letters again: within a shard and between two, carried forward or not."""
    home = Bench(0)
    away = Bench(1) if remote else home
    home.queue(
        SOURCE,
        fifo=True,
        max_receives=1,
        dead_letter_queue=DEAD,
        dead_letter_shard=away.number,
        dead_letter_on_failure=True,
    )
    away.queue(DEAD, fifo=True)

    def settle() -> None:
        for bench in (home, away):
            bench.check()
            if truncated:
                bench.truncate(bench.next_frame)
                bench.check()
        if remote:
            deliver(home, away)
            deliver(away, home)

    (accepted,) = home.send(SOURCE, "a", group="g", dedup_id="d", trace="t")
    first_ms = home.now + 30_000
    fail(home)
    settle()
    away.now = home.now
    redrive(away, DEAD)
    settle()
    (view,) = home.messages(SOURCE)
    redriven_ms = view.sent_ms
    assert (view.receive_count, view.epoch) == (0, 0)
    payload = home.payload(view)
    past = Lineage.decode(payload.lineage)
    assert (past.message_id, past.moved, past.first_id, past.attempts) == ("", "redrive", accepted.message_id, 1)
    assert past.first_arn == queue_arn("tenant", "q1.fifo")
    assert (payload.sent_ms, payload.dedup_id, payload.trace) == (redriven_ms, accepted.message_id, "t")
    second_id = message_id(home.number, view.sequence)
    fail(home)
    away.now = home.now
    settle()
    (view,) = away.messages(DEAD)
    payload = away.payload(view)
    past = Lineage.decode(payload.lineage)
    assert (past.first_queue, past.first_id, past.source_queue) == (SOURCE, accepted.message_id, SOURCE)
    assert (past.message_id, payload.dedup_id) == (second_id, second_id)
    assert (past.first_arn, payload.trace) == (queue_arn("tenant", "q1.fifo"), "t")
    assert (past.first_failure_ms, past.last_failure_ms) == (first_ms, home.now)
    for bench in (home, away):
        bench.check()


def redrive(bench: Bench, source: int, destination: int = 0, destination_shard: int = 0, rate: int = 100) -> None:
    job_id = f"job{len(bench.shard.jobs)}"
    job = Job(job_id, source, destination, destination_shard, rate, "", 0, 0)
    bench.shard.start_job(job, bench.now)
    bench.shard.step_jobs(bench.now)


# --- in order ---------------------------------------------------------------------------------


def test_the_dead_letters_of_a_group_arrive_in_its_order(bench: Bench) -> None:
    bench.queue(SOURCE, fifo=True, max_receives=1, dead_letter_queue=DEAD, dead_letter_on_failure=True)
    bench.queue(DEAD, fifo=True)
    bench.send(SOURCE, "x", "y", "z", group="other")
    bench.delete(SOURCE, *bench.receive(SOURCE))  # so that newer messages stand in lower slots
    bench.send(SOURCE, "a", "b", "c", group="g")
    fail(bench)
    assert bench.waiting(DEAD) == ["a", "b", "c"]


def test_expired_messages_of_a_group_arrive_in_its_order(bench: Bench) -> None:
    bench.queue(SOURCE, fifo=True, retention_ms=60_000, expiry_to_dead_letter=True, dead_letter_queue=DEAD)
    bench.queue(DEAD, fifo=True)
    bench.send(SOURCE, "x", "y", "z", group="other")
    bench.delete(SOURCE, *bench.receive(SOURCE))
    bench.send(SOURCE, "a", "b", "c", group="g")
    bench.later(60_000)
    assert bench.waiting(DEAD) == ["a", "b", "c"]


def test_refused_dead_letters_are_tried_again_in_order(bench: Bench) -> None:
    bench.queue(SOURCE, fifo=True, max_receives=1, dead_letter_queue=DEAD, dead_letter_on_failure=True)
    bench.send(SOURCE, "x", "y", "z", group="other")
    bench.delete(SOURCE, *bench.receive(SOURCE))
    bench.send(SOURCE, "a", "b", "c", group="g")
    fail(bench)
    bench.queue(DEAD, fifo=True)
    bench.later(1_000)
    assert bench.waiting(DEAD) == ["a", "b", "c"]


# --- refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda bench: None, "does not exist"),
        (lambda bench: bench.queue(DEAD, messages_max=1) and bench.send(DEAD, "in the way"), "is full"),
        (lambda bench: bench.queue(DEAD, fifo=True), "is not of the same type"),
    ],
    ids=["missing", "full", "type"],
)
def test_a_dead_letter_queue_that_refuses_keeps_the_message_where_it_is(
    bench: Bench, prepare: Callable[[Bench], object], words: str
) -> None:
    prepare(bench)
    bench.queue(SOURCE, max_receives=1, dead_letter_queue=DEAD, dead_letter_on_failure=True)
    bench.send(SOURCE, "a")
    fail(bench)
    (view,) = bench.messages(SOURCE)
    assert (view.state, view.until_ms) == (State.DELAYED, bench.now + 1_000)
    assert [alarm.key for alarm in bench.shard.alarms] == [f"dead-letter-refused:{SOURCE}"]
    assert words in bench.shard.alarms[0].text
    for wait_ms in (1_000, 2_000, 4_000):
        bench.later(wait_ms)
        (view,) = bench.messages(SOURCE)
        assert view.until_ms == bench.now + 2 * wait_ms, "it backs off"
    assert bench.receive(SOURCE) == [], "it has no attempt left"


def test_the_back_off_is_at_most_five_minutes(bench: Bench) -> None:
    bench.queue(SOURCE, max_receives=1, dead_letter_queue=DEAD, dead_letter_on_failure=True)
    bench.send(SOURCE, "a")
    fail(bench)
    for _ in range(20):
        (view,) = bench.messages(SOURCE)
        bench.later(view.until_ms - bench.now)
    (view,) = bench.messages(SOURCE)
    assert view.until_ms - bench.now == 300_000


def test_it_goes_once_there_is_room(bench: Bench) -> None:
    bench.queue(SOURCE, max_receives=1, dead_letter_queue=DEAD, dead_letter_on_failure=True)
    bench.queue(DEAD, messages_max=1)
    bench.send(DEAD, "in the way")
    bench.send(SOURCE, "a")
    fail(bench)
    bench.delete(DEAD, *bench.receive(DEAD))
    bench.later(1_000)
    assert (bench.waiting(SOURCE), bench.waiting(DEAD)) == ([], ["a"])


def test_without_a_dead_letter_queue_any_more_it_dies_where_it_is(bench: Bench) -> None:
    bench.queue(SOURCE, max_receives=1, dead_letter_queue=DEAD, dead_letter_on_failure=True)
    bench.send(SOURCE, "a")
    fail(bench)
    bench.queue(SOURCE, max_receives=1, dead_letter_on_failure=True)
    bench.later(1_000)
    assert [view.state for view in bench.messages(SOURCE)] == [State.DEAD]


def test_many_refused_at_once_do_not_overflow_a_frame(bench: Bench) -> None:
    bench.limit(retries_max=4)
    bench.queue(SOURCE, max_receives=1, dead_letter_queue=DEAD, dead_letter_on_failure=True)
    bench.send(SOURCE, *(str(number) for number in range(10)))
    fail(bench)
    bench.queue(DEAD)
    bench.check()
    moved: list[int] = []
    for _ in range(3):
        bench.later(1_000 if not moved else 0)
        rows = bench.check()
        moved.append(sum(row.type == Type.OWED for row in rows))
    assert moved == [4, 4, 2]


# --- dead in place ----------------------------------------------------------------------------


@pytest.mark.parametrize("on_failure", [True, False])
@pytest.mark.parametrize("fifo", [True, False])
def test_without_a_dead_letter_queue_it_stays_as_dead(bench: Bench, fifo: bool, on_failure: bool) -> None:
    bench.queue(SOURCE, fifo=fifo, max_receives=1, dead_letter_on_failure=on_failure)
    bench.send(SOURCE, "a", "b", group="g")
    leases = bench.receive(SOURCE, 1)
    bench.later(30_000)
    assert bench.bodies(bench.receive(SOURCE)) == ["b"], "a dead message does not block its group"
    (dead, _) = bench.messages(SOURCE)
    assert (dead.state, dead.sequence) == (State.DEAD, leases[0].sequence)
    assert bench.shard.counters(SOURCE).dead == 1


def test_a_dead_message_expires_with_its_retention(bench: Bench) -> None:
    bench.queue(SOURCE, max_receives=1, dead_letter_on_failure=True, retention_ms=60_000)
    bench.send(SOURCE, "a")
    fail(bench)
    bench.later(30_000)
    assert bench.waiting(SOURCE) == []


@pytest.mark.parametrize("fifo", [True, False])
def test_a_dead_message_whose_redrive_is_refused_is_dead_again(bench: Bench, fifo: bool) -> None:
    bench.queue(SOURCE, fifo=fifo, max_receives=1, dead_letter_on_failure=True)
    bench.send(SOURCE, "a", "b", group="g")
    bench.receive(SOURCE, 1)
    bench.later(30_000)
    redrive(bench, SOURCE, 99)
    assert [view.state for view in bench.messages(SOURCE)] == [State.DEAD, State.VISIBLE]


def test_a_dead_message_on_its_way_blocks_no_group_after_a_base(bench: Bench) -> None:
    bench.queue(SOURCE, fifo=True, max_receives=1, dead_letter_on_failure=True)
    bench.send(SOURCE, "a", "b", group="g")
    bench.receive(SOURCE, 1)
    bench.later(30_000)
    redrive(bench, SOURCE, DEAD, 1, rate=1)
    bench.truncate(bench.next_frame)
    bench.restart(bench.replayed())
    assert [view.state for view in bench.messages(SOURCE)] == [State.OWED, State.VISIBLE]
    assert bench.bodies(bench.receive(SOURCE)) == ["b"]
    bench.shard.settle(1, [(1, Reason.REFUSED_FULL)], bench.now)
    assert bench.messages(SOURCE)[0].state == State.DEAD


# --- expiry -----------------------------------------------------------------------------------


def test_an_expired_message_can_go_to_the_dead_letters_and_stays_there(bench: Bench) -> None:
    bench.queue(SOURCE, retention_ms=60_000, expiry_to_dead_letter=True, dead_letter_queue=DEAD)
    bench.queue(DEAD, retention_ms=60_000)
    bench.send(SOURCE, "a")
    bench.later(60_000)
    assert bench.waiting(DEAD) == ["a"]
    counters = bench.shard.counters(SOURCE)
    assert (counters.expired_messages, counters.dead_lettered, counters.deleted) == (1, 1, 0)
    assert lineage(bench).moved == "expiry"
    bench.later(59_999)
    assert bench.waiting(DEAD) == ["a"], "a new retention began when it came"
    bench.later(1)
    assert bench.waiting(DEAD) == []


def test_an_expired_message_that_is_refused_is_tried_again_for_the_same_reason(bench: Bench) -> None:
    bench.queue(SOURCE, retention_ms=60_000, expiry_to_dead_letter=True, dead_letter_queue=DEAD)
    bench.send(SOURCE, "a")
    bench.later(60_000)
    bench.queue(DEAD)
    bench.later(1_000)
    assert lineage(bench).moved == "expiry"


# --- limits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fifo", [True, False])
def test_one_receive_gives_up_a_bounded_number(bench: Bench, fifo: bool) -> None:
    bench.limit(given_up_max=4)
    bench.queue(SOURCE, fifo=fifo)
    bench.queue(DEAD, fifo=fifo)
    for number in range(10):
        bench.send(SOURCE, str(number), group=f"g{number}")
    bench.receive(SOURCE)
    bench.later(30_000)
    bench.queue(SOURCE, fifo=fifo, max_receives=1, dead_letter_queue=DEAD)
    bench.send(SOURCE, "fresh", group="fresh")
    given = []
    while not (leases := bench.receive(SOURCE)):
        assert SOURCE in bench.shard.woken, "whoever waits is told that there is more"
        bench.shard.woken.clear()
        given.append(len(bench.messages(DEAD)))
    assert given[-1] <= 10 and given[0] == 4
    assert bench.bodies(leases) == ["fresh"]


def test_a_purge_gets_past_many_that_are_on_their_way(bench: Bench) -> None:
    bench.limit(purge_step_max=2)
    bench.queue(SOURCE, max_receives=1, dead_letter_queue=DEAD, dead_letter_shard=1, dead_letter_on_failure=True)
    bench.send(SOURCE, "a", "b", "c")
    fail(bench)
    bench.send(SOURCE, "d", "e", "f")
    assert bench.shard.purge(SOURCE, bench.now) == (2, False)
    assert bench.shard.purge(SOURCE, bench.now) == (1, True)
    assert [view.state for view in bench.messages(SOURCE)] == [State.OWED] * 3
