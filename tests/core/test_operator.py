"""Commands of an operator, beyond what the scenario (tests/golden/operator.txt) and the model show."""

from __future__ import annotations

import pytest

from batonq.core.commands import Job, MessageView
from batonq.core.payload import encode_payload
from batonq.core.records import DELETING_VERSION, EDITING_VERSION, PLAIN_VERSION, State
from batonq.core.shard.commands.operator import Destination
from batonq.errors import InvalidInput, JobConflict, MessageGone, MessageHeld, QueueDoesNotExist
from tests.core.rig import Bench, assert_same_state, deliver


def place(view: MessageView) -> tuple[int, int]:
    return view.slot, view.sequence


def start_job(bench: Bench, source: int) -> None:
    job = Job("job", source, 0, 0, 1, state="", started_ms=0, to_move=0)
    bench.shard.start_job(job, bench.now)


def edit(bench: Bench, queue: int, view: MessageView, body: str) -> None:
    bench.commit()
    payload = encode_payload(bench.payload(view)._replace(body=body.encode(), body_md5=b""))
    bench.shard.edit_message(queue, *place(view), payload, bench.now)


def test_a_message_that_is_gone_or_of_another_queue() -> None:
    bench = Bench()
    bench.queue(1)
    bench.queue(2)
    bench.send(1, "a")
    (view,) = bench.messages(1)
    with pytest.raises(MessageGone):
        bench.shard.delete_message(2, *place(view), bench.now)
    with pytest.raises(QueueDoesNotExist):
        bench.shard.delete_message(3, *place(view), bench.now)
    bench.shard.delete_message(1, *place(view), bench.now)
    with pytest.raises(MessageGone):
        bench.shard.delete_message(1, *place(view), bench.now)
    bench.send(1, "takes the same slot")
    with pytest.raises(MessageGone):
        bench.shard.delete_message(1, *place(view), bench.now)
    with pytest.raises(MessageGone):
        bench.shard.retry_message(1, *place(view), None, bench.now)
    bench.check()


def test_what_is_in_transfer_is_left_alone() -> None:
    bench, other = Bench(), Bench(1)
    bench.queue(1, max_receives=1, dead_letter_on_failure=True, dead_letter_queue=2, dead_letter_shard=1)
    other.queue(2)
    bench.send(1, "a")
    bench.receive(1)
    bench.later(30_000)
    (view,) = bench.messages(1)
    assert view.state == State.OWED
    with pytest.raises(MessageHeld, match="being moved"):
        bench.shard.delete_message(1, *place(view), bench.now)
    deliver(bench, other)
    (letter,) = other.messages(2)
    assert letter.origin == 1
    other.shard.retry_message(2, *place(letter), Destination(1, 0), other.now)
    with pytest.raises(JobConflict, match="still being moved"):
        start_job(other, 2)
    deliver(other, bench)
    assert bench.waiting(1) == ["a"] and not other.messages(2)
    bench.check()
    other.check()


def test_a_refused_retry_across_shards_returns() -> None:
    bench, other = Bench(), Bench(1)
    bench.queue(1, max_receives=1, dead_letter_on_failure=True)
    bench.send(1, "a")
    bench.receive(1)
    bench.later(30_000)
    (view,) = bench.messages(1)
    bench.shard.retry_message(1, *place(view), Destination(9, 1), bench.now)
    deliver(bench, other)
    (view,) = bench.messages(1)
    assert view.state == State.DEAD
    bench.check()


@pytest.mark.parametrize(("target", "problem"), [({}, "does not exist"), ({"fifo": True}, "same type")])
def test_where_a_message_cannot_go(target: dict[str, bool], problem: str) -> None:
    bench = Bench()
    bench.queue(1)
    if target:
        bench.queue(2, **target)
    bench.send(1, "a")
    (view,) = bench.messages(1)
    with pytest.raises(InvalidInput, match=problem):
        bench.shard.retry_message(1, *place(view), Destination(2, 0), bench.now)
    bench.check()


