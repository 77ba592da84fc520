"""Opens a shard, at start and after each failure: replays snapshot and log, then takes ownership.

The newest valid snapshot saves reading the log from its beginning. Every frame after the snapshot is read once, checked
and replayed. The new owner's first record is its epoch, with the time base and the grace that running leases get for
the outage.
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
from batonq.log.file_log import FileLogSettings
from batonq.log.frames import Frame
from batonq.log.interface import Log
from batonq.log.opening import Start
from batonq.log.snapshots import Snapshot, SnapshotStore
from batonq.node import events
from batonq.node.clock import Clock
from batonq.node.settings import Settings
from batonq.node.shard_host.keeper import Opened
from batonq.node.shard_host.log_stores import Logs

T = TypeVar("T")


class LogReplay:
    """Folds frames into a shard, or into the catalog, in the order of the log."""

    def __init__(self, machine: Shard | Catalog, from_snapshot: bool = False) -> None:
        self.machine = machine
        self.frames = 0
        self._fresh = not from_snapshot

    def __call__(self, frame: Frame) -> None:
        if self._fresh:
            self._fresh = False
            if frame.number > 1 and isinstance(self.machine, Shard):
                # The front of the log was dropped. Its living messages are Carried further on, and a Base has the rest.
                self.machine.before_base = frame.number
        self.machine.apply_frame(frame.number, frame.words(), frame.variable)
        self.frames += 1

    def finish(self, log: Log) -> None:
        """Make the machine ready to continue at the end of the log, after the whole log was read. Raises LogCorrupt."""
        if self.machine.before_base:
            raise LogCorrupt(
                f"the beginning of the log of shard {log.shard} is missing, and no Base record replaces it"
            )
        self.machine.begin_frame(log.next)


def take_ownership(machine: Shard | Catalog, log: Log, epoch: int, clock: Clock, grace_max_ms: int, dev: bool) -> int:
    """Write the record of a new owner into the open frame. Returns how long the shard had no owner, in milliseconds."""
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
    """Opens a node's logs, and replays them."""

    def __init__(
        self,
        *,
        settings: Settings,
        logs: Logs,
        clock: Clock,
        disk: Disk | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        log_settings: FileLogSettings | None = None,
        adapt_log: Callable[[Log], Log] | None = None,
    ) -> None:
        self._settings = settings
        self._logs = logs
        self._clock = clock
        self._disk = disk
        self._loop = loop  # None: everything on the calling thread, as the simulator needs it
        self._log_settings = log_settings or FileLogSettings(segment_bytes=settings.segment_bytes)
        self._adapt_log = adapt_log or _as_it_is

    async def open_shard(self, number: int) -> Opened:
        opened = await self.read_shard(number)
        try:
            await self._own(opened.shard, opened.log, opened)
        except BaseException:
            opened.log.close()
            raise
        return opened

    async def open_catalog(self, rules: Rules) -> tuple[Catalog, Log]:
        catalog, log = await self.read_catalog(rules)
        try:
            await self._own(catalog, log, None)
        except BaseException:
            log.close()
            raise
        return catalog, log

    async def read_catalog(self, rules: Rules) -> tuple[Catalog, Log]:
        """Fold the catalog's log to its end, without taking ownership."""
        catalog = Catalog(rules)
        replay = LogReplay(catalog)
        settings = FileLogSettings(
            segment_bytes=min(self._log_settings.segment_bytes, self._settings.catalog_segment_bytes),
            free_floor_bytes=self._log_settings.free_floor_bytes,
            background=self._log_settings.background,
        )
        return catalog, await self._open(layout.CATALOG_SHARD, settings, None, replay)

    async def _own(self, machine: Shard | Catalog, log: Log, opened: Opened | None) -> None:
        await self._logs.ownership.release(log.shard)
        epoch = await self._logs.ownership.acquire(log.shard, log.tail_epoch)
        grace_max_ms = int(self._settings.grace_max_s * 1000)
        outage_ms = take_ownership(machine, log, epoch, self._clock, grace_max_ms, self._settings.dev)
        if opened is not None:
            opened.outage_ms = outage_ms

    async def _apart(self, work: Callable[[], T]) -> T:
        if self._loop is None:
            return work()
        return await self._loop.run_in_executor(None, work)

    async def read_shard(self, number: int) -> Opened:
        """Fold a shard's log to its end, without taking ownership."""
        store = snapshot_store(self._settings.data, number, self._disk)
        snapshot = await self._apart(store.latest)
        for problem in store.passed_over:
            events.warning("snapshot_passed_over", f"A snapshot cannot be used: {problem}", shard=number)
        try:
            return await self._replay_shard(number, snapshot)
        except LogGap as gap:
            # The log was truncated past the snapshot, or past a mirror. The log alone rebuilds the state.
            events.info("folding_anew", gap.message, shard=number)
            return await self._replay_shard(number, None)

    async def _replay_shard(self, number: int, snapshot: Snapshot | None) -> Opened:
        shard = Shard(number, self._settings.shard_limits)
        frame_number = 0
        start = None
        if snapshot is not None:
            frame_number, start = snapshot.frame_number, snapshot.start
            sections = snapshot.sections
            await self._apart(lambda: shard.load(sections))
            sections.clear()
        replay = LogReplay(shard, snapshot is not None)
        log = await self._open(number, self._log_settings, start, replay)
        return Opened(shard, log, frames_folded=replay.frames, snapshot_frame=frame_number)

    async def _open(self, shard: int, settings: FileLogSettings, start: Start | None, replay: LogReplay) -> Log:
        log = await self._logs.open(shard, settings, start, replay)
        try:
            replay.finish(log)
        except BaseException:
            log.close()
            raise
        return self._adapt_log(log)


def replay_log(shard: Shard, log: Log) -> int:
    """Fold a whole log that is already open (in memory, or of a simulator). Returns its number of frames."""
    replay = LogReplay(shard)
    for frame in log.frames(log.first):
        replay(frame)
    replay.finish(log)
    return replay.frames


def _as_it_is(log: Log) -> Log:
    return log
