"""The faults: each is injected, lasts, and is healed. It reports which shards it made unavailable."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

from batonq.errors import BatonError
from campaign.cluster import SHARDS, BatonNode, Broken, Cluster, Program, Server, until

AWAY_S = 9.0  # how long a killed process stays down: longer than a lease and a takeover
HOUR_S = 3600.0
CRASH_MAX_S = 10.0  # until a shard is served again after a crash
PLANNED_MAX_S = 1.0  # and after a handover


@dataclass(slots=True)
class Done:
    """The effect of a fault, to calculate how long a shard was unavailable."""

    began_s: float
    text: str
    victims: set[str] = field(default_factory=set)  # nodes that cannot help clients meanwhile
    shards: set[int] = field(default_factory=set)  # shards that another node has to take over
    limit_s: float = 0.0  # how long they may be unavailable; 0: no limit
    healed_s: float = 0.0


class Faults:
    def __init__(self, cluster: Cluster, random: Random, shard: int) -> None:
        self._cluster = cluster
        self._random = random
        self._shard = shard  # the shard of the fault
        self._lasts_s = max(AWAY_S, cluster.lease_s * 1.5)

    async def run(self, name: str) -> Done:
        done = await FAULTS[name](self)
        done.healed_s = done.healed_s or time.monotonic()
        return done

    async def _owner(self) -> BatonNode:
        await self._cluster.wait_ready()  # a shard that is being moved has no owner for a moment
        return (await self._cluster.owners()).get(self._shard) or await self._owner()

    async def _owned_by(self, *nodes: Program) -> set[int]:
        owners = await self._cluster.owners()
        return {shard for shard, node in owners.items() if isinstance(shard, int) and node in nodes}

    async def _leader(self) -> Server:
        async def led() -> bool:
            try:
                return all(self._cluster.leader(shard) for shard in range(SHARDS))
            except (Broken, OSError):
                return False

        await until(led, "a stream has no leader")
        return self._cluster.leader(self._shard)

    def _led_by(self, server: Program) -> set[int]:
        return {shard for shard in range(SHARDS) if self._cluster.leader(shard) is server}

    # --- kills ----------------------------------------------------------------------------------

    async def kill_owner(self) -> Done:
        return await self._kill(await self._owner())

    async def kill_random(self) -> Done:
        return await self._kill(self._random.choice(self._cluster.nodes))

    async def kill_two(self) -> Done:
        return await self._kill(*self._random.sample(self._cluster.nodes, 2))

    async def kill_all(self) -> Done:
        return await self._kill(*self._cluster.nodes)

    async def _kill(self, *nodes: BatonNode) -> Done:
        shards = await self._owned_by(*nodes)
        done = Done(time.monotonic(), "kill -9 of " + " and ".join(node.name for node in nodes))
        for node in nodes:
            node.kill()
        if len(nodes) < len(self._cluster.nodes):
            done.victims = {node.name for node in nodes}
        done.shards = shards
        if len(nodes) < len(self._cluster.nodes):
            done.limit_s = CRASH_MAX_S
            await asyncio.sleep(self._lasts_s)
        for node in nodes:
            node.start()
        return done

    async def kill_leader(self) -> Done:
        leader = await self._leader()
        done = Done(time.monotonic(), f"kill -9 of {leader.name}, which leads the stream of shard {self._shard}")
        done.shards = self._led_by(leader)
        leader.kill()
        await asyncio.sleep(self._lasts_s)
        leader.start()
        return done

    async def kill_servers(self) -> Done:
        done = Done(time.monotonic(), "kill -9 of all NATS servers", shards=set(range(SHARDS)))
        for server in self._cluster.servers:
            server.kill()
        await asyncio.sleep(1.0)
        for server in self._cluster.servers:
            server.start()
        return done

    # --- stops, cuts, clocks ----------------------------------------------------------------------

    async def stop_owner(self) -> Done:
        owner = await self._owner()
        shards = await self._owned_by(owner)
        done = Done(time.monotonic(), f"SIGSTOP of {owner.name}", {owner.name}, shards, CRASH_MAX_S)
        owner.stop()
        await self._until_taken(owner)
        await asyncio.sleep(1.0 + self._random.random())
        owner.go_on()
        return done

    async def _until_taken(self, owner: BatonNode) -> None:
        async def taken() -> bool:
            try:
                return (await self._cluster.owners()).get(self._shard, owner) is not owner
            except Broken:
                return False

        await until(taken, f"nobody takes shard {self._shard}", 60.0)

    async def cut_both(self) -> Done:
        return await self._cut("both directions", out=True, into=True)

    async def cut_out(self) -> Done:
        return await self._cut("its outgoing direction", out=True)

    async def cut_in(self) -> Done:
        return await self._cut("its incoming direction", into=True)

    async def _cut(self, how: str, *, out: bool = False, into: bool = False) -> Done:
        """Cut the owner off from everything except its clients."""
        cluster = self._cluster
        owner = await self._owner()
        shards = await self._owned_by(owner)
        others = [each.name for each in (*cluster.nodes, *cluster.servers) if each is not owner]
        pairs = [(owner.name, other) for other in others if out] + [(other, owner.name) for other in others if into]
        done = Done(time.monotonic(), f"{owner.name} cut off in {how}", {owner.name}, shards, CRASH_MAX_S)
        await cluster.cut(pairs)
        await asyncio.sleep(self._lasts_s + self._random.random())
        await cluster.heal()
        return done

    async def cut_leader(self) -> Done:
        """Cut the leader of the shard's stream off from the other servers; its clients stay."""
        cluster = self._cluster
        leader = await self._leader()
        others = [server.name for server in cluster.servers if server is not leader]
        pairs = [(leader.name, other) for other in others] + [(other, leader.name) for other in others]
        done = Done(time.monotonic(), f"{leader.name}, which leads shard {self._shard}, cut off from other servers")
        done.shards = self._led_by(leader)
        await cluster.cut(pairs)
        await asyncio.sleep(self._lasts_s + self._random.random())
        await cluster.heal()
        return done

    async def clock(self) -> Done:
        """The owner's clock jumps an hour ahead or back, and later returns."""
        owner = await self._owner()
        ahead_s = self._random.choice((HOUR_S, -HOUR_S))
        done = Done(time.monotonic(), f"the clock of {owner.name} jumps by {ahead_s / 3600:+g} h")
        owner.move_clock(ahead_s)
        await asyncio.sleep(self._lasts_s)
        if self._random.random() < 0.5:  # another node has to continue from the time that it has reached
            done.text += ", and it is killed"
            done.victims = {owner.name}
            owner.kill()
            owner.move_clock(0.0)
            await asyncio.sleep(self._lasts_s)
            owner.start()
        owner.move_clock(0.0)
        return done

    async def hand_over(self) -> Done:
        owner = await self._owner()
        target = self._random.choice([node for node in self._cluster.nodes if node is not owner])
        text = f"shard {self._shard} handed over by {owner.name} to {target.name}"
        done = Done(time.monotonic(), text, set(), {self._shard}, PLANNED_MAX_S)
        try:
            await owner.ask("move", (self._shard, target.name))
        except (BatonError, Broken) as problem:
            done.text += f": {problem}"
        done.healed_s = time.monotonic()
        await asyncio.sleep(2.0)
        return done

    async def outage(self) -> Done:
        """Everything is down for longer than a visibility timeout: leases continue with a grace period."""
        done = Done(time.monotonic(), "kill -9 of all nodes, for the length of an outage")
        done.shards = set(range(SHARDS))
        for node in self._cluster.nodes:
            node.kill()
        await asyncio.sleep(AWAY_S)
        for node in self._cluster.nodes:
            node.start()
        return done


FAULTS: dict[str, Callable[[Faults], Awaitable[Done]]] = {
    "kill-owner": Faults.kill_owner,
    "kill-random": Faults.kill_random,
    "kill-two": Faults.kill_two,
    "kill-all": Faults.kill_all,
    "kill-leader": Faults.kill_leader,
    "kill-servers": Faults.kill_servers,
    "stop-owner": Faults.stop_owner,
    "cut-both": Faults.cut_both,
    "cut-out": Faults.cut_out,
    "cut-in": Faults.cut_in,
    "cut-leader": Faults.cut_leader,
    "clock": Faults.clock,
    "hand-over": Faults.hand_over,
    "outage": Faults.outage,
}
