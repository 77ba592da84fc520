"""Messages on their way from shard to shard while nodes die between any two steps of it: one copy is left.

The steps of a transfer: the source decides that it owes a message, commits that, hands it to the destination, which
decides that it arrived and commits that, and answers; the source decides that it is settled, and commits that.
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
from batonq.node.jobs.job_control import Redrive
from tests.cluster.memory import Nodes, run_simulated
from tests.node.nodes import ACCOUNT, make_send
from tests.support import brokers

MESSAGES = 6
LEASE_S = 3.0  # many nodes share a processor
KEPT, SOURCE, DESTINATION = "a", "b", "c"  # who asks, and who serves the queue and its dead letters
STEPS = ("owed", "sent", "arriving", "arrived", "settling", "settled")


class Death:
    """What dies, and between which steps: `owed` before it is committed, `sent` before the destination has heard of it,
    `arriving` and `settling` before that is committed, `arrived` before it is answered, `settled` after all is done.
    """

    def __init__(self, nodes: Nodes, step: str, victims: tuple[str, ...]) -> None:
        self.nodes = nodes
        self.step = step
        self.victims = victims
        self.done = asyncio.Event()
        self._dying: asyncio.Task[None] | None = None
        nodes.hub.around = self._around

    async def die(self, *away: str) -> None:
        """The log hears no more from those that are away, and all victims end."""
        hub = self.nodes.hub
        hub.around = None
        hub.away.update(away)
        self._dying = asyncio.create_task(self._die(away))

    async def _die(self, away: tuple[str, ...]) -> None:
        await asyncio.sleep(0.05)  # what is decided meanwhile is lost with them
        for name in self.victims:
            await self.nodes.crash(name)
        self.nodes.hub.away.difference_update(away)
        self.done.set()

    async def _around(self, path: str, answered: bool) -> None:
        if not path.endswith("/arrive") or self.step == "owed":
            return
        if not answered and self.step in ("sent", "arriving"):
            await self.die(*(self.victims if self.step == "arriving" else ()))
            if self.step == "sent":
                raise NoAnswer("it did not get there")
        if answered and self.step in ("arrived", "settling", "settled"):
            await self.die(*(self.victims if self.step == "settling" else ()))
            if self.step == "arrived":
                raise NoAnswer("the answer is lost")


async def dead_letters(kept: ClusterNode, queue: Queue) -> None:
    """Whatever can be received fails once and for all."""
    try:
        held = await brokers.receive(kept.broker, queue, 10, 1_000, 0, "tester")
        await brokers.nack_many(kept.broker, queue, [(one.receipt, 0, "no", "", True, False) for one in held])
    except BatonError:
        return  # who serves it is dead, or dies


async def until_all_are_in(kept: ClusterNode, queue: Queue, other: Queue, again: bool) -> None:
    async with asyncio.timeout(30):
        while True:
            if again:
                await dead_letters(kept, other)
            try:
                here, there = await kept.broker.counters(queue), await kept.broker.counters(other)
                assert here.visible <= MESSAGES
                left = there.visible + there.in_flight + there.delayed + there.owed
                if here.visible == MESSAGES and not left:
                    return
            except BatonError:
                pass
            await asyncio.sleep(0.02)


async def placed(nodes: Nodes, queue: Queue, name: str) -> None:
    owner = await nodes.owned(queue.shard)
    if owner is not nodes[name]:
        await owner.ownership_loop.move(queue.shard, name)


async def case(directory: Path, step: str, redrive: bool, victims: tuple[str, ...]) -> None:
    nodes = Nodes(directory, lease_s=LEASE_S)
    try:
        await nodes.start(KEPT, SOURCE, DESTINATION)
        kept = nodes[KEPT]
        dead = await kept.broker.create_queue(ACCOUNT, "dead", {}, {})
        policy = f'{{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:{ACCOUNT}:dead","maxReceiveCount":9}}'
        work = await kept.broker.create_queue(ACCOUNT, "work", {"RedrivePolicy": policy}, {})
        assert work.shard != dead.shard
        await placed(nodes, work, SOURCE)
        await placed(nodes, dead, DESTINATION)
        await brokers.send(kept.broker, work, [make_send(str(number)) for number in range(MESSAGES)])
        if redrive:
            await until_all_are_in(kept, dead, work, again=True)
        death = Death(nodes, step, victims)
        if step == "owed":
            await death.die(*victims)
        if redrive:
            await moved_back(kept, dead)
            await until_all_are_in(kept, work, dead, again=False)
        else:
            await until_all_are_in(kept, dead, work, again=True)
        async with asyncio.timeout(10):
            await death.done.wait()
        found: Counter[str] = Counter()
        for queue in (work, dead):
            while held := await received(kept, queue):
                found.update(held)
        assert found == Counter(map(str, range(MESSAGES)))
    finally:
        await nodes.stop()


async def moved_back(kept: ClusterNode, dead: Queue) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                if not await kept.broker.moves(dead):
                    await kept.broker.start_job(dead, Redrive(rate_per_s=1_000, ramp_s=0))
                return
            except BatonError:
                await asyncio.sleep(0.05)


async def received(kept: ClusterNode, queue: Queue) -> list[str]:
    async with asyncio.timeout(10):
        while True:
            try:
                return [one.body.decode() for one in await brokers.receive(kept.broker, queue, 10, 60_000, 0, "tester")]
            except BatonError:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("victims", [(SOURCE,), (DESTINATION,), (SOURCE, DESTINATION)], ids=" and ".join)
def test_one_copy_is_left_when_nodes_die_between_two_steps(tmp_path: Path, victims: tuple[str, ...]) -> None:
    async def main() -> None:
        """Clusters side by side: most of the time they wait for leases to end."""
        async with asyncio.TaskGroup() as group:
            for step in STEPS:
                for kind in ("dead letters", "redrive"):
                    directory = tmp_path / step / kind
                    group.create_task(case(directory, step, kind == "redrive", victims), name=f"{kind}: {step}")

    run_simulated(main())
