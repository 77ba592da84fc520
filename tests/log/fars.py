"""The far sides that the tests of replicated logs run against, each a real server but for the one in memory."""

from __future__ import annotations

from batonq.log.jetstream.address import NatsAddress
from batonq.log.jetstream.backend import JetStreamBackend
from batonq.log.jetstream.store import JetStreamStore
from batonq.log.postgres.address import PostgresAddress
from batonq.log.postgres.backend import PostgresBackend
from batonq.log.postgres.store import PostgresStore
from batonq.sim.far import FarLog, MemoryBackend
from tests.log.conformance import SHARD


class MemoryFar:
    def __init__(self) -> None:
        self.far = FarLog(SHARD)

    async def backend(self) -> MemoryBackend:
        return MemoryBackend(self.far)

    async def close(self) -> None:
        pass


class PostgresFar:
    def __init__(self, address: PostgresAddress) -> None:
        self.address = address
        self.stores: list[PostgresStore] = []

    async def backend(self) -> PostgresBackend:
        """Over a store of its own, as another node would have."""
        store = await PostgresStore.open(self.address, timeout_s=5)
        self.stores.append(store)
        return await store.backend(SHARD)

    async def close(self) -> None:
        for store in self.stores:
            await store.close()


class JetStreamFar:
    def __init__(self, address: NatsAddress) -> None:
        self.address = address
        self.stores: list[JetStreamStore] = []

    async def backend(self) -> JetStreamBackend:
        """Over a connection of its own, as another node would have."""
        store = await JetStreamStore.open(self.address, timeout_s=2)
        self.stores.append(store)
        return await store.backend(SHARD)

    async def close(self) -> None:
        for store in self.stores:
            await store.close()
