"""A cluster of three nodes in this process, behind one address: each request goes to a node that chance picks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

from batonq.api.http import HttpServer, Request, Router, direct_under
from batonq.api.http.messages import Direct, Handler, Reply, plain
from batonq.api.rest import RestApp
from batonq.api.sqs import SqsApp, SqsSettings
from batonq.cli.serve import gate_of, limits_of
from tests.cluster.memory import Nodes
from tests.support.server import ACCOUNT, TestServer

NAMES = ("a", "b", "c")


class ClusterServer(TestServer):
    """`advance` moves the clocks of all nodes."""

    def __init__(self, data: str, shards: int = 3, spread: int = 1) -> None:
        super().__init__(data)
        self.random = Random(7)
        # A process that is not given a processor for a while loses no lease of a minute.
        self.nodes = Nodes(Path(data), clock=self.clock, account=ACCOUNT, lease_s=60.0, shards=shards, spread=spread)

    def advance(self, seconds: float) -> None:
        for name in NAMES:
            node = self.nodes[name]
            self.run(lambda node=node: node.broker.advance_clock(int(seconds * 1000)))  # type: ignore[misc]

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        await self.nodes.start(*NAMES)
        self.node = self.nodes["a"]
        doors = [self._doors(name) for name in NAMES]

        def resolve(request: Request) -> Handler:
            return self.random.choice(doors)[0].resolve(request)

        def direct(request: Request, reply: Reply) -> bool:
            return self.random.choice(doors)[1](request, reply)

        limits = limits_of(self.settings)
        self.http = HttpServer(resolve, limits, direct, gate_of(self.settings, limits))
        self.http.refusal = lambda target, status, text: (
            self.rest.refusal(target, status, text) or plain(status, text, close=True)
        )
        await self.http.start("127.0.0.1", 0)
        self._ready.set()
        await self._stop.wait()
        self.http.stop_accepting()
        for name in NAMES:
            self.nodes[name].stop_waiting()
        await self.http.stop(5)
        await self.nodes.stop()

    def _doors(self, name: str) -> tuple[Router, Direct]:
        broker = self.nodes[name].broker
        self.app = SqsApp(broker, SqsSettings(account=ACCOUNT))
        self.rest = RestApp(broker)
        router = Router(self.app.handle)
        router.mount_under("/v1", self.rest.handle)
        router.mount_under("/problems", self.rest.handle)
        return router, direct_under("/v1", self.rest.begin, self.app.begin)
