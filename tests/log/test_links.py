"""Links that go silent: the far side has stored a frame, or not, and nobody says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from batonq.log.backend import LogStore
from batonq.log.frames import Frame
from batonq.log.jetstream.address import NatsAddress
from batonq.log.jetstream.store import JetStreamStore
from batonq.log.postgres.address import PostgresAddress
from batonq.log.postgres.store import PostgresStore
from batonq.log.replicated_log import MirroredLog
from tests.log.conformance import SHARD
from tests.log.fencing import append, shut
from tests.log.replicated import SMALL, WAIT_S, patiently
from tests.support.logs import CLUSTER
from tests.support.proxy import Proxy

TIMEOUT_S = 0.5
OpenStore = Callable[[Proxy | None], Awaitable[LogStore]]


def postgres_stores(address: PostgresAddress) -> tuple[OpenStore, Callable[[], Proxy]]:
    told = conninfo_to_dict(address.conninfo)
    path = f"{told['host']}/.s.PGSQL.{told.get('port', 5432)}"

    async def open_store(proxy: Proxy | None) -> LogStore:
        there = address
        if proxy is not None:
            conninfo = f"postgresql://{told['user']}@127.0.0.1:{proxy.port}/{told['dbname']}?sslmode=disable"
            there = replace(address, conninfo=conninfo)
        return await PostgresStore.open(there, timeout_s=TIMEOUT_S if proxy else 10)

    return open_store, lambda: Proxy(lambda: asyncio.open_unix_connection(path))


def nats_stores(address: NatsAddress) -> tuple[OpenStore, Callable[[], Proxy]]:
    host, _, port = address.servers[0].partition(":")

    async def open_store(proxy: Proxy | None) -> LogStore:
        there = replace(address, servers=(f"127.0.0.1:{proxy.port}",)) if proxy is not None else address
        return await JetStreamStore.open(there, timeout_s=TIMEOUT_S)

    return open_store, lambda: Proxy(lambda: asyncio.open_connection(host, int(port)))


@pytest.fixture(params=["postgres", "nats"])
def stores(request: pytest.FixtureRequest) -> tuple[OpenStore, Callable[[], Proxy]]:
    if request.param == "postgres":
        return postgres_stores(request.getfixturevalue("postgres_address"))
    return nats_stores(request.getfixturevalue("nats_address"))


@asynccontextmanager
async def opened(store: LogStore, directory: Path, seen: list[Frame]) -> AsyncIterator[MirroredLog]:
    log = await MirroredLog.open(
        await patiently(lambda: store.backend(SHARD, store.replicas)),
        str(directory),
        cluster=CLUSTER,
        settings=SMALL,
        on_frame=seen.append,
    )
    try:
        yield log
    finally:
        await shut(log)
        await store.close()


@pytest.mark.parametrize("direction", ["answers", "requests", "both"])
def test_a_link_that_goes_silent_loses_and_doubles_nothing(
    stores: tuple[OpenStore, Callable[[], Proxy]], direction: str, tmp_path: Path
) -> None:
    open_store, make_proxy = stores

    async def run() -> None:
        async with (
            make_proxy() as proxy,
            opened(await patiently(lambda: open_store(proxy)), tmp_path / "owner", []) as owner,
        ):
            written = [await append(owner, b"before", epoch=1)]
            proxy.answers = direction == "requests"
            proxy.requests = direction == "answers"
            appending = asyncio.ensure_future(append(owner, b"in the silence"))
            async with asyncio.timeout(WAIT_S):
                while not owner.trouble:  # noqa: ASYNC110 - it is no event
                    await asyncio.sleep(0.01)
            assert not appending.done()
            proxy.answers = proxy.requests = True
            proxy.cut()
            written += [await appending, await append(owner, b"after")]
        seen: list[Frame] = []
        async with opened(await patiently(lambda: open_store(None)), tmp_path / "reader", seen):
            assert seen == written

    asyncio.run(run())
