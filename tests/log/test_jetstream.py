"""The log in NATS JetStream: conformance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from batonq.errors import LogError
from batonq.log.frames import NO_DIGEST
from batonq.log.jetstream.address import NatsAddress
from batonq.log.jetstream.store import JetStreamStore
from tests.log.conformance import LogConformance
from tests.log.fars import JetStreamFar
from tests.log.fencing import FencingSuite, World, append
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
        return Nodes(lambda: JetStreamStore.open(nats_address, timeout_s=5))


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
