"""A client that makes schedules and changes their messages, on a queue that nobody else uses."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random

from batonq.core.schedule import Schedule
from batonq.node.broker import Broker, Queue
from batonq.node.schedules.scheduled_message import ScheduledMessage
from batonq.node.schedules.timing import rate_timing
from sim.asking import Asking
from sim.clients import Surroundings

ACCOUNT = "111111111111"  # not the other clients', who may receive from any of their queues
TICKS = "ticks"
SCHEDULES = 3
RATES_S = (1, 2, 5, 30)
CHANGE_EVERY_S = 4.0
TRIES_MAX = 2_000
LATE_MS = 1_000  # what is due for less than this may be about to fire


class Scheduler:
    """Every schedule fires all its due times, so the log shows whether one is missing or double."""

    def __init__(self, around: Surroundings, random: Random) -> None:
        self._around = around
        self._random = random
        self._asking = Asking(around, random)
        self.made: dict[str, Schedule] = {}

    async def run(self) -> None:
        random = self._random
        queue = await self._asking.insist(lambda broker: broker.create_queue(ACCOUNT, TICKS, {}, {}))
        for number in range(SCHEDULES):
            await self._create(queue, f"s{number}")
        while True:
            await asyncio.sleep(random.expovariate(1.0) * CHANGE_EVERY_S)
            if self._around.calls_left <= 0:
                return
            message = ScheduledMessage(b"changed %d" % random.randrange(100)).text()
            await self._asking.insist(partial(_change, queue, random.choice([*self.made]), {"message": message}))

    async def _create(self, queue: Queue, name: str) -> None:
        timing = rate_timing(self._random.choice(RATES_S) * 1000, 0).text()
        message = ScheduledMessage(b"tick").text()
        one = Schedule(queue=queue.number, name=name, timing=timing, message=message, missed="all")
        found, _ = await self._asking.insist(lambda broker: broker.schedules.create(queue, one))
        self.made[name] = found.schedule

    async def all_fired(self) -> list[str]:
        """After the last fault: wait until no firing is due, and say which schedules did not get there."""
        if not self.made:
            return []
        late: list[str] = []
        for _ in range(TRIES_MAX):
            found = await self._asking.insist(_all)
            now_ms = await self._asking.insist(_now_ms)
            late = [f"schedule {one.name} was due at {one.next_ms}: {one.why}" for one in found if one.next_ms < now_ms]
            if not late:
                break
            await asyncio.sleep(0.2)
        return late


async def _change(queue: Queue, name: str, changes: dict[str, str], broker: Broker) -> None:
    await broker.schedules.change(queue, name, changes)


async def _all(broker: Broker) -> list[Schedule]:
    return [found.schedule for found in await broker.schedules.of_queue(broker.queue(ACCOUNT, TICKS))]


async def _now_ms(broker: Broker) -> int:
    return broker.now_ms() - LATE_MS
