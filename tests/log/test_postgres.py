"""The log in PostgreSQL: conformance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from batonq.log.postgres.address import PostgresAddress
from batonq.log.postgres.store import PostgresStore
from tests.log.conformance import LogConformance
from tests.log.fars import PostgresFar
from tests.log.fencing import FencingSuite, World
from tests.log.leasing import LeaseSuite, Nodes
from tests.log.replicated import MirroredMaker
from tests.support.driven import Loop


class TestPostgresLog(LogConformance):
    @pytest.fixture
    def maker(self, tmp_path: Path, postgres_address: PostgresAddress) -> Iterator[MirroredMaker]:
        loop = Loop()
        far = PostgresFar(postgres_address)
        maker = MirroredMaker(loop, far, tmp_path)
        yield maker
        maker.close()
        loop.run(far.close())
        loop.close()


class TestPostgresFencing(FencingSuite):
    @pytest.fixture
    def world(self, tmp_path: Path, postgres_address: PostgresAddress) -> Iterator[World]:
        world = World(PostgresFar(postgres_address), tmp_path)
        yield world
        world.close()


class TestPostgresLeases(LeaseSuite):
    @pytest.fixture
    def nodes(self, postgres_address: PostgresAddress) -> Nodes:
        return Nodes(lambda: PostgresStore.open(postgres_address, timeout_s=5))
