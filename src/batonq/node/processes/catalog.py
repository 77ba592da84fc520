"""The catalog among processes: the first process hosts it, the others fold the frames that it has committed.

Each process asks for frames from the number that it has reached, and an answer waits for the next commit. So the first
process knows how far the others are. A change is answered when all running processes have folded it, and any process
then knows the change. If the front of the log was deleted meanwhile, or a frame does not match, the replica is folded
again from the log's beginning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import msgspec

from batonq.core.catalog.machine import Catalog, Rules
from batonq.errors import BatonError, InvalidInput, LogError, LogGap, Unavailable
from batonq.log.cancellation import end
from batonq.log.interface import Log
from batonq.log.layout import CATALOG_SHARD
from batonq.log.reading import Chain, frames_of
from batonq.node import events
from batonq.node.catalog.catalog_host import Changed
from batonq.node.cluster.catalog import COMMANDS, SharedCatalog
from batonq.node.context import NodeContext
from batonq.node.shard_host.recovery import LogReplay, Recovery

T = TypeVar("T")
FRAMES = "frames"
PIECE_BYTES_MAX = 4 << 20
WAIT_MS = 2_000  # how long an answer waits when there is nothing new
AGAIN_S = 0.1
ANEW_S = 1.0
START_S = 60.0
TOLD_S = 3.0  # how long a change waits for a process that does not follow


class Frames(NamedTuple):
    """Frames from `start` on, as they are stored; `end` is the number of the log's next frame."""

    start: int
    end: int
    data: bytes


_asked = msgspec.msgpack.Decoder(tuple[int, int, int])  # process, first frame, how long to wait
_frames = msgspec.msgpack.Decoder(Frames)
AskFrames = Callable[[bytes, int], Awaitable[bytes]]


class ProcessCatalog(SharedCatalog):
    """`ask_frames` asks the first process; None: this process is the first. `others` lists the other running ones."""

    def __init__(
        self,
        context: NodeContext,
        *,
        number: int,
        others: Callable[[], Iterable[int]],
        rules: Rules,
        recovery: Recovery,
        ask_frames: AskFrames | None,
        **same: Any,
    ) -> None:
        async def opened() -> tuple[Catalog, Log]:
            return await recovery.open_catalog(rules)

        super().__init__(context, opener=opened, **same)
        self._number = number
        self._others = others
        self._rules = rules
        self._ask_frames = ask_frames
        self._appended = asyncio.Event()
        self._asked = asyncio.Event()
        self._come_to: dict[int, int] = {}  # per process: the frame that it asked for last
        self._replica: Catalog | None = None
        self._folding: LogReplay
        self._chain: Chain | None = None  # None: from the beginning
        self._tailing: asyncio.Task[None] | None = None

    def replica(self) -> Catalog | None:
        return self._replica

    @property
    def next_frame(self) -> int:
        """The number of the first frame that this process does not know."""
        if self._log is not None:
            return self._log.next
        return self._chain.number if self._chain is not None else 0

    # --- the first process ------------------------------------------------------------------------

    async def _serve(self, catalog: Catalog, log: Log) -> None:
        await super()._serve(catalog, log)
        self._tell_appended()

    def _committed(self) -> None:
        super()._committed()
        self._tell_appended()

    def _tell_appended(self) -> None:
        self._appended.set()
        self._appended = asyncio.Event()

    async def run(self, command: Callable[..., T], *arguments: Any, **named: Any) -> Changed[T]:
        changed = await super().run(command, *arguments, **named)
        await self._all_told()
        return changed

    async def _all_told(self) -> None:
        """Wait until all running processes know what is committed.

        A process that does not follow is not waited for long: it learns of the change on its own.
        """
        if self._log is None:
            return
        number = self._log.next
        try:
            async with asyncio.timeout(TOLD_S):
                while any(self._come_to.get(other, 0) < number for other in self._others()):
                    await self._asked.wait()
        except TimeoutError:
            events.info(
                "catalog_behind", "A process has an outdated copy of the catalog; the request did not wait for it"
            )

    async def answer(self, name: str, data: bytes) -> bytes:
        if name != FRAMES:
            answered = await super().answer(name, data)
            if name in COMMANDS:
                await self._all_told()
            return answered
        try:
            who, start, wait_ms = _asked.decode(data)
        except msgspec.DecodeError as problem:
            raise InvalidInput(f"The request cannot be read: {problem}") from None
        self._come_to[who] = start
        self._asked.set()
        self._asked = asyncio.Event()
        return msgspec.msgpack.encode(await self._read_frames(start, min(wait_ms, WAIT_MS)))

    async def _read_frames(self, start: int, wait_ms: int) -> Frames:
        """Raises LogGap, Unavailable."""
        log = self._log_here()
        if start >= log.next:
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._appended.wait()
            except TimeoutError:
                pass
            log = self._log_here()
        start = start or log.first
        if start >= log.next:
            return Frames(start, log.next, b"")
        if start < log.first:
            raise LogGap(
                f"Frame {start} of the catalog is no longer retained; the first retained frame is {log.first}."
            )
        piece = log.piece(start, PIECE_BYTES_MAX)
        try:
            data = await asyncio.to_thread(piece.read)
        except OSError as problem:
            raise LogError(f"The catalog's log cannot be read: {problem.strerror}.") from None
        return Frames(start, log.next, data)

    def _log_here(self) -> Log:
        if self._log is None:
            raise Unavailable(self.why)
        return self._log

    # --- the others ---------------------------------------------------------------------------------

    async def open(self) -> None:
        if self._ask_frames is None:
            await super().open()
            return
        deadline_s = self._loop.time() + START_S
        while self._replica is None:
            try:
                await self._read_on(0)
            except BatonError as problem:
                if self._loop.time() > deadline_s:
                    raise Unavailable(f"The first process does not serve the catalog: {problem.message}") from None
                await asyncio.sleep(AGAIN_S)
        self.why = ""
        self._tailing = self._loop.create_task(self._tail())

    async def _tail(self) -> None:
        while True:
            pause_s = 0.0
            try:
                await self._read_on(WAIT_MS)
            except LogError as problem:
                events.info("catalog_anew", f"The catalog is being read again from its beginning: {problem.message}")
                self._chain = None
                pause_s = ANEW_S
            except BatonError:
                pause_s = AGAIN_S  # the first process is being restarted
            await asyncio.sleep(pause_s)

    async def _read_on(self, wait_ms: int) -> None:
        """Fold the new frames. A replica read from the beginning replaces the old one when it reaches the end."""
        assert self._ask_frames is not None
        chain = self._chain
        asked = msgspec.msgpack.encode((self._number, chain.number if chain is not None else 0, wait_ms))
        start, stop, data = _frames.decode(await self._ask_frames(asked, wait_ms))
        self._heard_s = self._loop.time()
        if chain is None:
            chain = self._chain = Chain(CATALOG_SHARD, self._context.cluster, start)
            self._folding = LogReplay(Catalog(self._rules))
        for frame in frames_of(data, chain, "the catalog"):
            self._folding(frame)
        if chain.number >= stop:
            catalog = self._folding.machine
            assert isinstance(catalog, Catalog)
            self._replica = catalog
        if data and self._folding.machine is self._replica:
            self._folded()

    async def hear(self) -> None:
        """Nothing to ask: every answer of the first process shows that this process is not cut off."""

    async def close(self) -> None:
        await end(self._tailing)
        await super().close()
