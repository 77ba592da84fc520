"""The log in NATS JetStream: conformance."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from nats.js.api import ClusterInfo, PeerInfo, StreamConfig, StreamInfo, StreamState

from batonq.errors import LogError
from batonq.log.frames import NO_DIGEST
from batonq.log.interface import Room
from batonq.log.jetstream.address import NatsAddress
from batonq.log.jetstream.backend import replica_lags
from batonq.log.jetstream.store import JetStreamStore
from tests.log.conformance import LogConformance
from tests.log.fars import JetStreamFar
from tests.log.fencing import FencingSuite, World, append, until
from tests.log.leasing import LeaseSuite, Nodes
from tests.log.replicated import MirroredMaker
from tests.support.driven import Loop
from tests.support.logs import make_frame


class TestJetStreamLog(LogConformance):
    @pytest.fixture
    def maker(self, tmp_path: Path, nats_address: NatsAddress) -> Iterator[MirroredMaker]:
        loop = Loop()
        far = JetStreamFar(nats_address)
        maker = MirroredMaker(loop, far, tmp_path)
        yield maker
        maker.close()
        loop.run(far.close())
        loop.close()


class TestJetStreamFencing(FencingSuite):
    @pytest.fixture
    def world(self, tmp_path: Path, nats_address: NatsAddress) -> Iterator[World]:
        world = World(JetStreamFar(nats_address), tmp_path)
        yield world
        world.close()


class TestJetStreamLeases(LeaseSuite):
    @pytest.fixture
    def nodes(self, nats_address: NatsAddress) -> Nodes:
        return Nodes(lambda: JetStreamStore.open(nats_address, timeout_s=60))


def test_a_frame_as_long_as_a_message_may_be(tmp_path: Path, nats_address: NatsAddress) -> None:
    async def run(world: World) -> None:
        log, meddler = await world.open("owner")
        room = log.frame_bytes_max - make_frame(1, NO_DIGEST).size
        meddler.next = [meddler.unanswered]
        written = [await append(log, bytes(room), epoch=1), await append(log, b"small")]
        with pytest.raises(LogError, match="at once"):
            await append(log, bytes(room + 1))
        assert await world.stored() == written

    world = World(JetStreamFar(nats_address), tmp_path)
    try:
        world.run(run(world))
    finally:
        world.close()


def test_a_stream_that_is_full_says_so_and_goes_on_when_there_is_room(
    tmp_path: Path, nats_address: NatsAddress
) -> None:
    async def run(world: World) -> None:
        log, _ = await world.open("owner")
        for _ in range(6):
            await append(log, bytes(2_000), epoch=1)
        waiting = asyncio.ensure_future(append(log, bytes(2_000)))
        await until(lambda: "maximum bytes" in log.trouble)
        log._looked_s = -1e9
        log.tick()
        await until(lambda: log.room() is not Room.PLENTY)
        log.drop_front(5)
        frame = await waiting
        assert (frame.number, log.trouble) == (7, "")
        log._looked_s = -1e9
        log.tick()
        await until(lambda: log.room() is Room.RESERVE)  # for a while after a refusal
        assert [frame.number for frame in await world.stored()] == list(range(log.first, 8))

    world = World(JetStreamFar(replace(nats_address, max_bytes=14_500)), tmp_path)
    try:
        world.run(run(world))
    finally:
        world.close()


def test_replicas_that_are_behind_are_told() -> None:
    peers = [PeerInfo(name="n2", current=True, lag=None), PeerInfo(name="n3", current=False, lag=12)]
    stream = StreamInfo(
        config=StreamConfig(), state=StreamState(0, 0, 0, 0, 0), cluster=ClusterInfo(leader="n1", replicas=peers)
    )
    assert replica_lags(stream) == (("n2", 0), ("n3", 12))
    assert replica_lags(replace(stream, cluster=None)) == ()
    assert replica_lags(replace(stream, cluster=ClusterInfo(leader="n1"))) == ()
