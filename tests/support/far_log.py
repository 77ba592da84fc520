"""The far side of a replicated log in memory, with the vices of a real one: see log/backend.py.

Requests get lost, answers get lost after the commit, requests arrive late, and what is told may be stale. `Vices` says
which of it happens next; without one nothing does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from enum import Enum

from batonq.errors import LogCorrupt, LogGap
from batonq.log.backend import Bounds, Entry, Leaderless, Unreachable, WrongEnd
from batonq.log.frames import Frame
from batonq.log.interface import Room

BATCH_FRAMES = 16


class Vice(Enum):
    NONE = "none"
    LOST = "the request is lost"
    UNANSWERED = "it is done, and the answer is lost"
    LATE = "it arrives after the next request"
    STALE = "the answer is about an earlier time"
    LEADERLESS = "nothing is taken from anybody"


Vices = Callable[[str], Vice]  # asked with what is being done: append, find, bounds, tail, drop


def none(what: str) -> Vice:
    return Vice.NONE


class FarLog:
    """What is stored: shared by the backends of all that use it."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.first = 1
        self.stored: list[bytes] = []
        self.room = Room.PLENTY
        self.grown = asyncio.Event()
        self._late: list[tuple[int, bytes]] = []

    @property
    def next(self) -> int:
        return self.first + len(self.stored)

    def append(self, number: int, data: bytes) -> None:
        if number != self.next:
            raise WrongEnd(f"the log ends before frame {self.next}")
        self.stored.append(data)
        self.grown.set()
        self.grown = asyncio.Event()

    def postpone(self, number: int, data: bytes) -> None:
        self._late.append((number, data))

    def deliver_late(self) -> None:
        """What was under way arrives now, and is judged like anything else."""
        late, self._late = self._late, []
        for number, data in late:
            try:
                self.append(number, data)
            except WrongEnd:
                pass

    def at(self, number: int) -> bytes | None:
        return self.stored[number - self.first] if self.first <= number < self.next else None


class MemoryBackend:
    """See backend.Backend."""

    frame_bytes_max = 1 << 30

    def __init__(self, far: FarLog, vices: Vices = none) -> None:
        self.shard = far.shard
        self.where = f"the log of shard {far.shard} in memory"
        self.far = far
        self.vices = vices

    async def bounds(self) -> Bounds:
        vice = await self._meet("bounds")
        stop = self.far.next - (vice is Vice.STALE and self.far.next > self.far.first)
        return Bounds(self.far.first, stop, self.far.room)

    async def append(self, frame: Frame) -> None:
        data = frame.header + frame.rows + frame.variable
        vice = self.vices("append")
        if vice is Vice.LATE:
            self.far.postpone(frame.number, data)
            raise Unreachable("no answer: the request is late")
        await asyncio.sleep(0)
        self.far.deliver_late()
        if vice is Vice.LOST:
            raise Unreachable("no answer: the request was lost")
        if vice is Vice.LEADERLESS:
            raise Leaderless("nothing is taken from anybody")
        self.far.append(frame.number, data)
        if vice is Vice.UNANSWERED:
            raise Unreachable("no answer: the answer was lost")

    async def find(self, number: int) -> bytes | None:
        if await self._meet("find") is Vice.STALE and number == self.far.next - 1:
            return None
        return self.far.at(number)

    async def tail(self, start: int) -> AsyncGenerator[list[Entry], None]:
        while True:
            await self._meet("tail")
            if start < self.far.first:
                raise LogGap(f"frame {start} is no longer retained")
            if start > self.far.next:
                raise LogCorrupt(f"{self.where} ends before frame {start}")
            stop = min(start + BATCH_FRAMES, self.far.next)
            if start == stop:
                await self.far.grown.wait()
                continue
            yield [Entry(number, self.far.stored[number - self.far.first]) for number in range(start, stop)]
            start = stop

    async def drop_front(self, before: int) -> None:
        await self._meet("drop")
        assert before < self.far.next
        if before > self.far.first:
            del self.far.stored[: before - self.far.first]
            self.far.first = before

    async def close(self) -> None:
        pass

    async def _meet(self, what: str) -> Vice:
        vice = self.vices(what)
        await asyncio.sleep(0)
        self.far.deliver_late()
        if vice in (Vice.LOST, Vice.UNANSWERED, Vice.LATE, Vice.LEADERLESS):
            raise Unreachable(f"no answer: {vice.value}")
        return vice
