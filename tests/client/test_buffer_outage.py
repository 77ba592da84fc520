"""The buffer and a real server that is killed while messages are sent: each arrives once, in order."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from batonq.client import Baton
from batonq.client.breaker import Breaker
from batonq.client.buffer import BlockingSendBuffer, SendBuffer
from batonq.client.models import Outgoing, Sent
from batonq.errors import BatonError
from batonq.sync import Baton as BlockingBaton
from tests.support.ports import reserve_port
from tests.system.process import ServerProcess

MESSAGES = 3_000
KILLS = 4
PATIENCE_S = 300.0


class Broker:
    """A server that comes back at the same address after it was killed."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.port = reserve_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = self._start()

    def _start(self) -> ServerProcess:
        return ServerProcess(self.data, "--port", str(self.port))

    def kill(self) -> None:
        self.server.kill()

    def restart(self) -> None:
        self.server = self._start()

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        if self.server.process.poll() is None:
            self.server.kill()


def patient_breaker() -> Breaker:
    return Breaker(failures=3, pause=0.05, pause_max=0.2)


def bodies(url: str, queue: str = "jobs") -> list[Any]:
    """All that is in the queue, in order."""
    found: list[Any] = []
    with BlockingBaton(url) as baton:
        while messages := baton.queue(queue).receive(1_000, wait=0):
            found += [(message.sequence, message.body) for message in messages]
    return [body for _, body in sorted(found)]


def test_tasks_and_a_broker_that_is_killed(tmp_path: Path) -> None:
    async def main(broker: Broker) -> None:
        async with Baton(broker.url, retries=0) as baton:
            await baton.create_queue("jobs")
            queue = baton.queue("jobs")
            killing = kill_after_answers(queue.send_many, broker)
            async with SendBuffer(killing, batch=50, breaker=patient_breaker(), close_seconds=PATIENCE_S) as buffer:
                for number in range(MESSAGES):
                    buffer.put(number)
            counters = buffer.counters
            assert (counters.sent, counters.waiting, counters.refused) == (MESSAGES, 0, 0)
            assert counters.failures >= KILLS

    with Broker(tmp_path / "data") as broker:
        asyncio.run(main(broker))
        assert bodies(broker.url) == list(range(MESSAGES))


def kill_after_answers(
    send_many: Callable[..., Awaitable[list[Sent | BatonError]]], broker: Broker
) -> Callable[..., Awaitable[list[Sent | BatonError]]]:
    """Now and then the server takes a request and dies before its answer arrives: nobody knows whether it was done."""
    requests = 0
    restarting: list[asyncio.Task[None]] = []

    async def killing(messages: list[Outgoing], *, producer: tuple[str, int]) -> list[Sent | BatonError]:
        nonlocal requests
        requests += 1
        if requests % 12 == 3 and requests // 12 < KILLS:
            await send_many(messages, producer=producer)
            await asyncio.to_thread(broker.kill)
            try:
                return await send_many(messages, producer=producer)  # which fails: nobody is there
            finally:
                restarting.append(asyncio.create_task(asyncio.to_thread(broker.restart)))
        return await send_many(messages, producer=producer)

    return killing


def test_threads_and_a_broker_that_is_killed(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker, BlockingBaton(broker.url, retries=0) as baton:
        baton.create_queue("jobs")
        send_many = baton.queue("jobs").send_many
        with BlockingSendBuffer(send_many, batch=50, breaker=patient_breaker(), close_seconds=PATIENCE_S) as buffer:
            for part in range(KILLS):
                for number in range(part * 500, part * 500 + 500):
                    buffer.put(number)
                broker.kill()
                for number in range(500):
                    buffer.put(10_000 + part * 500 + number)
                broker.restart()
        found = bodies(broker.url)
        assert [number for number in found if number < 10_000] == list(range(KILLS * 500))
        assert [number for number in found if number >= 10_000] == list(range(10_000, 10_000 + KILLS * 500))


PRODUCER = """
import os, sys
from batonq.client.breaker import Breaker
from batonq.client.buffer import BlockingSendBuffer
from batonq.sync import Baton

url, spill, first, count, dies = sys.argv[1:4] + [int(sys.argv[4]), sys.argv[5]]
send_many = Baton(url, retries=0).queue("jobs").send_many

def sending(messages, *, producer):
    results = send_many(messages, producer=producer)
    if dies == "after-answer":
        os.kill(os.getpid(), 9)  # the server has them, and nobody here has noted it
    return results

buffer = BlockingSendBuffer(sending, spill=spill, batch=100, breaker=Breaker(failures=10**9))
for number in range(int(first), int(first) + count):
    buffer.put(number)
if dies == "at-once":
    os.kill(os.getpid(), 9)
buffer.close()
"""


def test_a_producer_that_is_killed_goes_on_from_its_file(tmp_path: Path) -> None:
    """Killed right after the server took a batch, the next process sends that batch again, under the same numbers."""
    spill = str(tmp_path / "spill.db")

    def produce(url: str, first: int, count: int, dies: str) -> int:
        command = [sys.executable, "-c", PRODUCER, url, spill, str(first), str(count), dies]
        return subprocess.run(command, timeout=PATIENCE_S, check=False).returncode

    with Broker(tmp_path / "data") as broker:
        with BlockingBaton(broker.url) as baton:
            baton.create_queue("jobs")
        broker.kill()
        assert produce(broker.url, 0, 300, "at-once") == -9  # the broker is away
        broker.restart()
        for part in range(1, 4):
            assert produce(broker.url, part * 300, 300, "after-answer") == -9
        assert produce(broker.url, 1_200, 300, "no") == 0
        found = bodies(broker.url)
        # A process that is killed may not have come to its last puts; what it put is there once, and in order.
        assert len(set(found)) == len(found)
        assert found == sorted(found)
        assert found[:300] == list(range(300))
        assert found[-300:] == list(range(1_200, 1_500))
