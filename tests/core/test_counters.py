"""Conservation: what entered a queue was deleted, expired, was moved, or is there, whatever happened to it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from batonq.core import sections
from batonq.core.commands import ExactCounters, Job
from batonq.core.shard.machine import Shard
from tests.core.rig import Bench, deliver

SOURCE, DEAD, OTHER = 1, 2, 3
DAY_MS = 86_400_000


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    made.queue(DEAD)
    made.queue(OTHER)
    yield made
    made.check()


def exact(bench: Bench, queue: int = SOURCE) -> ExactCounters:
    found = bench.shard.exact_counters(queue)
    assert found.entered == found.accounted
    return found


def figures(bench: Bench, queue: int = SOURCE) -> tuple[int, int, int, int, int, int]:
    """Sent, arrived, deleted, expired, moved, present."""
    found = exact(bench, queue)
    counters = found.counters
    return counters.sent, counters.arrived, counters.deleted, found.expired, found.moved, counters.present


def dead_letter(bench: Bench, *bodies: str) -> None:
    bench.queue(SOURCE, max_receives=1, dead_letter_queue=DEAD, dead_letter_on_failure=True)
    bench.send(SOURCE, *bodies)
    bench.receive(SOURCE)
    bench.later(30_000)


def redrive(bench: Bench, job_id: str = "job", to: int = OTHER) -> None:
    job = Job(job_id, DEAD, to, 0, 1_000, "RUNNING", 0, 0)
    bench.shard.start_job(job, bench.now)
    for _ in range(10):
        bench.shard.step_jobs(bench.later(1_000))
    assert bench.shard.jobs[job_id].state == "COMPLETED"


def test_a_message_that_is_deleted_purged_or_removed_by_an_operator(bench: Bench) -> None:
    bench.queue(SOURCE)
    bench.send(SOURCE, *"abcde")
    bench.delete(SOURCE, *bench.receive(SOURCE, 1))
    view = bench.messages(SOURCE)[0]
    bench.shard.delete_message(SOURCE, view.slot, view.sequence, bench.now)
    assert figures(bench) == (5, 0, 2, 0, 0, 3)
    bench.shard.purge(SOURCE, bench.now)
    assert figures(bench) == (5, 0, 5, 0, 0, 0)


def test_a_dead_letter_and_its_redrive(bench: Bench) -> None:
    dead_letter(bench, "a", "b", "c")
    assert figures(bench) == (3, 0, 0, 0, 3, 0)
    assert figures(bench, DEAD) == (0, 3, 0, 0, 0, 3)
    redrive(bench)
    assert figures(bench, DEAD) == (0, 3, 0, 0, 3, 0)
    assert figures(bench, OTHER) == (0, 3, 0, 0, 0, 3)


def test_a_dead_message_that_starts_again_in_its_own_queue_leaves_and_enters(bench: Bench) -> None:
    bench.queue(SOURCE, max_receives=1, dead_letter_on_failure=True)
    bench.send(SOURCE, "a")
    bench.receive(SOURCE)
    bench.later(30_000)
    view = bench.messages(SOURCE)[0]
    bench.shard.retry_message(SOURCE, view.slot, view.sequence, None, bench.now)
    assert figures(bench) == (1, 1, 0, 0, 1, 1)


@pytest.mark.parametrize("moves", [False, True])
def test_an_expired_message_is_counted_once(bench: Bench, moves: bool) -> None:
    bench.queue(SOURCE, retention_ms=60_000, dead_letter_queue=DEAD, expiry_to_dead_letter=moves)
    bench.send(SOURCE, "a", "b")
    bench.later(120_000)
    assert exact(bench).counters.expired_messages == 2
    assert figures(bench) == ((2, 0, 0, 0, 2, 0) if moves else (2, 0, 0, 2, 0, 0))


def test_a_message_on_its_way_is_still_present(bench: Bench) -> None:
    there = Bench(1)
    there.queue(7)
    bench.queue(SOURCE, max_receives=1, dead_letter_queue=7, dead_letter_shard=1, dead_letter_on_failure=True)
    bench.send(SOURCE, "a")
    bench.receive(SOURCE)
    bench.later(30_000)
    assert figures(bench) == (1, 0, 0, 0, 0, 1)
    assert exact(bench).counters.owed == 1
    deliver(bench, there)
    assert figures(bench) == (1, 0, 0, 0, 1, 0)
    assert figures(there, 7) == (0, 1, 0, 0, 0, 1)


def test_the_position_is_that_of_the_record_written_next(bench: Bench) -> None:
    bench.queue(SOURCE)
    bench.commit()
    bench.send(SOURCE, "a")
    before = exact(bench)
    bench.send(SOURCE, "b")
    after = exact(bench)
    assert after.position == before.position + 1
    rows = bench.commit()
    assert [row.sequence for row in rows[before.position & 0xFFFF : after.position & 0xFFFF]] == [2]
    assert (before.counters.sent, after.counters.sent) == (1, 2)
    assert exact(bench).position == bench.next_frame << 16


# --- states that earlier releases stored ----------------------------------------------------------


def without_moves(facts: dict[str, object]) -> dict[str, object]:
    queues = facts["queues"]
    assert isinstance(queues, list) and any("moves" in queue for queue in queues)
    for queue in queues:
        queue.pop("moves", None)
    return facts


@pytest.mark.parametrize("moves", [False, True])
def test_a_snapshot_without_the_moves_is_loaded(bench: Bench, moves: bool) -> None:
    dead_letter(bench, "a", "b")
    if moves:
        redrive(bench)
    bench.queue(SOURCE, retention_ms=60_000, dead_letter_queue=DEAD, expiry_to_dead_letter=True)
    bench.send(SOURCE, "c")
    bench.later(120_000)
    saved = bench.shard.save()
    saved["facts"] = json.dumps(without_moves(json.loads(saved["facts"]))).encode()
    fresh = Shard(0)
    fresh.load(saved)
    fresh.validate()
    for queue in (SOURCE, DEAD, OTHER):
        assert fresh.exact_counters(queue)[1:] == bench.shard.exact_counters(queue)[1:]


def test_a_base_without_the_moves_is_loaded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    dead_letter(bench, "a", "b")
    redrive(bench)
    pack = sections.pack

    def pack_as_before(parts: dict[str, bytes]) -> bytes:
        facts = without_moves(json.loads(parts["facts"]))
        return pack({**parts, "facts": json.dumps(facts).encode()})

    with monkeypatch.context() as patched:
        patched.setattr(sections, "pack", pack_as_before)
        bench.truncate(bench.next_frame)
    fresh = bench.replayed()
    fresh.validate()
    assert [fresh.exact_counters(queue)[2:] for queue in (SOURCE, DEAD)] == [(2, 0), (2, 0)]


def test_a_queue_without_moves_is_stored_as_before(bench: Bench) -> None:
    bench.queue(SOURCE)
    bench.send(SOURCE, "a")
    facts = json.loads(bench.shard.save()["facts"])
    assert not any("moves" in queue for queue in facts["queues"])
