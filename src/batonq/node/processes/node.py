"""One process of several that serve a data directory: it has its own shards, and asks the others for theirs.

It always owns the same shards. It is a plain node over the embedded log that reaches other shards with a cluster's
routing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import msgspec

from batonq.core.catalog.machine import Catalog
from batonq.errors import BatonError, Unavailable
from batonq.log.layout import CATALOG_SHARD
from batonq.log.ownership import SharedDirectory
from batonq.node import events
from batonq.node.catalog.catalog_host import Changes
from batonq.node.cluster.peers import PREFIX, Asking, Peers
from batonq.node.cluster.routed_node import RoutedNode
from batonq.node.cluster.routing import CALL_S
from batonq.node.context import NodeContext
from batonq.node.monitoring.cluster_view import Told
from batonq.node.node import World
from batonq.node.operations.history import Served
from batonq.node.processes.catalog import FRAMES, ProcessCatalog
from batonq.node.processes.place import Place, ToldOwners, name_of
from batonq.node.processes.process_history import ProcessHistory
from batonq.node.processes.process_server import ProcessAnswering
from batonq.node.settings import Settings
from batonq.node.shard_host.keeper import KeeperState, Opener, ShardKeeper

START_S = 60.0
AGAIN_S = 0.05
QUEUES_TOLD = 1_000
CLOCK_S = 60.0


class ElsewhereKeeper(ShardKeeper):
    """The place of a shard that another process has: nothing is ever opened."""

    def __init__(self, number: int, context: NodeContext, owner: str, opener: Opener) -> None:
        super().__init__(number, context, opener=opener)
        self.state = KeeperState.ELSEWHERE
        self.why = f"Process {owner} serves the shard."

    async def open(self) -> None:
        pass


class ProcessNode(RoutedNode):
    """`owners` is told which processes are running. `announce` is awaited once other processes may call this one."""

    catalog: ProcessCatalog
    process_label = "process"

    def __init__(
        self,
        settings: Settings,
        place: Place,
        owners: ToldOwners,
        announce: Callable[[], Awaitable[None]],
        world: World | None = None,
        peers: Asking | None = None,
    ) -> None:
        world = replace(world or World(), ownership=SharedDirectory)
        super().__init__(replace(settings, node=place.name), world, peers or Peers())
        self.place = place
        self.owners = owners
        self.answering = ProcessAnswering(self)
        self._announce = announce
        self._history: ProcessHistory

    # --- start ------------------------------------------------------------------------------------

    async def _open_catalog(self) -> None:
        self._open_routing(self.owners)
        self.catalog = ProcessCatalog(
            self._context(),
            number=self.place.number,
            others=self.owners.others,
            rules=self._rules(),
            recovery=self._recovery,
            ask_frames=None if self.place.first else self._ask_frames,
            ask=self._routing.ask_catalog,
            on_open=self._catalog_opened,
            on_change=self._catalog_changed,
        )
        await self.catalog.open()

    async def _ask_frames(self, data: bytes, wait_ms: int) -> bytes:
        """Ask without a call name, so that the answer is not remembered: a repeated call asks for the same frames."""
        lease = self.owners.owner(CATALOG_SHARD)
        if lease is None:
            raise Unavailable("The first process has not started yet.")
        return await self.peers.ask(lease.address, f"{PREFIX}catalog/{FRAMES}", "", data, CALL_S + wait_ms / 1000)

    async def _open(self) -> None:
        await self._open_catalog()
        self._compose()
        self._history = ProcessHistory(
            place=self.place,
            everywhere=self.everywhere,
            shards=self.shards,
            rate_bytes=self.settings.history_rate_bytes,
            seconds=self._loop.time,
        )
        self._history.holds = self.front_holds
        self.broker.history = self._history
        if self.place.first:
            await self._make_shards()
        await self._announce()
        await self._known_shards()
        for number in range(len(self.catalog.current().shards)):
            self.shards.append(self._keeper(number))
        for keeper in self.shards:
            if self.place.has(keeper.number):
                await keeper.open()
                await keeper.host().drain()
        self._upkeep = self._loop.create_task(self.maintenance.run())

    async def _make_shards(self) -> None:
        known = len(self.catalog.current().shards)
        if known > self.settings.shards:
            events.info("shards", f"The data directory has {known} shards; all of them are served", shards=known)
        await self.catalog.change(Catalog.open_shards, max(known, self.settings.shards))
        await self.maintenance.rotate_receipt_key()

    async def _known_shards(self) -> None:
        """Wait until the first process has said how many shards there are, and which keys seal receipts."""
        deadline_s = self._loop.time() + START_S
        while len(self.catalog.current().shards) < self.settings.shards or not self.catalog.current().receipt_keys:
            if self._loop.time() > deadline_s:
                raise Unavailable("The first process has not created the shards yet.")
            await asyncio.sleep(AGAIN_S)

    def _evaluates_alarms(self) -> bool:
        return self.place.first

    async def _tell_cluster(self, arguments: dict[str, Any]) -> Told:
        return Told(catalog_owner=name_of(self.place.process_of(CATALOG_SHARD)))

    def _keeper(self, number: int) -> ShardKeeper:
        if self.place.has(number):
            return super()._keeper(number)
        owner = name_of(self.place.process_of(number))
        return ElsewhereKeeper(number, self._context(), owner, self._recovery.open_shard)

    def _catalog_changed(self, changes: Changes) -> None:
        if self.catalog.serving:  # not while the first frame is read: the rest is told when the shard is open
            super()._catalog_changed(changes)

    # --- calls from other processes -----------------------------------------------------------------

    def epoch_here(self, shard: int) -> int:
        """The number of this process's start, which callers must name; 0 until the supervisor has told it."""
        return self.owners.up.get(self.place.number, 0)

    async def read_history_here(
        self, shard: int, start: int, bytes_max: int, wait_s: float, stop: int | None
    ) -> Served:
        return await self._history.read_here(shard, start, bytes_max, wait_s, stop)

    async def advance_clock_here(self, forward_ms: int) -> int:
        return await super().advance_clock(forward_ms)

    # --- over all processes ---------------------------------------------------------------------------

    def _series_name(self) -> str:
        return f"series-{self.place.name}.bin"

    def _other_addresses(self) -> dict[str, str]:
        up = self.owners.others()
        return {name_of(number): up.get(number, "") for number in range(self.place.of) if number != self.place.number}

    async def advance_clock(self, forward_ms: int) -> int:
        now_ms = await self.advance_clock_here(forward_ms)
        others, body = self.everywhere.others, msgspec.msgpack.encode(forward_ms)
        asked = [others.ask(name, "clock", body, CLOCK_S) for name in others.names()]
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, BatonError):
                raise answer
        return now_ms

    def not_ready(self) -> str:
        if why := self._not_up():
            return why
        # Another process that is being restarted is no reason to send clients to another server.
        missing = [name_of(number) for number in range(self.place.of) if number not in self.owners.seen]
        if missing:
            return f"not started yet: {', '.join(missing)}"
        mine = (keeper for keeper in self.shards if self.place.has(keeper.number))
        return next((keeper.why or "stopped" for keeper in mine if not keeper.serving), "")

    def status(self) -> dict[str, Any]:
        """What this process knows, in the form of a cluster's node, for `baton cluster status`."""
        owner = self.owners.owner
        catalog = self.catalog
        numbers = [CATALOG_SHARD, *(keeper.number for keeper in self.shards)]
        names = {number: lease.node for number in numbers if (lease := owner(number)) is not None}
        state = KeeperState.SERVING if catalog.owned else KeeperState.FOLLOWING
        shards: list[dict[str, Any]] = [
            {
                "shard": "catalog",
                "state": state.value,
                "owner": names.get(CATALOG_SHARD, ""),
                "epoch": catalog.current().epoch,
                "replicas": self._logs.replicas,
                "next_frame": catalog.next_frame,
                "trouble": catalog.why,
            }
        ]
        for keeper in self.shards:
            host = keeper.host() if keeper.serving else None
            shards.append(
                {
                    "shard": keeper.number,
                    "state": keeper.state.value,
                    "owner": names.get(keeper.number, ""),
                    "epoch": host.shard.epoch if host else 0,
                    "replicas": self._logs.replicas,
                    "next_frame": host.log.next if host else 0,
                    "trouble": "" if keeper.state is KeeperState.ELSEWHERE else keeper.why,
                }
            )
        up = sorted(self.owners.up)
        return {
            "node": self.place.name,
            "address": self.place.address,
            "draining": self.stopping,
            "members": [name_of(number) for number in up],
            "addresses": {name_of(number): self.place.address_of(number) for number in up},
            "shards": shards,
            "queues": [
                {"account": queue.account, "name": queue.name, "shard": queue.shard}
                for queue in list(catalog.current().queues.values())[:QUEUES_TOLD]
            ],
        }
