"""Serves history: committed frames as they are stored in the log, to remote readers.

Readers must not slow the broker down. Files are read on a thread, in pieces of bounded size, and all readers together
get a limited number of bytes per second. A piece is checked before it is sent, so that a reader gets a correct part of
the log or nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from batonq.errors import InvalidInput, LogCorrupt, LogError, LogGap, NotFound, OverLimit
from batonq.log.interface import Piece
from batonq.log.reading import Chain, frames_of
from batonq.node.backup.front_holds import FrontHolds
from batonq.node.shard_host.keeper import ShardKeeper

BYTES_MAX = 16 << 20  # per answer, unless a single frame is larger
FRAMES_MAX = 1_024  # per answer: checking them takes a few milliseconds of the processor
FRAME_BYTES_MIN = 4 << 10  # minimum charge per frame: checking a small frame costs more than its bytes
WAITERS_MAX = 1_000
READS_MAX = 2  # threads that read at the same time


class TooFast(OverLimit):
    """More history was requested than is served per second."""

    def __init__(self, wait_s: int) -> None:
        super().__init__(f"The rate limit for history reads (--history-rate-bytes) is exceeded. Retry in {wait_s} s.")
        self.retry_after_s = wait_s


class ShardHistory(NamedTuple):
    shard: int
    first: int  # the first frame that is retained
    next: int  # the number of the next frame
    bytes: int


class NamedQueue(NamedTuple):
    number: int
    tenant: str
    name: str


class Listed(NamedTuple):
    """The available history: readable shards, the names of their queues if requested, and unreadable shards."""

    shards: list[ShardHistory]
    queues: dict[int, list[NamedQueue]]
    unavailable: list[int]


class Served(NamedTuple):
    """Frames `start` up to `next`, as they are stored; none when `data` is empty."""

    data: bytes
    start: int
    next: int
    first: int
    end: int  # the number of the log's next frame


class History:
    """One per node. `waiting` says whether any reader must be told of commits."""

    def __init__(self, *, shards: Sequence[ShardKeeper], rate_bytes: int, seconds: Callable[[], float]) -> None:
        self.waiting: dict[int, list[asyncio.Future[None]]] = {}
        self.bytes_served = 0
        self.readers = 0  # requests that are reading or waiting now
        self.limited = 0  # requests refused because of the rate
        self._shards = shards
        self._rate = rate_bytes
        self._seconds = seconds
        self._credit = float(rate_bytes)  # bytes that may be read now; below zero after a large piece
        self._credit_at = seconds()
        self._reads = asyncio.Semaphore(READS_MAX)
        self.holds: FrontHolds | None = None  # set by the node: a backup lasts as long as somebody reads from it

    def shards(self) -> list[ShardHistory]:
        """The shards that can be read here now."""
        logs = [keeper.reading()[1] for keeper in self._shards if keeper.readable]
        return [ShardHistory(log.shard, log.first, log.next, log.bytes_retained()) for log in logs]

    def unavailable(self) -> list[int]:
        """The shards that cannot be read here now. A reader that takes the others for all shards would miss history."""
        return [keeper.number for keeper in self._shards if not keeper.readable]

    def queues(self, shard: int) -> list[NamedQueue]:
        """The queue names that a shard knows now, for a reader that starts after the records that have them."""
        known = self._keeper(shard).reading()[0].queues.values()
        return [NamedQueue(queue.number, queue.policy.tenant, queue.policy.name) for queue in known]

    async def listed(self, names: bool) -> Listed:
        shards = self.shards()
        queues = {one.shard: self.queues(one.shard) for one in shards} if names else {}
        return Listed(shards, queues, self.unavailable())

    async def read(self, shard: int, start: int, bytes_max: int, wait_s: float, stop: int | None = None) -> Served:
        """Frames from `start` on, before `stop`. Waits up to `wait_s` for the first one.

        Raises LogGap, TooFast, NotFound, Unavailable.
        """
        if start < 1 or bytes_max < 1 or (stop is not None and stop <= start):
            raise InvalidInput(
                "The first frame must be at least 1, and at least one frame and one byte must be requested."
            )
        keeper = self._keeper(shard)
        if self.holds is not None:
            self.holds.used(shard, start)
        self.readers += 1
        try:
            return await self._serve(keeper, shard, start, bytes_max, wait_s, stop)
        except TooFast:
            self.limited += 1
            raise
        finally:
            self.readers -= 1

    async def _serve(
        self, keeper: ShardKeeper, shard: int, start: int, bytes_max: int, wait_s: float, stop: int | None
    ) -> Served:
        self._check_rate()
        if start >= keeper.reading()[1].next and wait_s > 0:
            await self._wait(shard, start, wait_s)
        _, log = keeper.reading()
        if start >= log.next:
            return Served(b"", start, start, log.first, log.next)
        if start < log.first:
            raise gap(shard, start, log.first)
        frames_max = FRAMES_MAX if stop is None else min(FRAMES_MAX, stop - start)
        piece = log.piece(start, min(bytes_max, BYTES_MAX), frames_max)
        async with self._reads:
            self._check_rate()
            data, problem = await asyncio.to_thread(_read, piece, shard)
        self._credit -= max(len(data), (piece.stop - start) * FRAME_BYTES_MIN)
        self.bytes_served += len(data)
        if start < log.first:  # the frames were deleted, and their file was reused, during the read
            raise gap(shard, start, log.first)
        if problem is not None:
            raise problem
        return Served(data, start, piece.stop, log.first, log.next)

    def _keeper(self, shard: int) -> ShardKeeper:
        if not 0 <= shard < len(self._shards):
            raise NotFound(f"Shard {shard} does not exist. GET /v1/history lists the shards.")
        return self._shards[shard]

    def _check_rate(self) -> None:
        now = self._seconds()
        self._credit = min(self._rate, self._credit + (now - self._credit_at) * self._rate)
        self._credit_at = now
        if self._rate <= 0:
            raise TooFast(60)
        if self._credit <= 0:
            raise TooFast(max(1, math.ceil(-self._credit / self._rate)))

    async def _wait(self, shard: int, start: int, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + wait_s
        while (left := end - loop.time()) > 0 and start >= self._shards[shard].reading()[1].next:
            if sum(map(len, self.waiting.values())) >= WAITERS_MAX:
                raise OverLimit(f"The limit of {WAITERS_MAX} waiting history readers is reached. Retry later.")
            future = loop.create_future()
            self.waiting.setdefault(shard, []).append(future)
            try:
                await asyncio.wait_for(future, left)
            except TimeoutError:
                return
            finally:
                self._forget(shard, future)

    def _forget(self, shard: int, future: asyncio.Future[None]) -> None:
        waiting = self.waiting.get(shard, [])
        if future in waiting:
            waiting.remove(future)
        if not waiting:
            self.waiting.pop(shard, None)

    def look(self, shard: int) -> None:
        """Wake the readers of a shard: a frame was committed."""
        for future in self.waiting.pop(shard, ()):
            if not future.done():
                future.set_result(None)

    def stop_waiting(self) -> None:
        """Answer every waiting reader with what there is: the node is stopping."""
        for futures in self.waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(TimeoutError())
        self.waiting = {}


def gap(shard: int, start: int, first: int) -> LogGap:
    return LogGap(
        f"Frame {start} of shard {shard} is no longer retained; the first retained frame is {first}. Read older "
        f"frames from the archive, if there is one. Otherwise continue from frame {first}: the part before it is "
        "lost."
    )


def _read(piece: Piece, shard: int) -> tuple[bytes, LogError | None]:
    """Read a piece on a thread. Returns its bytes, and what is wrong with them."""
    try:
        data = piece.read()
    except OSError as error:
        return b"", LogError(f"The log of shard {shard} cannot be read: {error.strerror}.")
    try:
        check(data, shard, piece.start, piece.stop)
    except LogCorrupt as error:
        return b"", error
    return data, None


def check(data: bytes, shard: int, start: int, stop: int) -> None:
    """Check that these are the frames `start` to `stop` of a shard, each valid and linked to the one before.

    Raises LogCorrupt.
    """
    chain = Chain(shard, None, start)
    chain.digest = None
    for _ in frames_of(data, chain, f"the log of shard {shard}"):
        pass
    if chain.number != stop:
        raise LogCorrupt(
            f"Frames {start} to {stop - 1} of shard {shard} were requested, but the response ends at frame "
            f"{chain.number - 1}."
        )
