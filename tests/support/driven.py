"""A log that lives on an event loop, driven by a test that does not: each call returns when what it began is done."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from batonq.log.frames import Frame
from batonq.log.interface import Done
from batonq.log.replicated_log import MirroredLog

T = TypeVar("T")


class Loop:
    """An event loop that runs while a test waits for something."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self.loop = self._runner.get_loop()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def close(self) -> None:
        self._runner.close()


class DrivenLog:
    """MirroredLog as the conformance suite wants it: committed when `append` returns."""

    def __init__(self, loop: Loop, inner: MirroredLog) -> None:
        self.inner = inner
        self._loop = loop
        self._driving = False

    def append(self, frame: Frame, done: Done, *, in_thread: bool = False) -> None:
        self._drive(self._append(frame, done))

    async def _append(self, frame: Frame, done: Done) -> None:
        self.inner.append(frame, done)

    def drop_front(self, before: int) -> None:
        self._drive(self._drop_front(before))

    async def _drop_front(self, before: int) -> None:
        self.inner.drop_front(before)

    def tick(self) -> None:
        self._drive(self._tick())

    async def _tick(self) -> None:
        self.inner.tick()

    def close(self) -> None:
        self._loop.run(self._close())

    async def _close(self) -> None:
        self.inner.close()
        await self.inner.wait_closed()

    def warm(self, numbers: Sequence[int]) -> None:
        self.inner.warm(numbers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def _drive(self, begin: Coroutine[Any, Any, None]) -> None:
        if self._driving:  # from within `done`
            try:
                begin.send(None)
            except StopIteration:
                pass
            return
        self._driving = True
        try:
            self._loop.run(self._until_idle(begin))
        finally:
            self._driving = False

    async def _until_idle(self, begin: Coroutine[Any, Any, None]) -> None:
        await begin
        inner = self.inner
        while task := inner._appending if inner._pending is not None else inner._upkeep:
            await asyncio.wait([task])
