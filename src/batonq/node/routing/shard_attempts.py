"""Routes the messages of one request: each is offered to one shard after another until a shard accepts it.

A producer numbers its messages. A shard that has accepted a message reports all lower numbers as already sent. So a
shard is not offered a message while an earlier message of the same producer may still be offered there, now or in a
retry. The later message is held back until the earlier one is accepted, and is refused if the earlier one was refused.
While every message has only one shard to go to, no message is held back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from batonq.core.commands import Accepted, Send
from batonq.core.shard.commands.numbered_sends import PRODUCER_WAITS
from batonq.errors import BatonError, NotOwner, OverLimit

Way = list[int]  # the shards to ask, in order
# Arguments: shard, places of messages in the request, number of the turn. Returns an answer per message.
Offer = Callable[[int, list[int], int], Awaitable[Sequence[Accepted | BatonError]]]
Newest = Callable[[], Awaitable[list[Way]]]


class Offering:
    def __init__(self, command: Send, ways: list[Way], offer: Offer, newest: Newest) -> None:
        """`ways` has one way per message. `newest` asks the catalog for the current ways."""
        count = len(command.bodies)
        self._producer = command.producer
        self._ways = ways
        self._offer = offer
        self._newest = newest
        self._next = dict.fromkeys(range(count), 0)  # place of an unanswered message → its position on its way
        self._refused: set[int] = set()  # places of numbered messages that will be sent again
        self._turn = 1
        self.results: list[Any] = [None] * count
        self.problems: dict[int, BatonError] = {}  # why a shard gave no answer

    async def run(self) -> None:
        while self._next:
            parts: dict[int, list[int]] = {}
            for place in self._ready():
                parts.setdefault(self._shard(place), []).append(place)
            await asyncio.gather(*(self._offer_part(shard, places) for shard, places in parts.items()))
            await self._heard(list(parts.values()))

    async def go_on(self, answers: Sequence[Accepted | BatonError]) -> None:
        """Like `run`, when one shard was already offered all messages and gave these answers."""
        self.results[:] = answers
        await self._heard([list(self._next)])
        await self.run()

    async def _heard(self, parts: list[list[int]]) -> None:
        ended = [place for places in parts for place in self._go_on(places)]
        if ended:
            await self._lengthen(ended)
        self._turn += 1

    def begins_at(self, shard: int) -> bool:
        """Whether any message is offered to this shard in the first turn."""
        return any(self._shard(place) == shard for place in self._ready())

    def _shard(self, place: int) -> int:
        return self._ways[place][self._next[place]]

    async def _offer_part(self, shard: int, places: list[int]) -> None:
        try:
            answers = await self._offer(shard, places, self._turn)
        except BatonError as problem:
            answers = [problem] * len(places)
            self.problems.update(dict.fromkeys(places, problem))
        for place, answer in zip(places, answers, strict=True):
            self.results[place] = answer

    def _ready(self) -> list[int]:
        """The places of the messages to offer now, in order."""
        ready: list[int] = []
        earlier: set[int] = set()  # shards that may be offered earlier messages, but not now
        for place in sorted((*self._next, *self._refused)):
            if not self._producer:
                ready.append(place)
                continue
            if place in self._next and self._shard(place) not in earlier:
                ready.append(place)
                earlier.update(shard for shard in self._ways[place] if shard != self._shard(place))
            else:
                earlier.update(self._ways[place])
        if not ready:
            for place in self._next:
                self.results[place] = OverLimit(PRODUCER_WAITS)
            self._next.clear()
        return ready

    def _go_on(self, places: list[int]) -> list[int]:
        """Process a shard's answers. Returns the places of messages that it sent on from the end of their ways."""
        moved = False
        ended: list[int] = []
        for place in places:
            result = self.results[place]
            if isinstance(result, NotOwner) and place not in self.problems:
                moved = True
                if self._next[place] + 1 < len(self._ways[place]):
                    self._next[place] += 1
                else:
                    ended.append(place)
            elif isinstance(result, OverLimit) and moved and self._producer:
                continue  # refused only because the message before it has moved on
            else:
                self._end(place)
        return ended

    def _end(self, place: int) -> None:
        del self._next[place]
        result = self.results[place]
        if isinstance(result, BatonError) and result.retryable and self._producer:
            self._refused.add(place)

    async def _lengthen(self, ended: list[int]) -> None:
        """Update the ways: this node has missed a growth of the queue, which may concern all messages.

        A message that has no further shard even then keeps its answer, and its sender may retry.
        """
        try:
            ways = await self._newest()
        except BatonError as problem:
            ways = self._ways
            for place in ended:
                self.results[place] = problem
        at = {place: self._shard(place) for place in self._next}
        self._ways = ways
        for place, shard in at.items():
            way = ways[place]
            position = way.index(shard) if shard in way else -1
            if place in ended:
                position += 1
            if position < len(way):
                self._next[place] = max(position, 0)
            else:
                self._end(place)
