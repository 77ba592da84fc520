"""Long polls on queues that lie on several shards: one waiting room a queue and node.

The room asks each shard for a hint that comes when the shard has something, once for all who wait, whoever serves the
shard. Then it lets as many of them try there as the hint speaks of, first come first. Only a try leases anything, so
nothing is leased for somebody who has an answer already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from batonq.core.spread import Hint
from batonq.errors import BatonError, QueueDoesNotExist
from batonq.node.catalog.queue_control import Queue

HINT_WAIT_MS = 5_000  # then it is asked again, and with it how many wait
PAUSE_S = 0.2  # before a shard is asked again that could not be, or did not wait

AskHint = Callable[[Queue, int, int, int], Awaitable[Hint]]  # queue, shard, how long in ms, how many wait for it


class Poll:
    """One who waits. `woken` has the shard to try; None: there is nothing to try any more."""

    __slots__ = ("max_messages", "tried", "woken")

    def __init__(self, max_messages: int, woken: asyncio.Future[int | None]) -> None:
        self.max_messages = max_messages
        self.woken = woken
        self.tried: asyncio.Future[None] | None = None  # the room waits for it before it asks the shard again


class Room:
    """The long polls of one queue on this node. It lives while somebody is in it."""

    def __init__(
        self, queue: Callable[[], Queue | None], ask: AskHint, loop: asyncio.AbstractEventLoop, waiters_max: int
    ) -> None:
        self.polls: dict[Poll, None] = {}
        self.waiters_max = waiters_max
        self._queue = queue
        self._ask = ask
        self._loop = loop
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._free = asyncio.Event()  # somebody came, or is back from a try

    def enter(self, max_messages: int) -> Poll:
        """Raises BatonError if it is not known now where the queue is: then nobody has entered."""
        self._look_at_all()
        poll = Poll(max_messages, self._loop.create_future())
        self.polls[poll] = None
        self._free.set()
        return poll

    def leave(self, poll: Poll) -> None:
        self.polls.pop(poll, None)
        if poll.tried is not None and not poll.tried.done():
            poll.tried.set_result(None)
        if not self.polls:
            for task in self._tasks.values():
                task.cancel()
            self._tasks.clear()

    def again(self, poll: Poll) -> None:
        """Its try brought nothing: it waits on, before those who came later."""
        poll.woken = self._loop.create_future()
        if poll.tried is not None and not poll.tried.done():
            poll.tried.set_result(None)
        self._free.set()
        self._look_at_all()

    def end(self) -> None:
        """Everybody is answered now."""
        for poll in self.polls:
            if not poll.woken.done():
                poll.woken.set_result(None)

    def _fail(self, problem: BatonError) -> None:
        for poll in self.polls:
            if not poll.woken.done():
                poll.woken.set_exception(problem)

    def _look_at_all(self) -> None:
        """There may be more shards than a moment ago."""
        queue = self._queue()
        for shard in queue.shards if queue is not None else ():
            task = self._tasks.get(shard)
            if task is None or task.done():
                self._tasks[shard] = self._loop.create_task(self._look(shard))

    async def _look(self, shard: int) -> None:
        while self.polls:
            asked_s = self._loop.time()
            try:
                queue = self._queue()
                if queue is None:
                    raise QueueDoesNotExist
                hint = await self._ask(queue, shard, HINT_WAIT_MS, len(self.polls))
            except QueueDoesNotExist as problem:
                self._fail(problem)
                return
            except BatonError:
                await asyncio.sleep(PAUSE_S)
                continue
            if hint.visible:
                await self._let_try(shard, hint.visible)
            elif self._loop.time() - asked_s < PAUSE_S:  # the shard is being handed over, or the node stops
                await asyncio.sleep(PAUSE_S)

    async def _let_try(self, shard: int, visible: int) -> None:
        tries: list[asyncio.Future[None]] = []
        for poll in self.polls:
            if visible <= 0:
                break
            if not poll.woken.done():
                poll.woken.set_result(shard)
                poll.tried = self._loop.create_future()
                tries.append(poll.tried)
                visible -= poll.max_messages
        if tries:
            await asyncio.wait(tries)
        else:  # all are trying somewhere else
            self._free.clear()
            await self._free.wait()
