"""A node: builds everything that serves one data directory, in one place.

What the node needs from outside (time, randomness, disk, threads) comes from `World`, so that a simulator can replace
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from batonq.core.catalog.entries import QueueEntry
from batonq.core.catalog.machine import Catalog, Rules
from batonq.core.shard.machine import Shard
from batonq.errors import BatonError, InvalidInput, Unavailable
from batonq.log.backend import LogStore
from batonq.log.cancellation import end
from batonq.log.disk import Disk
from batonq.log.file_log import FileLogSettings
from batonq.log.interface import Log, Ownership
from batonq.log.layout import CATALOG_SHARD
from batonq.log.ownership import LockFileOwnership, MirrorDirectory
from batonq.log.replicated_log import MirroredLog
from batonq.log.stores import open_store
from batonq.node import events
from batonq.node.alarms.book import AlarmBook
from batonq.node.alarms.desk import ALONE, AlarmDesk, OwnershipFacts
from batonq.node.alarms.store import AlarmStore
from batonq.node.alarms.webhooks import Webhooks
from batonq.node.backup.backups import Backups
from batonq.node.backup.front_holds import FrontHolds
from batonq.node.broker import Broker
from batonq.node.catalog.catalog_host import CatalogHost, Changes
from batonq.node.clock import Clock
from batonq.node.context import NodeContext
from batonq.node.messages.large_payloads import LargePayloads
from batonq.node.messages.payload_sweeper import PayloadSweeper
from batonq.node.messages.receipts import Receipts
from batonq.node.monitoring import cluster_view, metrics
from batonq.node.monitoring.cluster_view import ClusterView, Told
from batonq.node.monitoring.everywhere import Everywhere
from batonq.node.monitoring.exposition import Families, joined, label, many
from batonq.node.monitoring.monitor import ServerMonitor
from batonq.node.monitoring.node_metrics import NodeMetrics
from batonq.node.monitoring.overview import Overview, OverviewReader
from batonq.node.monitoring.process import LagMeter, watch_garbage
from batonq.node.monitoring.queue_listing import QueueLister
from batonq.node.monitoring.sampler import Sampler, SeriesKeeper
from batonq.node.monitoring.series_file import SeriesFile
from batonq.node.monitoring.series_reader import SeriesReader
from batonq.node.monitoring.topic_metrics import topic_metrics
from batonq.node.monitoring.tracing import BrokerTracing, export_to
from batonq.node.operations.admin_token import load_or_make_token
from batonq.node.routing.channels import Channels, PortTransport, Transport
from batonq.node.routing.ports import Route
from batonq.node.settings import Settings
from batonq.node.shard_host.archiving import Archiving
from batonq.node.shard_host.keeper import ShardKeeper
from batonq.node.shard_host.log_stores import DirectoryLogs, Logs, StoreLogs
from batonq.node.shard_host.maintenance import Maintenance
from batonq.node.shard_host.ownership_leases import LeaseKeeper
from batonq.node.shard_host.recovery import Recovery, snapshot_store
from batonq.node.shard_host.snapshot_schedule import MakeSnapshot, SnapshotProcess, SnapshotSchedule
from batonq.payload_store import PayloadStore


class DirectoryOwnership(Ownership, Protocol):
    """Ownership of a whole data directory, as the lock file provides it."""

    @property
    def cluster(self) -> int: ...
    def take(self) -> None: ...
    def set_address(self, address: str) -> None: ...
    def close(self) -> None: ...


@dataclass(slots=True, frozen=True)
class World:
    """Time, randomness and disk, as the operating system provides them."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    random_bytes: Callable[[int], bytes] = secrets.token_bytes
    disk: Disk | None = None  # None: the real disk
    ownership: Callable[[str], DirectoryOwnership] = LockFileOwnership
    mirror_ownership: Callable[[str, int, str], DirectoryOwnership] = MirrorDirectory
    threads: bool = True  # False: nothing runs beside the event loop
    log_settings: FileLogSettings | None = None
    adapt_log: Callable[[Log], Log] | None = None  # wraps each log that is opened
    adapt_transport: Callable[[Transport], Transport] | None = None  # and the transport between shards
    make_snapshot: MakeSnapshot | None = None  # None: in a child process, if that is allowed


