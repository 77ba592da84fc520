"""A consumer that sends heartbeats through an outage longer than its visibility timeout, and keeps its lease."""

from __future__ import annotations

import asyncio
from random import Random

from campaign.clients import Client, Surroundings
from campaign.cluster import Broken
from campaign.load import QueuePlan
from sim.bodies import make_body
from sim.history import OK, Delivered, Outgoing, Violation

HELD_MS = 5_000
BEAT_S = 1.5
AGAIN_S = 0.3
TRIES = 100


class Holder:
    def __init__(self, around: Surroundings, queue: str) -> None:
        self.queue = queue
        self.plan = QueuePlan(queue, {}, HELD_MS)
        self._client = Client("holder", around, Random(1))
        self._rival = Client("rival", around, Random(2))
        self._beats: list[str] = []
        self._stolen: list[Delivered] = []
        self._held: Delivered
        self._tasks: list[asyncio.Task[None]] = []
        around.visibility_ms[queue] = HELD_MS

    async def start(self, number: int) -> None:
        """Receive a message, and let another consumer wait for it."""
        message = Outgoing(number, make_body(number, Random(number)))
        for _ in range(TRIES):
            if (await self._client.send(self.queue, [message], f"held-{number}")).outcome == OK:
                break
            await asyncio.sleep(AGAIN_S)
        for _ in range(TRIES):
            call = await self._client.receive(self.queue, 1, HELD_MS, 1_000)
            if call.deliveries:
                self._held = call.deliveries[0]
                break
        else:
            raise Broken(f"nothing was delivered from {self.queue} in {TRIES} attempts")
        self._tasks = [asyncio.create_task(self._beat()), asyncio.create_task(self._covet())]

    async def _beat(self) -> None:
        while True:
            outcome = (await self._client.change(self._held, HELD_MS)).outcome
            self._beats.append(outcome)
            await asyncio.sleep(BEAT_S if outcome == OK else AGAIN_S)

    async def _covet(self) -> None:
        while True:
            call = await self._rival.receive(self.queue, 1, HELD_MS, 1_000)
            self._stolen += call.deliveries
            if call.outcome != OK:
                await asyncio.sleep(AGAIN_S)

    async def finish(self) -> list[Violation]:
        """The first consumer acks the message."""
        await asyncio.sleep(2 * BEAT_S)
        self._tasks[0].cancel()
        await asyncio.gather(self._tasks[0], return_exceptions=True)
        outcome = (await self._client.delete(self._held)).outcome
        self._tasks[1].cancel()
        await asyncio.gather(self._tasks[1], return_exceptions=True)
        if outcome == OK and not self._stolen and self._beats[-1] == OK:
            return []
        text = f"a lease with heartbeats was lost in the outage: ack {outcome}, heartbeats {self._beats[-10:]}, "
        return [Violation("grace", text + f"{len(self._stolen)} deliveries to another consumer")]
