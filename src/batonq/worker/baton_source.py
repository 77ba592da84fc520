"""Messages from a Baton server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from batonq.client.models import Nack
from batonq.client.retry import NO_RETRIES, Retries
from batonq.errors import BatonError, Unavailable
from batonq.worker.source import Message, Outcome, QueueFacts

if TYPE_CHECKING:
    from batonq.client.aio.baton import Baton
    from batonq.client.aio.queue import Queue
    from batonq.client.blocking.baton import Baton as BlockingBaton

T = TypeVar("T")
BATCH_MAX = 1000
FACTS_S = 60.0  # how old the facts about a queue may be
QUEUES_MAX = 1000  # cached queue objects; a pattern may match any number of queues
# The worker retries by itself for as long as a response can still be useful, so the client retries only briefly.
_RETRIES = Retries(attempts=3, deadline=5.0)


class BatonSource:
    """`url` and keys; what is not given is taken from the environment, as by `connect`.

    With `baton`, the program's own async client (for example an embedded one) is used and left open. Leases are then
    extended on the event loop, so a handler that blocks the loop also blocks the heartbeat.
    """

    batch_max = BATCH_MAX

    def __init__(
        self,
        url: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        baton: Baton | None = None,
    ) -> None:
        self.url = url
        self._given = baton
        self._loop: asyncio.AbstractEventLoop | None = None
        self._access_key = access_key
        self._secret_key = secret_key
        self._baton: Baton | None = None
        self._consumer = ""
        self._queues: dict[str, Queue] = {}
        self._facts: dict[str, tuple[float, QueueFacts]] = {}  # with the time when they are too old

    async def open(self, consumer: str, connections: int) -> None:
        from batonq.client.aio.baton import connect

        self._consumer = consumer
        self._loop = asyncio.get_running_loop()
        if self._given is not None:
            self._baton = self._given
            return
        self._baton = connect(
            self.url,
            access_key=self._access_key,
            secret_key=self._secret_key,
            retries=_RETRIES,
            connections=connections,
            polls=connections,
            consumer=consumer,
        )

    async def receive(
        self, queues: Sequence[str], max_messages: int, wait: float, visibility: float
    ) -> Sequence[Message]:
        if len(queues) == 1 and not is_pattern(queues[0]):
            queue = self._queue(queues[0])
            return await queue.receive(max_messages, wait, visibility=visibility, consumer=self._consumer)
        return await self._opened().receive(queues, max_messages, wait, visibility=visibility, consumer=self._consumer)

    async def ack(self, queue: str, receipts: Sequence[str]) -> Sequence[Outcome]:
        return await self._queue(queue).ack_many(receipts)

    async def nack(self, queue: str, nacks: Sequence[Nack]) -> Sequence[Outcome]:
        return await self._queue(queue).nack_many(nacks)

    async def facts(self, queue: str) -> QueueFacts:
        until, found = self._facts.get(queue, (0.0, QueueFacts()))
        if until <= time.monotonic():
            info = await self._queue(queue).info()
            found = QueueFacts(info.fifo, info.max_receive_count or 0, info.dead_letter_queue or "")
            if len(self._facts) >= QUEUES_MAX:
                self._facts.clear()
            self._facts[queue] = (time.monotonic() + FACTS_S, found)
        return found

    async def close(self) -> None:
        if self._baton is not None:
            self._queues.clear()
            if self._given is None:
                await self._baton.close()
            self._baton = None

    def keeper(self, timeout: float) -> BatonKeeper | SharedKeeper:
        if self._given is not None:
            assert self._loop is not None, "the source is not open"
            return SharedKeeper(self._given, self._loop, timeout)
        return BatonKeeper(self._connect_keeper(timeout))

    def _connect_keeper(self, timeout: float) -> BlockingBaton:
        """A connection of the thread that keeps leases, which must not wait for other requests."""
        from batonq.client.blocking.baton import connect

        return connect(
            self.url,
            access_key=self._access_key,
            secret_key=self._secret_key,
            timeout=timeout,
            retries=NO_RETRIES,
            connections=1,
            polls=1,
            consumer=self._consumer,
        )

    def _queue(self, name: str) -> Queue:
        found = self._queues.get(name)
        if found is None:
            if len(self._queues) >= QUEUES_MAX:
                self._queues.clear()
            found = self._queues[name] = self._opened().queue(name)
        return found

    def _opened(self) -> Baton:
        assert self._baton is not None, "the source is not open"
        return self._baton


class BatonKeeper:
    """Extends leases on a blocking connection."""

    def __init__(self, baton: BlockingBaton) -> None:
        self._baton = baton

    def extend(self, queue: str, changes: Sequence[tuple[str, float]]) -> Sequence[Outcome]:
        results = self._baton.queue(queue).extend_many(changes)
        return [result if isinstance(result, BatonError) else None for result in results]

    def release(self, queue: str, changes: Sequence[tuple[str, float]]) -> Sequence[Outcome]:
        return self._baton.queue(queue).nack_many(_untried(changes))

    def close(self) -> None:
        self._baton.close()


class SharedKeeper:
    """Extends leases through the program's own client, on its event loop."""

    def __init__(self, baton: Baton, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        self._baton = baton
        self._loop = loop
        self._timeout = timeout

    def extend(self, queue: str, changes: Sequence[tuple[str, float]]) -> Sequence[Outcome]:
        results = self._on_the_loop(self._baton.queue(queue).extend_many(changes))
        return [result if isinstance(result, BatonError) else None for result in results]

    def release(self, queue: str, changes: Sequence[tuple[str, float]]) -> Sequence[Outcome]:
        return self._on_the_loop(self._baton.queue(queue).nack_many(_untried(changes)))

    def _on_the_loop(self, asked: Coroutine[Any, Any, T]) -> T:
        try:
            future = asyncio.run_coroutine_threadsafe(asked, self._loop)
        except RuntimeError:
            asked.close()
            raise Unavailable("the event loop is closed") from None
        try:
            return future.result(self._timeout)
        except TimeoutError:
            future.cancel()
            raise Unavailable("the event loop is blocked") from None

    def close(self) -> None:
        """The client belongs to the program and stays open."""


def _untried(changes: Sequence[tuple[str, float]]) -> list[Nack]:
    return [Nack(receipt, delay=seconds, untried=True) for receipt, seconds in changes]


def is_pattern(queue: str) -> bool:
    return "*" in queue or "?" in queue
