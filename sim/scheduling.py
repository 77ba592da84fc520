"""A client that makes schedules and changes their messages, on a queue that nobody else uses."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random

from batonq.core.schedule import Schedule
from batonq.errors import BatonError
from batonq.node.broker import Broker, Queue
from batonq.node.schedules.scheduled_message import ScheduledMessage
from batonq.node.schedules.timing import rate_timing
from sim.asking import Asking, delete_from, receive_from
from sim.clients import Surroundings
from sim.machine import Gone

ACCOUNT = "111111111111"  # not the other clients', who may receive from any of their queues
TICKS = "ticks"
SCHEDULES = 3
RATES_S = (1, 2, 5, 30)
CHANGE_EVERY_S = 4.0
TAKE_EVERY_S = 0.5
TRIES_MAX = 2_000
LATE_MS = 1_000  # what is due for less than this may be about to fire


class Scheduler:
    """Every schedule fires all its due times, so the log shows whether one is missing or double.

    With `takes`, the messages are received and deleted, and the schedules are deleted in the end: else they would fill
    a shard that has room for a few messages only.
    """

    def __init__(self, around: Surroundings, random: Random, takes: bool = False) -> None:
        self._takes = takes
        self._around = around
        self._random = random
        self._asking = Asking(around, random)
        self.made: dict[str, Schedule] = {}

    async def run(self) -> None:
        random = self._random
        queue = await self._asking.insist(lambda broker: broker.create_queue(ACCOUNT, TICKS, {}, {}))
        if self._takes:
            self._around.spawn(self._take_often(queue))
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

    async def _take_often(self, queue: Queue) -> None:
        while True:
            await asyncio.sleep(TAKE_EVERY_S)
            try:
                await self._asking.once(partial(_take, queue))
            except (Gone, BatonError, TimeoutError):
                continue

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
        if self._takes:
            await self._asking.insist(_delete_all)
        return late


async def _change(queue: Queue, name: str, changes: dict[str, str], broker: Broker) -> None:
    await broker.schedules.change(queue, name, changes)


async def _take(queue: Queue, broker: Broker) -> None:
    while len(received := await receive_from(broker, queue, "taker")):
        await delete_from(broker, queue, [delivery.receipt for delivery in received.deliveries()])


async def _delete_all(broker: Broker) -> None:
    queue = broker.queue(ACCOUNT, TICKS)
    for found in await broker.schedules.of_queue(queue):
        await broker.schedules.delete(queue, found.schedule.name)


async def _all(broker: Broker) -> list[Schedule]:
    return [found.schedule for found in await broker.schedules.of_queue(broker.queue(ACCOUNT, TICKS))]


async def _now_ms(broker: Broker) -> int:
    return broker.now_ms() - LATE_MS
