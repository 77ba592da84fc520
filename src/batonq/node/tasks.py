"""Tasks that nobody awaits, and writes off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class Tasks:
    """Keeps each task until it is done: the event loop itself only holds a weak reference to it."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def off_the_loop(work: Callable[[], Result]) -> Result:
    """The result of blocking work, done on another thread. While the interpreter exits, no thread can be used any more,
    and the work is done here.
    """
    try:
        future = asyncio.get_running_loop().run_in_executor(None, work)
    except RuntimeError:
        return work()
    return await future
