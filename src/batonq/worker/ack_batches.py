"""Acks and nacks to the broker, in batches: while one request for a queue is in progress, the next one fills."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from batonq.client import telemetry
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
    """The answers for one queue that are not in progress yet."""

    __slots__ = ("acks", "busy", "nacks", "queue", "side")

    def __init__(self, queue: str, side: Settling) -> None:
        self.queue = queue
        self.side = side
        self.acks: list[Message] = []
        self.nacks: list[tuple[Message, Nack]] = []
        self.busy = False


class Settling:
    """The answers of one task. `patience`: how many seconds an unanswered request is retried."""

    def __init__(self, desk: Desk, acked: Callable[[int], None], refused: Report, patience: float) -> None:
        self.desk = desk
        self.acked = acked
        self.refused = refused
        self.patience = patience
        self.pads: dict[str, Pad] = {}

    def pad(self, queue: str) -> Pad:
        found = self.pads.get(queue)
        if found is None:
            if len(self.pads) >= PADS_MAX:  # over time a pattern may match more queues than exist at once
                self.pads = {name: pad for name, pad in self.pads.items() if pad.busy}
            found = self.pads[queue] = Pad(queue, self)
        return found

    @property
    def owed(self) -> int:
        """Number of answers that wait for the previous request."""
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
    """All answers of a worker: a few concurrent requests, one per queue, so that batches grow with the load."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Pad] = deque()
        self._clerks: set[asyncio.Task[None] | None] = set()
        self._at_work = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, pad: Pad) -> None:
        """Called for a pad that was not busy; it is sent in the loop's next turn, with everything that was added by
        then.
        """
        pad.busy = True
        self._waiting.append(pad)
        if self._at_work < REQUESTS_MAX:
            self._at_work += 1
            self._idle.clear()
            self._clerks.add(self._loop.create_task(self._clerk()))

    async def settled(self) -> None:
        """Wait until every answer was sent."""
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
        began_ns = time.time_ns()
        outcomes = await self._persist(self._source.ack, pad.queue, [each.receipt for each in acks], side.patience)
        if telemetry.active is not None:
            telemetry.active.settled("ack", pad.queue, acks, outcomes, began_ns)
        if not any(outcomes):
            side.acked(len(acks))
            return
        refused = [(message, outcome) for message, outcome in zip(acks, outcomes, strict=True) if outcome is not None]
        side.acked(len(acks) - len(refused))
        for message, outcome in refused:
            side.refused(message, outcome)

    async def _nacks(self, pad: Pad, nacks: list[tuple[Message, Nack]]) -> None:
        side = pad.side
        began_ns = time.time_ns()
        outcomes = await self._persist(self._source.nack, pad.queue, [nack for _, nack in nacks], side.patience)
        if telemetry.active is not None:
            telemetry.active.settled("nack", pad.queue, [message for message, _ in nacks], outcomes, began_ns)
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
        """Retry until there is a response or `patience` is over; only unanswered items are retried."""
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
        except Exception as error:  # if this task died, its queue's answers would never be sent
            _log.exception("an answer to %s failed", queue)
            return [Unavailable(repr(error))] * len(items)
