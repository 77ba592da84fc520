"""A program that forks with a client open: both go on, with producers and connections of their own."""

from __future__ import annotations

import subprocess
import sys

from batonq.client.producers import Producers
from batonq.sync import Baton
from tests.client.support import WAIT_S
from tests.support.server import TestServer

PROGRAM = """
import os, sys
from batonq.sync import Baton
baton = Baton(sys.argv[1], access_key=sys.argv[2], secret_key="any")
queue = baton.queue("forked")
for number in range(50):
    queue.send(number)
child = os.fork()
for number in range(100, 150):
    result = queue.send(number + (1000 if child == 0 else 0))
    assert not result.duplicate
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
baton.close()
print("ok")
"""


def test_a_child_sends_as_somebody_else(server: TestServer, account: str) -> None:
    """With its parent's producer id and numbers, its messages would pass for repetitions, and be lost."""
    with Baton(server.url, access_key=account, secret_key="any") as baton:
        queue = baton.create_queue("forked")
        command = [sys.executable, "-W", "error", "-c", PROGRAM, server.url, account]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert done.stdout == "ok\n", done.stderr
        bodies = [message.body for message in queue.receive(1_000, wait=0)]
        assert sorted(bodies) == [*range(50), *range(100, 150), *range(1_100, 1_150)]


def test_producers_are_lent_to_one_at_a_time() -> None:
    producers = Producers()
    first, second = producers.borrow(), producers.borrow()
    assert first != second
    assert (producers.take(3), producers.take(1)) == (1, 4)
    producers.give_back(first)
    assert producers.borrow() == first
    producers.give_back("somebody.7")  # of the parent, from before a fork
    assert producers.borrow() not in (first, second, "somebody.7")
