"""A broker in memory, for tests of the worker alone: leases by a clock that a test may move, and all that was asked."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from batonq.client.models import MessageFields, Nack
from batonq.errors import BatonError, LeaseLost, MessageGone
from batonq.worker.source import Message, Outcome, QueueFacts

_LOOK_S = 0.002


@dataclass
class Stored:
    id: str
    body: Any
    attributes: dict[str, Any]
    group: str | None = None
    epoch: int = 0
    visible_at: float = 0.0
    failures: list[Nack] = field(default_factory=list)


class StillClock:
    """Shows what a test says: no lease ends because the machine is slow."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class MemorySource:
    """`send`, then let a worker at it; `acked`, `nacked`, `dead` and `requests` say what it did."""

    def __init__(self, batch_max: int = 1000, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock  # of the leases
        self.batch_max = batch_max
        self.queues: dict[str, dict[str, Stored]] = {}
        self.acked: list[Any] = []
        self.nacked: list[tuple[Any, Nack]] = []
        self.dead: list[tuple[Any, Nack]] = []
        self.deliveries: list[Any] = []
        self.requests: list[tuple[str, Any]] = []
        self.extended: list[list[tuple[str, float]]] = []
        self.given_back: list[list[tuple[str, float]]] = []  # untried
        self.fail: list[BatonError] = []  # errors of the next requests
        self.fifo: set[str] = set()
        self.dead_letters: dict[str, tuple[int, str]] = {}  # of a queue: its maximum of receives, and where they go
        self.hold_extensions = False  # extensions fail for now
        self._lock = threading.Lock()
        self._count = 0

    def send(
        self, queue: str, *bodies: Any, attributes: dict[str, Any] | None = None, group: str | None = None
    ) -> None:
        with self._lock:
            for body in bodies:
                self._count += 1
                number = str(self._count)
                self.queues.setdefault(queue, {})[number] = Stored(number, body, attributes or {}, group)

    def steal(self, body: Any) -> None:
        """Somebody else has got this message."""
        with self._lock:
            for messages in self.queues.values():
                for stored in messages.values():
                    if stored.body == body:
                        stored.epoch += 1
                        stored.visible_at = self.clock() + 1000

    @property
    def left(self) -> int:
        return sum(len(messages) for messages in self.queues.values())

    # --- the worker's side

    async def open(self, consumer: str, connections: int) -> None:
        self.requests.append(("open", connections))

    async def close(self) -> None:
        self.requests.append(("close", None))

    async def receive(
        self, queues: Sequence[str], max_messages: int, wait: float, visibility: float
    ) -> Sequence[Message]:
        self.requests.append(("receive", (tuple(queues), max_messages, wait, visibility)))
        await asyncio.sleep(0.0005)  # as any request, it takes a moment
        if self.fail:
            raise self.fail.pop(0)
        ends = time.monotonic() + wait
        while True:
            found = self._take(queues, max_messages, visibility)
            if found or time.monotonic() >= ends:
                return found
            await asyncio.sleep(_LOOK_S)

    async def ack(self, queue: str, receipts: Sequence[str]) -> Sequence[Outcome]:
        self.requests.append(("ack", list(receipts)))
        await asyncio.sleep(_LOOK_S)
        if self.fail:
            raise self.fail.pop(0)
        return [self._end(queue, receipt) for receipt in receipts]

    async def nack(self, queue: str, nacks: Sequence[Nack]) -> Sequence[Outcome]:
        self.requests.append(("nack", list(nacks)))
        await asyncio.sleep(0)
        if self.fail:
            raise self.fail.pop(0)
        return [self._return(queue, nack) for nack in nacks]

    async def facts(self, queue: str) -> QueueFacts:
        return QueueFacts(queue in self.fifo, *self.dead_letters.get(queue, ()))

    def keeper(self, timeout: float) -> MemoryKeeper:
        return MemoryKeeper(self)

    def release(self, queue: str, changes: Sequence[tuple[str, float]]) -> Sequence[Outcome]:
        self.given_back.append(list(changes))
        return self._change(queue, changes)

    def extend(self, queue: str, changes: Sequence[tuple[str, float]]) -> Sequence[Outcome]:
        self.extended.append(list(changes))
        return self._change(queue, changes)

    def _change(self, queue: str, changes: Sequence[tuple[str, float]]) -> Sequence[Outcome]:
        if self.hold_extensions:
            raise OSError("no route")
        with self._lock:
            outcomes: list[Outcome] = []
            for receipt, seconds in changes:
                stored = self._held(queue, receipt)
                if isinstance(stored, Stored):
                    stored.visible_at = self.clock() + seconds
                    outcomes.append(None)
                else:
                    outcomes.append(stored)
            return outcomes

    # ---

    def _take(self, queues: Sequence[str], count: int, visibility: float) -> list[Message]:
        now = self.clock()
        found: list[Message] = []
        with self._lock:
            for name, messages in self.queues.items():
                if not any(fnmatchcase(name, pattern) for pattern in queues):
                    continue
                for stored in messages.values():
                    if len(found) == count:
                        return found
                    if stored.visible_at <= now:
                        stored.epoch += 1
                        stored.visible_at = now + visibility
                        self.deliveries.append(stored.body)
                        found.append(
                            MessageFields(
                                id=stored.id,
                                receipt=f"{stored.id}:{stored.epoch}",
                                body=stored.body,
                                receive_count=stored.epoch,
                                queue=name,
                                attributes=stored.attributes,
                                group=stored.group,
                            )
                        )
        return found

    def _held(self, queue: str, receipt: str) -> Stored | BatonError:
        number, _, epoch = receipt.partition(":")
        stored = self.queues[queue].get(number)
        if stored is None:
            return MessageGone()
        if stored.epoch != int(epoch) or stored.visible_at <= self.clock():
            return LeaseLost()
        return stored

    def _end(self, queue: str, receipt: str) -> Outcome:
        with self._lock:
            stored = self._held(queue, receipt)
            if isinstance(stored, BatonError):
                return stored
            self.acked.append(stored.body)
            del self.queues[queue][stored.id]
            return None

    def _return(self, queue: str, nack: Nack) -> Outcome:
        with self._lock:
            stored = self._held(queue, nack.receipt)
            if isinstance(stored, BatonError):
                return stored
            self.nacked.append((stored.body, nack))
            if nack.dead_letter:
                self.dead.append((stored.body, nack))
                del self.queues[queue][stored.id]
            else:
                stored.visible_at = self.clock() + (nack.delay or 0.0)
            return None


class MemoryKeeper:
    def __init__(self, source: MemorySource) -> None:
        self.extend = source.extend
        self.release = source.release

    def close(self) -> None:
        """Nothing was opened."""
