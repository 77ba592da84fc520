"""A machine of a cluster: its node's lives, pauses and mirrors, on the shared network."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from batonq.api.http import HttpServer
from batonq.api.internal import InternalApp
from batonq.errors import BatonError
from batonq.log.backend import LogStore
from batonq.node.cluster.node import ClusterNode
from batonq.node.cluster.node_server import Answering, Call
from batonq.node.cluster.peers import Peers
from batonq.node.node import Node, World
from sim.cluster.connections import Lines
from sim.cluster.network import Network
from sim.cluster.scenario import ClusterScenario
from sim.cluster.server import Server
from sim.cluster.store import Line, SimStore
from sim.disk import SimulatedDisk, Survival
from sim.history import History
from sim.loop import Life, SimLoop
from sim.machine import START_S, Machine

CLUSTER = 77
SECRET = b"the secret of a simulated cluster"
PORT = 80


class MirrorDisk(SimulatedDisk):
    """Mirrors are never synced: after a power failure anything may be left of them."""

    def fdatasync(self, handle: int) -> None:
        pass

    def fsync_directory(self, path: str) -> None:
        pass

    def free(self, path: str) -> int:
        """The disk is never full, so nothing is counted."""
        return self.capacity_bytes


class SimMirrorDirectory:
    """A data directory with mirrors, without a lock, since a crash would release it."""

    def __init__(self, data: str, cluster: int, where: str) -> None:
        self.cluster = cluster

    def take(self) -> None:
        pass

    async def acquire(self, shard: int, above: int = 0) -> int:
        raise AssertionError("shards are owned by leases")

    async def release(self, shard: int) -> None:
        pass

    def set_address(self, address: str) -> None:
        pass

    def close(self) -> None:
        pass


class WatchedAnswering(Answering):
    """Reports any error other than a BatonError as a finding, not only in the log."""

    def __init__(self, node: ClusterNode, wrong: Callable[[BaseException], None]) -> None:
        super().__init__(node)
        self._wrong = wrong

    def _end(self, name: str, call: Call, answer: bytes | Exception) -> None:
        if isinstance(answer, Exception) and not isinstance(answer, BatonError):
            self._wrong(answer)
        super()._end(name, call, answer)


@dataclass(slots=True)
class Cluster:
    """What all machines share."""

    loop: SimLoop
    history: History
    scenario: ClusterScenario
    network: Network
    lines: Lines
    server: Server
    violated: Callable[[str, str], None]
    machines: dict[str, ClusterMachine] = field(default_factory=dict)


class ClusterMachine(Machine):
    """Its node accepts calls of others from its start, through the HTTP server of production."""

    snapshot_errors = (Exception,)  # anything may be left of a mirror

    def __init__(self, cluster: Cluster, name: str, random: Random) -> None:
        scenario = cluster.scenario
        settings = scenario.settings_of(name)
        super().__init__(
            cluster.loop, random, cluster.history, settings, scenario.log_settings, scenario.sync_s, name=name
        )
        self.disk = MirrorDisk()
        self.wall_offset_s = scenario.skews_s[name]
        self.pauses = 0
        self._cluster_of = cluster
        self._front: HttpServer

    def _make_node(self, life: Life) -> Node:
        cluster = self._cluster_of
        network, server, name = cluster.network, cluster.server, self.name

        async def open_store(url: str) -> LogStore:
            return SimStore(Line(network, server, name, life.name), CLUSTER)

        world = self._world(life)
        secret = SECRET if cluster.scenario.secret else b""
        peers = Peers(secret, None, world.random_bytes)
        node = ClusterNode(self.settings, world, open_store=open_store, peers=peers)
        node.answering = WatchedAnswering(node, self._wrong)
        app = InternalApp(node.answering, secret, random_bytes=world.random_bytes)
        self._front = HttpServer(lambda request: app.handle, direct=app.begin)
        self.loop.create_task(self._front.start(name, PORT), context=life.context)
        return node

    def _world(self, life: Life) -> World:
        return replace(self._bare_world(life), mirror_ownership=SimMirrorDirectory)

    async def _stop_node(self, node: Node) -> None:
        assert isinstance(node, ClusterNode)
        front = self._front
        await node.hand_over()
        front.stop_accepting()
        node.stop_waiting()
        await front.stop(self.settings.drain_s)
        await node.stop()

    # --- what happens to it -----------------------------------------------------------------------

    def _wrong(self, problem: BaseException) -> None:
        self._cluster_of.violated("exception", "".join(traceback.format_exception(problem)))

    def kill(self) -> None:
        """Kill the process, which keeps its written data. Or cut the power, after which any part of the data may be
        left.
        """
        everything = self._random.random() < 0.7
        self.crash("", Survival.EVERYTHING if everything else None)

    async def pause(self, seconds: float) -> None:
        """Stop the process and let it continue, as by SIGSTOP and SIGCONT."""
        life = self.life
        if not life.alive or life.paused:
            return
        self.pauses += 1
        self._say(f"is stopped for {seconds:.3f} s")
        self.loop.pause(life)
        try:
            await asyncio.sleep(seconds)
        finally:
            if life.alive:
                self.loop.resume(life)
                self._say("goes on")

    def _end(self, life: Life) -> None:
        super()._end(life)
        self._cluster_of.lines.end_life(life)
        if self._front.counters.failures:
            self._cluster_of.violated("exception", f"{life.name}: the HTTP server could not answer")

    def times_ms(self) -> tuple[int, int]:
        """The lowest and the highest time that the owner of a shard can have."""
        now_s = START_S + self.loop.time()
        scenario = self._cluster_of.scenario
        return int((now_s + scenario.offset_min_s) * 1000), int((now_s + scenario.offset_max_s) * 1000) + 1
