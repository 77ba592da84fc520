"""Real workers and a real server: processes that are killed, stopped, blocked and told to end."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import urllib.request
from pathlib import Path

import pytest

from batonq.client.blocking.baton import Baton
from batonq.client.models import Outgoing
from batonq.idempotency.transaction import create_tables
from tests.support.ports import reserve_port
from tests.worker.processes import TIMEOUT_S, Stage, finish, wait_until


def make_effects(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    create_tables(connection)
    connection.execute("CREATE TABLE effects (body)")
    connection.commit()
    connection.close()


def effects(path: Path) -> list[object]:
    connection = sqlite3.connect(path)
    try:
        return [body for (body,) in connection.execute("SELECT body FROM effects")]
    finally:
        connection.close()


def test_killed_between_effect_and_ack_the_effect_is_there_once(baton: Baton, stage: Stage) -> None:
    queue = baton.create_queue("effects")
    make_effects(stage.effects)
    queue.send("charge the card")
    first = stage.worker("--queues", "effects", DIE="before ack", VISIBILITY="1")
    assert first.wait(TIMEOUT_S) == -signal.SIGKILL
    assert effects(stage.effects) == ["charge the card"] and queue.stats().depth == 1
    second = stage.worker("--queues", "effects")
    wait_until(lambda: queue.stats().depth == 0, "the second delivery")
    assert finish(second) == 0
    assert queue.stats().received == 2 and effects(stage.effects) == ["charge the card"]


def test_five_times_the_visibility_and_never_delivered_twice(baton: Baton, stage: Stage) -> None:
    queue = baton.create_queue("slow")
    queue.send("x")
    # A process that is not given a processor for two seconds loses its lease of three, as it should.
    workers = [stage.worker("--queues", "slow", VISIBILITY="3") for _ in range(2)]
    wait_until(lambda: queue.stats().depth == 0, "the end of the handler")
    assert [finish(worker) for worker in workers] == [0, 0]
    assert queue.stats().received == 1
    assert [what for what, _, _ in stage.events()] == ["begin", "end"]


def test_a_stopped_process_loses_the_message_and_its_late_ack_is_refused(baton: Baton, stage: Stage) -> None:
    queue = baton.create_queue("threads")
    queue.send("x")
    first = stage.worker("--queues", "threads", VISIBILITY="1")
    wait_until(lambda: stage.events("begin"))
    first.send_signal(signal.SIGSTOP)
    second = stage.worker("--queues", "threads")
    wait_until(lambda: queue.stats().depth == 0, "the message's second delivery")
    assert [pid for _, _, pid in stage.events("end")] == [second.pid]
    stage.go.touch()
    first.send_signal(signal.SIGCONT)
    wait_until(lambda: stage.events("refused"), "the refusal of the late ack")
    assert [pid for _, _, pid in stage.events("refused")] == [first.pid]
    assert finish(first) == 0 and finish(second) == 0
    assert "refused the answer" in stage.logs() and "1 refused" in stage.logs()


@pytest.mark.parametrize(("queue_name", "slots"), [("blocks", "1"), ("threads", "2")])
def test_who_hangs_past_the_deadline_loses_the_lease(baton: Baton, stage: Stage, queue_name: str, slots: str) -> None:
    """An event loop that is blocked, and a thread that hangs; the process lives, and so does its heartbeat."""
    queue = baton.create_queue(queue_name)
    queue.send("x")
    first = stage.worker("--queues", queue_name, "--concurrency", slots, VISIBILITY="3", DEADLINE="4")
    wait_until(lambda: stage.events("begin"))
    second = stage.worker("--queues", queue_name)
    wait_until(lambda: queue.stats().depth == 0, "the message's second delivery")
    assert len(stage.events("end")) == 1  # by the second worker, or by the thread that took the hung one's place
    wait_until(lambda: stage.events("deadline"), "the deadline")
    assert [pid for _, _, pid in stage.events("deadline")] == [first.pid]
    stage.go.touch()
    wait_until(lambda: stage.events("refused"), "the refusal of the late ack")
    assert [pid for _, _, pid in stage.events("refused")] == [first.pid]
    assert finish(first) == 0 and finish(second) == 0
    assert queue.stats().received == 2


def test_sigterm_finishes_what_is_held_and_takes_no_more(baton: Baton, stage: Stage) -> None:
    queue = baton.create_queue("waits")
    queue.send_many(range(10))
    worker = stage.worker("--queues", "waits")
    wait_until(lambda: len(stage.events("begin")) == 4)
    worker.send_signal(signal.SIGTERM)
    stage.go.touch()
    assert worker.wait(TIMEOUT_S) == 0
    assert len(stage.events("begin")) == len(stage.events("end")) == 4
    stats = queue.stats()
    assert (stats.visible, stats.in_flight, stats.deleted) == (6, 0, 4)


@pytest.mark.parametrize(("queue_name", "slots"), [("waits", "4"), ("blocks", "1"), ("blocks", "2")])
def test_a_second_signal_gives_the_leases_back_at_once(baton: Baton, stage: Stage, queue_name: str, slots: str) -> None:
    """Also while a handler blocks the event loop, and while a long poll of the same worker waits for more."""
    queue = baton.create_queue(queue_name)
    queue.send("x")
    worker = stage.worker("--queues", queue_name, "--concurrency", slots, VISIBILITY="600")
    wait_until(lambda: stage.events("begin"))
    wait_until(lambda: _signalled_again(worker), "the worker's end")
    assert worker.wait(TIMEOUT_S) == 128 + signal.SIGTERM
    # Although the lease would have lasted ten minutes.
    wait_until(lambda: (queue.stats().visible, queue.stats().in_flight) == (1, 0), "the message's return")
    assert "released 1 leases" in stage.logs()


def _signalled_again(worker: subprocess.Popen[bytes]) -> bool:
    """Two signals that meet are one to the kernel: send until the second has been seen."""
    worker.send_signal(signal.SIGTERM)
    return worker.poll() is not None


def test_the_end_of_the_drain_gives_the_leases_back(baton: Baton, stage: Stage) -> None:
    queue = baton.create_queue("waits")
    queue.send("x")
    worker = stage.worker("--queues", "waits", "--drain-seconds", "0.1", VISIBILITY="600")
    wait_until(lambda: stage.events("begin"))
    assert finish(worker) == 1
    assert queue.stats().visible == 1


def test_poison_that_crashes_its_process_ends_in_the_dead_letter_queue(baton: Baton, stage: Stage) -> None:
    queue = baton.create_queue("crashes", max_receives=3, dead_letter_queue="crashes-dead")
    queue.send_many(["crash", "a", "b"])
    worker = stage.worker("--queues", "crashes")
    dead = baton.queue("crashes-dead")
    wait_until(lambda: dead.stats().visible == 1 and queue.stats().depth == 0, "the poison's end")
    queue.send("c")
    wait_until(lambda: queue.stats().depth == 0, "work after the crashes")
    assert finish(worker) == 0
    (letter,) = dead.receive(10, 0)
    assert letter.body == "crash" and letter.dead_letter is not None
    assert letter.dead_letter.error_class == "HandlerCrashed" and "exited with code 9" in letter.dead_letter.reason
    assert sorted(body for _, body, _ in stage.events("end")) == ["a", "b", "c"]


def test_the_workers_of_a_killed_pool_end_too(baton: Baton, stage: Stage) -> None:
    baton.create_queue("waits").send_many(range(8))
    stage.go.touch()
    pool = stage.worker("--queues", "waits", "--processes", "2")
    wait_until(lambda: len(stage.events("end")) == 8, "the work")
    workers = {pid for _, _, pid in stage.events("end")}
    pool.kill()
    pool.wait(TIMEOUT_S)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "the workers' end")
    assert "the pool of this worker has exited" in stage.logs()


def test_groups_of_a_fifo_queue_stay_in_order_through_failures_and_two_workers(baton: Baton, stage: Stage) -> None:
    queue = baton.create_queue("ordered", fifo=True)
    bodies = [f"{group}:{number}" for number in range(30) for group in "abcd"]
    queue.send_many([Outgoing(body, group=body[0], dedup_key=body) for body in bodies])
    workers = [stage.worker("--queues", "ordered") for _ in range(2)]
    wait_until(lambda: queue.stats().depth == 0, "the end of the work")
    assert [finish(worker) for worker in workers] == [0, 0]
    done = [body for _, body, _ in stage.events("end")]
    for group in "abcd":
        assert [body for body in done if body[0] == group] == [f"{group}:{number}" for number in range(30)]


def test_metrics_are_served_while_the_loop_is_blocked(baton: Baton, stage: Stage) -> None:
    port = reserve_port()
    baton.create_queue("blocks").send("x")
    worker = stage.worker("--queues", "blocks", "--metrics-port", str(port))
    wait_until(lambda: stage.events("begin"))
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT_S).read().decode()
    assert 'baton_worker_received_total{task="blocks_the_loop"} 1' in text
    assert 'baton_worker_running{task="blocks_the_loop"} 1' in text
    stage.go.touch()
    assert finish(worker) == 0


def test_a_pool_replaces_the_dead_and_ends_with_its_signal(baton: Baton, stage: Stage) -> None:
    queue = baton.create_queue("waits")
    queue.send_many(range(8))
    pool = stage.worker("--queues", "waits", "--processes", "2", VISIBILITY="1")
    wait_until(lambda: len({pid for _, _, pid in stage.events("begin")}) == 2, "two workers' first messages")
    killed = stage.events("begin")[0][2]
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: len({pid for _, _, pid in stage.events("begin")}) == 3, "another worker in its place")
    stage.go.touch()
    wait_until(lambda: queue.stats().depth == 0, "the end of the work")
    assert finish(pool) == 0
    survivors = {pid for _, _, pid in stage.events("begin")} - {killed}
    assert not any(Path(f"/proc/{pid}").exists() for pid in survivors)
