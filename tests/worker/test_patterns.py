"""One worker over a pattern of many queues: one long poll, and fair."""

from __future__ import annotations

import asyncio
from pathlib import Path

from batonq.client.aio.baton import Baton as AsyncBaton
from batonq.client.blocking.baton import Baton
from tests.system.process import ServerProcess
from tests.worker.processes import Stage, finish, wait_until

QUEUES = 10_000


async def make_queues(url: str) -> None:
    async with AsyncBaton(url, connections=32) as baton:
        for start in range(0, QUEUES, 500):
            await asyncio.gather(*(baton.create_queue(f"hooks-{start + number}") for number in range(500)))


def test_one_worker_over_a_pattern_of_ten_thousand_queues(tmp_path: Path) -> None:
    """On a server of its own: nobody wants to delete ten thousand queues."""
    with (
        ServerProcess(tmp_path / "data") as server,
        Stage(tmp_path, server.url) as stage,
        Baton(server.url) as baton,
    ):
        asyncio.run(make_queues(server.url))
        baton.queue("hooks-0").send_many(range(2000))
        quiet = range(100, QUEUES, 100)
        for number in quiet:
            baton.queue(f"hooks-{number}").send("one")
        worker = stage.worker("--queues", "hooks-*")
        wait_until(lambda: len(stage.events("end")) == 2000 + len(quiet), "every message")
        # Fair: nobody's one message waits behind the loud queue's two thousand.
        order = [body.partition("=")[0] for _, body, _ in stage.events("end")]
        assert max(at for at, name in enumerate(order) if name != "hooks-0") < 1000
        # A message to any of the queues wakes the one long poll.
        baton.queue("hooks-7777").send("ring")
        wait_until(lambda: ("end", "hooks-7777=ring", worker.pid) in stage.events("end"), "the ring")
        assert finish(worker) == 0
        assert {queue.name for queue in baton.queues("hooks-7777")} == {"hooks-7777"}
