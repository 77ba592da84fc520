"""Long polls on queues that have several shards: one waiting room per queue and node.

The room asks each shard for a hint: one shared long poll per shard, whichever node serves it. A shard answers when it
has messages. The room then lets as many waiting receives try that shard as the hint has messages for, in order of
arrival. Only a try leases messages, so nothing is leased for a receive that already has an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from batonq.core.spread import Hint
from batonq.errors import BatonError, QueueDoesNotExist
from batonq.node.catalog.queue_control import Queue

HINT_WAIT_MS = 5_000  # after this the hint is asked for again, with the current number of waiters
PAUSE_S = 0.2  # before asking again a shard that failed to answer, or that did not wait

AskHint = Callable[[Queue, int, int, int], Awaitable[Hint]]  # queue, shard, milliseconds to wait, number of waiters


class Poll:
    """One waiting receive. `woken` gets the shard to try; None: there is nothing left to try."""

    __slots__ = ("max_messages", "tried", "woken")

    def __init__(self, max_messages: int, woken: asyncio.Future[int | None]) -> None:
        self.max_messages = max_messages
        self.woken = woken
        self.tried: asyncio.Future[None] | None = None  # the room waits for it before asking the shard again


class Room:
    """The long polls of one queue on this node. The room exists while a receive waits in it."""

    def __init__(
        self, queue: Callable[[], Queue | None], ask: AskHint, loop: asyncio.AbstractEventLoop, waiters_max: int
    ) -> None:
        self.polls: dict[Poll, None] = {}
        self.waiters_max = waiters_max
        self._queue = queue
        self._ask = ask
        self._loop = loop
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._free = asyncio.Event()  # a receive arrived, or returned from a try

    def enter(self, max_messages: int) -> Poll:
        """Add a waiting receive. Raises BatonError, and adds nothing, while the queue's shards are unknown here."""
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
        """Let a receive whose try found nothing wait on, ahead of later receives."""
        poll.woken = self._loop.create_future()
        if poll.tried is not None and not poll.tried.done():
            poll.tried.set_result(None)
        self._free.set()
        self._look_at_all()

    def end(self) -> None:
        """Answer every waiting receive now."""
        for poll in self.polls:
            if not poll.woken.done():
                poll.woken.set_result(None)

    def _fail(self, problem: BatonError) -> None:
        for poll in self.polls:
            if not poll.woken.done():
                poll.woken.set_exception(problem)

    def _look_at_all(self) -> None:
        """Ask every shard that is not being asked: the queue may have more shards than before."""
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
            elif self._loop.time() - asked_s < PAUSE_S:  # the shard is being handed over, or the node is stopping
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
        else:  # all are trying another shard
            self._free.clear()
            await self._free.wait()
