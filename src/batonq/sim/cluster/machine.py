"""A machine of a cluster: its node's lives, pauses and mirrors, on the network that all share."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from batonq.log.backend import LogStore
from batonq.node.cluster.node import ClusterNode
from batonq.node.node import Node, World
from batonq.node.snapshotter import make_snapshot
from batonq.sim.cluster.network import Network
from batonq.sim.cluster.peers import SimPeers
from batonq.sim.cluster.scenario import ClusterScenario
from batonq.sim.cluster.server import Server
from batonq.sim.cluster.store import Line, SimStore
from batonq.sim.disk import SimulatedDisk, Survival
from batonq.sim.history import History
from batonq.sim.loop import Life, SimLoop
from batonq.sim.machine import START_S, Machine

CLUSTER = 77


class MirrorDisk(SimulatedDisk):
    """Mirrors are never synced: after a power failure anything may be left of them."""

    def fdatasync(self, handle: int) -> None:
        pass

    def fsync_directory(self, path: str) -> None:
        pass

    def free(self, path: str) -> int:
        """It is never full, so nobody has to count."""
        return self.capacity_bytes


class SimMirrorDirectory:
    """A data directory with mirrors, without a lock: a crash would free it."""

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


@dataclass(slots=True)
class Cluster:
    """What all machines share."""

    loop: SimLoop
    history: History
    scenario: ClusterScenario
    network: Network
    server: Server
    violated: Callable[[str, str], None]
    machines: dict[str, ClusterMachine] = field(default_factory=dict)


class ClusterMachine(Machine):
    """`served` is the node that others can reach, from the moment when it starts."""

    def __init__(self, cluster: Cluster, name: str, random: Random) -> None:
        scenario = cluster.scenario
        settings = scenario.settings_of(name)
        super().__init__(
            cluster.loop, random, cluster.history, settings, scenario.log_settings, scenario.sync_s, name=name
        )
        self.served: ClusterNode | None = None
        self.disk = MirrorDisk()
        self.wall_offset_s = scenario.skews_s[name]
        self.pauses = 0
        self._cluster_of = cluster
        self._resets: list[Callable[[], None]] = []

    def _make_node(self, life: Life) -> Node:
        cluster = self._cluster_of
        network, server, name = cluster.network, cluster.server, self.name

        async def open_store(url: str) -> LogStore:
            return SimStore(Line(network, server, name, life.name), CLUSTER)

        peers = SimPeers(network, name, cluster.machines)
        self.served = ClusterNode(self.settings, self._world(life), open_store=open_store, peers=peers)
        return self.served

    def _world(self, life: Life) -> World:
        disk, data, name = self.disk, self.settings.data, life.name
        random = Random(self._random.getrandbits(64))

        async def snapshot(shard: int) -> None:
            await asyncio.sleep(self.latency_s() * 10)
            try:
                frame = make_snapshot(data, shard, disk)
            except Exception as problem:
                self.history.say(self.loop.time(), name, f"no snapshot of shard {shard}: {problem}")
                return
            self.history.say(self.loop.time(), name, f"snapshot of shard {shard} after frame {frame}")

        return World(
            monotonic=self.loop.time,
            wall=self.wall_s,
            random_bytes=random.randbytes,
            disk=disk,
            mirror_ownership=SimMirrorDirectory,
            threads=False,
            log_settings=self._log_settings,
            make_snapshot=snapshot,
        )

    async def _stop_node(self, node: Node) -> None:
        assert isinstance(node, ClusterNode)
        await node.hand_over()
        await node.stop()

    # --- what happens to it -----------------------------------------------------------------------

    def asked(self, reset: Callable[[], None]) -> None:
        """A request has come in: its connection breaks when the node dies."""
        self._resets = [*self._resets[-63:], reset]

    def wrong(self, problem: BaseException) -> None:
        self._cluster_of.violated("exception", "".join(traceback.format_exception(problem)))

    def kill(self) -> None:
        """The process dies; what it has written is left. Or power fails, and anything of it is."""
        everything = self._random.random() < 0.7
        self.crash("", Survival.EVERYTHING if everything else None)

    async def pause(self, seconds: float) -> None:
        """The process is stopped, and goes on: as by SIGSTOP and SIGCONT."""
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
        self.served = None
        super()._end(life)
        resets, self._resets = self._resets, []
        for reset in resets:
            reset()

    def times_ms(self) -> tuple[int, int]:
        """Whoever serves a shard has a time between these two."""
        now_s = START_S + self.loop.time()
        scenario = self._cluster_of.scenario
        return int((now_s + scenario.offset_min_s) * 1000), int((now_s + scenario.offset_max_s) * 1000) + 1
