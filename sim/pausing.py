"""An operator that pauses, paces and resumes queues, and limits them to some messages."""

from __future__ import annotations

import asyncio
from random import Random

from batonq.node.broker import Broker, Queue
from sim.clients import Client, Surroundings
from sim.history import PAUSE
from sim.scenario import QueuePlan

EVERY_S = 3.0
LASTS_S = (0.5, 2.0, 6.0)
NOTHING = "none"
FREE = {
    "Baton.Paused": NOTHING,
    "Baton.DeliveriesPerSecond": "0",
    "Baton.OnlyGroup": "",
    "Baton.MinimumPriority": "0",
}


async def pause(client: Client, queue: str, changes: dict[str, str]) -> None:
    async def change(broker: Broker, entry: Queue) -> None:
        await broker.set_attributes(entry, FREE | changes)

    await client.steer(queue, PAUSE, change, changes.get("Baton.Paused", NOTHING))


class Pauser:
    """One queue at a time: it is restricted for a while, and then free again."""

    def __init__(self, around: Surroundings, random: Random, plans: list[QueuePlan]) -> None:
        self._client = Client("pauser", around, random)
        self._around = around
        self._random = random
        self._names = [plan.name for plan in plans if not plan.fleeting]

    async def run(self) -> None:
        random = self._random
        while True:
            await asyncio.sleep(random.expovariate(1.0) * EVERY_S)
            if self._around.calls_left <= 0:
                return
            name = random.choice(self._names)
            await pause(self._client, name, self._restriction())
            await asyncio.sleep(random.choice(LASTS_S) * random.random())
            await pause(self._client, name, {})

    def _restriction(self) -> dict[str, str]:
        random = self._random
        choice = random.random()
        if choice < 0.6:
            return {"Baton.Paused": random.choice(("delivery", "sends", "both"))}
        if choice < 0.8:
            return {"Baton.DeliveriesPerSecond": random.choice(("1", "5", "50"))}
        if choice < 0.9:
            return {"Baton.OnlyGroup": f"group {random.randrange(6)}"}
        return {"Baton.MinimumPriority": random.choice(("100", "200"))}
