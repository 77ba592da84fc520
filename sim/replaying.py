"""A client that replays the retained history of a queue that nobody else uses, again and again."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from random import Random

from batonq.core.commands import Send
from batonq.errors import BatonError, JobConflict
from batonq.node.broker import Broker, Queue
from batonq.node.jobs.job_control import JobStatus
from batonq.node.jobs.replay_control import Replay
from batonq.node.routing.submission import submitted
from sim.asking import Asking
from sim.bodies import KEPT_MARK
from sim.clients import Surroundings

ACCOUNT = "222222222222"  # not the other clients', who may receive from any of their queues
KEPT, AGAIN = "kept", "again"
PAUSE_S = 2.0
TRIES_MAX = 2_000


class Replayer:
    """One replay per target. Every message must be in each target exactly once in the end."""

    def __init__(self, around: Surroundings, random: Random, messages: int) -> None:
        self._messages = messages
        self._around = around
        self._random = random
        self._asking = Asking(around, random)
        self.targets: list[str] = []

    async def run(self) -> None:
        random = self._random
        attributes = {"Baton.RetainSeconds": "86400", "Baton.Spread": str(random.randint(1, 2))}
        kept = await self._asking.insist(lambda broker: broker.create_queue(ACCOUNT, KEPT, attributes, {}))
        for number in range(1, self._messages + 1):
            command = Send(kept.number, [KEPT_MARK + b"%d" % number], producer="replayer", numbers=[number])
            await self._asking.insist(partial(_send, kept, command))
        while True:
            if self._around.calls_left <= 0:
                return
            name = f"{AGAIN}-{len(self.targets)}"
            target = await self._asking.insist(partial(_create, name, str(random.randint(1, 2))))
            self.targets.append(name)
            await self._asking.insist(partial(_start, kept, target, random.choice((20, 100, 10_000))))
            if random.random() < 0.3:
                await self._asking.insist(partial(_rest, kept))
            await self._ended(kept)
            await asyncio.sleep(random.expovariate(1.0) * PAUSE_S)

    async def _ended(self, kept: Queue) -> JobStatus | None:
        for _ in range(TRIES_MAX):
            newest = next(iter(await self._asking.insist(lambda broker: broker.jobs(kept))), None)
            if newest is None or newest.state not in ("RUNNING", "PAUSED", "CANCELLING"):
                return newest
            await asyncio.sleep(0.2)
        return newest

    async def all_replayed(self) -> list[str]:
        """After the last fault: wait until the last replay has ended, and say what is missing or double where."""
        if not self.targets:
            return []
        kept = await self._asking.insist(lambda broker: _queue(broker, KEPT))
        await self._asking.insist(partial(_resume, kept))  # the run may have ended in the middle of a pause
        newest = await self._ended(kept)
        if newest is None and len(self.targets) == 1:
            return []  # the run ended before the first replay began
        wrong: list[str] = []
        if newest is not None and newest.state != "COMPLETED":
            wrong.append(f"a replay is {newest.state} after {newest.moved} messages: {newest.why}")
        wanted = Counter(KEPT_MARK + b"%d" % number for number in range(1, self._messages + 1))
        for name in self.targets:
            found = await self._asking.insist(partial(_bodies, name))
            is_last = name == self.targets[-1]
            if found != wanted and not (is_last and not found):  # the last one may not have begun
                wrong.append(f"{name}: {found - wanted} too many, {wanted - found} too few")
        return wrong


async def _queue(broker: Broker, name: str) -> Queue:
    return broker.queue(ACCOUNT, name)


async def _create(name: str, spread: str, broker: Broker) -> Queue:
    try:
        return await broker.create_queue(ACCOUNT, name, {"Baton.Spread": spread}, {})
    except BatonError:
        return broker.queue(ACCOUNT, name)  # an earlier attempt created it


async def _send(kept: Queue, command: Send, broker: Broker) -> None:
    sent = await submitted(partial(broker.send, kept), command)
    for result in sent.results():
        if isinstance(result, BatonError):
            raise result


async def _start(kept: Queue, target: Queue, rate_per_s: int, broker: Broker) -> None:
    if any(job.target == target.name for job in await broker.jobs(kept)):
        return  # an earlier attempt started it
    try:
        await broker.start_replay(kept, Replay(target=target, rate_per_s=rate_per_s))
    except JobConflict:
        return


async def _rest(kept: Queue, broker: Broker) -> None:
    """Pause the running replay, and resume it a moment later."""
    newest = (await broker.jobs(kept))[0]
    if newest.state == "RUNNING":
        await broker.pause_job(ACCOUNT, newest.id)
        await asyncio.sleep(0.5)
    if newest.state in ("RUNNING", "PAUSED"):
        await broker.resume_job(ACCOUNT, newest.id)


async def _resume(kept: Queue, broker: Broker) -> None:
    for job in await broker.jobs(kept):
        if job.state == "PAUSED":
            await broker.resume_job(ACCOUNT, job.id)


async def _bodies(name: str, broker: Broker) -> Counter[bytes]:
    queue = broker.queue(ACCOUNT, name)
    counters = await broker.counters(queue)
    found = Counter(peeked.body for peeked in (await broker.peek(queue, 0, 1_000)).messages)
    assert counters.sent == found.total()
    return found
