"""Running a worker inside of a test until something holds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from batonq.worker import Worker

TIMEOUT_S = 300.0  # on a machine that has much else to do
LOOK_S = 0.002


async def until(condition: Callable[[], Any]) -> None:
    """For what happens on another task, thread or process."""
    ends = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < ends, "what was waited for did not happen"
        await asyncio.sleep(LOOK_S)


def no_new_tokens(monkeypatch: pytest.MonkeyPatch, until: Callable[[], bool]) -> None:
    """For rates by key time stands still until something holds: else a slow machine might find a token each time."""
    began = time.monotonic()
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() if until() else began)
    monkeypatch.setattr("batonq.worker.parking.time", clock)


def work(app: Worker, condition: Callable[[], Any], **options: Any) -> int:
    """Run the worker until the condition holds, then stop it; the exit code."""

    async def main() -> int:
        serving = asyncio.create_task(app.serve(**options))
        waiting = asyncio.create_task(until(condition))
        await asyncio.wait([serving, waiting], return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            return await serving  # it ended by itself, or raises what went wrong
        app.stop()
        code = await serving
        waiting.result()
        return code

    return asyncio.run(main())
