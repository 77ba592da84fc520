"""Automatic batching: calls that many threads make at about the same time are sent in one request.

There is no separate thread. A caller that finds a free lane becomes its leader: it posts the pending items, including
its own, and then hands the lane to a waiting caller. See batonq.client.aio.batching for the rules.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from batonq.client.batches import BatchLimits
from batonq.errors import BatonError, InvalidInput, Unavailable

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Entry(Generic[Item, Result]):
    __slots__ = ("done", "item", "lane", "result", "size", "taken", "waiting", "woken")

    def __init__(self, item: Item, size: int, waiting: deque[_Entry[Item, Result]]) -> None:
        self.item = item
        self.size = size
        self.waiting = waiting
        self.woken = threading.Event()
        self.lane: _Lane[Item, Result] | None = None  # the lane that its thread must lead now
        self.taken = False
        self.done = False
        self.result: Result | BaseException | None = None

    def end(self, result: Result | BaseException) -> None:
        self.result = result
        self.done = True
        self.woken.set()


class _Lane(Generic[Item, Result]):
    __slots__ = ("busy", "keyed")

    def __init__(self) -> None:
        self.busy = False
        # items that must keep their order relative to others of this lane
        self.keyed: deque[_Entry[Item, Result]] = deque()


class Batcher(Generic[Item, Result]):
    """Collects items and posts them in batches: `post(items)` returns a result or an error per item."""

    def __init__(self, post: Callable[[list[Item]], list[Result | BatonError]], limits: BatchLimits) -> None:
        self.refusing = False  # the client is being closed: pending items are finished, new ones are refused
        self._post = post
        self._limits = limits
        self._lanes: list[_Lane[Item, Result]] = [_Lane() for _ in range(limits.lanes)]
        self._shared: deque[_Entry[Item, Result]] = deque()
        self._count = 0
        self._bytes = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    def put(self, item: Item, size: int, key: str | None = None) -> Result:
        """Add an item and wait for its result. Items with the same key keep their order. Waits while the buffers are
        full.
        """
        keyed = None if key is None else self._lanes[hash(key) % len(self._lanes)]
        entry = _Entry(item, size, self._shared if keyed is None else keyed.keyed)
        limits = self._limits
        if self.refusing:
            raise InvalidInput("This Baton client is closed. Create a new one.")
        with self._lock:
            while self._count >= limits.waiting_count or self._bytes >= limits.waiting_bytes:
                self._changed.wait()
            self._count += 1
            self._bytes += size
            entry.waiting.append(entry)
            lane = self._lane_now(keyed)
        try:
            self._see_through(entry, lane, keyed)
        except BaseException:
            self._leave(entry)
            raise
        if isinstance(entry.result, BaseException):
            raise entry.result
        return cast(Result, entry.result)

    def flush(self) -> None:
        """Wait until all items have their results."""
        with self._lock:
            while self._count or any(lane.busy for lane in self._lanes):
                self._changed.wait()

    def abandon(self) -> None:
        """Nothing to cancel: the calling threads finish their own requests."""

    def _see_through(
        self, entry: _Entry[Item, Result], lane: _Lane[Item, Result] | None, keyed: _Lane[Item, Result] | None
    ) -> None:
        linger: float | None = self._limits.linger
        while True:
            if lane is not None:
                self._lead(lane, entry)
            else:
                entry.woken.wait(linger)
            entry.woken.clear()  # before `done` is checked, so that no end is missed
            with self._lock:
                lane, entry.lane = entry.lane, None
                if entry.done:
                    if lane is not None:  # it became the leader while another lane had its entry
                        self._hand_over(lane)
                    return
                if lane is None and not entry.taken:
                    linger = None
                    lane = self._free(keyed)

    def _lane_now(self, keyed: _Lane[Item, Result] | None) -> _Lane[Item, Result] | None:
        """A lane that the caller leads at once; None if it must wait."""
        if keyed is None and any(lane.busy for lane in self._lanes):
            full = len(self._shared) >= self._limits.count or self._bytes >= self._limits.bytes
            if not full:
                return None
        return self._free(keyed)

    def _free(self, keyed: _Lane[Item, Result] | None) -> _Lane[Item, Result] | None:
        for lane in self._lanes if keyed is None else (keyed,):
            if not lane.busy:
                lane.busy = True
                return lane
        return None

    def _lead(self, lane: _Lane[Item, Result], own: _Entry[Item, Result]) -> None:
        """Post batches until the leader's own entry is done, then hand over the lane."""
        try:
            while not own.done:
                with self._lock:
                    batch = self._take(lane)
                if not batch:
                    return  # another lane has it
                self._do(batch)
        finally:
            with self._lock:
                self._hand_over(lane)

    def _do(self, batch: list[_Entry[Item, Result]]) -> None:
        try:
            results = self._post([entry.item for entry in batch])
        except InvalidInput as problem:
            if len(batch) == 1:
                batch[0].end(problem)
                return
            middle = len(batch) // 2  # one item is invalid: post the others without it
            self._do(batch[:middle])
            self._do(batch[middle:])
        except BatonError as problem:
            for entry in batch:
                entry.end(problem)
        except BaseException:
            for entry in batch:
                entry.end(Unavailable("The thread that sent this request was interrupted, so the outcome is unknown."))
            raise
        else:
            for entry, result in zip(batch, results, strict=True):
                entry.end(result)

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
                entry.taken = True
                self._count -= 1
                self._bytes -= entry.size
                batch.append(entry)
                size += entry.size
        self._changed.notify_all()
        return batch

    def _hand_over(self, lane: _Lane[Item, Result]) -> None:
        for waiting in (lane.keyed, self._shared):
            for entry in waiting:
                if entry.lane is None:
                    entry.lane = lane
                    entry.woken.set()
                    return
        lane.busy = False
        self._changed.notify_all()

    def _leave(self, entry: _Entry[Item, Result]) -> None:
        """The caller's thread was interrupted: remove its entry, and pass on the lane that it was to lead."""
        with self._lock:
            if not entry.taken and entry in entry.waiting:
                entry.waiting.remove(entry)
                self._count -= 1
                self._bytes -= entry.size
            if entry.lane is not None:
                lane, entry.lane = entry.lane, None
                self._hand_over(lane)
