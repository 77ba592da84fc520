"""Fetches of reader groups that wait at one shard until a message is retained that they have not read."""

from __future__ import annotations

import asyncio

from batonq.core.shard.machine import Shard
from batonq.errors import OverLimit
from batonq.log.interface import Log


class ReaderWaits:
    """`waiting` says whether anybody must be told of commits."""

    def __init__(self, loop: asyncio.AbstractEventLoop, waiters_max: int) -> None:
        self.waiting: dict[int, dict[asyncio.Future[None], int]] = {}  # queue → who waits, and after which position
        self._loop = loop
        self._waiters_max = waiters_max
        self._ended = False

    async def wait(self, queue: int, after_position: int, wait_ms: int) -> None:
        """Return when a message after a position is committed, this host ends, or the time is over."""
        if self._ended or wait_ms <= 0:
            return
        if sum(map(len, self.waiting.values())) >= self._waiters_max:
            raise OverLimit(f"The limit of {self._waiters_max} waiting fetches is reached. Retry later.")
        future = self._loop.create_future()
        self.waiting.setdefault(queue, {})[future] = after_position
        timer = self._loop.call_later(wait_ms / 1000, _wake, future)
        try:
            await future
        finally:
            timer.cancel()
            waiting = self.waiting.get(queue, {})
            waiting.pop(future, None)
            if not waiting:
                self.waiting.pop(queue, None)

    def look(self, shard: Shard, log: Log) -> None:
        """Wake those who have something to read: a frame was committed."""
        for queue, waiting in self.waiting.items():
            state = shard.queues.get(queue)
            retained = state.retained if state is not None else None
            for future, position in waiting.items():
                if retained is None:
                    _wake(future)  # the fetch gets an error
                    continue
                index = retained.index_after(position)
                if index < len(retained) and retained.position_at(index) >> 16 < log.next:
                    _wake(future)

    def end(self) -> None:
        """Answer every waiting fetch with what there is, and let no other wait: the host ends."""
        self._ended = True
        for waiting in self.waiting.values():
            for future in waiting:
                _wake(future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
