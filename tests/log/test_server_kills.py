"""kill -9 of what keeps a replicated log while an owner appends and a follower reads: nothing lost or doubled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from batonq.log.frames import Frame
from batonq.log.jetstream.address import NatsAddress
from batonq.log.postgres.address import PostgresAddress
from batonq.log.replicated_log import MirroredLog
from tests.log.conformance import SHARD
from tests.log.fars import JetStreamFar, PostgresFar
from tests.log.fencing import World, append, shut, until
from tests.support.nats import NatsServers, nats_servers
from tests.support.postgres import PostgresServer

BETWEEN = 30  # commits between two kills
Step = Callable[[], Awaitable[None]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[NatsServers]:
    with nats_servers(3) as servers:
        yield servers


async def survive(world: World, troubles: list[Step]) -> None:
    """Append all the time, with a trouble after every so many commits; then compare what everybody has."""
    owner, _ = await world.open("owner")
    followed: list[Frame] = []
    problems: list[BaseException] = []
    follower, _ = await world.open("follower", followed.append)
    follower.follow(followed.append, problems.append)
    acknowledged: list[Frame] = []
    stopping = asyncio.Event()
    appending = asyncio.ensure_future(_append_all(owner, acknowledged, stopping))
    try:
        for trouble in troubles:
            await _more(acknowledged, appending)
            await trouble()
        await _more(acknowledged, appending)
    finally:
        stopping.set()
    await appending
    assert await world.stored() == acknowledged == list(owner.frames(1))
    await until(lambda: len(followed) == len(acknowledged))
    assert followed == acknowledged and not problems
    await follower.catch_up(followed.append)
    await append(follower, b"taken over", epoch=2)
    for log in (owner, follower):
        await shut(log)


async def _append_all(owner: MirroredLog, acknowledged: list[Frame], stopping: asyncio.Event) -> None:
    while not stopping.is_set():
        acknowledged.append(await append(owner, b"%d" % len(acknowledged) * 500, epoch=1))


async def _more(acknowledged: list[Frame], appending: asyncio.Future[None]) -> None:
    wanted = len(acknowledged) + BETWEEN
    await until(lambda: len(acknowledged) >= wanted or appending.done())


def test_the_leader_of_a_stream_is_killed(cluster: NatsServers, tmp_path: Path) -> None:
    address = NatsAddress(cluster.servers, name="kills", monitors=cluster.monitor_addresses)
    world = World(JetStreamFar(address), tmp_path)
    killed: list[int] = []

    async def kill_leader() -> None:
        leader = await asyncio.to_thread(cluster.leader, f"baton-{address.name}-shard-{SHARD:04}")
        killed.append(leader)
        await asyncio.to_thread(cluster.kill, leader)

    async def start_again() -> None:
        cluster.start(killed[-1])
        await asyncio.to_thread(cluster.wait_until_ready, killed[-1])

    try:
        world.run(survive(world, [kill_leader, start_again, kill_leader, start_again]))
    finally:
        world.close()


def test_two_of_five_servers_are_killed_and_stay_away(tmp_path: Path) -> None:
    """What durability class 5 answers for."""
    with nats_servers(5) as servers:
        address = NatsAddress(servers.servers, name="five", replicas=5, monitors=servers.monitor_addresses)
        world = World(JetStreamFar(address), tmp_path)

        async def kill_leader() -> None:
            leader = await asyncio.to_thread(servers.leader, f"baton-{address.name}-shard-{SHARD:04}")
            await asyncio.to_thread(servers.kill, leader)

        try:
            world.run(survive(world, [kill_leader, kill_leader]))
        finally:
            world.close()


def test_all_servers_of_a_stream_are_killed(cluster: NatsServers, tmp_path: Path) -> None:
    address = NatsAddress(cluster.servers, name="all", monitors=cluster.monitor_addresses)
    world = World(JetStreamFar(address), tmp_path)

    async def kill_all() -> None:
        await asyncio.to_thread(cluster.stop_all)
        await asyncio.to_thread(cluster.start_all)

    try:
        world.run(survive(world, [kill_all]))
    finally:
        world.close()


def test_postgres_is_killed_and_comes_back(
    postgres: PostgresServer, postgres_address: PostgresAddress, tmp_path: Path
) -> None:
    world = World(PostgresFar(postgres_address), tmp_path)

    async def kill() -> None:
        await asyncio.to_thread(postgres.kill)
        await asyncio.to_thread(postgres.start)

    try:
        world.run(survive(world, [kill, kill, kill]))
    finally:
        world.close()
