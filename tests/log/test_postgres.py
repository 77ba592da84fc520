"""The log in PostgreSQL: conformance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from batonq.log.postgres import store
from batonq.log.postgres.address import PostgresAddress
from batonq.log.postgres.store import PostgresStore
from tests.log.conformance import LogConformance
from tests.log.fars import PostgresFar
from tests.log.fencing import FencingSuite, World, append, until
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
        return Nodes(lambda: PostgresStore.open(postgres_address, timeout_s=60))


def test_a_follower_is_told_and_need_not_look(
    tmp_path: Path, postgres_address: PostgresAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "POLL_S", 3_600.0)

    async def run(world: World) -> None:
        owner, _ = await world.open("owner")
        follower, _ = await world.open("follower")
        follower.follow(lambda frame: None, lambda problem: None)
        for at in range(3):
            await append(owner, b"%d" % at, epoch=1)
            await until(lambda: follower.next == owner.next)

    world = World(PostgresFar(postgres_address), tmp_path)
    try:
        world.run(run(world))
    finally:
        world.close()
