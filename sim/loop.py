"""An event loop in which time is a number: it jumps to the next timer, and nothing ever waits for the real world.

Everything that a node schedules belongs to its life, by a context variable that tasks and callbacks inherit. When the
life ends, all of it is dropped where it stands, as a process that is killed drops it: no cleanup reaches the disk, and
no reply leaves. While a life is paused, all of it is held, as a process that is stopped holds it.
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

STANDING_MAX = 20_000  # turns of the loop without any time passing


class Stuck(AssertionError):
    """Nobody will ever answer: nothing is ready and no timer is set, or the same things happen again and again."""


class Life:
    """One life of a node, from its start to its crash. What it schedules runs while it lives."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.receives_left = -1  # until one breaks off (see breaks.py); negative: none does
        self.poll_breaks = False  # the next for somebody who waits does (see breaks.py)
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
        """Close the coroutines that were under way now, in order, and not whenever they are collected."""
        assert not self.alive
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of coroutines that the dead had not begun with
            self._close_tasks()

    def _close_tasks(self) -> None:
        for task in self._tasks:
            if task.done():
                if not task.cancelled():
                    task.exception()  # whoever would have heard it is dead
            else:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                try:
                    coroutine = task.get_coro()
                    assert coroutine is not None
                    self.context.run(coroutine.close)
                except BaseException:
                    pass  # what a dying coroutine thinks of it is of no interest
        self._tasks.clear()


_LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("life", default=None)


def current_life() -> Life | None:
    """The life that the running code belongs to; None: the simulator itself."""
    return _LIFE.get()


class _Leap:
    """Stands where a selector would: instead of waiting, time goes on."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Stuck("nothing is ready and no timer is set")
        self._loop.pass_time(timeout)
        return []


class SimLoop(asyncio.BaseEventLoop):
    """Runs in one thread; sockets, signals and subprocesses are not there. Executors are only `with_executors`: what
    should run on another thread runs on this one, at the loop's next turn.
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
        """Time goes on, whether nobody has anything to do or, as in a system call that takes long, everybody waits."""
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
        life = _LIFE.get() if context is None else context.get(_LIFE, None)
        if life is not None and (life.paused or not life.alive):
            handle = asyncio.Handle(callback, args, self, context)
            if not life.alive:
                return _nothing(handle)
            life.held.append(handle)
            return handle
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        life = _LIFE.get() if context is None else context.get(_LIFE, None)
        if life is not None and (life.paused or not life.alive):
            handle = asyncio.TimerHandle(when, callback, args, self, context)
            if not life.alive:
                return _nothing(handle)
            life.held_timers.append(handle)
            return handle
        return super().call_at(when, callback, *args, context=context)

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
        """Hold everything that this life has scheduled, or will have. Called from outside of the life."""
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
        """Everything goes on; what has become due meanwhile is done at once."""
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
        """Nobody closes what a dead life has left open."""
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
        """Called by call_soon_threadsafe: there is no other thread, so nobody has to be woken."""


def _life_of(context: contextvars.Context | None) -> Life | None:
    return _LIFE.get() if context is None else context.get(_LIFE, None)


def _context_of(handle: asyncio.Handle) -> contextvars.Context:
    context: contextvars.Context = handle._context  # type: ignore[attr-defined]
    return context


HandleType = TypeVar("HandleType", bound=asyncio.Handle)


def _nothing(handle: HandleType) -> HandleType:
    handle.cancel()
    return handle
