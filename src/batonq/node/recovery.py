"""Opening a shard: snapshot and log into state, then ownership. What a node does at start and after each failure.

The newest snapshot that checks saves reading the log from its beginning; every frame after it is read once, checked
and folded on the way. The new owner's first record is its epoch, with the time base and the grace that running leases
get for the outage.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TypeVar

from batonq.core.catalog.machine import Catalog, Rules
from batonq.core.shard.machine import Shard
from batonq.errors import LogCorrupt, LogGap
from batonq.log import layout
from batonq.log.disk import Disk
from batonq.log.files import FileLog, FileLogSettings
from batonq.log.frames import Frame
from batonq.log.interface import Log, Ownership
from batonq.log.snapshots import Snapshot, SnapshotStore
from batonq.node import events
from batonq.node.clock import Clock
from batonq.node.keeper import Opened
from batonq.node.settings import Settings

T = TypeVar("T")


class Folder:
    """Folds frames into a shard, or the catalog, in the order in which a log gives them."""

    def __init__(self, machine: Shard | Catalog, from_snapshot: bool = False) -> None:
        self.machine = machine
        self.frames = 0
        self._fresh = not from_snapshot

    def __call__(self, frame: Frame) -> None:
        if self._fresh:
            self._fresh = False
            if frame.number > 1 and isinstance(self.machine, Shard):
                # The front was dropped: what lived in it is Carried further on, and a Base says the rest.
                self.machine.before_base = frame.number
        self.machine.apply_frame(frame.number, frame.words(), frame.variable)
        self.frames += 1

    def finish(self, log: Log) -> None:
        """The log is read to its end; make the machine ready to go on there. Raises LogCorrupt."""
        if self.machine.before_base:
            raise LogCorrupt(
                f"the front of the log of shard {log.shard} is gone, and no Base follows that says what was in it"
            )
        self.machine.begin_frame(log.next)


def take_ownership(machine: Shard | Catalog, log: Log, epoch: int, clock: Clock, grace_max_ms: int, dev: bool) -> int:
    """Write the record of a new owner into the open frame; returns how long the shard was without one, in ms."""
    last_ms = machine.last_time_ms
    clock.raise_to(last_ms, keep_lead=dev)
    base_ms = clock.now_ms()
    outage_ms = max(0, base_ms - last_ms) if log.next > 1 else 0
    machine.take_ownership(max(epoch, log.tail_epoch + 1, machine.epoch + 1), base_ms, min(outage_ms, grace_max_ms))
    return outage_ms


def snapshot_store(data_directory: str, shard: int, disk: Disk | None = None) -> SnapshotStore:
    directory = os.path.join(layout.log_directory(data_directory, shard), layout.SNAPSHOTS)
    return SnapshotStore(directory, shard=shard, disk=disk)


class Recovery:
    """Opens the logs of one data directory. Reading is done apart from the loop when `run_apart` says how."""

    def __init__(
        self,
        *,
        settings: Settings,
        ownership: Ownership,
        cluster: int,
        clock: Clock,
        wall_ms: Callable[[], int],
        disk: Disk | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        log_settings: FileLogSettings | None = None,
        adapt_log: Callable[[Log], Log] | None = None,
    ) -> None:
        self._settings = settings
        self._ownership = ownership
        self._cluster = cluster
        self._clock = clock
        self._wall_ms = wall_ms
        self._disk = disk
        self._loop = loop  # None: everything on the calling thread, as the simulator wants it
        self._log_settings = log_settings or FileLogSettings(segment_bytes=settings.segment_bytes)
        self._adapt_log = adapt_log or _as_it_is

    async def open_shard(self, number: int) -> Opened:
        opened = await self._apart(lambda: self._read_shard(number))
        try:
            await self._own(opened.shard, opened.log, opened)
        except BaseException:
            opened.log.close()
            raise
        return opened

    async def open_catalog(self, rules: Rules) -> tuple[Catalog, Log]:
        catalog, log = await self._apart(lambda: self._read_catalog(rules))
        try:
            await self._own(catalog, log, None)
        except BaseException:
            log.close()
            raise
        return catalog, log

    async def _own(self, machine: Shard | Catalog, log: Log, opened: Opened | None) -> None:
        await self._ownership.release(log.shard)
        epoch = await self._ownership.acquire(log.shard, log.tail_epoch)
        grace_max_ms = int(self._settings.grace_max_s * 1000)
        outage_ms = take_ownership(machine, log, epoch, self._clock, grace_max_ms, self._settings.dev)
        if opened is not None:
            opened.outage_ms = outage_ms

    async def _apart(self, work: Callable[[], T]) -> T:
        if self._loop is None:
            return work()
        return await self._loop.run_in_executor(None, work)

    def _read_shard(self, number: int) -> Opened:
        store = snapshot_store(self._settings.data, number, self._disk)
        snapshot = store.latest()
        for problem in store.passed_over:
            events.warning("snapshot_passed_over", f"A snapshot cannot be used: {problem}", shard=number)
        try:
            return self._fold_shard(number, snapshot)
        except LogGap:
            if snapshot is None:
                raise
            # The log was shortened past the snapshot; the log alone rebuilds the state.
            return self._fold_shard(number, None)

    def _fold_shard(self, number: int, snapshot: Snapshot | None) -> Opened:
        shard = Shard(number)
        frame_number = 0
        start = None
        if snapshot is not None:
            shard.load(snapshot.sections)
            frame_number, start = snapshot.frame_number, snapshot.start
            snapshot.sections.clear()
        folder = Folder(shard, snapshot is not None)
        log = FileLog.open(
            layout.log_directory(self._settings.data, number),
            shard=number,
            cluster=self._cluster,
            settings=self._log_settings,
            disk=self._disk,
            start=start,
            on_frame=folder,
            call_soon=self._loop.call_soon_threadsafe if self._loop is not None else None,
            now_ms=self._wall_ms,
        )
        self._finish(folder, log)
        return Opened(shard, self._adapt_log(log), frames_folded=folder.frames, snapshot_frame=frame_number)

    def _read_catalog(self, rules: Rules) -> tuple[Catalog, Log]:
        catalog = Catalog(rules)
        folder = Folder(catalog)
        log = FileLog.open(
            layout.log_directory(self._settings.data, layout.CATALOG_SHARD),
            shard=layout.CATALOG_SHARD,
            cluster=self._cluster,
            settings=FileLogSettings(
                segment_bytes=min(self._log_settings.segment_bytes, self._settings.catalog_segment_bytes),
                free_floor_bytes=self._log_settings.free_floor_bytes,
                background=self._log_settings.background,
            ),
            disk=self._disk,
            on_frame=folder,
            call_soon=self._loop.call_soon_threadsafe if self._loop is not None else None,
            now_ms=self._wall_ms,
        )
        self._finish(folder, log)
        return catalog, self._adapt_log(log)

    def _finish(self, folder: Folder, log: FileLog) -> None:
        try:
            folder.finish(log)
        except BaseException:
            log.close()
            raise
        if log.torn is not None:
            kept = f"; its bytes are kept in {log.torn.kept_in}" if log.torn.kept_in else ""
            events.warning(
                "torn_write",
                f"A write that a crash cut short was never answered for and has been cut off ({log.torn.what}){kept}",
                shard=log.shard,
                frame=log.torn.number,
                path=log.torn.path,
            )


def fold_log(shard: Shard, log: Log) -> int:
    """Fold a whole log that is open already (in memory, or of a simulator); returns how many frames it has."""
    folder = Folder(shard)
    for frame in log.frames(log.first):
        folder(frame)
    folder.finish(log)
    return folder.frames


def _as_it_is(log: Log) -> Log:
    return log
