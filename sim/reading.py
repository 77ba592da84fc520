"""Members of a reader group that read the retained history of a queue while others send to it and receive from it."""

from __future__ import annotations

import asyncio
from random import Random

from batonq.core.shard.state.readers import GroupSettings, Start
from batonq.errors import BatonError, StaleMember
from batonq.node.broker import Broker, Queue
from sim.asking import Asking
from sim.clients import Surroundings
from sim.machine import Gone
from sim.scenario import ACCOUNT, QueuePlan

GROUP = "readers"
MEMBERS = 3
SESSION_MS = 5_000
PAUSE_S = 0.5
TRIES_MAX = 2_000


class _Member:
    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.shards: list[int] = []


class Readers:
    """A commit that was answered is never lost, and in the end the group has read all that is retained."""

    def __init__(self, around: Surroundings, random: Random, plans: list[QueuePlan]) -> None:
        self._around = around
        self._random = random
        self._asking = Asking(around, random)
        steady = [plan.name for plan in plans if not plan.fleeting and not plan.dead_letters]
        self._name = random.choice(steady) if steady else ""
        self._members = [_Member(f"reader {at}".replace(" ", "-")) for at in range(MEMBERS)]
        self._committed: dict[int, int] = {}  # shard → the highest position whose commit was answered
        self._read: set[tuple[int, int]] = set()
        self._made = False

    @property
    def positions_read(self) -> int:
        return len(self._read)

    async def run(self) -> None:
        if not self._name:
            return
        await self._asking.insist(
            lambda broker: broker.set_attributes(self._queue(broker), {"Baton.RetainSeconds": "86400"})
        )
        settings = GroupSettings(session_ms=SESSION_MS)
        await self._asking.insist(
            lambda broker: broker.readers.create(self._queue(broker), GROUP, settings, Start("start"))
        )
        self._made = True
        while self._around.calls_left > 0:
            await asyncio.sleep(self._random.expovariate(1.0) * PAUSE_S)
            await self._step(self._random.choice(self._members))

    async def _step(self, member: _Member) -> None:
        chance = self._random.random()
        try:
            if not member.epoch or chance < 0.2:
                await self._join(member)
            elif chance < 0.25:
                await self._asking.once(lambda broker: broker.readers.leave(self._queue(broker), GROUP, member.name))
            elif member.shards:
                await self._read_some(member)
        except StaleMember:
            member.epoch = 0
        except (Gone, BatonError, TimeoutError):
            return

    async def _join(self, member: _Member) -> None:
        own = await self._asking.once(lambda broker: broker.readers.join(self._queue(broker), GROUP, member.name))
        member.epoch, member.shards = own.epoch, own.shards

    async def _read_some(self, member: _Member, limit: int = 5) -> None:
        epoch, shards = member.epoch, member.shards
        found = await self._asking.once(
            lambda broker: broker.readers.fetch(self._queue(broker), GROUP, member.name, epoch, shards, {}, limit, 0)
        )
        for fetched in found:
            if not fetched.page:
                continue
            shard = fetched.page.shard
            self._check(shard, fetched.view.reader.position)
            self._read |= {(shard, position) for position in fetched.page.positions}
            last = [(shard, fetched.page.positions[-1])]
            ((_, now),) = await self._asking.once(
                lambda broker, last=last: broker.readers.commit(  # type: ignore[misc]
                    self._queue(broker), GROUP, member.name, epoch, last
                )
            )
            self._check(shard, now)
            self._committed[shard] = max(self._committed.get(shard, 0), now)

    def _check(self, shard: int, position: int) -> None:
        if position < self._committed.get(shard, 0):
            known = self._committed[shard]
            self._around.violated("readers", f"shard {shard} has committed {position}, and had answered {known}")

    async def all_read(self) -> list[str]:
        """After the last fault: read to the end, and say what was not read."""
        if not self._made:
            return []
        last = _Member("the-last")
        behind = 1
        for _ in range(TRIES_MAX):
            try:
                await self._join(last)
                if last.shards:
                    await self._read_some(last, 1_000)
                view = await self._asking.once(lambda broker: broker.readers.get(self._queue(broker), GROUP))
                behind = view.lag_messages
            except (Gone, BatonError, TimeoutError):
                behind = 1
            if not behind:
                break
            await asyncio.sleep(0.5)
        missing: list[tuple[int, int]] = await self._asking.insist(self._unread)
        found = [f"position {position} of shard {shard} was never read" for shard, position in missing[:3]]
        return [*found, *([f"{behind} messages are not committed"] if behind else [])]

    async def _unread(self, broker: Broker) -> list[tuple[int, int]]:
        queue = self._queue(broker)
        missing: list[tuple[int, int]] = []
        for shard in queue.shards:
            after = 0
            while page := await broker.readers.read(queue, shard, after, 1_000):
                missing += [(shard, one) for one in page.positions if (shard, one) not in self._read]
                after = page.positions[-1]
        return missing

    def _queue(self, broker: Broker) -> Queue:
        return broker.queue(ACCOUNT, self._name)
