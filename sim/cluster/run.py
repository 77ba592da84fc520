"""One simulated cluster: takes a seed and returns a verdict."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from random import Random
from typing import Any, cast

from batonq.node.cluster.keeper import ClusterKeeper
from batonq.node.cluster.node import ClusterNode
from batonq.node.shard_host.keeper import KeeperState
from sim.audit import audit
from sim.breaks import receives_that_break_off
from sim.bugs import planted
from sim.cluster.bugs import CLUSTER_BUGS
from sim.cluster.chaos import ClusterChaos
from sim.cluster.connections import ClusterLoop, Lines
from sim.cluster.machine import Cluster, ClusterMachine
from sim.cluster.network import Network
from sim.cluster.scenario import ClusterScenario, choose
from sim.cluster.server import Server
from sim.crowds import LONG_POLL_MS, Actor, cluster_crowds
from sim.loop import SimLoop
from sim.machine import Machine
from sim.patches import patched
from sim.run import Outcome, Record, Simulation, run_to_its_end
from sim.topics import Topics

SETTLE_S = 60.0  # after the faults end, every shard has an owner and all followers by then


class ClusterSimulation(Simulation):
    scenario: ClusterScenario
    drain_rounds_max = 40
    forgets_in_the_end = False
    replayed_messages = 12
    payloads_settle_s = 30.0  # longer than a node is paused or a call between nodes is repeated
    leftovers_s = LONG_POLL_MS / 1000 + 0.7  # a node may not notice that a waiting caller has died

    def __init__(self, scenario: ClusterScenario, loop: SimLoop) -> None:
        super().__init__(scenario, loop)
        self._topics = Topics(self, self._random, scenario.settings.shards) if scenario.topics else None

    def _crowds(self) -> list[Actor]:
        return cluster_crowds(self, self.scenario, self._random)

    async def _set_up(self) -> None:
        await super()._set_up()
        if self._topics is not None:
            await self._topics.set_up()

    def _actors(self) -> list[Coroutine[Any, Any, None]]:
        return [*super()._actors(), *(self._topics.actors() if self._topics is not None else ())]

    def _make_machines(self) -> list[Machine]:
        scenario = self.scenario
        self.witness = self._make_witness()
        network = Network(self.loop, self._random("network"))
        server = Server(self.loop, self._random("server"), self.witness, self.violated)
        lines = Lines(network, lambda name: self.cluster.machines[name].kill())
        cast(ClusterLoop, self.loop).lines = lines
        self.cluster = Cluster(self.loop, self.history, scenario, network, lines, server, self.violated)
        for name in scenario.names:
            machine = ClusterMachine(self.cluster, name, self._random(f"machine {name}"))
            machine.witness = self.witness
            self.cluster.machines[name] = machine
        return list(self.cluster.machines.values())

    def machine_for(self, random: Random) -> Machine:
        """Any machine: a client that finds no node there tries another one the next time."""
        return random.choice(self.machines)

    async def run(self) -> None:
        scenario = self.scenario
        await asyncio.gather(*(machine.start() for machine in self.machines))
        supervisors = [self.loop.create_task(machine.supervise()) for machine in self.machines]
        await self._set_up()
        chaos = ClusterChaos(self.cluster, self._random("chaos"))
        self.cluster.server.stale = scenario.troubles.stale
        self.cluster.lines.fault_share = scenario.troubles.broken_calls
        self.lost_answers = scenario.troubles.lost_answers
        troubles = [self.loop.create_task(work) for work in (*chaos.tasks(), *self._storage_troubles())]
        actors = [self.loop.create_task(work) for work in self._actors()]
        await self._until(scenario.duration_s)
        await self._end(troubles)
        chaos.heal()
        self.history.say(self.loop.time(), "chaos", "all is well again")
        await self._close(actors)
        if not self.broken:
            await self._settle()
        await self._end([*self._spawned, *supervisors])
        if not self.broken:
            self._note_growth()
            self._look()
        for machine in self.machines:
            machine.crash("at the end")
        await asyncio.sleep(0)
        self._finish()

    # --- at the end -------------------------------------------------------------------------------

    def _unsettled(self) -> str:
        """Why the cluster is not settled: a node is away, a shard has no owner, or a follower is behind."""
        for machine in self.cluster.machines.values():
            node = cast(ClusterNode | None, machine.node)
            if node is None:
                return f"{machine.name} does not serve"
            node.ownership_loop.draining = False
            for number, owned in node._owned.items():
                stream, follower = self.cluster.server.stream(number), owned.follower
                if follower.state not in (KeeperState.SERVING, KeeperState.FOLLOWING):
                    return f"{machine.name}: {follower.name} is {follower.state.value}, {follower.why}"
                if follower.log is None or follower.log.next != stream.next:
                    return f"{machine.name}: {follower.name} is behind"
        for number in self.cluster.server.shards:
            owners = [name for name, node in self._nodes() if number in node.ownership_loop.serving()]
            if len(owners) != 1:
                return f"shard {number} is served by {', '.join(owners) or 'nobody'}"
        return ""

    def _nodes(self) -> list[tuple[str, ClusterNode]]:
        machines = self.cluster.machines.values()
        return [(machine.name, cast(ClusterNode, machine.node)) for machine in machines if machine.node is not None]

    async def _all_done(self) -> None:
        await super()._all_done()
        if self._topics is not None:
            await self._topics.all_arrived()

    def _finish(self) -> None:
        super()._finish()
        if self._topics is not None and not self.broken:
            self._topics.check(self.witness.fold())

    async def _settle(self) -> None:
        deadline_s = self.loop.time() + SETTLE_S
        while why := self._unsettled():
            if self.loop.time() > deadline_s:
                self.violated("liveness", f"{SETTLE_S:.0f} s after all was mended: {why}")
                return
            await asyncio.sleep(0.1)

    def _look(self) -> None:
        """Compare owners with the books, and followers with owners."""
        for _, node in self._nodes():
            for text in audit(node, self.witness, replay=True):
                self.violated("audit", text)
        for number in self.cluster.server.shards:
            states: dict[str, bytes] = {}
            for name, node in self._nodes():
                if number < len(node.shards):
                    keeper = cast(ClusterKeeper, node.shards[number])
                    if keeper.readable and keeper.reading()[1].next == self.cluster.server.stream(number).next:
                        shard = keeper.reading()[0]
                        states[name] = shard.dump(shard.last_time_ms)
            if len(set(states.values())) > 1:
                self.violated("followers", f"shard {number} has another state on each of {', '.join(states)}")

    def summary(self) -> str:
        deliveries = sum(1 for _ in self.history.deliveries())
        machines = list(self.cluster.machines.values())
        return (
            f"{len(self.history.calls)} calls, {self.acknowledged()} messages acknowledged, {deliveries} deliveries, "
            f"{len(machines)} nodes, {sum(machine.crashes for machine in machines)} crashes, "
            f"{sum(machine.pauses for machine in machines)} pauses, {self.cluster.server.frames} frames, "
            f"{self.loop.time():.0f} s{self._summary_of_others()}"
        )

    def _summary_of_others(self) -> str:
        published = f", {self._topics.acknowledgements} published" if self._topics is not None else ""
        return published + super()._summary_of_others()


def simulate_cluster(
    seed: int, steps: int | None = None, bug: str | None = None, record: Record = lambda simulation: None
) -> Outcome:
    """Run one seed of a cluster to its end, with a bug planted if one is named (see bugs.py)."""
    scenario = choose(seed, steps)
    collecting = gc.isenabled()
    gc.disable()  # the time at which an unclosed generator is collected must not depend on earlier runs
    try:
        with planted(bug, CLUSTER_BUGS), patched([*scenario.tiny.patches(), *receives_that_break_off()]):
            loop = ClusterLoop(with_executors=True)
            return run_to_its_end(lambda loop: ClusterSimulation(scenario, loop), loop, bug, record)
    finally:
        if collecting:
            gc.enable()


__all__ = ["ClusterSimulation", "simulate_cluster"]
