"""A replay while the nodes that serve its source and its target die: another node goes on, and each message is sent
once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from batonq.errors import BatonError
from batonq.node.broker import Queue
from batonq.node.cluster.node import ClusterNode
from batonq.node.cluster.peers import NoAnswer
from batonq.node.jobs.job_control import JobStatus
from batonq.node.jobs.replay_control import Replay
from tests.cluster.memory import Nodes, run_simulated
from tests.cluster.test_transfers import DESTINATION, KEPT, LEASE_S, SOURCE, placed, received
from tests.node.nodes import ACCOUNT, make_send
from tests.support import brokers

MESSAGES = 40
RATE_PER_S = 20


async def job_of(kept: ClusterNode, job_id: str) -> JobStatus:
    async with asyncio.timeout(60):
        while True:
            try:
                return await kept.broker.job(ACCOUNT, job_id)
            except BatonError:
                await asyncio.sleep(0.1)  # who serves it is dead; another node takes over soon


async def until_moved(kept: ClusterNode, job_id: str, most: int) -> JobStatus:
    async with asyncio.timeout(120):
        while (status := await job_of(kept, job_id)).moved < most and status.state == "RUNNING":  # noqa: ASYNC110 - of another node
            await asyncio.sleep(0.05)
    return status


async def with_history(nodes: Nodes) -> tuple[Queue, Queue]:
    kept = nodes[KEPT]
    work = await kept.broker.create_queue(ACCOUNT, "work", {"Baton.RetainSeconds": "86400"}, {})
    again = await kept.broker.create_queue(ACCOUNT, "again", {}, {})
    assert work.shard != again.shard
    await placed(nodes, work, SOURCE)
    await placed(nodes, again, DESTINATION)
    for at in range(0, MESSAGES, 10):
        await brokers.send(kept.broker, work, [make_send(str(number)) for number in range(at, at + 10)])
    return work, again


async def check(kept: ClusterNode, again: Queue, job_id: str) -> None:
    await until_moved(kept, job_id, MESSAGES)
    async with asyncio.timeout(60):
        while (status := await job_of(kept, job_id)).state == "RUNNING":  # noqa: ASYNC110 - of another node
            await asyncio.sleep(0.1)
    assert (status.state, status.moved, status.why) == ("COMPLETED", MESSAGES, "")
    found: Counter[str] = Counter()
    while held := await received(kept, again):
        found.update(held)
    assert found == Counter(map(str, range(MESSAGES)))


async def case(directory: Path, victims: tuple[str, ...], lost_answer: bool) -> None:
    nodes = Nodes(directory, lease_s=LEASE_S)
    try:
        await nodes.start(KEPT, SOURCE, DESTINATION)
        kept = nodes[KEPT]
        work, again = await with_history(nodes)
        job = await kept.broker.start_replay(work, Replay(target=again, rate_per_s=RATE_PER_S))
        await until_moved(kept, job.id, 10)
        died = asyncio.Event()

        async def around(path: str, answered: bool) -> None:
            """The target has committed the messages, and the source never hears of it."""
            if answered and path.endswith("/submit"):
                nodes.hub.around = None
                died.set()
                raise NoAnswer("the answer is lost")

        if lost_answer:
            nodes.hub.around = around
            async with asyncio.timeout(30):
                await died.wait()
        for name in victims:
            await nodes.crash(name)
        await check(kept, again, job.id)
    finally:
        await nodes.stop()


@pytest.mark.parametrize("victims", [(SOURCE,), (DESTINATION,), (SOURCE, DESTINATION)], ids=" and ".join)
def test_another_node_goes_on_and_each_message_is_sent_once(tmp_path: Path, victims: tuple[str, ...]) -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for lost_answer in (False, True):
                group.create_task(case(tmp_path / str(lost_answer), victims, lost_answer))

    run_simulated(main())


def test_a_shard_that_is_handed_over_takes_its_replay_along(tmp_path: Path) -> None:
    async def main() -> None:
        nodes = Nodes(tmp_path, lease_s=LEASE_S)
        try:
            await nodes.start(KEPT, SOURCE, DESTINATION)
            kept = nodes[KEPT]
            work, again = await with_history(nodes)
            job = await kept.broker.start_replay(work, Replay(target=again, rate_per_s=RATE_PER_S))
            for at, name in enumerate((DESTINATION, KEPT, SOURCE)):
                await until_moved(kept, job.id, 8 * (at + 1))
                await placed(nodes, work, name)
            await check(kept, again, job.id)
        finally:
            await nodes.stop()

    run_simulated(main())
