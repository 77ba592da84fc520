"""A node's path to the servers: the log store of log/backend.py, with the real leases of log/jetstream on top."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import TypeVar

from batonq.log.backend import Backend, Bounds, Entry, Unreachable
from batonq.log.frames import Frame
from batonq.log.jetstream.leases import JetStreamLeases, Value
from sim.cluster.network import Network
from sim.cluster.server import Server

TIMEOUT_S = 2.0
HEARTBEAT_S = 1.0  # a reader that hears nothing asks again after this time

T = TypeVar("T")


class Line:
    """One node's connection to the servers. `who` is a life of the node."""

    def __init__(self, network: Network, server: Server, node: str, who: str) -> None:
        self.server = server
        self.who = who
        self._network = network
        self._node = node

    async def ask(self, question: Callable[[], T]) -> T:
        return await self._network.ask_server(self._node, question, TIMEOUT_S)

    async def ask_for_keys(self, question: Callable[[], T]) -> T:
        if self._node in self.server.keys_away:
            await asyncio.sleep(TIMEOUT_S)
            raise Unreachable("nobody answers for the keys")
        return await self.ask(question)


class SimStore:
    """See backend.LogStore."""

    where = "a JetStream in memory"
    remarks = ()
    replicas = 3

    def __init__(self, line: Line, cluster: int) -> None:
        self.cluster = cluster
        self._line = line

    async def check_kind(self, replicas: int) -> None:
        pass

    async def backend(self, shard: int, replicas: int) -> Backend:
        await self._line.ask(lambda: self._line.server.stream(shard))
        return SimBackend(self._line, shard)

    def leases(self, node: str, address: str, ttl_s: float) -> JetStreamLeases:
        return JetStreamLeases(SimKeys(self._line), node=node, address=address, ttl_s=ttl_s)

    async def close(self) -> None:
        pass


class SimBackend:
    """See backend.Backend."""

    frame_bytes_max = 1 << 20

    def __init__(self, line: Line, shard: int) -> None:
        self.shard = shard
        self.where = f"stream {shard}"
        self._line = line
        self._server = line.server

    async def bounds(self) -> Bounds:
        return await self._line.ask(lambda: self._server.bounds(self.shard))

    async def append(self, frame: Frame) -> None:
        data = frame.header + frame.rows + frame.variable
        await self._line.ask(lambda: self._server.append(self.shard, frame.number, data, self._line.who))

    async def find(self, number: int) -> bytes | None:
        return await self._line.ask(lambda: self._server.find(self.shard, number))

    async def tail(self, start: int) -> AsyncGenerator[list[Entry], None]:
        while True:
            at = start
            entries = await self._line.ask(lambda at=at: self._server.read(self.shard, at))  # type: ignore[misc]
            if entries:
                start += len(entries)
                yield entries
            else:
                await self._server.growth(self.shard, start)

    async def drop_front(self, before: int) -> None:
        await self._line.ask(lambda: self._server.drop_front(self.shard, before))

    async def close(self) -> None:
        pass


class SimKeys:
    """See jetstream.leases.Keys."""

    where = "bucket in memory"

    def __init__(self, line: Line) -> None:
        self._line = line
        self._server = line.server

    async def get(self, key: str) -> Value:
        return await self._line.ask_for_keys(lambda: self._server.get(key))

    async def put(self, key: str, text: str, revision: int, ttl_s: int = 0) -> int | None:
        return await self._line.ask_for_keys(lambda: self._server.put(key, text, revision, ttl_s))

    async def read(self, keys: str) -> AsyncGenerator[tuple[str, str] | None, None]:
        prefix = keys.removesuffix("*")
        revision = 0
        while True:
            found = await self._line.ask_for_keys(partial(self._server.since, prefix, revision))
            for revision, name, text in found:  # noqa: B007 - read after the loop, to continue from the last revision
                yield name, text
            yield None
            await asyncio.wait((self._server.change(prefix),), timeout=HEARTBEAT_S)
