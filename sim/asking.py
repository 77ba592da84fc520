"""Work that clients of the simulation do through a broker, on any machine that answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import TypeVar

from batonq.core.commands import Receive
from batonq.errors import BatonError
from batonq.node.broker import Broker, Queue, Received
from batonq.node.routing.submission import submitted
from sim.clients import ANSWER_S, Surroundings, called_back
from sim.machine import Gone

T = TypeVar("T")
MESSAGES = 5
VISIBILITY_MS = 2_000


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


async def receive_from(broker: Broker, queue: Queue, consumer: str) -> Received:
    """Some messages of a queue whose deliveries are not recorded in the history."""
    command = Receive(queue.number, MESSAGES, VISIBILITY_MS, consumer)
    received: Received = await submitted(partial(broker.receive, queue), command)
    return received


async def delete_from(broker: Broker, queue: Queue, receipts: list[str]) -> object:
    return await called_back(lambda done: broker.delete(queue, receipts, done))
