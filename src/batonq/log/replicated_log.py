"""A replicated log: the authoritative copy is remote (backend.py), and reads are served from a local mirror
(mirror.py).

The owner appends by the fencing rule (fencing.py) and mirrors committed frames. A follower's mirror grows as others
append to the log (intake.py). Everything runs on the event loop's thread, except the reads during opening. An opened
log is at the end that the remote store reported; whether that is still the end is found out by appending.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TypeVar

from batonq.errors import BatonError, Fenced, LogError
from batonq.log import fencing
from batonq.log.backend import Backend, Leaderless, Unreachable
from batonq.log.cancellation import end
from batonq.log.disk import Disk
from batonq.log.file_log import FileLog
from batonq.log.frames import Frame
from batonq.log.intake import Intake, MirrorSettings
from batonq.log.interface import Done, Piece, Room, SegmentInfo
from batonq.log.mirror import Feed, Mirror, UnsyncedDisk
from batonq.log.opening import OnFrame, Start
from batonq.log.reading import Damage

T = TypeVar("T")
YIELD_BYTES = 1 << 20  # frames that a follower copies before others get their turn
_ROOMS = (Room.PLENTY, Room.RESERVE, Room.NONE)


class MirrorDamaged(LogError):
    """The local mirror of the log is damaged. It is rebuilt when the log is reopened."""

    retryable = True


class MirroredLog:
    """See interface.Log. Created by `await MirroredLog.open(…)`.

    `follow` copies what others append, until `catch_up`; between the two nothing may be appended.
    """

    far = True

    def __init__(self, backend: Backend, mirror: Mirror, cluster: int, settings: MirrorSettings) -> None:
        self.shard = backend.shard
        self.trouble = ""  # why the append in progress, or following, makes no progress
        self.leaderless = False  # … and whether that is because the log has no leader
        self._backend = backend
        self._mirror = mirror
        self._intake = Intake(backend, mirror, cluster, settings)
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._files: FileLog
        self._pending: tuple[Frame, Done] | None = None
        self._appending: asyncio.Task[None] | None = None
        self._finishing = False  # the owner is being told that its frame is done, and continues with the next one
        self._following: asyncio.Task[None] | None = None
        self._upkeep: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._failed: BaseException | None = None
        self._closed = False
        self._room = Room.PLENTY  # of the remote store
        self.replica_lags: tuple[tuple[str, int], ...] = ()  # of the remote store, as last seen
        self._looked_s = self._loop.time()
        self._dropped = 0  # the first frame of the remote store, as far as known

    @classmethod
    async def open(
        cls,
        backend: Backend,
        directory: str,
        *,
        cluster: int,
        settings: MirrorSettings | None = None,
        disk: Disk | None = None,
        start: Start | None = None,
        on_frame: OnFrame | None = None,
    ) -> MirroredLog:
        """Open a log and read on to its end. Frames from `start` on (default: all) are passed to `on_frame`, each once.

        `on_frame` is called on another thread. The backend belongs to the log from now on and is closed with it. Raises
        LogCorrupt; LogGap if `start` is not retained, or if the mirror was so old that replay has to start again
        without a `start`; Unavailable if the remote store does not answer.
        """
        settings = settings or MirrorSettings()
        mirror = Mirror(
            directory, shard=backend.shard, cluster=cluster, settings=settings.files, disk=disk or UnsyncedDisk()
        )
        log = cls(backend, mirror, cluster, settings)
        try:
            bounds = await log._intake.open(start, Feed(start, on_frame))
        except BaseException:
            log.close()
            raise
        log._files = log._intake.files
        log._dropped = bounds.first
        log._room, log.replica_lags = bounds.room, bounds.replica_lags
        return log

    @property
    def remarks(self) -> list[str]:
        """Notes from opening, for the operator."""
        return self._intake.remarks

    # --- following ------------------------------------------------------------------------------

    def follow(self, on_frame: OnFrame, on_problem: Callable[[BaseException], None]) -> None:
        """Copy what others append. `on_frame` is called on the loop's thread when a frame is mirrored.

        While the remote store does not answer it keeps retrying, and `trouble` says so. `on_problem` gets the error
        that ends it: LogCorrupt, LogGap (the front was dropped faster than it was read: reopen), or an error of the
        local disk.
        """
        assert self._following is None and self._pending is None and not self._closed
        self._following = self._spawn(self._follow(on_frame, on_problem))

    async def catch_up(self, on_frame: OnFrame) -> None:
        """Stop following and read on to the end, as the first step to becoming the owner.

        `on_frame` is called on another thread, and errors are as with `open`.
        """
        if self._following is not None:
            await end(self._following)
            self._following = None
        intake = self._intake
        bounds = await intake.compare(self._files)
        await intake.read_to(bounds.next, on_frame)

    async def _follow(self, on_frame: OnFrame, on_problem: Callable[[BaseException], None]) -> None:
        tries = 0
        while True:
            reading = self._backend.tail(self._files.next)
            try:
                taken_bytes = 0
                async for entries in reading:
                    self._intake.take_in(entries, on_frame)
                    tries = 0
                    self._set_trouble(None)
                    taken_bytes += sum(len(entry.data) for entry in entries)
                    if taken_bytes > YIELD_BYTES:
                        taken_bytes = 0
                        await asyncio.sleep(0)
            except Unreachable as problem:
                self._set_trouble(problem)
            except Exception as problem:
                if not self._closed:
                    self._failed = problem
                    on_problem(problem)
                return
            finally:
                await reading.aclose()
            await asyncio.sleep(self._settings.pauses.after(tries))
            tries += 1

    # --- appending ------------------------------------------------------------------------------

    def append(self, frame: Frame, done: Done, *, in_thread: bool = False) -> None:
        assert self._following is None, "a follower does not append"
        if self._pending is not None:
            raise AssertionError("one append at a time")
        files = self._files
        if frame.number != files.next or frame.previous_digest != files.tail_digest:
            raise AssertionError(f"frame {frame.number} does not follow frame {files.next - 1}")
        if self._failed is not None or self._closed:
            done(LogError(f"the log of shard {self.shard} accepts nothing more until it is reopened: {self._failed}"))
            return
        if frame.epoch < files.tail_epoch:
            done(Fenced(f"epoch {frame.epoch} has ended: the log of shard {self.shard} is at epoch {files.tail_epoch}"))
            return
        self._pending = (frame, done)
        if not self._finishing:
            self._appending = self._spawn(self._append())

    async def _append(self) -> None:
        """Append the pending frame, and the next one as soon as that is done, so that the remote store never waits."""
        while self._pending is not None:
            frame, _ = self._pending
            error: BaseException | None = None
            try:
                await fencing.commit(
                    self._backend, frame, self._files.tail_epoch, self._settings.pauses, self._set_trouble
                )
                self._intake.mirror_frame(frame)
            except Exception as problem:
                error = problem
            self._finishing = True
            try:
                self._finish(error)
            finally:
                self._finishing = False

    def _set_trouble(self, problem: BatonError | None) -> None:
        self.trouble = "" if problem is None else problem.message
        self.leaderless = isinstance(problem, Leaderless)

    def _finish(self, error: BaseException | None) -> None:
        if self._pending is None:
            return  # closed in the meantime
        _, done = self._pending
        self._pending = None
        self._set_trouble(None)
        if error is not None:
            self._failed = error
        done(error)

    def note(self) -> None:
        self._files.note()

    # --- reading: the mirror's ------------------------------------------------------------------

    @property
    def first(self) -> int:
        return self._files.first

    @property
    def next(self) -> int:
        return self._files.next

    @property
    def tail_digest(self) -> bytes:
        return self._files.tail_digest

    @property
    def tail_epoch(self) -> int:
        return self._files.tail_epoch

    @property
    def frame_bytes_max(self) -> int:
        return self._backend.frame_bytes_max

    def frames(self, start: int, stop: int | None = None) -> Iterator[Frame]:
        return self._frames(self._files.frames(start, stop))

    def _frames(self, reading: Iterator[Frame]) -> Iterator[Frame]:
        try:
            yield from reading
        except Damage as damage:
            raise self._damaged(damage) from None

    def read_variable(self, position: int, offset: int, length: int) -> bytes:
        try:
            return self._files.read_variable(position, offset, length)
        except Damage as damage:
            raise self._damaged(damage) from None

    def section(self, number: int) -> bytes | None:
        try:
            return self._files.section(number)
        except Damage as damage:
            raise self._damaged(damage) from None

    def frame(self, number: int) -> Frame:
        try:
            return self._files.frame(number)
        except Damage as damage:
            raise self._damaged(damage) from None

    def is_cold(self, number: int) -> bool:
        return self._files.is_cold(number)

    def warm(self, numbers: Sequence[int]) -> None:
        self._files.warm(numbers)

    def piece(self, start: int, bytes_max: int, frames_max: int = 1 << 32) -> Piece:
        return self._files.piece(start, bytes_max, frames_max)

    def _damaged(self, damage: Damage) -> MirrorDamaged:
        """The remote store has the data; the log has to be reopened to fetch it."""
        self._mirror.mark_damaged()
        problem = MirrorDamaged(
            f"{damage.path}, offset {damage.offset}: {damage.what}. This is a mirror: it is rebuilt when the "
            "log is reopened."
        )
        self._failed = problem
        return problem

    # --- room, retention, housekeeping ----------------------------------------------------------

    def room(self) -> Room:
        return max(self._files.room(), self._room, key=_ROOMS.index)

    def bytes_retained(self) -> int:
        return self._files.bytes_retained()

    def segments(self) -> list[SegmentInfo]:
        return self._files.segments()

    def droppable(self, before: int) -> int:
        return self._files.droppable(before)

    def drop_front(self, before: int) -> None:
        self._files.drop_front(before)
        self._start_upkeep()

    def tick(self) -> None:
        self._files.tick()
        if self._loop.time() - self._looked_s >= self._settings.look_s or self._files.first > self._dropped:
            self._start_upkeep()

    def _start_upkeep(self) -> None:
        if self._upkeep is None and not self._closed:
            self._upkeep = self._spawn(self._keep_up())

    async def _keep_up(self) -> None:
        """Drop the remote front after the mirror's, or a follower's after the remote one, and check the free space.

        This is safe whoever drops, and whenever: live messages in the front were carried forward before.
        """
        self._looked_s = self._loop.time()
        try:
            while self._following is None and self._files.first > self._dropped:
                first = self._files.first
                await self._backend.drop_front(first)
                self._dropped = first
            bounds = await self._backend.bounds()
            self._room, self.replica_lags = bounds.room, bounds.replica_lags
            if self._following is not None and bounds.first > self._files.first:
                self._files.drop_front(bounds.first)
        except BatonError as problem:  # the next tick retries; an append will report a serious error
            if not self.trouble:
                self._set_trouble(problem)
        finally:
            self._upkeep = None

    def _spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        return self._loop.create_task(work)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        tasks = [task for task in (self._appending, self._following, self._upkeep) if task is not None]
        for task in tasks:
            task.cancel()
        if self._intake.opened:
            self._intake.files.close()
        self._closing = self._spawn(self._close(tasks))
        if self._pending is not None:
            _, done = self._pending
            self._pending = None
            done(LogError("the log was closed while an append was in progress: it may or may not be stored"))

    async def _close(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        await end(*tasks)
        await self._backend.close()

    async def wait_closed(self) -> None:
        """Wait for the network part of `close`."""
        if self._closing is not None:
            await self._closing
