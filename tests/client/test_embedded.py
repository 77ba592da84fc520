"""Queues in the caller's own process: durable, for one process at a time, closed cleanly or killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import batonq
from batonq.errors import InvalidInput, OwnershipHeld, Unavailable
from tests.client.support import WAIT_S, run
from tests.system.process import ServerProcess

EMBEDDER = Path(__file__).with_name("embedder.py")
KILLS = 3


def test_what_was_sent_is_there_when_the_path_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "queues"
    with batonq.open(path) as baton:
        queue = baton.create_queue("jobs")
        queue.send_many(["a", "b"])
        (held,) = queue.receive(1, wait=0)
    with batonq.open(path) as baton:
        queue = baton.queue("jobs")
        assert [message.body for message in queue.receive(wait=0)] == ["b"]
        assert queue.ack_many([held.receipt]) == [None]  # leases outlive the process too

    async def body() -> None:
        async with await batonq.open_async(path) as baton:
            assert (await baton.queue("jobs").stats()).deleted == 1
            await baton.queue("jobs").send("c")

    run(body())
    with ServerProcess(path) as server, batonq.sync.Baton(server.url) as baton:
        assert [message.body for message in baton.queue("jobs").receive(wait=0)] == ["c"]


@pytest.mark.parametrize("form", ["async", "sync"])
def test_kill_9_of_the_embedding_process_loses_nothing_acknowledged(form: str, tmp_path: Path) -> None:
    acknowledged: list[int] = []
    for kill in range(KILLS):
        command = [sys.executable, str(EMBEDDER), str(tmp_path), form, str(kill * 1_000_000)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(50 + 25 * kill):
                acknowledged.append(int(process.stdout.readline()))
            process.kill()
            whole, _, _ = process.stdout.read().rpartition("\n")
            acknowledged += map(int, whole.split())
    with batonq.open(tmp_path) as baton:
        found: list[int] = []
        while messages := baton.queue("embedded").receive(1_000, wait=0):
            found += [message.body for message in messages]
    assert len(found) == len(set(found))
    assert set(acknowledged) <= set(found)


def test_a_second_process_is_told_who_has_the_path(tmp_path: Path) -> None:
    with batonq.open(tmp_path):
        code = f"""
import batonq
try:
    batonq.open({str(tmp_path)!r})
except batonq.errors.OwnershipHeld as held:
    print(held)
"""
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        assert f"in use by process {os.getpid()}" in said
        assert "baton serve" in said and "--data" not in said
        with pytest.raises(OwnershipHeld):
            batonq.open(tmp_path)

        async def body() -> None:
            with pytest.raises(OwnershipHeld):
                await batonq.open_async(tmp_path)

        run(body())
    batonq.open(tmp_path).close()


def test_a_program_that_ends_without_closing_ends_cleanly(tmp_path: Path) -> None:
    code = f"import batonq\nbaton = batonq.open({str(tmp_path)!r})\nbaton.create_queue('q').send('x')\nprint('end')"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True, timeout=WAIT_S
    )
    assert (done.stdout, done.stderr) == ("end\n", "")
    with batonq.open(tmp_path) as baton:
        assert baton.queue("q").stats().visible == 1


def test_a_forked_child_has_no_part_in_it(tmp_path: Path) -> None:
    """It can neither use the queues nor keep the path locked when its parent has gone on."""
    code = f"""
import batonq, os, time
baton = batonq.open({str(tmp_path)!r})
queue = baton.create_queue("q")
ready, release = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    try:
        queue.send("from the child")
    except batonq.errors.InvalidInput:
        os.write(ready[1], b"r")
    os.read(release[0], 1)
    os._exit(0)
assert os.read(ready[0], 1) == b"r"
queue.send("from the parent")
baton.close()
again = batonq.open({str(tmp_path)!r})  # although the child lives
assert again.queue("q").stats().visible == 1
again.close()
os.write(release[1], b"x")
os.waitpid(child, 0)
print("ok")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.stdout == "ok\n", done.stderr


def test_a_long_poll_is_answered_when_another_thread_closes(tmp_path: Path) -> None:
    baton = batonq.open(tmp_path)
    queue = baton.create_queue("q")
    outcome: list[object] = []

    def poll() -> None:
        try:
            outcome.append(queue.receive(wait=20))
        except (Unavailable, InvalidInput) as problem:
            outcome.append(problem)

    thread = threading.Thread(target=poll)
    thread.start()
    while not queue.stats().waiting_receives:
        assert thread.is_alive()
    baton.close()
    thread.join(WAIT_S)
    assert not thread.is_alive() and len(outcome) == 1


def test_a_cancelled_long_poll_takes_no_message(tmp_path: Path) -> None:
    async def body() -> None:
        async with await batonq.open_async(tmp_path) as baton:
            queue = await baton.create_queue("q")
            poll = asyncio.create_task(queue.receive(wait=20))
            while not (await queue.stats()).waiting_receives:
                assert not poll.done()
            poll.cancel()
            await asyncio.gather(poll, return_exceptions=True)
            await queue.send("x")
            assert len(await queue.receive(wait=0)) == 1

    run(body())


def test_settings(tmp_path: Path) -> None:
    with batonq.open(tmp_path / "two", shards=2) as baton:
        baton.create_queue("q").send("x")
    for wrong in ({"port": 9324}, {"colour": "red"}):
        with pytest.raises(InvalidInput, match="is not a setting of embedded queues"):
            batonq.open(tmp_path / "wrong", **wrong)
    with pytest.raises(InvalidInput, match="shards"):
        batonq.open(tmp_path / "wrong", shards=0)


def test_ctrl_c_does_not_stop_the_node(tmp_path: Path) -> None:
    """The signal is the program's to handle; its queues stay open until it closes them."""
    code = f"""
import batonq, os, signal
baton = batonq.open({str(tmp_path)!r})
queue = baton.create_queue("q")
try:
    os.kill(os.getpid(), signal.SIGINT)
    queue.receive(wait=20)
except KeyboardInterrupt:
    pass
queue.send("after")
baton.close()
print("ok")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.stdout == "ok\n", done.stderr
    assert done.returncode in (0, -signal.SIGINT)
