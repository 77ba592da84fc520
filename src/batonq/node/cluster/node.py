"""Builds a node of a cluster: it follows every log, owns some shards, and reaches the rest over HTTP."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any

import msgspec

from batonq.certificates import client_context
from batonq.core.catalog.machine import Catalog
from batonq.errors import BatonError, InvalidInput, Unavailable
from batonq.log.backend import Backend, LogStore, NameTaken, Unreachable
from batonq.log.cancellation import end
from batonq.log.file_log import FileLogSettings
from batonq.log.interface import Log, Member, OwnershipLeases
from batonq.log.layout import CATALOG_SHARD
from batonq.log.opening import OnFrame, Start
from batonq.log.stores import open_store
from batonq.node import events
from batonq.node.alarms.desk import OwnershipFacts
from batonq.node.catalog.catalog_host import Changes
from batonq.node.cluster.admission import Admission, Credentials, Hello
from batonq.node.cluster.catalog import ClusterCatalog
from batonq.node.cluster.catch_up import CatchUp
from batonq.node.cluster.keeper import ClusterKeeper
from batonq.node.cluster.node_server import Answering
from batonq.node.cluster.ownership import Owned, OwnershipLoop
from batonq.node.cluster.pause_detector import Awake
from batonq.node.cluster.peers import PREFIX, Asking, Peers
from batonq.node.cluster.routed_node import RoutedNode
from batonq.node.cluster.signing import split_secrets
from batonq.node.monitoring import cluster_view, metrics
from batonq.node.monitoring.cluster_view import Position, Told, ownership_facts
from batonq.node.monitoring.exposition import Families, many, one
from batonq.node.monitoring.overview import SERVED_ELSEWHERE, Overview
from batonq.node.node import World
from batonq.node.settings import Settings
from batonq.node.shard_host.keeper import KeeperState
from batonq.node.shard_host.log_stores import StoreLogs

TAKE_S = 10.0
START_S = 60.0
QUEUES_TOLD = 1_000
SECRETS_MAX = 2
SILENT_MAX_S = 86_400.0  # of a follower that has heard nothing yet


class FollowedLogs(StoreLogs):
    """Logs of a store that are read without owning them. `catch_up` is how far they were read at the start."""

    def __init__(self, data: str, **same: Any) -> None:
        super().__init__(data, patience_s=0, **same)
        self.catch_up = CatchUp()
        self._starts: dict[int, int] = {}  # the first frame to read, per shard

    async def _lease(self, shard: int) -> None:
        pass

    async def open(self, shard: int, settings: FileLogSettings, start: Start | None, on_frame: OnFrame) -> Log:
        self._starts[shard] = start.number if start is not None else 1
        log = await super().open(shard, settings, start, self.catch_up.counted(shard, on_frame))
        self.catch_up.done(shard)
        return log

    async def _backend(self, shard: int) -> Backend:
        backend = await super()._backend(shard)
        with suppress(Unreachable):  # then nobody knows how much there is to read
            bounds = await backend.bounds()
            self.catch_up.expect(shard, max(bounds.first, self._starts[shard]), bounds.next)
        return backend


class ClusterNode(RoutedNode):
    """Once started, the node follows every log and owns nothing yet. Other nodes reach it at `settings.advertise`."""

    catalog: ClusterCatalog
    _logs: FollowedLogs
    in_cluster = True

    def __init__(
        self,
        settings: Settings,
        world: World | None = None,
        open_store: Callable[[str], Awaitable[LogStore]] = open_store,
        peers: Asking | None = None,
        clock_off_max_ms: int = 0,
    ) -> None:
        """`clock_off_max_ms` is how far the clock may be off for a start, see Admission."""
        self.secret = read_secret(settings)
        trusted = client_context(settings.peer_ca) if settings.peer_ca else None
        super().__init__(settings, world, peers or Peers(self.secret, trusted))
        if not settings.node or not settings.log_url:
            raise InvalidInput("A node of a cluster needs a name (--node) and a log URL (--log-url).")
        self.answering = Answering(self)
        self._open_store = open_store
        self.ownership_loop: OwnershipLoop
        self._leases: OwnershipLeases
        self._owned: dict[int, Owned] = {}
        self._was_ready = False
        self._clock_off_max_ms = clock_off_max_ms
        self._incarnation = self.world.random_bytes(16).hex()
        self._cluster = 0  # the cluster's id; 0: the log store is not open yet
        self._opened = False
        self._unheard = ""  # why the catalog's owner is not heard, as last reported
        self.name_taken: NameTaken | None = None  # another process has this node's name
        self.on_name_taken: Callable[[], None] = lambda: None

    async def _take(self) -> None:
        settings = self.settings
        store = await self._take_mirror(self._open_store)
        self._cluster = store.cluster
        self._credentials = Credentials(self.secret, store.cluster, self._incarnation)
        self._leases = store.leases(settings.node, settings.advertise, settings.lease_s)
        self._logs = FollowedLogs(settings.data, store=store, leases=self._leases, disk=self.world.disk)

    def _make_ownership_loop(self) -> None:
        settings = self.settings
        self._awake = Awake(self._loop.time)
        self.ownership_loop = OwnershipLoop(
            settings.node,
            leases=self._leases,
            awake=self._awake,
            owned=self._owned,
            settings=settings,
            alarms=self.alarms,
            random=Random(self.world.random_bytes(8)),
            clock=self.clock,
            wall_ms=self.wall_ms,
            ask_to_take=self._ask_to_take,
            on_term=self._on_term,
            credentials=self._credentials,
            on_name_taken=self._lose_name,
        )

    async def _open_catalog(self) -> None:
        self._open_routing(self.ownership_loop)
        self.catalog = ClusterCatalog(
            self._context(),
            rules=self._rules(),
            recovery=self._recovery,
            leases=self._leases,
            ask=self._routing.ask_catalog,
            too_old=self.ownership_loop.others.too_old,
            awake=self._awake,
            on_open=self._catalog_opened,
            on_change=self._catalog_changed,
        )
        self._owned[CATALOG_SHARD] = self.catalog
        await self.catalog.open()

    async def _join(self) -> None:
        """Prove that this node belongs to the cluster, and announce it. Nothing was announced or leased before."""
        admission = Admission(
            self.settings,
            self._credentials,
            leases=self._leases,
            peers=self.peers,
            wall_ms=self.wall_ms,
            clock_off_max_ms=self._clock_off_max_ms,
        )
        await admission.enter(self.ownership_loop.announce)

    def hello(self) -> Hello:
        """How this node introduces itself to others. Raises Unavailable while it does not know its cluster."""
        if not self._cluster:
            raise Unavailable("This node is starting. Retry.")
        format = self.ownership_loop.format_in_use() if self._opened else 0
        time_ms = int(self.time_s() * 1000) if self._opened else self.wall_ms()
        return Hello(self.settings.node, self._incarnation, self._cluster, format, time_ms)

    @property
    def opened(self) -> bool:
        """Whether other nodes may ask for more than `hello`."""
        return self._opened

    def _lose_name(self, problem: NameTaken) -> None:
        if self.name_taken is None:
            events.warning("name_taken", problem.message)
            self.name_taken = problem
            self.on_name_taken()

    async def _open(self) -> None:
        self._make_ownership_loop()
        await self._join()
        telling = self._loop.create_task(self._logs.catch_up.tell())
        try:
            await self._open_logs()
        finally:
            await end(telling)

    async def _open_logs(self) -> None:
        await self._open_catalog()
        self._compose()
        self._opened = True
        self.metrics.asking_sources.append(self._cluster_metrics)
        self.ownership_loop.start()
        await self._open_shards()
        await self.ownership_loop.set_complete()
        self._upkeep = self._loop.create_task(self.maintenance.run())

    async def _open_shards(self) -> None:
        """Follow all shards. The first node of a cluster creates them."""
        deadline_s = self._loop.time() + START_S
        for replicas, _ in self._kinds_to_open():
            await self._logs.check_kind(replicas)
        while missing := self._kinds_to_open():
            replicas, count = missing[0]
            try:
                await self.catalog.change(Catalog.open_shards, count, replicas=replicas)
            except BatonError as problem:
                if self._loop.time() > deadline_s:
                    raise
                events.info("waiting", f"The catalog's owner does not answer yet: {problem.message}")
                await asyncio.sleep(0.2)
        while not self.catalog.current().receipt_keys:  # the catalog's owner makes the first one
            if self._loop.time() > deadline_s:
                raise Unavailable("The catalog's owner has not created a receipt key yet.")
            await self.maintenance.rotate_receipt_key()
            await asyncio.sleep(0.05)
        await self._follow_shards()

    async def _follow_shards(self) -> None:
        """Read all shards before any is taken.

        Running leases get the length of an outage as grace. If a shard were taken first, that grace would run out while
        this node cannot answer requests yet.
        """
        count = len(self.catalog.current().shards)
        keepers = [self._keeper(number) for number in range(len(self.shards), count)]
        self.shards.extend(keepers)
        problems = await asyncio.gather(*(keeper.open() for keeper in keepers), return_exceptions=True)
        for problem in problems:
            if problem is not None:
                raise problem
        self._owned.update({keeper.number: keeper for keeper in keepers})

    def _follow_new_shards(self, count: int) -> None:
        """Follow shards that were added to the running cluster."""
        for number in range(len(self.shards), count):
            keeper = self._keeper(number)
            self.shards.append(keeper)
            self._owned[number] = keeper
            keeper.follower.open_in_time()

    def _keeper(self, number: int) -> ClusterKeeper:
        self._logs.kinds[number] = self.catalog.current().replicas_of(number)
        return ClusterKeeper(
            number,
            self._context(),
            recovery=self._recovery,
            leases=self._leases,
            on_frame=self._frame_folded,
            awake=self._awake,
            on_open=self._shard_opened,
            on_commit=self._committed,
        )

    def epoch_here(self, shard: int) -> int:
        """The epoch with which this node serves a shard, or hosts the catalog."""
        return self.catalog.current().epoch if shard == CATALOG_SHARD else self.shards[shard].host().shard.epoch

    def _other_addresses(self) -> dict[str, str]:
        members = self.ownership_loop.members
        return {name: known.member.address for name, known in members.items() if name != self.settings.node}

    async def _overview_for_metrics(self) -> Overview:
        """Only what this node serves: the other nodes have metrics of their own."""
        overview = await self.overview_here()
        owners = self.ownership_loop.owners
        overview.shards = [shard for shard in overview.shards if shard.state not in SERVED_ELSEWHERE]
        overview.missing = sum(any(shard not in owners for shard in entry.shards) for entry in self._entries().values())
        return overview

    async def _cluster_metrics(self) -> Families:
        loop = self.ownership_loop
        parts = await self.everywhere.read_as(cluster_view.DECODER, "cluster")
        told = [part.value for part in parts if part.value is not None]
        ends = {
            shard: position.next_frame
            for each in told
            for shard, position in each.positions.items()
            if position.state == KeeperState.SERVING.value
        }
        frames: list[tuple[str, float]] = []
        seconds: list[tuple[str, float]] = []
        for keeper in self.shards:
            log = self._owned[keeper.number].follower.log if keeper.number in self._owned else None
            if keeper.serving or log is None or keeper.number not in ends:
                continue
            behind = max(0, ends[keeper.number] - log.next)
            silent_s = min(self._loop.time() - self._owned[keeper.number].follower.heard_s, SILENT_MAX_S)
            frames.append((f'shard="{keeper.number}"', behind))
            seconds.append((f'shard="{keeper.number}"', silent_s if behind else 0))
        # Also of shards that have not moved: Prometheus does not see the first step of a counter that begins at 1.
        changes = [(f'shard="{keeper.number}"', loop.moves.counts.get(keeper.number, 0)) for keeper in self.shards]
        return [
            many(metrics.OWNERSHIP_CHANGES, changes),
            many(metrics.FOLLOWER_LAG_FRAMES, frames),
            many(metrics.FOLLOWER_LAG_SECONDS, seconds),
            one(metrics.CLUSTER_NODES, len(loop.members)),
        ]

    # --- callbacks --------------------------------------------------------------------------------

    def _frame_folded(self, shard: int) -> None:
        if hasattr(self, "broker") and self.broker.history.waiting:
            self.broker.history.look(shard)

    def _catalog_changed(self, changes: Changes) -> None:
        super()._catalog_changed(changes)
        count = len(self.catalog.current().shards)
        if self.started and count > len(self.shards):
            self._follow_new_shards(count)

    async def _on_term(self) -> bool:
        """Periodic work, beside the leases. Returns whether the catalog's owner answers."""
        await self.catalog.hear()
        for each in self._owned.values():
            follower, number = each.follower, each.follower.number
            log = follower.log
            if log is not None and number not in self.ownership_loop.serving() and not self.snapshots.reads(number):
                log.tick()
            if follower.trouble:
                text = f"{follower.name} makes no progress: {follower.trouble}"
                self.alarms.put("log-stalled", text, of=number)
            else:
                self.alarms.clear("log-stalled", number)
        unheard = self.catalog.unheard()
        if unheard and unheard != self._unheard:
            lease = self.ownership_loop.owners.get(CATALOG_SHARD)
            where = f" ({lease.node} at {lease.address})" if lease is not None else ""
            events.warning("catalog_unreachable", f"This node is not ready: {unheard}{where}")
        self._unheard = unheard
        return not unheard

    async def _ask_to_take(self, member: Member, shard: int, released_ms: int) -> None:
        body = msgspec.msgpack.encode((shard, released_ms))
        await self.peers.ask(member.address, f"{PREFIX}node/take", "", body, TAKE_S)

    def time_s(self) -> float:
        return self.ownership_loop.others.time_s()

    def trust(self, context: ssl.SSLContext) -> None:
        """Set which certificates identify nodes of the cluster, for new connections."""
        if isinstance(self.peers, Peers):
            self.peers.context = context

    # --- stop -------------------------------------------------------------------------------------

    async def hand_over(self) -> None:
        """The first step of a clean stop: other nodes take this node's shards while it still answers."""
        await self.ownership_loop.hand_over()

    async def stop(self) -> None:
        await super().stop()
        for keeper in self.shards:
            assert isinstance(keeper, ClusterKeeper)
            if keeper.followed:
                self._save_snapshot(*keeper.reading())

    async def _close(self) -> None:
        if hasattr(self, "ownership_loop"):
            await self.ownership_loop.stop()
        if hasattr(self, "_leases"):
            try:
                if hasattr(self, "ownership_loop") and self.ownership_loop.leaves:
                    await self._leases.expect(self.settings.node, False)
                await self._leases.withdraw()
            except BatonError as problem:  # the lease expires without it
                events.warning("withdraw_failed", problem.message)
        await super()._close()

    # --- inspection -------------------------------------------------------------------------------

    def _evaluates_alarms(self) -> bool:
        return self.catalog.owned

    async def _read_ownership(self) -> OwnershipFacts:
        gone_ms = self.ownership_loop.others.gone_ms()
        return ownership_facts(await self.cluster_view(), self.clock.now_ms(), gone_ms)

    async def _tell_cluster(self, arguments: dict[str, Any]) -> Told:
        loop = self.ownership_loop
        positions = {
            number: Position(each.follower.state.value, log.next)
            for number, each in self._owned.items()
            if number != CATALOG_SHARD and (log := each.follower.log) is not None
        }
        lease = loop.owners.get(CATALOG_SHARD)
        offsets = loop.others.clock_offsets_ms()
        owner = lease.node if lease is not None else ""
        moves, gone = [*loop.moves.latest], [*loop.others.gone_ms()]
        return Told(self.settings.advertise, loop.draining, positions, moves, offsets, owner, gone)

    def not_ready(self) -> str:
        if not self.started:
            progress = self._logs.catch_up.text() if hasattr(self, "_logs") else ""
            return f"starting: {progress}" if progress else "starting"
        if self.stopping:
            return "stopping"
        try:
            shards = self.catalog.current().shards
        except Unavailable as problem:
            return problem.message
        if unheard := self.catalog.unheard():
            return unheard
        if self._was_ready:
            return ""  # a shard that has no owner for a moment is no reason to send clients to other nodes
        owners = self.ownership_loop.owners
        missing = [number for number in (CATALOG_SHARD, *shards) if number not in owners]
        if missing:
            names = ["the catalog" if number == CATALOG_SHARD else f"shard {number}" for number in missing]
            return f"no node owns {', '.join(names)}"
        self._was_ready = True
        return ""

    def status(self) -> dict[str, Any]:
        """What this node knows of the cluster, for `baton cluster status`."""
        loop = self.ownership_loop
        shards = []
        for number, each in sorted(self._owned.items()):
            log, lease = each.follower.log, loop.owners.get(number)
            shards.append(
                {
                    "shard": "catalog" if number == CATALOG_SHARD else number,
                    "state": each.follower.state.value,
                    "owner": lease.node if lease else "",
                    "epoch": lease.epoch if lease else 0,
                    "replicas": self._logs.kinds.get(number, self._logs.replicas),
                    "next_frame": log.next if log is not None else 0,
                    "trouble": log.trouble if log is not None else each.follower.why,
                }
            )
        return {
            "node": self.settings.node,
            "address": self.settings.advertise,
            "draining": loop.draining,
            "expected": loop.others.expected,
            "left_ms": loop.others.left_ms(),
            "refused": loop.others.refused,
            "members": [known.member.node for known in loop.members.values()],
            "addresses": {known.member.node: known.member.address for known in loop.members.values()},
            "shards": shards,
            "queues": self._queues(),
        }

    def _queues(self) -> list[dict[str, Any]]:
        """The shards of queues. If the list must be cut, queues on several shards come first."""
        queues = sorted(self.catalog.current().queues.values(), key=lambda queue: -len(queue.shards))
        return [
            {
                "account": queue.account,
                "name": queue.name,
                "shard": queue.shard,
                "shards": list(queue.shards),
                "spread": len(queue.spread.taking),
                "growing": bool(queue.before),
            }
            for queue in queues[:QUEUES_TOLD]
        ]


def read_secret(settings: Settings) -> bytes:
    if not settings.cluster_secret_file:
        return b""
    try:
        with open(os.path.expanduser(settings.cluster_secret_file), "rb") as file:
            secret = file.read().strip()
    except OSError as problem:
        raise InvalidInput(
            f"The cluster's secret cannot be read from {settings.cluster_secret_file}: {problem.strerror}."
        ) from None
    secrets = split_secrets(secret)
    if not secrets or min(map(len, secrets)) < 16:
        raise InvalidInput(
            f"The cluster secret in {settings.cluster_secret_file} is too short: it must have at least 16 characters. "
            "Create one with: openssl rand -hex 32"
        )
    if len(secrets) > SECRETS_MAX:
        raise InvalidInput(
            f"{settings.cluster_secret_file} has {len(secrets)} lines. It may have one secret per line, and at most "
            f"{SECRETS_MAX}: the one that signs requests first, and another one that is accepted too."
        )
    return secret
