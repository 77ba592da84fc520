"""Copies frames from the remote store into the mirror: checks each against all before it, and passes it on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from batonq.errors import LogCorrupt, LogGap
from batonq.log import fencing, frames
from batonq.log.backend import Backend, Bounds, Entry, Unreachable
from batonq.log.fencing import Pauses
from batonq.log.file_log import FileLog, FileLogSettings
from batonq.log.frames import NO_DIGEST, Frame
from batonq.log.mirror import Feed, Mirror
from batonq.log.opening import Start
from batonq.log.reading import Chain

T = TypeVar("T")


@dataclass(slots=True, frozen=True)
class MirrorSettings:
    files: FileLogSettings = field(default_factory=lambda: FileLogSettings(prewrite=False))
    pauses: Pauses = field(default_factory=Pauses)
    open_s: float = 30.0  # how long opening retries a remote store that does not answer
    look_s: float = 5.0  # how often free space and the first frame are requested


class Intake:
    """`files` is the mirror once it is `opened`. One operation is in progress at a time."""

    def __init__(self, backend: Backend, mirror: Mirror, cluster: int, settings: MirrorSettings) -> None:
        self.files: FileLog
        self.opened = False
        self.remarks: list[str] = []  # notes from opening, for the operator
        self._backend = backend
        self._mirror = mirror
        self._cluster = cluster
        self._settings = settings
        self._loop = asyncio.get_running_loop()

    async def open(self, start: Start | None, feed: Feed) -> Bounds:
        """Load the mirror, compare it with the remote store, and read on to the end."""
        files = await self._apart(lambda: self._mirror.load(start, feed, self.remarks.append))
        if files is not None:
            self._take(files)
        if files is None:
            bounds = await self._bounds_from(feed.next)
            if bounds.first == bounds.next:
                if bounds.next > 1:
                    raise LogCorrupt(f"{self._backend.where}: the last frame, {bounds.next - 1}, is missing")
                self._take(self._mirror.begin(Start(1, NO_DIGEST)))
        else:
            bounds = await self.compare(files, feed.next)
            if files.next < bounds.first:
                files.close()
                self.opened = False
                self._mirror.wipe()
                raise LogGap(f"the mirror of shard {self._backend.shard} ends before the retained log; it is rebuilt")
        await self.read_to(bounds.next, feed)
        feed.check_end(self.files.next, self._backend.where)
        self.files.drop_front(bounds.first)
        return bounds

    def _take(self, files: FileLog) -> None:
        self.files = files
        self.opened = True

    async def compare(self, files: FileLog, known: int = 1) -> Bounds:
        """The mirror contains only committed frames, so the remote store must have them, or have dropped them. It also
        has the frames before `known`.
        """
        bounds = await self._bounds_from(max(files.next, known))
        if bounds.next < files.next:
            raise LogCorrupt(
                f"{self._backend.where} ends with frame {bounds.next - 1}, but frame {files.next - 1} was "
                "committed: it has lost acknowledged data. Restore it if you can. The frames are still in "
                f"{files.directory}; move that directory away to continue without them."
            )
        last = files.next - 1
        for tries in range(fencing.LOOKS_MAX):
            if last < bounds.first:
                return bounds
            stored = await self.ask(lambda: self._backend.find(last))
            if stored is not None and frames.parse(stored).digest == files.tail_digest:
                return bounds
            if stored is not None:
                break
            await asyncio.sleep(self._settings.pauses.after(tries))  # a stale reply, or it was dropped just now
            bounds = await self.ask(self._backend.bounds)
        raise LogCorrupt(
            f"{self._backend.where}: frame {last} is not the frame that was committed, of which there is a "
            f"copy in {files.directory}. Move that directory away to continue with the stored frame."
        )

    async def _bounds_from(self, number: int) -> Bounds:
        """The range of the remote store. It is known to include this frame, so if it seems to end before it, the reply
        may be stale, and the request is repeated.
        """
        bounds = await self.ask(self._backend.bounds)
        for tries in range(fencing.LOOKS_MAX):
            if number <= bounds.next:
                break
            await asyncio.sleep(self._settings.pauses.after(tries))
            bounds = await self.ask(self._backend.bounds)
        return bounds

    async def read_to(self, stop: int, feed: Callable[[Frame], None]) -> None:
        """Copy frames up to `stop` (exclusive)."""
        deadline_s = self._loop.time() + self._settings.open_s
        while (start := self.files.next if self.opened else 0) < stop:
            start = start or (await self.ask(self._backend.bounds)).first
            reading = self._backend.tail(start)
            try:
                async for entries in reading:
                    await self._apart(lambda entries=entries: self.take_in(entries, feed))  # type: ignore[misc]
                    if self.files.next >= stop:
                        break
                    deadline_s = self._loop.time() + self._settings.open_s
            except Unreachable:
                if self._loop.time() > deadline_s:
                    raise
                await asyncio.sleep(self._settings.pauses.longest_s)
            finally:
                await reading.aclose()

    def take_in(self, entries: Sequence[Entry], on_frame: Callable[[Frame], None]) -> None:
        """Check an entry of the remote store against everything before it, mirror it, and pass it on."""
        for entry in entries:
            try:
                frame = frames.parse(entry.data)
            except LogCorrupt as problem:
                raise self._misfit(entry, problem.message) from None
            if not self.opened:
                self._take(self._mirror.begin(Start(frame.number, frame.previous_digest)))
            files = self.files
            chain = Chain(self._backend.shard, self._cluster, files.next)
            chain.digest, chain.epoch = files.tail_digest, files.tail_epoch
            wrong = chain.mismatch(frame)
            if wrong is None and entry.number != frame.number:
                wrong = f"frame {frame.number} is stored in its place"
            if wrong is not None:
                raise self._misfit(entry, wrong)
            self.mirror_frame(frame)
            on_frame(frame)

    def _misfit(self, entry: Entry, what: str) -> LogCorrupt:
        return LogCorrupt(
            f"{self._backend.where}, number {entry.number}: {what}. Nothing was skipped or changed. The shard "
            "is stopped until an operator has repaired or restored the log."
        )

    def mirror_frame(self, frame: Frame) -> None:
        """Raises the errors of the local disk."""
        outcomes: list[BaseException | None] = []
        self.files.append(frame, outcomes.append)
        if outcomes[0] is not None:
            raise outcomes[0]

    async def ask(self, question: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request for as long as opening may take."""
        deadline_s = self._loop.time() + self._settings.open_s
        tries = 0
        while True:
            try:
                return await question()
            except Unreachable:
                if self._loop.time() > deadline_s:
                    raise
            await asyncio.sleep(self._settings.pauses.after(tries))
            tries += 1

    async def _apart(self, work: Callable[[], T]) -> T:
        """Run on another thread. A cancelled caller waits for its end, because it uses the mirror's files."""
        working = self._loop.run_in_executor(None, work)
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            await asyncio.wait((working,))
            raise
