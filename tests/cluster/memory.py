"""A cluster in one process: real nodes, logs and leases in memory, and calls between nodes that a test can cut.

`run_nodes` runs it in simulated time: a lease ends when the test lets time pass, however slow the machine is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine
from pathlib import Path
from random import Random
from typing import Any, TypeVar, cast

from batonq.errors import BatonError, Fenced, OwnershipHeld
from batonq.log.backend import NameTaken, Unreachable
from batonq.log.interface import Lease, Member
from batonq.node.broker import Queue
from batonq.node.cluster.keeper import ClusterKeeper
from batonq.node.cluster.node import ClusterNode
from batonq.node.cluster.peers import PREFIX, NoAnswer, NotSent
from batonq.node.node import World
from batonq.node.routing import wire
from batonq.node.settings import Settings
from batonq.node.shard_host.snapshot_process import make_snapshot
from sim.loop import SimLoop
from tests.node.nodes import ACCOUNT
from tests.node.support import START_S
from tests.support import brokers
from tests.support.far_log import FarLog, MemoryBackend, Vice
from tests.support.server import HeldClock

T = TypeVar("T")
LEASE_S = 1.0
PATIENCE_S = 60.0


class Hub:
    """What all nodes share."""

    def __init__(self) -> None:
        self.fars: dict[int, FarLog] = {}
        self.owners: dict[int, tuple[Lease, float]] = {}
        self.epochs: dict[int, int] = {}
        self.members: dict[str, tuple[Member, float]] = {}
        self.nodes: dict[str, ClusterNode] = {}
        self.away: set[str] = set()  # nodes that the store does not answer
        self.leases_away = False  # for all nodes, while the logs are there
        self.leaderless = False  # the logs take nothing from anybody, and say so
        self.cut: set[tuple[str, str]] = set()  # from a node, to an address
        self.unanswered: list[str] = []  # ends of paths whose next answer is lost
        self.calls: list[str] = []
        self.around: Callable[[str, bool], Awaitable[None]] | None = None  # told of each call, before and after it
        self.kinds: list[int] = []  # that were asked for
        self.facts: dict[str, str] = {}
        self.expected: set[str] = set()
        self.time_ms = 0  # by the store's clock; 0: it does not tell

    def store_of(self, name: str) -> Callable[[str], Awaitable[MemoryStore]]:
        async def open_store(url: str) -> MemoryStore:
            return MemoryStore(self, name)

        return open_store

    def check_reached(self, name: str) -> None:
        if name in self.away:
            raise Unreachable("the store does not answer")

    def vice(self, name: str) -> Vice:
        if name in self.away:
            return Vice.LOST
        return Vice.LEADERLESS if self.leaderless else Vice.NONE

    def check_leases(self, name: str) -> None:
        self.check_reached(name)
        if self.leases_away:
            raise Unreachable("the leases are not there")

    def lease(self, shard: int) -> Lease | None:
        lease, until_s = self.owners.get(shard, (None, 0.0))
        return lease if lease is not None and until_s > asyncio.get_running_loop().time() else None


class MemoryStore:
    """See backend.LogStore."""

    cluster = 77
    where = "a log in memory"
    remarks = ()
    replicas = 1

    def __init__(self, hub: Hub, name: str) -> None:
        self._hub = hub
        self._name = name

    async def check_kind(self, replicas: int) -> None:
        self._hub.kinds.append(replicas)

    async def backend(self, shard: int, replicas: int) -> MemoryBackend:
        self._hub.check_reached(self._name)
        far = self._hub.fars.setdefault(shard, FarLog(shard))
        return MemoryBackend(far, lambda what: self._hub.vice(self._name))

    def leases(self, node: str, address: str, ttl_s: float) -> MemoryLeases:
        return MemoryLeases(self._hub, node, address, ttl_s)

    async def close(self) -> None:
        pass


class MemoryLeases:
    """See interface.Leases."""

    def __init__(self, hub: Hub, node: str, address: str, ttl_s: float) -> None:
        self.keeps = True  # False: nothing is renewed any more, as if the node were asleep
        self._hub = hub
        self._node = node
        self._address = address
        self._ttl_s = ttl_s
        self._held: dict[int, int] = {}
        self._incarnation = ""
        self._replaces = ""

    def _until_s(self) -> float:
        return asyncio.get_running_loop().time() + self._ttl_s

    async def acquire(self, shard: int, above: int = 0) -> int:
        self._hub.check_leases(self._node)
        await asyncio.sleep(0)
        lease = self._hub.lease(shard)
        if lease is not None and lease.node != self._node:
            raise OwnershipHeld(f"shard {shard} is owned by {lease.node}")
        epoch = self._hub.epochs[shard] = max(self._hub.epochs.get(shard, 0), above) + 1
        self._hub.owners[shard] = Lease(shard, self._node, self._address, epoch), self._until_s()
        self._held[shard] = epoch
        return epoch

    async def renew(self, shard: int) -> None:
        self._hub.check_leases(self._node)
        await asyncio.sleep(0)
        lease = self._hub.lease(shard)
        if not self.keeps:
            return
        epoch = self._held.get(shard)
        if epoch is None or (lease.epoch if lease is not None else self._hub.epochs[shard]) != epoch:
            self._held.pop(shard, None)
            raise Fenced(f"the lease of {self._node} on shard {shard} has ended")
        self._hub.owners[shard] = Lease(shard, self._node, self._address, epoch), self._until_s()

    async def release(self, shard: int) -> None:
        self._hub.check_leases(self._node)
        epoch = self._held.pop(shard, None)
        lease = self._hub.lease(shard)
        if lease is not None and lease.epoch == epoch:
            del self._hub.owners[shard]

    def held(self) -> list[int]:
        return list(self._held)

    async def holders(self) -> dict[int, Lease]:
        self._hub.check_leases(self._node)
        return {shard: lease for shard in self._hub.owners if (lease := self._hub.lease(shard)) is not None}

    async def watch(self) -> AsyncGenerator[Lease, None]:
        known: dict[int, Lease] = {}
        while True:
            now = await self.holders()
            for shard in known.keys() | now.keys():
                if now.get(shard) != known.get(shard):
                    yield now.get(shard) or Lease(shard, "", "", 0)
            known = now
            await asyncio.sleep(0.02)

    def incarnate(self, incarnation: str, replaces: str = "") -> None:
        self._incarnation, self._replaces = incarnation, replaces

    async def announce(self, note: str) -> None:
        member = Member(self._node, self._address, note, self._incarnation)
        for other in await self.members():
            known = other.incarnation in ("", self._incarnation, self._replaces) or not self._incarnation
            if other.node == self._node and not known:
                raise NameTaken(self._node, other.address)
        self._hub.members[self._node] = member, self._until_s()

    async def withdraw(self) -> None:
        self._hub.check_leases(self._node)
        member, _ = self._hub.members.get(self._node, (None, 0.0))
        if member is not None and member.incarnation == self._incarnation:
            del self._hub.members[self._node]

    async def agree(self, name: str, text: str, replaces: Collection[str] = ()) -> str:
        self._hub.check_leases(self._node)
        if self._hub.facts.get(name, "") in ("", *replaces):
            self._hub.facts[name] = text
        return self._hub.facts[name]

    async def expect(self, node: str, is_expected: bool) -> None:
        self._hub.check_leases(self._node)
        (self._hub.expected.add if is_expected else self._hub.expected.discard)(node)

    async def expected(self) -> list[str]:
        self._hub.check_leases(self._node)
        return sorted(self._hub.expected)

    async def store_time_ms(self) -> int:
        return self._hub.time_ms

    async def members(self) -> list[Member]:
        self._hub.check_leases(self._node)
        now_s = asyncio.get_running_loop().time()
        return sorted(member for member, until_s in self._hub.members.values() if until_s > now_s)


class MemoryPeers:
    """See peers.Asking."""

    def __init__(self, hub: Hub, name: str) -> None:
        self._hub = hub
        self._name = name

    async def ask(self, address: str, path: str, call: str, body: bytes, timeout_s: float) -> bytes:
        node = self._hub.nodes.get(address)
        if node is None or (self._name, address) in self._hub.cut:
            raise NotSent(f"{address} cannot be reached")
        self._hub.calls.append(path)
        await asyncio.sleep(0)
        if self._hub.around is not None:
            await self._hub.around(path, False)
        try:
            answer = await node.answering.handle(path.removeprefix(PREFIX), call, body)
        except BatonError as problem:
            raise wire.decode_problem(wire.encode_problem(problem)) from None
        for end in self._hub.unanswered:
            if path.endswith(end):
                self._hub.unanswered.remove(end)
                raise NoAnswer("the answer was lost")
        if self._hub.around is not None:
            await self._hub.around(path, True)
        return answer

    def close(self) -> None:
        pass


class Nodes:
    """Nodes a, b, c of one cluster. On a simulated loop their time is the loop's, else that of `clock`."""

    def __init__(self, directory: Path, *, clock: HeldClock | None = None, **settings: Any) -> None:
        self.hub = Hub()
        self._clock = clock or HeldClock()
        self.ahead_s: dict[str, float] = {}  # of the clocks of these nodes
        self._random = Random(1)
        self._directory = directory
        self._settings = {"shards": 3, "lease_s": LEASE_S, "hold_s": 3600.0, **settings}

    def __getitem__(self, name: str) -> ClusterNode:
        return self.hub.nodes[f"http://{name}"]

    async def start(self, *names: str, **settings: Any) -> None:
        await asyncio.gather(*(self._start(name, settings) for name in names))
        await self.until(lambda: not any(node.not_ready() for node in self.hub.nodes.values()))

    async def _start(self, name: str, more: dict[str, Any]) -> None:
        settings = Settings(
            data=str(self._directory / name),
            log_url="nats://memory",
            node=name,
            advertise=f"http://{name}",
            **(self._settings | more),
        )
        node = ClusterNode(settings, self._world(name, settings), self.hub.store_of(name), MemoryPeers(self.hub, name))
        self.hub.nodes[f"http://{name}"] = node
        await node.start()

    def _world(self, name: str, settings: Settings) -> World:
        loop = asyncio.get_running_loop()
        chance = Random(self._random.getrandbits(64)).randbytes
        if not isinstance(loop, SimLoop):
            return self._clock.world(chance)

        async def snapshot(shard: int) -> None:
            make_snapshot(settings.data, shard)

        return World(
            monotonic=loop.time,
            wall=lambda: wall_s() + self.ahead_s.get(name, 0.0),
            random_bytes=chance,
            make_snapshot=snapshot,
        )

    async def stop(self) -> None:
        for address in list(self.hub.nodes):
            await self.hub.nodes.pop(address).stop()

    async def crash(self, name: str) -> None:
        """End a node without giving up its leases."""
        node = self.hub.nodes.pop(f"http://{name}")
        node.stopping = True
        owners = dict(self.hub.owners)
        assert node._upkeep is not None
        node._upkeep.cancel()
        await node._channels.close()
        await node._close()
        self.hub.owners.update(owners)

    def owner(self, shard: int) -> ClusterNode | None:
        for node in self.hub.nodes.values():
            if shard in node.ownership_loop.serving():
                return node
        return None

    async def owned(self, shard: int) -> ClusterNode:
        await self.until(lambda: self.owner(shard) is not None)
        node = self.owner(shard)
        assert node is not None
        return node

    @staticmethod
    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - any condition
                await asyncio.sleep(0.01)