def test_a_refused_dead_letter_is_tried_again_at_once() -> None:
    bench = Bench()
    bench.queue(1, max_receives=1, dead_letter_on_failure=True, dead_letter_queue=2)
    bench.send(1, "a")
    bench.receive(1)
    bench.later(30_000)
    (view,) = bench.messages(1)
    assert (view.state, view.refusals) == (State.DELAYED, 1)
    bench.shard.retry_message(1, *place(view), None, bench.now)
    (view,) = bench.messages(1)
    assert (view.state, view.refusals) == (State.DELAYED, 2)
    bench.queue(2)
    bench.shard.retry_message(1, *place(view), None, bench.now)
    assert bench.waiting(2) == ["a"] and not bench.messages(1)
    bench.check()


def test_an_edit_survives_a_snapshot_and_a_dropped_front() -> None:
    bench = Bench()
    bench.queue(1)
    bench.send(1, "a", "b")
    bench.send(1, "c", delay_ms=60_000)
    first, _, delayed = bench.messages(1)
    assert bench.shard.format == PLAIN_VERSION
    edit(bench, 1, first, "longer than before")
    assert bench.shard.format == PLAIN_VERSION
    edit(bench, 1, delayed, "d")
    assert bench.shard.format == EDITING_VERSION, "older readers do not expect it"
    bench.check()
    assert bench.waiting(1) == ["longer than before", "b", "d"]
    assert_same_state(bench.loaded(), bench.shard, bench.now)
    bench.truncate(bench.next_frame)
    assert bench.waiting(1) == ["longer than before", "b", "d"]
    bench.restart(bench.replayed())
    bench.check()
    bench.later(60_000)
    assert [view.state for view in bench.messages(1)] == [State.VISIBLE] * 3


def test_older_readers_refuse_a_job_that_deletes() -> None:
    """They do not know the kind of a job, and would move its messages instead."""
    bench = Bench()
    bench.queue(1)
    bench.queue(2)
    bench.send(2, "a")
    start_job(bench, 1)
    assert bench.shard.format == PLAIN_VERSION
    job = Job("delete", 2, 0, 0, 1, state="", started_ms=0, to_move=0, selection="{}", kind="delete")
    bench.shard.start_job(job, bench.now)
    assert bench.shard.format == DELETING_VERSION
    bench.check()
    assert bench.replayed().format == bench.loaded().format == DELETING_VERSION
    bench.truncate(bench.next_frame)
    assert bench.replayed().format == DELETING_VERSION, "the Base names the job"


def test_a_deleted_message_frees_its_deduplication_id_if_that_lives_as_long_as_it() -> None:
    bench = Bench()
    bench.queue(1, dedup_lives=True)
    bench.send(1, "a", dedup_id="k")
    bench.later(600_000)  # the window is over
    assert bench.send(1, "a", dedup_id="k")[0].duplicate
    (view,) = bench.messages(1)
    bench.shard.delete_message(1, *place(view), bench.now)
    assert not bench.send(1, "a", dedup_id="k")[0].duplicate
    bench.check()


def test_a_retried_message_is_no_jobs() -> None:
    """An ended job does not count the death of a message that an operator moved later."""
    bench = Bench()
    bench.queue(2)
    bench.queue(1, max_receives=1, dead_letter_on_failure=True, dead_letter_queue=2)
    bench.send(1, "a", "b")
    bench.receive(1)
    bench.later(30_000)
    start_job(bench, 2)
    bench.shard.cancel_job("job", bench.now)
    bench.shard.step_jobs(bench.now)
    letter, _ = bench.messages(2)
    bench.shard.retry_message(2, *place(letter), Destination(1, 0), bench.now)
    bench.receive(1)
    bench.later(30_000)
    assert len(bench.messages(2)) == 2 and bench.shard.jobs["job"].died_again == 0
    bench.check()
