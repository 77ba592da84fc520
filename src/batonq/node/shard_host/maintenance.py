"""A node's background work: spare segments, deleted queues, truncation of logs, snapshots, receipt keys."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from batonq.core.catalog.machine import Catalog
from batonq.core.shard.machine import Shard
from batonq.errors import BatonError
from batonq.log.disk import Disk
from batonq.log.interface import Log, Room
from batonq.node import events
from batonq.node.catalog.catalog_host import CatalogHost
from batonq.node.clock import Clock
from batonq.node.events import AlarmBoard
from batonq.node.messages.receipts import Receipts
from batonq.node.settings import Settings
from batonq.node.shard_host.archiving import Archiving
from batonq.node.shard_host.host import ShardHost
from batonq.node.shard_host.keeper import KeeperState, ShardKeeper
from batonq.node.shard_host.recovery import snapshot_store
from batonq.node.shard_host.snapshots import NOTHING_NEW
from batonq.node.shard_host.truncation import Truncation

RECEIPT_KEY_BYTES = 32
ERROR_TEXT_MAX = 500
TIMEOUT_S = 3_600
SNAPSHOT_SHARE = 20  # up to this many living messages per frame, a snapshot is faster to read and write than the frames

MakeSnapshot = Callable[[int], Awaitable[None]]  # makes a snapshot of a shard; reports its own errors


@dataclass(slots=True)
class _Standing:
    """The progress of one shard's maintenance."""

    log: Log
    snapshot_frame: int  # of the newest snapshot; a failed snapshot is retried after as much more log
    since_s: float  # when that was, or when the log was opened
    truncation: Truncation | None = None  # only for a shard that is served here


