"""An event loop with simulated time: it jumps to the next timer and never waits for the real world.

Everything that a node schedules belongs to its life, through a context variable that tasks and callbacks inherit. When
the life ends, all of it is dropped at once, as when a process is killed: no cleanup reaches the disk, and no answer is
sent. While a life is paused, all of it is held, as when a process is stopped.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import warnings
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

Value = TypeVar("Value")
Arguments = TypeVarTuple("Arguments")

STANDING_MAX = 20_000  # turns of the loop without time passing


class Stuck(AssertionError):
    """No progress is possible: nothing is ready and no timer is set, or the loop turns without time passing."""


class Life:
    """One life of a node, from its start to its crash. Its callbacks run only while it lives."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.receives_left = -1  # until one fails (see breaks.py); negative: none fails
        self.poll_breaks = False  # the next receive for a long poll fails (see breaks.py)
        self.held: list[asyncio.Handle] = []  # while it is paused
        self.held_timers: list[asyncio.TimerHandle] = []
        self.context = contextvars.copy_context()
        self.context.run(_LIFE.set, self)
        self._tasks: list[asyncio.Task[Any]] = []
        self._prune_at = 64

    def adopt(self, task: asyncio.Task[Any]) -> None:
        self._tasks.append(task)
        if len(self._tasks) >= self._prune_at:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._prune_at = 2 * len(self._tasks) + 64

    def end_tasks(self) -> None:
        """Close the unfinished coroutines now, in order, and not whenever they are garbage-collected."""
        assert not self.alive
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # about coroutines that never started
            self._close_tasks()

    def _close_tasks(self) -> None:
        for task in self._tasks:
            if task.done():
                if not task.cancelled():
                    task.exception()  # marks it as retrieved: its reader is dead
            else:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                try:
                    coroutine = task.get_coro()
                    assert coroutine is not None
                    self.context.run(coroutine.close)
                except BaseException:
                    pass  # errors of a dying coroutine do not matter
        self._tasks.clear()


_LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("life", default=None)


def current_life() -> Life | None:
    """The life that the running code belongs to; None for the simulator itself."""
    return _LIFE.get()


class _Leap:
    """Takes the place of a selector: instead of waiting, it advances the time."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Stuck("nothing is ready and no timer is set")
        self._loop.pass_time(timeout)
        return []


class SimLoop(asyncio.BaseEventLoop):
    """Runs in one thread, without sockets, signals and subprocesses. Executors exist only `with_executors`: work for
    another thread then runs on this thread, at the loop's next turn.
    """

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, *, with_executors: bool = False) -> None:
        super().__init__()
        self._with_executors = with_executors
        self._now_s = 0.0
        self._standing = 0
        self._selector = _Leap(self)
        self._generators: dict[int, Life] = {}  # asynchronous generators that are not closed yet, by id

    def time(self) -> float:
        return self._now_s

    def pass_time(self, seconds: float) -> None:
        """Advance the time, either because nothing is ready or because, as in a slow system call, everything is
        blocked.
        """
        assert seconds >= 0
        self._now_s += seconds
        self._standing = 0 if seconds else self._standing + 1
        if self._standing > STANDING_MAX:
            raise Stuck("there is always something to do, and time stands still")

    def call_soon(
        self,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        # What the base class does, without its checks: this is called hundreds of times in a simulated second.
        life = _LIFE.get() if context is None else context.get(_LIFE, None)
        handle = asyncio.Handle(callback, args, self, context)
        if life is None or (life.alive and not life.paused):
            self._ready.append(handle)
            return handle
        if not life.alive:
            return _nothing(handle)
        life.held.append(handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        life = _LIFE.get() if context is None else context.get(_LIFE, None)
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if life is None or (life.alive and not life.paused):
            heapq.heappush(self._scheduled, handle)
            handle._scheduled = True  # type: ignore[attr-defined]
            return handle
        if not life.alive:
            return _nothing(handle)
        life.held_timers.append(handle)
        return handle

    def create_task(
        self,
        coro: Generator[Any, None, Value] | Coroutine[Any, Any, Value],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Value]:
        task = super().create_task(coro, name=name, context=context)  # type: ignore[arg-type, unused-ignore]
        life = _life_of(context)
        if life is not None:
            life.adopt(task)
        return task

    def pause(self, life: Life) -> None:
        """Hold everything that this life has scheduled or will schedule. Called from outside the life."""
        assert current_life() is not life and not life.paused
        life.paused = True
        life.held = [handle for handle in self._ready if _life_of(_context_of(handle)) is life]
        life.held_timers = [timer for timer in self._scheduled if _life_of(_context_of(timer)) is life]
        ready = [handle for handle in self._ready if _life_of(_context_of(handle)) is not life]
        self._ready.clear()
        self._ready.extend(ready)
        self._scheduled[:] = [timer for timer in self._scheduled if _life_of(_context_of(timer)) is not life]
        heapq.heapify(self._scheduled)
        for timer in life.held_timers:
            timer._scheduled = False  # type: ignore[attr-defined]

    def resume(self, life: Life) -> None:
        """Resume a paused life. Whatever became due meanwhile runs at once."""
        if not life.paused:
            return
        life.paused = False
        self._ready.extend(handle for handle in life.held if not handle.cancelled())
        for timer in life.held_timers:
            if not timer.cancelled():
                timer._scheduled = True  # type: ignore[attr-defined]
                heapq.heappush(self._scheduled, timer)
        life.held, life.held_timers = [], []

    def end_life(self, life: Life) -> None:
        """Drop everything that this life has scheduled. Called by the simulator, never from within the life."""
        assert current_life() is not life
        life.alive = False
        life.held, life.held_timers = [], []
        for handle in (*self._ready, *self._scheduled):
            if _life_of(_context_of(handle)) is life:
                handle.cancel()
        life.end_tasks()

    def _asyncgen_firstiter_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        super()._asyncgen_firstiter_hook(agen)  # type: ignore[misc]
        life = current_life()
        if life is not None:
            self._generators[id(agen)] = life

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        """Do not close generators that a dead life left open."""
        life = self._generators.pop(id(agen), None)
        if life is None or life.alive:
            super()._asyncgen_finalizer_hook(agen)  # type: ignore[misc]

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Arguments], Value], *args: *Arguments
    ) -> asyncio.Future[Value]:
        if self._with_executors:
            done: asyncio.Future[Value] = self.create_future()

            def run() -> None:
                if done.cancelled():
                    return
                try:
                    done.set_result(func(*args))
                except Exception as problem:
                    done.set_exception(problem)

            self.call_soon(run)
            return done
        raise AssertionError("a simulated node has no other thread; put what must run there behind a port")

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        """Called by call_soon_threadsafe. There is no other thread, so the loop need not be woken."""


def _life_of(context: contextvars.Context | None) -> Life | None:
    return _LIFE.get() if context is None else context.get(_LIFE, None)


def _context_of(handle: asyncio.Handle) -> contextvars.Context:
    context: contextvars.Context = handle._context  # type: ignore[attr-defined]
    return context


HandleType = TypeVar("HandleType", bound=asyncio.Handle)


def _nothing(handle: HandleType) -> HandleType:
    handle.cancel()
    return handle
