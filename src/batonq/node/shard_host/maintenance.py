"""A node's background work: spare segments, deleted queues, truncation of logs, snapshots, receipt keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from batonq.core.catalog.machine import Catalog
from batonq.errors import BatonError
from batonq.log.interface import Room
from batonq.node import events
from batonq.node.alarms.book import AlarmBook
from batonq.node.backup.front_holds import FrontHolds
from batonq.node.catalog.catalog_host import CatalogHost
from batonq.node.clock import Clock
from batonq.node.messages.group_reading import GroupPort, hand_over_groups
from batonq.node.messages.receipts import Receipts
from batonq.node.schedules.schedule_actions import Adopter, move_schedules
from batonq.node.settings import Settings
from batonq.node.shard_host.archiving import Archiving
from batonq.node.shard_host.host import ShardHost, committed
from batonq.node.shard_host.keeper import KeeperState, ShardKeeper
from batonq.node.shard_host.snapshot_schedule import SnapshotSchedule
from batonq.node.shard_host.truncation import Truncation

RECEIPT_KEY_BYTES = 32


class Successor(Adopter, GroupPort, Protocol):
    """A shard that takes over what a queue has on a shard that it leaves."""


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
        alarms: AlarmBook,
        random_bytes: Callable[[int], bytes],
        snapshots: SnapshotSchedule,
        archiving: Archiving | None = None,
        holds: FrontHolds | None = None,
        port: Callable[[int], Successor] | None = None,
    ) -> None:
        self._archiving = archiving
        self._holds = holds
        self._port = port  # for schedules and reader groups that have to move to another shard
        self._settings = settings
        self._clock = clock
        self._shards = shards
        self._catalog = catalog
        self._receipts = receipts
        self._alarms = alarms
        self._random_bytes = random_bytes
        self._snapshots = snapshots
        self._truncations: dict[int, Truncation] = {}  # of the shards that are served here
        self._emptied: dict[tuple[int, int], int] = {}  # (queue, shard) → since when the shard has no moved group left

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._settings.maintenance_every_s)
                await self.step()
        finally:
            await self._snapshots.close()
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
                    # A restarted follower has to read all log that no snapshot covers.
                    self._snapshots.consider(keeper.number, *keeper.reading())
            except BatonError as problem:
                text = f"Maintenance of shard {keeper.number} failed: {problem.message}"
                events.warning("maintenance_failed", text, shard=keeper.number)

    async def _step_shard(self, number: int, host: ShardHost) -> None:
        truncation = self._truncations.get(number)
        if truncation is None or truncation.host is not host:
            truncation = Truncation(host, self._clock, self._settings, self._archiving, self._holds)
            self._truncations[number] = truncation
        host.log.tick()
        self._watch_room(number, host)
        await self._purge_closed(host)
        if self._port is not None and host.shard.schedules:
            await move_schedules(host, self._port)
        await self._settle_growth(number, host)
        if self._archiving is not None:
            self._archiving.step(number, host.log)
        if self._snapshots.reads(number):
            return
        freed = await truncation.run()
        if freed:
            events.info("log_shortened", f"Shard {number} deleted {freed} bytes of old log", shard=number, bytes=freed)
        self._snapshots.consider(number, host.shard, host.log)

    def _watch_room(self, number: int, host: ShardHost) -> None:
        if host.log.room() is Room.PLENTY:
            self._alarms.clear("disk-full", number)
        else:
            text = f"The disk of shard {number} is full: sends are refused. Free disk space, or delete messages."
            self._alarms.put("disk-full", text, of=number)

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
            if host.shard.holds_moved(queue, host.now_ms()):
                self._emptied.pop((queue, number), None)
                continue
            since_ms = self._emptied.setdefault((queue, number), now_ms)
            hours = max(self._settings.idempotency_hours, self._settings.producer_idle_hours)
            if now_ms - since_ms >= max(entry.policy.dedup_window_ms, hours * 3_600_000):
                if self._port is not None and number not in entry.spread.taking:
                    await hand_over_groups(host, queue, [self._port(shard) for shard in entry.spread.taking])
                await self._catalog.change(Catalog.settle_spread, queue, number)

    async def _purge_closed(self, host: ShardHost) -> None:
        """Remove what is left of deleted queues, a bounded number of messages at a time."""
        for queue in host.shard.closing():
            done = False
            while not done and host.serving:
                state = host.shard.queues.get(queue)
                if state is None or (state.messages and state.messages == state.owed):
                    break  # messages on their way to another shard are removed when they are settled
                removed, done = host.purge(queue, None)
                if state.policy.topic and removed:
                    text = f"Topic {state.policy.name} was deleted with {removed} copies that waited for their queue"
                    events.info("copies_dropped", text, topic=state.policy.name, copies=removed)
                await committed(host)

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
