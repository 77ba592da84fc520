"""The straight way to the server that a question is for: it is taken where it is there, and never needed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import nats.errors
import pytest

from batonq.log.frames import Frame
from batonq.log.jetstream import connections
from batonq.log.jetstream.address import NatsAddress
from batonq.log.jetstream.connections import Line, Lines
from batonq.log.jetstream.store import JetStreamStore
from batonq.log.replicated_log import MirroredLog
from tests.log.conformance import SHARD
from tests.log.fencing import append, shut, until
from tests.log.replicated import SMALL, patiently
from tests.support.logs import CLUSTER
from tests.support.nats import NatsServers, nats_servers

NAMES = ("n0", "n1", "n2")
FRAME_BYTES = 100_000
_numbers = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[NatsServers]:
    with nats_servers(3) as servers:
        yield servers


@pytest.fixture
def address(cluster: NatsServers) -> NatsAddress:
    return NatsAddress(cluster.servers, name=f"lines-{next(_numbers)}", monitors=cluster.monitor_addresses)


async def opened(address: NatsAddress) -> tuple[JetStreamStore, Lines]:
    """A store whose connections are all there."""
    store = await patiently(lambda: JetStreamStore.open(address, timeout_s=2))
    await until(lambda: all(store._lines.to(name).client.server == name for name in NAMES))
    return store, store._lines


def test_each_server_has_a_straight_way(address: NatsAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        store, ways = await opened(address)
        assert ways.to("") is ways.to("elsewhere") is ways.to(ways.home.client.server) is ways.home
        far = next(name for name in NAMES if name != ways.home.client.server)
        line = ways.to(far)
        ways.doubt(line)
        assert ways.to(far) is ways.home, "something was not answered there"
        monkeypatch.setattr(connections, "DOUBTED_S", 0.0)
        assert ways.to(far) is line
        ways.doubt(ways.home)
        assert ways.to("") is ways.home, "there is nothing else"
        await store.close()
        assert all(way.client.is_closed for way in (line, ways.home))

    asyncio.run(main())


def test_a_server_that_dies_is_reached_through_others_until_it_is_back(
    address: NatsAddress, cluster: NatsServers
) -> None:
    async def main() -> None:
        store, ways = await opened(address)
        number = next(number for number, name in enumerate(NAMES) if name != ways.home.client.server)
        line = ways.to(NAMES[number])
        cluster.kill(number)
        await until(lambda: ways.to(NAMES[number]) is ways.home)
        cluster.start(number)
        await until(lambda: ways.to(NAMES[number]) is line)
        assert line.client.server == NAMES[number], "it does not go to others"
        await store.close()

    asyncio.run(main())
    for each in range(3):
        cluster.wait_until_ready(each)


async def following(address: NatsAddress, directory: Path, frames: list[Frame]) -> tuple[JetStreamStore, MirroredLog]:
    store, _ = await opened(address)
    log = await MirroredLog.open(
        await store.backend(SHARD), str(directory), cluster=CLUSTER, settings=SMALL, on_frame=frames.append
    )
    log.follow(frames.append, lambda problem: pytest.fail(str(problem)))
    return store, log


def test_frames_go_straight_to_the_streams_leader_and_come_straight_from_its_consumer(
    address: NatsAddress, cluster: NatsServers, tmp_path: Path
) -> None:
    async def main() -> None:
        store, ways = await opened(address)
        owner = await MirroredLog.open(
            await store.backend(SHARD), str(tmp_path / "owner"), cluster=CLUSTER, settings=SMALL
        )
        frames: list[Frame] = []
        other, follower = await following(address, tmp_path / "follower", frames)
        leader = ways.to(f"n{cluster.leader(f'baton-{address.name}-shard-{SHARD:04}')}")
        for _ in range(3):
            await append(owner, bytes(FRAME_BYTES), epoch=1)
        await until(lambda: len(frames) == 3)
        everyone = [ways.home, *ways._straight]
        assert [way for way in everyone if way.client.stats["out_bytes"] > 3 * FRAME_BYTES] == [leader]

        host = await _consumer_host(other, address)
        readers = [other._lines.home, *other._lines._straight]
        assert [way for way in readers if way.client.stats["in_bytes"] > 3 * FRAME_BYTES] == [other._lines.to(host)]
        for log in (owner, follower):
            await shut(log)
        await store.close()
        await other.close()

    asyncio.run(main())


async def _consumer_host(store: JetStreamStore, address: NatsAddress) -> str:
    """The server that has the only consumer of the shard's stream."""
    (info,) = await store._context.consumers_info(f"baton-{address.name}-shard-{SHARD:04}")
    assert info.cluster is not None
    return str(info.cluster.leader)


def test_a_straight_way_that_brings_no_answer_is_left(
    address: NatsAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        store, ways = await opened(address)
        asked: list[Line] = []

        async def silent(*_: object, **__: object) -> None:
            asked.append(line)
            raise nats.errors.TimeoutError

        line = next(way for way in ways._straight if way.client.server != ways.home.client.server)
        monkeypatch.setattr(line.context, "publish", silent)
        backend = await store.backend(SHARD)
        log = await MirroredLog.open(backend, str(tmp_path), cluster=CLUSTER, settings=SMALL)
        backend._leader = line.client.server
        await append(log, b"first", epoch=1)
        await append(log, b"second", epoch=1)
        assert asked == [line], "once, and then the other way"
        await shut(log)
        await store.close()

    asyncio.run(main())
