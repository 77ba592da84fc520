"""Sends by requests that their SDK named: a retry finds what was done before, wherever that was.

The name of a request stands for one of the queue's shards, its home, which takes messages that have no key, and knows
them when they are sent again. Only a first try may go elsewhere, when the home has no owner or no room: to another
shard, under the same name as one that is AWAY. So a retry that its home does not know asks all shards, which do not
take it from then on if they do not know it, and only then has it taken by its home.

When a queue grows, the home of a name may be another one. Those before it hear of the growth before that one is sent
anything, and do not take it from then on either, also from a node that has not heard of it.

Of a batch that finds room in part, each message that does not goes on by itself, under a name of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol, TypeVar

from batonq.core.commands import Accepted, Send
from batonq.core.ids import AWAY, key_hash
from batonq.core.spread import Spread
from batonq.errors import BatonError, NotOwner, OverLimit
from batonq.node.catalog.queue_control import Queue
from batonq.node.routing.ports import ShardPort
from batonq.node.routing.submission import submitted

GROWTHS = 3  # a queue may grow again while a request is under way
TOLD_MAX = 10_000
T = TypeVar("T")
Results = list[Accepted | BatonError]


class Shards(Protocol):
    """How the shards of a queue are asked (splitter.py)."""

    async def ask(self, queue: Queue, shard: int, ask: Callable[[ShardPort], Awaitable[T]]) -> T: ...
    async def ask_at_once(self, queue: Queue, shard: int, ask: Callable[[ShardPort], Awaitable[T]]) -> T: ...
    async def of_all(self, queue: Queue, ask: Callable[[ShardPort], Awaitable[T]]) -> list[T]: ...
    async def tell(self, queue: Queue, shard: int, at_once: bool) -> None: ...
    async def newest(self, queue: Queue) -> Queue: ...


class NamedSends:
    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._told: dict[tuple[int, int], Spread] = {}  # queue, shard → what that one has heard

    async def send(self, queue: Queue, command: Send, name: int, first_try: bool) -> Results:
        """Messages without keys; one result each. `name` is the hash of the request's name."""
        answers = await (self._send_first if first_try else self._send_again)(queue, command, name)
        for _ in range(GROWTHS):
            if not any(isinstance(answer, NotOwner) for answer in answers):
                break
            queue = await self._shards.newest(queue)
            answers = await self._send_again(queue, command, name)
        left = [at for at, answer in enumerate(answers) if isinstance(answer, OverLimit)]
        if len(left) < len(command.bodies):
            for at in left:
                try:
                    one = command.pick([at])
                    (answers[at],) = await self.send(queue, one, key_hash(name, at) % AWAY, first_try)
                except BatonError as problem:
                    answers[at] = problem
        return answers

    async def _send_first(self, queue: Queue, command: Send, name: int) -> Results:
        """To its home, or the next shard that has an owner and room for any of them."""
        spread = queue.spread
        homes = spread.asked(name)
        await self._tell(queue, homes, at_once=True)
        home, shards = homes[-1], spread.taking
        at = shards.index(home)
        refused: Results = []
        for shard in shards[at:] + shards[:at]:
            by = name if shard == home else name | AWAY
            try:
                answers = await self._shards.ask_at_once(queue, shard, _sending(command, by))
            except NotOwner:
                continue
            if not all(isinstance(answer, OverLimit) for answer in answers):
                return answers
            refused = refused or answers
        return refused or await self._shards.ask(queue, home, _sending(command, name))

    async def _send_again(self, queue: Queue, command: Send, name: int) -> Results:
        """To the shard that knows it, else to its home."""
        homes = queue.spread.asked(name)
        await self._tell(queue, homes, at_once=False)
        nothing = command.pick(())
        for shard in homes:
            if await self._shards.ask(queue, shard, _sending(nothing, name)):
                return await self._shards.ask(queue, shard, _sending(command, name))
        known = await self._shards.of_all(queue, _sending(nothing, name | AWAY))
        for shard, found in zip(queue.shards, known, strict=True):
            if found:
                return await self._shards.ask(queue, shard, _sending(command, name | AWAY))
        return await self._shards.ask(queue, homes[-1], _sending(command, name))

    async def _tell(self, queue: Queue, homes: list[int], at_once: bool) -> None:
        """Of a growth that moved a name's home: see that all of its homes have heard of it. `at_once`: those that have
        an owner, as the others hear of it from whoever becomes one.
        """
        if len(homes) == 1:
            return
        for shard in homes:
            if self._told.get((queue.number, shard)) == queue.spread:
                continue
            try:
                await self._shards.tell(queue, shard, at_once)
            except NotOwner:
                if not at_once:
                    raise
                continue
            if len(self._told) >= TOLD_MAX:
                del self._told[next(iter(self._told))]  # it is told again when it is asked again
            self._told[queue.number, shard] = queue.spread


def _sending(command: Send, name: int) -> Callable[[ShardPort], Awaitable[Results]]:
    return lambda port: results_of(port, replace(command, request=name))


async def results_of(port: ShardPort, command: Send) -> Results:
    """Send messages at one shard; one result each."""
    return [*(await submitted(port.submit, command)).results()]
