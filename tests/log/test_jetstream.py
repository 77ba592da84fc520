"""The log in NATS JetStream: conformance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from batonq.log.jetstream.address import NatsAddress
from batonq.log.jetstream.store import JetStreamStore
from tests.log.conformance import LogConformance
from tests.log.fars import JetStreamFar
from tests.log.fencing import FencingSuite, World
from tests.log.leasing import LeaseSuite, Nodes
from tests.log.replicated import MirroredMaker
from tests.support.driven import Loop


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
