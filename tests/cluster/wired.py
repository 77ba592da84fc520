"""A cluster in one process whose nodes call each other over real HTTP, each behind a relay."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from batonq.api.http import HttpServer
from batonq.api.internal import InternalApp
from batonq.node.cluster.node import ClusterNode
from batonq.node.settings import Settings
from tests.cluster.lines import Relay
from tests.cluster.memory import Nodes


class WiredNodes(Nodes):
    """`relays[name]` is on the line to that node."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        super().__init__(directory, **settings)
        self.relays: dict[str, Relay] = {}
        self.servers: dict[str, HttpServer] = {}

    def address(self, name: str) -> str:
        return f"http://127.0.0.1:{self.relays[name].port}"

    async def _start(self, name: str, more: dict[str, Any]) -> None:
        if name not in self.relays:
            self.relays[name] = Relay()
            await self.relays[name].listen()
        settings = Settings(
            data=str(self._directory / name),
            log_url="nats://memory",
            node=name,
            advertise=self.address(name),
            **(self._settings | more),
        )
        node = ClusterNode(settings, None, self.hub.store_of(name))
        app = InternalApp(node.answering, node.secret)
        server = HttpServer(lambda request: app.handle, direct=app.begin)
        await server.start("127.0.0.1", 0)
        self.relays[name].lead_to("127.0.0.1", server.port)
        self.hub.nodes[f"http://{name}"] = node
        self.servers[name] = server
        await node.start()

    async def crash(self, name: str) -> None:
        """Its port is closed at once, and so is every connection."""
        await self.servers.pop(name).stop(0)
        await super().crash(name)

    async def restart(self, name: str) -> asyncio.Task[None]:
        """Until the next process listens in the place of the one that died; the task ends when it has started."""
        await self.crash(name)
        starting = asyncio.create_task(self._start(name, {}))
        await self.until(lambda: name in self.servers)
        return starting

    async def stop(self) -> None:
        await super().stop()
        for server in self.servers.values():
            await server.stop(0)
        for relay in self.relays.values():
            await relay.close()


def run_wired(directory: Path, main: Callable[[WiredNodes], Awaitable[None]], *names: str, **settings: Any) -> None:
    async def run() -> None:
        nodes = WiredNodes(directory, **settings)
        try:
            await nodes.start(*names)
            await main(nodes)
        finally:
            await nodes.stop()

    asyncio.run(run())
