"""Reads large bodies for the filters of a topic, beside the event loop.

To parse a body of 1 MiB and to find the values that filters name in it can take half a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from batonq.core.commands import Send
from batonq.core.topics.message_values import Paths, read_body
from batonq.errors import Unavailable

STOPS = "The node is being stopped."
LARGE_BYTES = 64 * 1024  # the bodies of a request together; fewer are read on the event loop

T = TypeVar("T")


class BodyReader:
    """One thread: it shares the interpreter with the event loop, and several would delay the loop more."""

    def __init__(self, *, threads: bool = True) -> None:
        """In simulated time there are no threads."""
        self._threads = ThreadPoolExecutor(1, "body-reader") if threads else None

    async def run(self, work: Callable[[], T]) -> T:
        """Do work in Python on the thread. Raises Unavailable if the node stops first."""
        if self._threads is None:
            return work()
        try:
            future = self._threads.submit(work)
        except RuntimeError:
            raise Unavailable(STOPS) from None
        await asyncio.wait([asyncio.wrap_future(future)])
        if future.cancelled():
            raise Unavailable(STOPS)
        return future.result()

    async def read(self, command: Send, paths: Paths) -> Send:
        """The command with bodies whose values at these paths are known."""
        bodies = await self.run(lambda: [read_body(body, paths) for body in command.bodies])
        return replace(command, bodies=bodies)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def is_large(command: Send) -> bool:
    return sum(map(len, command.bodies)) > LARGE_BYTES
