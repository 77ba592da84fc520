"""For a queue on several shards: a request that its SDK repeats finds the shard that executed the earlier attempt.

How one shard recognises a repeated request is in core/shard/commands/remembered_requests.py.

The name of a request determines one of the queue's shards, its home. The home accepts the request's messages without a
key, and recognises them when they are sent again. Only a first try may go to another shard, when the home has no owner
or no space. It then goes under the same name with AWAY set. A retry that its home does not know therefore takes three
steps:

1. All other shards are asked whether they have executed the request.
2. A shard that has not refuses the request from then on.
3. If none has, the home accepts the retry.

When a queue gets more shards, a name may get another home. Its former homes learn of the change before the new home is
sent anything. They too refuse the request from then on, even from a node that has not learned of the change.

When a batch finds space only in part, each message left over is sent on alone, under a name of its own.
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

GROWTHS = 3  # a queue may grow again while a request is in progress
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
        self._told: dict[tuple[int, int], Spread] = {}  # (queue, shard) → the spread that the shard has learned of

    async def send(self, queue: Queue, command: Send, name: int, first_try: bool) -> Results:
        """Send messages without keys. Returns one result per message. `name` is the hash of the request's name."""
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
        """Send to the home shard, or to the next shard that has an owner and space for any of the messages."""
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
        """Send to the shard that knows the request, else to its home."""
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
        """Make sure that all homes of a name have learned of a growth that moved it.

        `at_once`: only the homes that have an owner now. The others learn of the growth when a node takes them over.
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
                del self._told[next(iter(self._told))]  # the shard is told again when it is asked again
            self._told[queue.number, shard] = queue.spread


def _sending(command: Send, name: int) -> Callable[[ShardPort], Awaitable[Results]]:
    return lambda port: results_of(port, replace(command, request=name))


async def results_of(port: ShardPort, command: Send) -> Results:
    """Send messages to one shard. Returns one result per message."""
    return [*(await submitted(port.submit, command)).results()]