class Maintenance:
    """One task for all shards: the work is rare, and doing one thing at a time spares the disk."""

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        shards: Sequence[ShardKeeper],
        catalog: CatalogHost,
        receipts: Receipts,
        alarms: AlarmBoard,
        random_bytes: Callable[[int], bytes],
        make_snapshot: MakeSnapshot | None,
        disk: Disk | None = None,
        archiving: Archiving | None = None,
    ) -> None:
        self._archiving = archiving
        self._settings = settings
        self._clock = clock
        self._shards = shards
        self._catalog = catalog
        self._receipts = receipts
        self._alarms = alarms
        self._random_bytes = random_bytes
        self._make_snapshot = make_snapshot
        self._disk = disk
        self._standings: dict[int, _Standing] = {}
        self._emptied: dict[tuple[int, int], int] = {}  # (queue, shard) → since when the shard has no moved group left
        self._snapshot: asyncio.Task[None] | None = None  # one at a time
        self._snapshot_of = -1

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._settings.maintenance_every_s)
                await self.step()
        finally:
            if self._snapshot is not None:
                self._snapshot.cancel()
                await asyncio.gather(self._snapshot, return_exceptions=True)
            if self._archiving is not None:
                await self._archiving.close()

    async def step(self) -> None:
        """Do what is due, once."""
        try:
            await self._catalog.maintain()
            await self.rotate_receipt_key()
        except BatonError as problem:
            events.warning("maintenance_failed", f"Maintenance of the catalog failed: {problem.message}")
        for keeper in self._shards:
            try:
                if keeper.serving:
                    await self._step_shard(keeper.number, keeper.host())
                elif keeper.state is KeeperState.FOLLOWING:
                    self._step_follower(keeper.number, *keeper.reading())
            except BatonError as problem:
                text = f"Maintenance of shard {keeper.number} failed: {problem.message}"
                events.warning("maintenance_failed", text, shard=keeper.number)

    def reads(self, number: int) -> bool:
        """Whether a snapshot of this shard is in progress. It reads segments, which must not be deleted meanwhile."""
        if self._snapshot is not None and self._snapshot.done():
            self._snapshot = None
        return self._snapshot is not None and self._snapshot_of == number

    def _standing(self, number: int, log: Log) -> _Standing:
        standing = self._standings.get(number)
        if standing is None or standing.log is not log:
            numbers = snapshot_store(self._settings.data, number, self._disk).numbers()
            frame_number = numbers[-1] if numbers else 0
            standing = self._standings[number] = _Standing(log, frame_number, self._clock.monotonic())
        return standing

    def _step_follower(self, number: int, shard: Shard, log: Log) -> None:
        """Maintain a shard that this node follows: a restarted follower has to read all log that no snapshot covers."""
        if not self.reads(number):
            self._consider_snapshot(number, shard, self._standing(number, log))

    async def _step_shard(self, number: int, host: ShardHost) -> None:
        standing = self._standing(number, host.log)
        if standing.truncation is None or standing.truncation.host is not host:
            standing.truncation = Truncation(host, self._clock, self._settings, self._archiving)
        host.log.tick()
        self._watch_room(number, host)
        await self._purge_closed(host)
        await self._settle_growth(number, host)
        if self._archiving is not None:
            self._archiving.step(number, host.log)
        if self.reads(number):
            return
        freed = await standing.truncation.run()
        if freed:
            events.info("log_shortened", f"Shard {number} deleted {freed} bytes of old log", shard=number, bytes=freed)
        self._consider_snapshot(number, host.shard, standing)

    def _watch_room(self, number: int, host: ShardHost) -> None:
        key = f"disk-full-{number}"
        if host.log.room() is Room.PLENTY:
            self._alarms.clear(key)
        else:
            text = f"The disk of shard {number} is full: sends are refused. Free disk space, or delete messages."
            self._alarms.put(key, text, severity="critical")

    async def _settle_growth(self, number: int, host: ShardHost) -> None:
        """Record, for FIFO queues that have grown, that this shard need no longer be asked about its former groups.

        That is so when the shard has no messages of those groups, and what it remembers about them has expired.
        """
        catalog = self._catalog.current()
        now_ms = self._clock.now_ms()
        self._emptied = {key: since for key, since in self._emptied.items() if key[0] in catalog.growing}
        for queue in sorted(catalog.growing):
            entry = catalog.queues[queue]
            state = host.shard.queues.get(queue)
            if (
                state is None
                or state.policy.version < entry.policy_version
                or entry.spread.settled(number) == entry.spread
            ):
                continue
            if host.shard.holds_moved(queue):
                self._emptied.pop((queue, number), None)
                continue
            since_ms = self._emptied.setdefault((queue, number), now_ms)
            hours = max(self._settings.idempotency_hours, self._settings.producer_idle_hours)
            if now_ms - since_ms >= max(entry.policy.dedup_window_ms, hours * 3_600_000):
                await self._catalog.change(Catalog.settle_spread, queue, number)

    async def _purge_closed(self, host: ShardHost) -> None:
        """Remove what is left of deleted queues, a bounded number of messages at a time."""
        for queue in host.shard.closing():
            done = False
            while not done and host.serving:
                state = host.shard.queues.get(queue)
                if state is None or (state.messages and state.messages == state.owed):
                    break  # messages on their way to another shard are removed when they are settled
                _, done = host.purge(queue, None)
                point = host.point()
                if point is not None:
                    await point

    def _consider_snapshot(self, number: int, shard: Shard, standing: _Standing) -> None:
        """Start a snapshot when it is due.

        The time to read a log grows with its bytes, and with its frames when they are short.
        """
        if self._make_snapshot is None or self._snapshot is not None:
            return
        log, last = standing.log, standing.snapshot_frame
        sealed = sum(segment.bytes for segment in log.segments() if segment.sealed and segment.stop - 1 > last)
        frames = log.next - 1 - last
        if sealed < self._settings.snapshot_bytes:
            if frames < self._settings.snapshot_frames:
                return
            if self._clock.monotonic() - standing.since_s < self._settings.snapshot_every_s:
                return
            if frames * SNAPSHOT_SHARE < sum(queue.messages for queue in shard.queues.values()):
                return
        log.note()
        self._snapshot_of = number
        work = self._make_one(self._make_snapshot, number, standing, log.next - 1)
        self._snapshot = asyncio.get_running_loop().create_task(work)

    async def _make_one(self, make: MakeSnapshot, number: int, standing: _Standing, frame_number: int) -> None:
        await make(number)
        standing.snapshot_frame = frame_number
        standing.since_s = self._clock.monotonic()

    async def rotate_receipt_key(self) -> None:
        """Start using a new receipt key when it is time, and keep the keys in use equal to the catalog's."""
        if not self._catalog.owned:
            return
        catalog = self._catalog.current()
        rotation_ms = int(self._settings.key_rotation_hours * 3_600_000)
        if self._clock.now_ms() >= catalog.receipt_key_due_ms(rotation_ms):
            key = self._random_bytes(RECEIPT_KEY_BYTES)
            await self._catalog.change(Catalog.rotate_receipt_key, key)
            self._receipts.set_keys(self._catalog.current().receipt_keys.values())


class SnapshotProcess:
    """Makes snapshots in a child process, one at a time."""

    def __init__(self, data_directory: str) -> None:
        self._data_directory = os.path.abspath(data_directory)

    async def make(self, shard: int) -> None:
        paths = [path for path in sys.path if path]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "batonq.node.shard_host.snapshots",
            self._data_directory,
            str(shard),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        try:
            _, said = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()
            said = f"it took longer than {TIMEOUT_S} s".encode()
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        if process.returncode not in (0, NOTHING_NEW):
            text = said.decode(errors="replace").strip()[-ERROR_TEXT_MAX:]
            events.warning("snapshot_failed", f"The snapshot of shard {shard} failed: {text}", shard=shard)