class Node:
    """`start` opens everything, and `stop` closes it cleanly. The front doors call `broker`."""

    process_label = ""  # the label that tells the processes of a server apart in metrics
    in_cluster = False

    def __init__(self, settings: Settings, world: World | None = None) -> None:
        settings.check()
        self.settings = settings
        self.world = world or World()
        self.clock = Clock(self.world.monotonic, self.world.wall)
        self.alarms = AlarmBook(self.clock.now_ms, settings.alarms_max, settings.member_name)
        self.ownership: DirectoryOwnership = self.world.ownership(settings.data)
        self.receipts = Receipts()
        self.front_holds = FrontHolds(self.world.monotonic)
        self.backups: Backups
        self._archiving = Archiving(settings, self.alarms, self.clock.now_ms) if settings.archive else None
        self.shards: list[ShardKeeper] = []
        self.catalog: CatalogHost
        self.broker: Broker
        self.maintenance: Maintenance
        self.started = False
        self.stopping = False
        self._loop: asyncio.AbstractEventLoop
        self._logs: Logs
        self._keeping_leases: asyncio.Task[None] | None = None
        self._recovery: Recovery
        self._channels: Channels
        self._upkeep: asyncio.Task[None] | None = None
        self._tracing: BrokerTracing | None = None
        self.started_ms = self.wall_ms()
        self.everywhere = Everywhere(settings.node or socket.gethostname())
        self.sampler = Sampler(
            self.shards, self.clock.now_ms, settings.series_queues_max, lambda: self.broker.empty_receives
        )
        self._sampling: asyncio.Task[None] | None = None
        self._keeping_series: SeriesKeeper | None = None
        self._watching: asyncio.Task[None] | None = None
        self.sweeper: PayloadSweeper | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self.alarm_desk: AlarmDesk
        self.monitor: ServerMonitor
        self._overview_reader: OverviewReader
        self.metrics: NodeMetrics
        self._lag = LagMeter(self.clock.monotonic)
        self._measuring: asyncio.Task[None] | None = None

    def wall_ms(self) -> int:
        return int(self.world.wall() * 1000)

    def time_s(self) -> float:
        """The time of day, as reliable as possible: signatures and certificates are checked against it."""
        return self.world.wall()

    def admin_token(self) -> str:
        return load_or_make_token(self.settings.data, self.world.random_bytes)

    # --- start ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take the data directory and open everything in it. Raises OwnershipHeld, LogCorrupt, …"""
        self._loop = asyncio.get_running_loop()
        await self._take()
        try:
            await self._open()
            await self.broker.payloads.begin()
        except BaseException:
            await self._close()
            raise
        self.started = True
        file = SeriesFile(os.path.join(self.settings.data, self._series_name())) if self.world.threads else None
        self._keeping_series = SeriesKeeper(
            self.sampler, file, lambda: self.catalog.current().queues.keys(), self.clock.now_ms
        )
        self._sampling = self._loop.create_task(self._keeping_series.run(f"Node {self.everywhere.name} started."))
        if self.world.threads:  # in simulated time, the loop is never late
            watch_garbage()
            self._measuring = self._loop.create_task(self._lag.run())
        self._watching = self._loop.create_task(self.alarm_desk.run())
        if self.sweeper is not None:
            self._sweeping = self._loop.create_task(self.sweeper.run())

    @contextlib.asynccontextmanager
    async def only_catalog(self) -> AsyncIterator[CatalogHost]:
        """The catalog alone, of a data directory that no node serves. For tools."""
        self._loop = asyncio.get_running_loop()
        await self._take()
        try:
            await self._open_catalog()
            yield self.catalog
            await self.catalog.drain()
        finally:
            await self._close()

    async def _take(self) -> None:
        """Take ownership of the data directory, and find out where the logs are."""
        settings = self.settings
        if not settings.log_url:
            self.ownership.take()
            self._logs = DirectoryLogs(
                settings.data,
                cluster=self.ownership.cluster,
                ownership=self.ownership,
                disk=self.world.disk,
                loop=self._loop if self.world.threads else None,
                wall_ms=self.wall_ms,
            )
            return
        store = await self._take_mirror(open_store)
        leases = store.leases(
            settings.node or socket.gethostname(), f"{settings.host}:{settings.port}", settings.lease_s
        )
        self._logs = logs = StoreLogs(settings.data, store=store, leases=leases, patience_s=2 * settings.lease_s)
        keeping = LeaseKeeper(logs, leases, term_s=settings.lease_s, alarms=self.alarms, on_lost=self._lease_lost)
        self._keeping_leases = self._loop.create_task(keeping.run())

    async def _take_mirror(self, opener: Callable[[str], Awaitable[LogStore]]) -> LogStore:
        """Open the store that has the logs, and take ownership of the data directory as its mirror."""
        store = await opener(self.settings.log_url)
        for remark in store.remarks:
            events.warning("log_unchecked", remark)
        try:
            self.ownership = self.world.mirror_ownership(self.settings.data, store.cluster, store.where)
            self.ownership.take()
        except BaseException:
            await store.close()
            raise
        return store

    def _lease_lost(self, shard: int, problem: BatonError) -> None:
        if shard == CATALOG_SHARD:
            self.catalog.abandon(problem)
        elif shard < len(self.shards) and self.shards[shard].serving:
            self.shards[shard].host().commit.abandon(problem)

    async def _open(self) -> None:
        await self._open_catalog()
        settings = self.settings
        known = len(self.catalog.current().shards)
        if known > settings.shards + sum(settings.kinds().values()):
            events.info("shards", f"The data directory has {known} shards; all of them are served", shards=known)
        for replicas, count in self._kinds_to_open():
            await self._logs.check_kind(replicas)
            await self.catalog.change(Catalog.open_shards, count, replicas=replicas)
        self._compose()
        await self.maintenance.rotate_receipt_key()
        for number in sorted(self.catalog.current().shards):
            self._logs.kinds[number] = self.catalog.current().replicas_of(number)
            self.shards.append(self._keeper(number))
        for keeper in self.shards:
            await keeper.open()
            await keeper.host().drain()
        self._upkeep = self._loop.create_task(self.maintenance.run())

    def _kinds_to_open(self) -> list[tuple[int, int]]:
        return kinds_to_open(self.catalog.current(), self.settings.shards, self.settings.kinds())

    async def _open_catalog(self) -> None:
        settings = self.settings
        self._recovery = Recovery(
            settings=settings,
            logs=self._logs,
            clock=self.clock,
            disk=self.world.disk,
            loop=self._loop if self.world.threads else None,
            log_settings=self.world.log_settings,
            adapt_log=self.world.adapt_log,
        )
        rules = self._rules()
        self.catalog = CatalogHost(
            self._context(),
            opener=lambda: self._recovery.open_catalog(rules),
            on_open=self._catalog_opened,
            on_change=self._catalog_changed,
        )
        await self.catalog.open()

    def _context(self) -> NodeContext:
        return NodeContext(self._loop, self.clock, self.settings, self._logs.cluster, self.alarms, self.front_holds)

    def _rules(self) -> Rules:
        """The rules that the catalog applies."""
        settings = self.settings
        return Rules(
            name_wait_ms=settings.delete_wait_ms,
            purge_wait_ms=settings.purge_wait_ms,
            replicas=self._logs.replicas,
            spread=settings.spread,
            open_queues=settings.dev,
        )

    def _compose(self) -> None:
        if self.settings.otlp_endpoint:
            self._tracing = BrokerTracing(
                export_to(self.settings.otlp_endpoint), self.everywhere.name, self.clock.now_ms
            )
        transport: Transport = PortTransport(lambda shard: self.broker.port(shard))
        if self.world.adapt_transport is not None:
            transport = self.world.adapt_transport(transport)
        self._channels = Channels(
            loop=self._loop,
            transport=transport,
            alarms=self.alarms,
            window_entries=self.settings.window_entries,
            window_bytes=self.settings.window_bytes,
        )
        self.broker = Broker(
            loop=self._loop,
            clock=self.clock,
            settings=self.settings,
            catalog=self.catalog,
            shards=self.shards,
            receipts=self.receipts,
            alarms=self.alarms,
            random_bytes=self.world.random_bytes,
            route=self._route(),
            tracing=self._tracing,
            threads=self.world.threads,
        )
        self.broker.read_admin_token = self.admin_token
        self._use_payload_store(self.settings)
        self.broker.history.holds = self.front_holds
        self.backups = self.broker.backups = Backups(
            settings=self.settings,
            shards=self.shards,
            catalog=self.catalog,
            channels=self._channels,
            holds=self.front_holds,
            others=lambda: self.everywhere.others,
            cluster=self._logs.cluster,
            now_ms=self.clock.now_ms,
            random_bytes=self.world.random_bytes,
        )
        make_snapshot = self.world.make_snapshot
        if make_snapshot is None and self.world.threads:
            make_snapshot = SnapshotProcess(self.settings.data).make
        self.snapshots = SnapshotSchedule(self.settings, self.clock, make_snapshot, self.world.disk)
        self.maintenance = Maintenance(
            settings=self.settings,
            clock=self.clock,
            shards=self.shards,
            catalog=self.catalog,
            receipts=self.receipts,
            alarms=self.alarms,
            random_bytes=self.world.random_bytes,
            snapshots=self.snapshots,
            archiving=self._archiving,
            holds=self.front_holds,
            port=self.broker.port,
        )
        self._overview_reader = OverviewReader(
            name=self.everywhere.name,
            data=self.settings.data,
            now_ms=self.clock.now_ms,
            started_ms=self.started_ms,
            catalog=self.catalog,
            shards=self.shards,
            alarms=self.alarms,
            history=lambda: self.broker.history,
            archiving=self._archiving,
            sampler=self.sampler,
        )
        self.everywhere.provide("overview", self._read_overview)
        self.metrics = NodeMetrics(
            settings=self.settings,
            everywhere=self.everywhere,
            shards=self.shards,
            sampler=self.sampler,
            lag=self._lag,
            started_ms=self.started_ms,
            alarms=self.alarms,
            empty_receives=lambda: self.broker.empty_receives,
            entries=self._entries,
            overview=self._overview_for_metrics,
            label_name=self.process_label,
            node=self.settings.node if self.in_cluster else "",
        )
        self.metrics.sources.append(self._replica_metrics)
        self.metrics.sources.append(self._payload_metrics)
        self.metrics.sources.append(lambda: topic_metrics(self.shards, self.settings.account))
        self.broker.consumers.join(self.everywhere)
        self.alarm_desk = AlarmDesk(
            self.settings,
            self.alarms,
            everywhere=self.everywhere,
            overview=lambda: self.monitor.fresh_overview(),
            queues=lambda: self.catalog.current().queues,
            ownership=self._read_ownership,
            evaluates=self._evaluates_alarms,
            webhooks=Webhooks(self.settings, self.alarms, time_s=self.time_s, random_bytes=self.world.random_bytes),
            now_ms=self.clock.now_ms,
            store=self._alarm_store(),
        )
        self.monitor = self.broker.monitor = ServerMonitor(
            self.settings,
            read=self.overview,
            cluster=self.cluster_view,
            everywhere=self.everywhere,
            alarms=self.alarm_desk,
            seconds=self._loop.time,
            queues=QueueLister(
                everywhere=self.everywhere,
                entries=self._entries,
                shards=self.shards,
                reader=self._overview_reader,
                sampler=self.sampler,
                now_ms=self.clock.now_ms,
            ),
            series=SeriesReader(self.everywhere, self.sampler, self.clock.now_ms, self._overview_reader.depths),
        )
        self.everywhere.provide("cluster", self._tell_cluster)

    def _use_payload_store(self, settings: Settings) -> None:
        """Use the payload store, if there is one in the settings."""
        cluster = f"{self._logs.cluster:x}"

        def time_s() -> float:
            return self.clock.now_ms() / 1000

        if not settings.payload_store:
            self.broker.payloads = LargePayloads(self.alarms, cluster=cluster, time_s=time_s)
            return
        store = PayloadStore(settings.payload_store, time_s)

        def open_store() -> PayloadStore:
            store.claim(cluster)
            return store

        self.broker.payloads = LargePayloads(
            self.alarms,
            open_store,
            settings.payload_threshold,
            settings.payload_bytes_max,
            cluster=cluster,
            time_s=time_s,
            threads=self.world.threads,
        )
        self.sweeper = PayloadSweeper(
            self.broker.payloads,
            self.broker.all_ports,
            leads=self._sweeps_payloads,
            every_s=settings.payload_sweep_s,
        )

    def _sweeps_payloads(self) -> bool:
        """Whether this node is the one that sweeps the payload store; none does while the catalog is unavailable."""
        try:
            return self.started and self.broker.serves(min(self.catalog.current().shards))
        except BatonError:
            return False

    def _alarm_store(self) -> AlarmStore | None:
        if not self.world.threads:
            return None
        member = self.settings.node if self.settings.processes > 1 else ""
        return AlarmStore(self.settings.data, member)

    def _evaluates_alarms(self) -> bool:
        """Whether this node is the one of the server that evaluates the alarms' rules."""
        return True

    async def _read_ownership(self) -> OwnershipFacts:
        """What the alarms' rules need to know of a cluster."""
        return ALONE

    def _route(self) -> Route | None:
        """The routes to shards that other nodes serve; None: there are none."""
        return None

    def _keeper(self, number: int) -> ShardKeeper:
        return ShardKeeper(
            number,
            self._context(),
            opener=self._recovery.open_shard,
            on_open=self._shard_opened,
            on_commit=self._committed,
        )

    def keeper(self, number: int) -> ShardKeeper:
        if number >= len(self.shards):
            raise Unavailable(f"This node does not serve shard {number}.")
        return self.shards[number]

    def _catalog_opened(self, catalog: Catalog) -> None:
        self.receipts.set_keys(catalog.receipt_keys.values())
        for keeper in self.shards:
            if keeper.serving:
                self.broker.reconcile(keeper)

    def _catalog_changed(self, changes: Changes) -> None:
        if hasattr(self, "broker"):
            self.broker.tell(changes)

    def _committed(self, keeper: ShardKeeper) -> None:
        self._channels.look(keeper)
        if self.broker.history.waiting:
            self.broker.history.look(keeper.number)

    def _series_name(self) -> str:
        """The file with the time series of this node."""
        return "series.bin"

    def _shard_opened(self, keeper: ShardKeeper) -> None:
        if self.started:
            kind, text = "reopened", f"Shard {keeper.number} was reopened after a failure."
            if self.in_cluster:
                kind, text = "takeover", f"Node {self.everywhere.name} took over shard {keeper.number}."
            self.sampler.book.mark(self.clock.now_ms(), kind, text)
        self.broker.reconcile(keeper)
        self.broker.serve_replays(keeper.host())
        self._channels.look(keeper)

    # --- stop -----------------------------------------------------------------------------------

    def stop_waiting(self) -> None:
        """Answer every long poll: the first step of a clean stop, while other requests are still answered."""
        self.stopping = True
        if hasattr(self, "broker"):
            self.broker.history.stop_waiting()
            self.broker.stop_waiting()
        for keeper in self.shards:
            if keeper.serving:
                keeper.host().stop_waiting()

    async def stop(self) -> None:
        """Commit all decisions, save snapshots, and release the data directory."""
        self.stop_waiting()
        await end(self._sampling, self._upkeep)
        if self._keeping_series is not None:
            await self._keeping_series.save()
        if self.started:
            await self.broker.finish_control()
            await self._channels.close()
            for keeper in self.shards:
                if keeper.serving:
                    await self._drain(keeper)
            await self.catalog.drain()
        await self._close()

    async def _drain(self, keeper: ShardKeeper) -> None:
        try:
            host = keeper.host()
            async with asyncio.timeout(self.settings.drain_s):
                await host.drain()
        except TimeoutError:
            events.warning("drain_failed", f"Shard {keeper.number} no longer commits; it is stopped without draining")
            return
        except BatonError as problem:
            events.warning("drain_failed", f"Shard {keeper.number} could not be drained: {problem.message}")
            return
        # No await since the shard was idle: a snapshot must not contain what its log does not.
        self._save_snapshot(host.shard, host.log)

    def _save_snapshot(self, shard: Shard, log: Log) -> None:
        """Save the committed state, and nothing else, so that the next start is fast."""
        store = snapshot_store(self.settings.data, log.shard, self.world.disk)
        frame_number = log.next - 1
        numbers = store.numbers()
        if frame_number < 1 or (numbers and numbers[-1] >= frame_number):
            return
        try:
            store.save(frame_number, log.tail_digest, shard.save())
        except BatonError as problem:  # a snapshot only saves time at the next start
            events.warning(
                "snapshot_failed", f"The snapshot of shard {log.shard} could not be saved: {problem.message}"
            )

    async def _close(self) -> None:
        await end(self._sampling, self._watching, self._measuring, self._sweeping)
        if hasattr(self, "alarm_desk"):
            await self.alarm_desk.close()
        for keeper in self.shards:
            await keeper.close()
        if hasattr(self, "catalog"):
            await self.catalog.close()
        await end(self._keeping_leases)
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)
        if hasattr(self, "broker"):
            self.broker.payloads.close()
            self.broker.bodies.close()
        await self._logs.close()
        self.ownership.close()

    # --- inspection -----------------------------------------------------------------------------

    def not_ready(self) -> str:
        """Why requests cannot be served; empty when they can."""
        return self._not_up() or next((keeper.why or "stopped" for keeper in self.shards if not keeper.serving), "")

    def _not_up(self) -> str:
        """Like `not_ready`, without the reasons that depend on shards."""
        if not self.started:
            return "starting"
        if self.stopping:
            return "stopping"
        return "" if self.catalog.serving else self.catalog.why

    async def advance_clock(self, forward_ms: int) -> int:
        """See Broker.advance_clock."""
        return await self.broker.advance_clock(forward_ms)

    async def overview(self) -> Overview:
        """All queues and shards of the server, from committed state."""
        return await self.overview_here()

    async def overview_here(self) -> Overview:
        """The part of the overview that this node can read itself."""
        return await self._overview_reader.read()

    async def cluster_view(self) -> ClusterView:
        """The nodes, and the owners of the shards."""
        overview = await self.monitor.overview()
        parts = await self.everywhere.read_as(cluster_view.DECODER, "cluster")
        return cluster_view.cluster_view(bool(self.settings.advertise), overview, parts)

    async def _tell_cluster(self, arguments: dict[str, Any]) -> Told:
        return Told(catalog_owner=self.everywhere.name)

    async def _read_overview(self, arguments: dict[str, Any]) -> Overview:
        return await self.overview_here()

    async def _overview_for_metrics(self) -> Overview:
        return await self.overview()

    def _payload_metrics(self) -> Families:
        payloads, sweeper = self.broker.payloads, self.sweeper
        if not payloads.enabled:
            return []
        counts = {"written": payloads.written, "read": payloads.read, "failed": payloads.failed}
        counts["deleted"] = 0 if sweeper is None else sweeper.deleted
        return [many(metrics.PAYLOADS, [(label("operation", name), count) for name, count in counts.items()])]

    def _replica_metrics(self) -> Families:
        """How far the replicas of the logs are behind, for the shards that this node serves."""
        logs = [keeper.host().log for keeper in self.shards if keeper.serving]
        return [
            many(
                metrics.REPLICA_LAG,
                [
                    (joined(f'shard="{log.shard}"', label("replica", replica)), lag)
                    for log in logs
                    if isinstance(log, MirroredLog)
                    for replica, lag in log.replica_lags
                ],
            )
        ]

    def _entries(self) -> Mapping[int, QueueEntry]:
        """The queues of the catalog, as far as they are known now."""
        try:
            return self.catalog.current().queues
        except BatonError:
            return {}


def kinds_to_open(catalog: Catalog, count: int, others: Mapping[int, int]) -> list[tuple[int, int]]:
    """The kinds of shards of which there are too few, by their number of replicas, each with its wanted number:
    `count` of the log's own kind, and `others`. Raises InvalidInput when the log's own kind is among the others.
    """
    own = catalog.own_replicas
    if own in others:
        raise InvalidInput(
            f"--other-shards names shards with {own} replicas, which is what the log's URL specifies. Set their "
            "number with --shards."
        )
    wanted = {own: count, **others}
    return [(replicas, number) for replicas, number in wanted.items() if len(catalog.shards_of(replicas)) < number]
