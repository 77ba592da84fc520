"""A node that does not serve all shards: it calls other nodes, or other processes of its server, for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from batonq.core.catalog.machine import Catalog
from batonq.errors import BatonError
from batonq.node.catalog.catalog_host import Changes
from batonq.node.cluster.catalog import SharedCatalog
from batonq.node.cluster.peers import Asking, OtherNodes
from batonq.node.cluster.routing import Owners, Routing
from batonq.node.messages.received import Delivery
from batonq.node.monitoring import overview
from batonq.node.monitoring.overview import Overview
from batonq.node.node import Node, World
from batonq.node.routing.ports import Route, ShardPort
from batonq.node.settings import Settings
from batonq.node.shard_host.recovery import Recovery


class RoutedNode(Node):
    catalog: SharedCatalog

    def __init__(self, settings: Settings, world: World | None, peers: Asking) -> None:
        super().__init__(settings, world)
        self.peers = peers
        self.everywhere.others = OtherNodes(peers, self._other_addresses)
        self._routing: Routing
        self._receipt_keys = -1

    def _open_routing(self, owners: Owners) -> None:
        start, numbers = self.world.random_bytes(16).hex(), count(1)
        self._routing = Routing(
            owners=owners,
            peers=self.peers,
            local=self.port_here,
            catalog=self._catalog_here,
            new_call=lambda: f"{start}.{next(numbers)}",
        )
        self._recovery = Recovery(
            settings=self.settings,
            logs=self._logs,
            clock=self.clock,
            disk=self.world.disk,
            loop=self._loop,
            log_settings=self.world.log_settings,
        )

    def _other_addresses(self) -> dict[str, str]:
        """The addresses of the other nodes or processes, by name; empty: it cannot be asked now."""
        raise NotImplementedError

    async def overview(self) -> Overview:
        parts = await self.everywhere.read_as(overview.DECODER, "overview")
        try:
            catalog = self.catalog.current()
        except BatonError:
            catalog = None
        return overview.joined(parts, catalog, len(self.shards))

    def _route(self) -> Route:
        return self._routing

    def port_here(self, shard: int) -> ShardPort | None:
        """The port of a shard that this node serves."""
        return self.broker.local_port(shard) if hasattr(self, "broker") and self.broker.serves(shard) else None

    async def _catalog_here(self, name: str, data: bytes) -> bytes | None:
        return await self.catalog.answer(name, data) if self.catalog.owned else None

    async def give_back(self, found: Sequence[tuple[int, Delivery]]) -> None:
        """Give back messages that were received for another node, which no longer wants them."""
        await self.broker.give_back_found(found)

    def _catalog_opened(self, catalog: Catalog) -> None:
        super()._catalog_opened(catalog)
        self._receipt_keys = catalog.next_receipt_key

    def _catalog_changed(self, changes: Changes) -> None:
        super()._catalog_changed(changes)
        catalog = self.catalog.current()
        if catalog.next_receipt_key != self._receipt_keys:
            self._receipt_keys = catalog.next_receipt_key
            self.receipts.set_keys(catalog.receipt_keys.values())

    async def _close(self) -> None:
        self.peers.close()
        await super()._close()
