"""Ending tasks for sure."""

from __future__ import annotations

import asyncio
from typing import Any

AGAIN_S = 0.2


async def end(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks, and wait until they have ended. A library beneath may swallow a cancellation that comes together
    with an answer (asyncio.wait_for of Python 3.11 does), so they are cancelled until they have.
    """
    running = [task for task in tasks if task is not None and not task.done()]
    while running:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=AGAIN_S)
        for task in running:
            if task.done():
                heard(task)  # nobody else asks for it
        running = [task for task in running if not task.done()]


def heard(task: asyncio.Task[Any]) -> None:
    """For a task that ended: how it failed is told, or nobody is there any more to be told."""
    if not task.cancelled():
        task.exception()
