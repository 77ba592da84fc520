"""The far sides that the tests of replicated logs run against, each a real server but for the one in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from batonq.log.frames import parse
from batonq.log.jetstream.address import NatsAddress
from batonq.log.jetstream.backend import JetStreamBackend
from batonq.log.jetstream.store import JetStreamStore
from batonq.log.postgres.address import PostgresAddress
from batonq.log.postgres.backend import PostgresBackend
from batonq.log.postgres.connection import Line
from batonq.log.postgres.store import PostgresStore
from tests.log.conformance import SHARD
from tests.log.replicated import patiently
from tests.support.far_log import FarLog, MemoryBackend


class MemoryFar:
    def __init__(self) -> None:
        self.far = FarLog(SHARD)

    async def backend(self) -> MemoryBackend:
        return MemoryBackend(self.far)

    async def flip(self, number: int) -> None:
        data = bytearray(self.far.stored[number - 1])
        data[-1] ^= 1
        self.far.stored[number - 1] = bytes(data)

    async def lose(self, number: int) -> None:
        self.far.stored[number - 1] = b""

    async def lose_last(self) -> None:
        self.far.stored.pop()

    async def close(self) -> None:
        pass


class PostgresFar:
    def __init__(self, address: PostgresAddress) -> None:
        self.address = address
        self.stores: list[PostgresStore] = []

    async def backend(self) -> PostgresBackend:
        """Over a store of its own, as another node would have."""
        store = await patiently(lambda: PostgresStore.open(self.address, timeout_s=5))
        self.stores.append(store)
        return await patiently(lambda: store.backend(SHARD))

    async def flip(self, number: int) -> None:
        await self.execute("UPDATE frames SET data = set_byte(data, 90, 255) WHERE number = %s", (number,))

    async def lose(self, number: int) -> None:
        await self.execute("DELETE FROM frames WHERE number = %s", (number,))

    async def lose_last(self) -> None:
        await self.execute("DELETE FROM frames WHERE number = (SELECT max(number) FROM frames)")
        await self.execute(
            "UPDATE tails SET next = next - 1, digest = %s",
            (await self._last_digest(),),
        )

    async def _last_digest(self) -> bytes:
        rows = await self.execute("SELECT data FROM frames ORDER BY number DESC LIMIT 1")
        return parse(bytes(rows[0][0])).digest

    async def execute(self, statement: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        line = Line(self.address, 5)
        try:
            return await line.run(statement, parameters)
        finally:
            await line.close()

    async def close(self) -> None:
        for store in self.stores:
            await store.close()


class JetStreamFar:
    def __init__(self, address: NatsAddress) -> None:
        self.address = address
        self.stores: list[JetStreamStore] = []

    async def backend(self) -> JetStreamBackend:
        """Over a connection of its own, as another node would have."""
        store = await patiently(lambda: JetStreamStore.open(self.address, timeout_s=2))
        self.stores.append(store)
        return await patiently(lambda: store.backend(SHARD))

    async def flip(self, number: int) -> None:
        """The stream lets nobody change or delete a message, so it is made again with other content."""
        data = await self._remake(lambda at, data: data[:-1] + bytes([data[-1] ^ 1]) if at == number else data)
        assert data

    async def lose(self, number: int) -> None:
        await self._remake(lambda at, data: data, deny_delete=False)
        await self.stores[0]._context.delete_msg(f"baton-{self.address.name}-shard-{SHARD:04}", number)

    async def lose_last(self) -> None:
        await self._remake(lambda at, data: data, drop=1)

    async def _remake(
        self, change: Callable[[int, bytes], bytes], drop: int = 0, deny_delete: bool = True
    ) -> list[bytes]:
        context = self.stores[0]._context
        stream = f"baton-{self.address.name}-shard-{SHARD:04}"
        info = await context.stream_info(stream)
        stored = [
            (await context.get_msg(stream, seq=at)).data or b"" for at in range(1, info.state.last_seq + 1 - drop)
        ]
        await context.delete_stream(stream)
        info.config.deny_delete = deny_delete
        await context.add_stream(info.config)
        for at, data in enumerate(stored, 1):
            await context.publish(f"baton.{self.address.name}.shard-{SHARD:04}", change(at, data))
        return stored

    async def close(self) -> None:
        for store in self.stores:
            await store.close()
