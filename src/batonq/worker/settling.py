"""Answers to the broker, batched: while one request for a queue is under way, its next one fills."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from batonq.client.models import Nack
from batonq.errors import BatonError, Unavailable
from batonq.worker.errors import Failure
from batonq.worker.source import Message, Outcome, Source

REQUESTS_MAX = 4
AGAIN_S = 0.2
PADS_MAX = 1000
Report = Callable[[Message, BatonError], None]
_Item = TypeVar("_Item")
_log = logging.getLogger("batonq.worker")


class Pad:
    """The answers to one queue's messages that are not under way yet."""

    __slots__ = ("acks", "busy", "nacks", "queue", "side")

    def __init__(self, queue: str, side: Settling) -> None:
        self.queue = queue
        self.side = side
        self.acks: list[Message] = []
        self.nacks: list[tuple[Message, Nack]] = []
        self.busy = False


class Settling:
    """One task's answers. `patience`: seconds for which an answer that nobody takes is tried again."""

    def __init__(self, desk: Desk, acked: Callable[[int], None], refused: Report, patience: float) -> None:
        self.desk = desk
        self.acked = acked
        self.refused = refused
        self.patience = patience
        self.pads: dict[str, Pad] = {}

    def pad(self, queue: str) -> Pad:
        found = self.pads.get(queue)
        if found is None:
            if len(self.pads) >= PADS_MAX:  # a pattern may match more queues over time than there are at once
                self.pads = {name: pad for name, pad in self.pads.items() if pad.busy}
            found = self.pads[queue] = Pad(queue, self)
        return found

    @property
    def owed(self) -> int:
        """Answers that wait for the request before them."""
        return sum(len(pad.acks) + len(pad.nacks) for pad in self.pads.values() if pad.busy)

    def ack(self, message: Message) -> None:
        pad = self.pad(message.queue)
        pad.acks.append(message)
        if not pad.busy:
            self.desk.submit(pad)

    def nack(self, message: Message, failure: Failure) -> None:
        answer = Nack(
            message.receipt, failure.delay, failure.reason, failure.error_class, failure.dead_letter, failure.untried
        )
        pad = self.pad(message.queue)
        pad.nacks.append((message, answer))
        if not pad.busy:
            self.desk.submit(pad)


class Desk:
    """All answers of a worker: a few requests at once, one a queue, so that batches grow with load."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Pad] = deque()
        self._clerks: set[asyncio.Task[None] | None] = set()
        self._at_work = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, pad: Pad) -> None:
        """Called for a pad that was not busy; a clerk takes it when the loop comes round, with all that is on it."""
        pad.busy = True
        self._waiting.append(pad)
        if self._at_work < REQUESTS_MAX:
            self._at_work += 1
            self._idle.clear()
            self._clerks.add(self._loop.create_task(self._clerk()))

    async def settled(self) -> None:
        """Wait until every answer has been given."""
        await self._idle.wait()

    async def close(self) -> None:
        clerks = [clerk for clerk in self._clerks if clerk is not None]
        for clerk in clerks:
            clerk.cancel()
        await asyncio.gather(*clerks, return_exceptions=True)

    # ---

    async def _clerk(self) -> None:
        try:
            while self._waiting:
                pad = self._waiting.popleft()
                while pad.acks or pad.nacks:
                    acks, pad.acks = pad.acks, []
                    nacks, pad.nacks = pad.nacks, []
                    if acks:
                        await self._acks(pad, acks)
                    if nacks:
                        await self._nacks(pad, nacks)
                pad.busy = False
        finally:
            self._clerks.discard(asyncio.current_task())
            self._at_work -= 1
            if not self._at_work:
                self._idle.set()

    async def _acks(self, pad: Pad, acks: list[Message]) -> None:
        side = pad.side
        outcomes = await self._persist(self._source.ack, pad.queue, [each.receipt for each in acks], side.patience)
        if not any(outcomes):
            side.acked(len(acks))
            return
        refused = [(message, outcome) for message, outcome in zip(acks, outcomes, strict=True) if outcome is not None]
        side.acked(len(acks) - len(refused))
        for message, outcome in refused:
            side.refused(message, outcome)

    async def _nacks(self, pad: Pad, nacks: list[tuple[Message, Nack]]) -> None:
        side = pad.side
        outcomes = await self._persist(self._source.nack, pad.queue, [nack for _, nack in nacks], side.patience)
        for (message, _), outcome in zip(nacks, outcomes, strict=True):
            if outcome is not None:
                side.refused(message, outcome)

    async def _persist(
        self,
        request: Callable[[str, Sequence[_Item]], Awaitable[Sequence[Outcome]]],
        queue: str,
        items: Sequence[_Item],
        patience: float,
    ) -> Sequence[Outcome]:
        """Ask until there is an answer or the patience is over; only what had no answer is asked again."""
        size = self._source.batch_max
        if len(items) <= size:
            answered = await self._once(request, queue, items)
            if not any(answered):
                return answered
            return await self._again(request, queue, items, list(answered), patience)
        outcomes: list[Outcome] = []
        for start in range(0, len(items), size):
            outcomes += await self._once(request, queue, items[start : start + size])
        return await self._again(request, queue, items, outcomes, patience)

    async def _again(
        self,
        request: Callable[[str, Sequence[_Item]], Awaitable[Sequence[Outcome]]],
        queue: str,
        items: Sequence[_Item],
        outcomes: list[Outcome],
        patience: float,
    ) -> Sequence[Outcome]:
        size = self._source.batch_max
        clock = self._loop.time
        ends = clock() + patience
        while clock() + AGAIN_S < ends:
            again = [index for index, outcome in enumerate(outcomes) if outcome is not None and outcome.retryable]
            if not again:
                break
            await asyncio.sleep(AGAIN_S)
            for start in range(0, len(again), size):
                part = again[start : start + size]
                answers = await self._once(request, queue, [items[index] for index in part])
                for index, outcome in zip(part, answers, strict=True):
                    outcomes[index] = outcome
        return outcomes

    @staticmethod
    async def _once(
        request: Callable[[str, Sequence[_Item]], Awaitable[Sequence[Outcome]]], queue: str, items: Sequence[_Item]
    ) -> Sequence[Outcome]:
        try:
            return await request(queue, items)
        except BatonError as error:
            return [error] * len(items)
        except Exception as error:  # a clerk that died would leave its queue's answers on the pad for ever
            _log.exception("an answer to %s failed", queue)
            return [Unavailable(repr(error))] * len(items)
