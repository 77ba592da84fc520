"""Reliable cancellation of tasks."""

from __future__ import annotations

import asyncio
from typing import Any

AGAIN_S = 0.2


async def end(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks and wait until they have ended. A library may swallow a cancellation that arrives together with a
    result (asyncio.wait_for of Python 3.11 does), so they are cancelled repeatedly.
    """
    running = [task for task in tasks if task is not None and not task.done()]
    while running:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=AGAIN_S)
        for task in running:
            if task.done():
                heard(task)  # nobody else awaits it
        running = [task for task in running if not task.done()]


def heard(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception of a finished task: it is reported elsewhere, or nobody is left to get it."""
    if not task.cancelled():
        task.exception()
