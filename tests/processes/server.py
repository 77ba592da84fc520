"""Two processes of one server, in this process, behind one address: each request goes to one that chance picks.

They are real in all but that: each has its own shards of one data directory, and they ask each other by Unix sockets.
"""

from __future__ import annotations

import asyncio
from random import Random

from batonq.api.http import HttpServer, Request, Router, direct_under
from batonq.api.http.messages import Direct, Handler, Reply, plain
from batonq.api.rest import RestApp
from batonq.api.sqs import SqsApp, SqsSettings
from batonq.cli.process import listen_here
from batonq.cli.serve import compose_internal, gate_of, limits_of
from batonq.log.ownership import LockFileOwnership
from batonq.node.node import World
from batonq.node.processes.node import ProcessNode
from batonq.node.processes.place import Place, ToldOwners, socket_path
from batonq.node.settings import Settings
from tests.support.server import ACCOUNT, TestServer


class Processes:
    """All processes of one server, without the supervisor: `start` and `stop` do what it would."""

    def __init__(self, settings: Settings, world: World | None = None) -> None:
        self.settings = settings
        self._world = world
        self.nodes: dict[int, ProcessNode] = {}
        self._owners: dict[int, ToldOwners] = {}
        self._internal: dict[int, HttpServer] = {}
        self._up: dict[int, int] = {}
        self._starts = 0
        self._lock = LockFileOwnership(settings.data)

    async def start(self, *numbers: int) -> None:
        self._lock.take()
        self.nodes |= {number: self._make(number) for number in numbers}
        await asyncio.gather(*(self.nodes[number].start() for number in numbers))

    def _make(self, number: int) -> ProcessNode:
        place = Place(self.settings.data, number, self.settings.processes)
        self._owners[number] = owners = ToldOwners(place)
        owners.tell(self._up)
        self._starts += 1
        start = self._starts

        async def announce() -> None:
            self._internal[number] = compose_internal(node)
            await self._internal[number].start_here(listen_here(socket_path(place.data, number)))
            self._tell(self._up | {number: start})

        node = ProcessNode(self.settings, place, owners, announce, self._world)
        return node

    def _tell(self, up: dict[int, int]) -> None:
        self._up = up
        for owners in self._owners.values():
            owners.tell(up)

    async def end(self, number: int) -> None:
        """As if it were gone, with everything that it had decided committed."""
        self._tell({each: start for each, start in self._up.items() if each != number})
        await self._internal.pop(number).stop(0)
        await self.nodes.pop(number).stop()

    async def stop(self) -> None:
        for node in self.nodes.values():
            node.stop_waiting()
        for number in sorted(self.nodes, reverse=True):
            await self.end(number)
        self._lock.close()


class ProcessesServer(TestServer):
    """`advance` moves the clocks of all processes."""

    def __init__(self, data: str, shards: int = 2, spread: int = 1) -> None:
        super().__init__(data)
        self.random = Random(7)
        settings = Settings(data=data, account=ACCOUNT, processes=2, shards=shards, spread=spread)
        self.processes = Processes(settings, self.clock.world(Random(7).randbytes))

    def advance(self, seconds: float) -> None:
        self.run(lambda: self.processes.nodes[0].advance_clock(int(seconds * 1000)))

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        await self.processes.start(0, 1)
        self.node = self.processes.nodes[0]
        doors = [self._doors(node) for node in self.processes.nodes.values()]

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
        for node in self.processes.nodes.values():
            node.stop_waiting()
        await self.http.stop(5)
        await self.processes.stop()

    def _doors(self, node: ProcessNode) -> tuple[Router, Direct]:
        self.app = SqsApp(node.broker, SqsSettings(account=ACCOUNT))
        self.rest = RestApp(node.broker)
        router = Router(self.app.handle)
        router.mount_under("/v1", self.rest.handle)
        router.mount_under("/problems", self.rest.handle)
        return router, direct_under("/v1", self.rest.begin, self.app.begin)
