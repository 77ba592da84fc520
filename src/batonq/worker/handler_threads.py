"""Threads that run handlers, each directly or in its own process.

The executors of the standard library do not fit: they cannot abandon a call that hangs, they wait for it when the
program ends, and they lose every running call when one process dies.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol


class Performer(Protocol):
    """How a thread runs a handler."""

    def perform(self, given: Any) -> Any:
        """Run the handler; called on the thread."""
        ...

    def kill(self) -> bool:
        """Stop the running handler, from another thread. False if that is not possible."""
        ...

    def close(self) -> None:
        """No more handlers will be run."""
        ...


class InThread:
    """Runs the handler on the thread itself."""

    def __init__(self, handler: Callable[[Any], Any]) -> None:
        self.perform = handler

    def kill(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing to close."""


_Job = tuple[contextvars.Context, Any, "asyncio.Future[Any]"]


class _Hand(threading.Thread):
    """One thread. It runs one job at a time until it is stopped."""

    def __init__(self, crew: Crew, performer: Performer, number: int) -> None:
        super().__init__(name=f"baton-{crew.name}-{number}", daemon=True)
        self.crew = crew
        self.performer = performer
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()

    def run(self) -> None:
        try:
            while (job := self.jobs.get()) is not None:
                context, given, future = job
                result, error = None, None
                try:
                    result = context.run(self.performer.perform, given)
                except BaseException as problem:  # an exception of the handler concerns the message, not the thread
                    error = problem
                self.crew.finished(given, future, result, error)
        finally:
            self.performer.close()


class Crew:
    """As many threads as there are concurrent calls. Cancelling a call kills its handler, or abandons it.

    `late` is called on the loop with the result of a handler that was abandoned.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Performer],
        late: Callable[[Any, BaseException | None], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.name = name
        self._make = make
        self._late = late
        self._loop = loop
        self._idle: list[_Hand] = []
        self._busy: set[_Hand] = set()
        self._started = 0
        self._hung: set[asyncio.Future[Any]] = set()

    @property
    def hung(self) -> int:
        """Number of abandoned handlers that are still running."""
        return len(self._hung)

    async def __call__(self, given: Any) -> Any:
        hand = self._idle.pop() if self._idle else self._start()
        self._busy.add(hand)
        future: asyncio.Future[Any] = self._loop.create_future()
        hand.jobs.put((contextvars.copy_context(), given, future))
        try:
            return await future
        except asyncio.CancelledError:
            if future.cancelled():  # otherwise it had just ended by itself
                self._let_go(hand, future)
            raise
        finally:
            self._busy.discard(hand)
            if future.done() and not future.cancelled():
                self._idle.append(hand)

    def finished(self, given: Any, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        """Called by a thread when its job is done."""
        try:
            self._loop.call_soon_threadsafe(self._deliver, given, future, result, error)
        except RuntimeError:
            pass  # the loop is closed: the worker has ended without this one

    def close(self) -> None:
        """Stop the idle threads, and kill handlers if possible."""
        for hand in self._idle:
            hand.jobs.put(None)
        self._idle.clear()
        self.kill()

    def kill(self) -> None:
        """Kill handlers if possible; from any thread."""
        for hand in list(self._busy):
            hand.performer.kill()

    # ---

    def _start(self) -> _Hand:
        self._started += 1
        hand = _Hand(self, self._make(), self._started)
        hand.start()
        return hand

    def _let_go(self, hand: _Hand, future: asyncio.Future[Any]) -> None:
        hand.jobs.put(None)  # the thread ends with its handler, and another one takes its place
        if not hand.performer.kill():
            self._hung.add(future)

    def _deliver(self, given: Any, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        if future.done():
            if future in self._hung:
                self._hung.discard(future)
                self._late(given, error)
        elif error is None:
            future.set_result(result)
        elif isinstance(error, StopIteration):  # a future does not accept it
            future.set_exception(RuntimeError(repr(error)))
        else:
            future.set_exception(error)
