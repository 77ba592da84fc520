"""Automatic batching: calls that many tasks make at about the same time are sent in one request.

Each lane has one request in progress. The first batch is sent at the end of the current turn of the event loop, so a
single caller does not wait. Calls that arrive while a request is in progress form the next batch, so batches grow with
the load.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from batonq.client.batches import BatchLimits
from batonq.errors import BatonError, InvalidInput, Unavailable

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Entry(Generic[Item, Result]):
    __slots__ = ("future", "item", "size")

    def __init__(self, item: Item, size: int, future: asyncio.Future[Result]) -> None:
        self.item = item
        self.size = size
        self.future = future


class _Lane(Generic[Item, Result]):
    __slots__ = ("busy", "keyed")

    def __init__(self) -> None:
        self.busy = False
        # items that must keep their order relative to others of this lane
        self.keyed: deque[_Entry[Item, Result]] = deque()


class Batcher(Generic[Item, Result]):
    """Collects items and posts them in batches: `post(items)` returns a result or an error per item."""

    def __init__(self, post: Callable[[list[Item]], Awaitable[list[Result | BatonError]]], limits: BatchLimits) -> None:
        self.refusing = False  # the client is being closed: pending items are finished, new ones are refused
        self._post = post
        self._limits = limits
        self._lanes: list[_Lane[Item, Result]] = [_Lane() for _ in range(limits.lanes)]
        self._shared: deque[_Entry[Item, Result]] = deque()
        self._count = 0
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._rooms: deque[asyncio.Future[None]] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def put(self, item: Item, size: int, key: str | None = None) -> Result:
        """Add an item and wait for its result. Items with the same key keep their order. Waits while the buffers are
        full.
        """
        limits = self._limits
        if self.refusing:
            raise InvalidInput("This Baton client is closed. Create a new one.")
        while self._count >= limits.waiting_count or self._bytes >= limits.waiting_bytes:
            await self._wait_for_room()
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        entry = _Entry(item, size, future)
        self._count += 1
        self._bytes += size
        if key is None:
            self._shared.append(entry)
            self._start_shared()
        else:
            lane = self._lanes[hash(key) % len(self._lanes)]
            lane.keyed.append(entry)
            if not lane.busy:
                self._start(lane)
        return await future

    async def flush(self) -> None:
        """Wait until all items have their results."""
        while self._count or any(lane.busy for lane in self._lanes):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(future)
            await future

    def abandon(self) -> None:
        """Cancel the requests in progress. Their callers get an error, because the outcome is unknown."""
        for waiting in (self._shared, *(lane.keyed for lane in self._lanes)):
            _fail(list(waiting), Unavailable("The client was closed before this request was sent."))
            waiting.clear()
        self._count = self._bytes = 0
        for task in self._tasks:
            task.cancel()

    def _start_shared(self) -> None:
        free = None
        busy = False
        for lane in self._lanes:
            if lane.busy:
                busy = True
            elif free is None:
                free = lane
        if free is None:
            return
        if not busy or self._full():
            self._start(free)
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._limits.linger, self._lingered)

    def _full(self) -> bool:
        return len(self._shared) >= self._limits.count or self._bytes >= self._limits.bytes

    def _lingered(self) -> None:
        self._timer = None
        if self._shared:
            free = next((lane for lane in self._lanes if not lane.busy), None)
            if free is not None:
                self._start(free)

    def _start(self, lane: _Lane[Item, Result]) -> None:
        lane.busy = True  # the task starts in the loop's next turn, so that items added in this turn are included
        task = asyncio.get_running_loop().create_task(self._run(lane))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, lane: _Lane[Item, Result]) -> None:
        try:
            while batch := self._take(lane):
                await self._do(batch)
        finally:
            lane.busy = False
            if not self._count:
                for future in self._idle:
                    if not future.done():
                        future.set_result(None)
                self._idle.clear()

    async def _do(self, batch: list[_Entry[Item, Result]]) -> None:
        try:
            results = await self._post([entry.item for entry in batch])
        except InvalidInput as problem:
            if len(batch) == 1:
                _fail(batch, problem)
                return
            middle = len(batch) // 2  # one item is invalid: post the others without it
            await self._do(batch[:middle])
            await self._do(batch[middle:])
        except BatonError as problem:
            _fail(batch, problem)
        except asyncio.CancelledError:
            _fail(batch, Unavailable("The client was closed before the server answered, so the outcome is unknown."))
            raise
        except BaseException as problem:
            _fail(batch, problem)
        else:
            for entry, result in zip(batch, results, strict=True):
                if entry.future.done():
                    continue  # its caller was cancelled
                if isinstance(result, BatonError):
                    entry.future.set_exception(result)
                else:
                    entry.future.set_result(result)

    def _take(self, lane: _Lane[Item, Result]) -> list[_Entry[Item, Result]]:
        limits = self._limits
        batch: list[_Entry[Item, Result]] = []
        size = 0
        for waiting in (lane.keyed, self._shared):
            while waiting and len(batch) < limits.count:
                entry = waiting[0]
                if batch and size + entry.size > limits.bytes:
                    break
                waiting.popleft()
                self._count -= 1
                self._bytes -= entry.size
                if entry.future.done():
                    continue  # cancelled before it was sent
                batch.append(entry)
                size += entry.size
        self._make_room()
        return batch

    async def _wait_for_room(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rooms.append(future)
        try:
            await future
        except asyncio.CancelledError:
            self._make_room()  # pass the turn on to the next waiter
            raise

    def _make_room(self) -> None:
        free = self._limits.waiting_count - self._count
        if self._bytes >= self._limits.waiting_bytes:
            return
        while self._rooms and free > 0:
            future = self._rooms.popleft()
            if not future.done():
                future.set_result(None)
                free -= 1


def _fail(batch: list[_Entry[Item, Result]], problem: BaseException) -> None:
    for entry in batch:
        if not entry.future.done():
            entry.future.set_exception(problem)
            entry.future.exception()  # the caller may be gone, which is no reason for a warning
