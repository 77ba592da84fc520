"""Faults of a cluster and their times: nodes that die, pause and stop, links that are cut, servers that are away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any

import msgspec

from batonq.errors import BatonError
from batonq.node.cluster.node import ClusterNode
from sim.cluster.machine import Cluster, ClusterMachine
from sim.cluster.network import FAIR, SERVER, Weather
from sim.loop import current_life
from sim.machine import Gone

ANSWER_S = 10.0  # how long an operator waits


class ClusterChaos:
    def __init__(self, cluster: Cluster, random: Random) -> None:
        self._cluster = cluster
        self._random = random
        self._troubles = cluster.scenario.troubles

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        troubles = self._troubles
        kinds: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (troubles.kill_s, self._kill),
            (troubles.kill_all_s, self._kill_all),
            (troubles.pause_s, self._pause),
            (troubles.stop_s, self._stop),
            (troubles.cut_s, self._cut),
            (troubles.servers_s, self._lose_servers),
            (troubles.move_s, self._move),
            (troubles.weather_s, self._change_weather),
            (troubles.wall_s, self._set_clock),
            (troubles.leases_s, self._lose_leases),
        ]
        return [self._again_and_again(mean_s, act) for mean_s, act in kinds if mean_s]

    def heal(self) -> None:
        """End all faults."""
        network = self._cluster.network
        network.weather = FAIR
        network.mend(*network.cut)
        self._cluster.server.stale = 0.0
        self._cluster.lines.fault_share = 0.0
        self._cluster.server.keys_away.clear()
        for machine in self._cluster.machines.values():
            self._cluster.loop.resume(machine.life)

    async def _again_and_again(self, mean_s: float, act: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(self._random.expovariate(1 / mean_s))
            await act()

    def _say(self, text: str) -> None:
        self._cluster.history.say(self._cluster.loop.time(), "chaos", text)

    def _one(self) -> ClusterMachine:
        """A node chosen at random, more often than not one that owns a shard."""
        machines = list(self._cluster.machines.values())
        owners = [machine for machine in machines if machine.node is not None and _serving(machine)]
        return self._random.choice(owners if owners and self._random.random() < 0.6 else machines)

    async def _kill(self) -> None:
        self._one().kill()

    async def _kill_all(self) -> None:
        for machine in self._cluster.machines.values():
            machine.kill()

    async def _pause(self) -> None:
        await self._one().pause(self._random.choice((0.3, 1.5, 4.0)) * (0.5 + self._random.random()))

    async def _stop(self) -> None:
        machine = self._one()
        if not machine.life.paused:
            await machine.stop()

    async def _cut(self) -> None:
        network = self._cluster.network
        names = [*self._cluster.machines, SERVER]
        one = self._random.choice(names[:-1])
        others = [name for name in names if name != one]
        cut_off = self._random.choice((others, [SERVER], [self._random.choice(others)]))
        ways = self._random.choice(("to", "from", "both"))
        links = [(one, other) for other in cut_off if ways != "from"]
        links += [(other, one) for other in cut_off if ways != "to"]
        self._say(f"{one} is cut off from {', '.join(cut_off)}: {ways}")
        network.cut.update(links)
        await asyncio.sleep(self._random.choice((0.5, 2.0, 5.0)) * self._random.random())
        network.mend(*links)
        self._say(f"{one} is connected again")

    async def _lose_servers(self) -> None:
        links = [(name, SERVER) for name in self._cluster.machines]
        links += [(SERVER, name) for name in self._cluster.machines if self._random.random() < 0.7]
        self._say("the servers are away")
        self._cluster.network.cut.update(links)
        await asyncio.sleep(self._random.choice((0.5, 3.0)) * self._random.random())
        self._cluster.network.mend(*links)
        self._say("the servers are back")

    async def _lose_leases(self) -> None:
        """Make the leases unreachable, as while the servers elect a leader for their bucket, or for one node only."""
        nodes = list(self._cluster.machines) if self._random.random() < 0.3 else [self._one().name]
        self._say(f"{', '.join(nodes)}: the leases are away")
        self._cluster.server.keys_away.update(nodes)
        await asyncio.sleep(self._random.choice((1.0, 5.0)) * (0.5 + self._random.random()))
        self._cluster.server.keys_away.difference_update(nodes)
        self._say(f"{', '.join(nodes)}: the leases are back")

    async def _change_weather(self) -> None:
        random = self._random
        self._cluster.network.weather = Weather(
            delay_s=random.choice((0.001, 0.01, 0.05)),
            lost=random.choice((0.0, 0.02, 0.2)),
            twice=random.choice((0.0, 0.1)),
            late=random.choice((0.0, 0.05, 0.2)),
            late_s=random.choice((1.0, 6.0)),
        )
        self._say(f"weather: {self._cluster.network.weather}")
        await asyncio.sleep(random.random() * 4)
        self._cluster.network.weather = FAIR
        self._say("weather: fair")

    async def _move(self) -> None:
        """As an operator, ask a node to hand a shard over, to drain, or to accept shards again."""
        machine = self._one()
        node = machine.node
        if not isinstance(node, ClusterNode):
            return
        loop = node.ownership_loop
        target = self._random.choice(list(self._cluster.machines))
        serving = loop.serving()
        shard = self._random.choice(serving) if serving else 0
        if loop.draining:
            loop.draining = False
            self._say(f"{machine.name} is drained no more")
            return
        drains = self._random.random() < 0.2
        self._say(f"{machine.name} is asked to {'drain' if drains else f'hand shard {shard} over to {target}'}")
        what = ("node/drain", b"") if drains else ("node/move", msgspec.msgpack.encode((shard, target)))
        try:
            async with asyncio.timeout(ANSWER_S):
                await machine.run(node.answering.handle(what[0], "", what[1]))
        except (BatonError, Gone, TimeoutError) as problem:
            self._say(f"{machine.name} did not: {type(problem).__name__} {problem}")

    async def _set_clock(self) -> None:
        """Set a clock by one of the steps, relative to its value at the start."""
        assert current_life() is None
        machine = self._random.choice(list(self._cluster.machines.values()))
        scenario = self._cluster.scenario
        step_s = self._random.choice((0.0, *scenario.steps_s))
        machine.wall_offset_s = scenario.skews_s[machine.name] + step_s
        self._say(f"the clock of {machine.name} is set to {machine.wall_offset_s:+.1f} s")


def _serving(machine: ClusterMachine) -> bool:
    node = machine.node
    return isinstance(node, ClusterNode) and bool(node.ownership_loop.serving())
