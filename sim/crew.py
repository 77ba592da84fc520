"""A crew: clients that use one queue at the same moment, so that a shard executes their requests together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

from sim.actors import make_message
from sim.clients import Client, Surroundings
from sim.history import OK, Delivered
from sim.scenario import QueuePlan

MEETS_S = 0.5  # on average between two such moments
CLIENTS = 4
REQUESTS = (2, 4, 8, 16)
HELD_MAX = 40


class Crew:
    def __init__(self, around: Surroundings, random: Random, plans: list[QueuePlan]) -> None:
        self._clients = [Client(f"crew {at}", around, random, hurried=True) for at in range(CLIENTS)]
        self._around = around
        self._random = random
        self._plans = [plan for plan in plans if not plan.dead_letters]
        self._held: dict[str, list[Delivered]] = {}  # messages that the crew holds, by queue
        self._requests = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._random.expovariate(1 / MEETS_S))
            if self._around.calls_left <= 0:
                return
            plan = self._random.choice(self._plans)
            name = self._around.current_name(plan.name)
            for _ in range(self._random.choice((1, 2))):
                await self._meet(name, plan)

    async def _meet(self, name: str, plan: QueuePlan) -> None:
        random = self._random
        held = self._held.setdefault(name, [])
        works: list[Coroutine[Any, Any, object]] = []
        for _ in range(random.choice(REQUESTS)):
            client, choice = random.choice(self._clients), random.random()
            if choice < 0.35:
                works += self._sends(client, name, plan)
            elif choice < 0.6 or not held:
                works.append(self._receive(client, name))
            elif choice < 0.9:
                works.append(client.delete(*[held.pop() for _ in range(min(len(held), random.choice((1, 1, 3, 10))))]))
            elif choice < 0.95:
                works.append(client.change(held[-1], random.choice((0, 5_000))))
            else:
                works.append(client.nack(held.pop(), random.choice((0, 1_000)), False))
        await asyncio.gather(*works)
        del held[:-HELD_MAX]

    def _sends(self, client: Client, name: str, plan: QueuePlan) -> list[Coroutine[Any, Any, object]]:
        """One request, or the same request twice, as when an SDK retries before the first answer."""
        self._requests += 1
        way = self._random.choice(("", "", "named", "once"))
        invocation = f"crew-{self._requests}" if way else ""
        messages = [make_message(self._around, plan, self._random) for _ in range(self._random.choice((1, 1, 3, 10)))]
        times = 2 if way and self._random.random() < 0.3 else 1
        return [client.send(name, messages, invocation, once=way == "once") for _ in range(times)]

    async def _receive(self, client: Client, name: str) -> None:
        visibility_ms = self._random.choice((None, None, 3_000))
        call = await client.receive(name, self._random.choice((1, 3, 10)), visibility_ms, 0)
        if call.outcome == OK:
            self._held[name] += call.deliveries
