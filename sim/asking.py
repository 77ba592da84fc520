"""Work that clients of the simulation do through a broker, on any machine that answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from batonq.errors import BatonError
from batonq.node.broker import Broker
from sim.clients import ANSWER_S, Surroundings
from sim.machine import Gone

T = TypeVar("T")


class Asking:
    def __init__(self, around: Surroundings, random: Random) -> None:
        self._around = around
        self._random = random

    async def once(self, work: Callable[[Broker], Awaitable[T]]) -> T:
        """The result of work on one machine. Raises Gone, BatonError, TimeoutError."""
        machine = self._around.machine_for(self._random)
        node = machine.node
        if node is None:
            raise Gone
        async with asyncio.timeout(ANSWER_S):
            return await machine.run(_await(work(node.broker)))

    async def insist(self, work: Callable[[Broker], Awaitable[T]]) -> T:
        """The result of work that is repeated until a node answers. Doing it again must change nothing."""
        while True:
            try:
                return await self.once(work)
            except (Gone, BatonError, TimeoutError):
                await asyncio.sleep(0.2)


async def _await(work: Awaitable[T]) -> T:
    return await work