def wall_s() -> float:
    """The time of day in simulated time."""
    return START_S + asyncio.get_running_loop().time()


def run_simulated(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in simulated time: threads have no part in it, and nothing waits for the real world."""
    with asyncio.Runner(loop_factory=lambda: SimLoop(with_executors=True)) as runner:
        return runner.run(main)


def run_nodes(directory: Path, main: Callable[[Nodes], Awaitable[None]], *names: str, **settings: Any) -> None:
    """Run a test over a cluster of these nodes, in simulated time."""

    async def run() -> None:
        nodes = Nodes(directory, **settings)
        try:
            await nodes.start(*names)
            await main(nodes)
        finally:
            await nodes.stop()

    run_simulated(run())


async def bodies(node: ClusterNode, queue: Queue, wait_ms: int = 0) -> list[str]:
    found = await brokers.receive(node.broker, queue, 10, None, wait_ms, "tester")
    assert not any(await brokers.delete(node.broker, queue, [delivery.receipt for delivery in found]))
    return sorted(delivery.body.decode() for delivery in found)


def known(node: ClusterNode, name: str) -> Queue:
    return node.broker.queue(ACCOUNT, name)


def keeper(node: ClusterNode, shard: int) -> ClusterKeeper:
    return cast(ClusterKeeper, node.shards[shard])


def other(nodes: Nodes, node: ClusterNode) -> ClusterNode:
    return next(each for each in nodes.hub.nodes.values() if each is not node)
