"""What a replicated log refuses at the start, and what it says to change."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psycopg
import pytest
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig, StreamInfo
from nats.js.errors import BadRequestError

from batonq.certificates import client_context, server_context
from batonq.errors import LogCorrupt, LogError, Unavailable
from batonq.log.backend import Unreachable, Unsafe
from batonq.log.jetstream import checks
from batonq.log.jetstream.address import NatsAddress
from batonq.log.jetstream.checks import Server
from batonq.log.jetstream.leases import NOTHING, Bucket, Value
from batonq.log.jetstream.store import NO_PEERS, JetStreamStore
from batonq.log.postgres.address import PostgresAddress
from batonq.log.postgres.store import PostgresStore
from tests.support.authority import Authority
from tests.support.nats import NatsServers, nats_servers
from tests.support.postgres import PostgresServer

GOOD = Server("n0", "2.15.1", 8 << 20, True, True)


def open_nats(address: NatsAddress, shard: int | None = None) -> int:
    async def run() -> int:
        store = await JetStreamStore.open(address, timeout_s=60)
        try:
            if shard is not None:
                await store.backend(shard)
            return store.cluster
        finally:
            await store.close()

    return asyncio.run(run())


def open_postgres(address: PostgresAddress, timeout_s: float = 60) -> int:
    async def run() -> int:
        store = await PostgresStore.open(address, timeout_s=timeout_s)
        await store.close()
        return store.cluster

    return asyncio.run(run())


# --- NATS


@pytest.mark.parametrize(
    ("server", "what"),
    [
        (GOOD._replace(version="2.10.29"), "needs 2.11 or newer"),
        (GOOD._replace(max_payload=1 << 20), "max_payload: 8388608"),
        (GOOD._replace(jetstream=False), "jetstream block"),
        (GOOD._replace(sync_always=False), "sync_interval: always"),
    ],
)
def test_a_server_that_would_break_the_promise_is_refused(server: Server, what: str) -> None:
    checks.check_servers([GOOD])
    with pytest.raises(Unsafe, match=what):
        checks.check_servers([GOOD, server])


def test_a_server_that_is_away_need_not_be_known() -> None:
    checks.check_known(["n0", "n1", "n2"], ["n0", "n2"], "s", away=1)
    with pytest.raises(Unsafe, match="Server n1 keeps a replica"):
        checks.check_known(["n0", "n1", "n2"], ["n0"], "s", away=1)


def test_every_server_that_keeps_a_replica_must_be_known() -> None:
    checks.check_known(["n0", "n1"], ["n1", "n0", "n2"], "s")
    with pytest.raises(Unsafe, match="Server n1 keeps a replica"):
        checks.check_known(["n0", "n1"], ["n0"], "s")


@pytest.fixture(scope="module")
def careless() -> Iterator[NatsServers]:
    with nats_servers(1, sync="2m", max_payload=1 << 20) as servers:
        yield servers


def test_a_careless_nats_server_is_refused(careless: NatsServers, nats: NatsServers) -> None:
    with pytest.raises(Unsafe, match="max_payload: 8388608"):
        open_nats(NatsAddress(careless.servers, replicas=1, monitors=careless.monitor_addresses))
    with pytest.raises(Unsafe, match="sync_interval: always"):
        checks.check_servers(
            [checks.fetch_server(careless.monitor_addresses[0])._replace(max_payload=checks.PAYLOAD_BYTES_MIN)]
        )
    with pytest.raises(Unsafe, match="monitor=http"):
        open_nats(NatsAddress(nats.servers, replicas=1))
    with pytest.raises(Unavailable, match="gave no usable answer"):
        open_nats(NatsAddress(nats.servers, replicas=1, monitors=("http://127.0.0.1:1",)))
    assert open_nats(NatsAddress(nats.servers, name="careless", replicas=1, unsafe=True), 0)


def test_nats_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1/"):
        asyncio.run(JetStreamStore.open(NatsAddress(("127.0.0.1:1",), replicas=1), connect_s=0.5))


def test_most_servers_must_be_there_to_be_looked_at(nats_address: NatsAddress) -> None:
    (there,) = nats_address.monitors
    away = "http://127.0.0.1:1"

    async def remarks(*monitors: str) -> list[str]:
        store = await JetStreamStore.open(replace(nats_address, monitors=monitors), timeout_s=60)
        try:
            await store.backend(1)
            return store.remarks
        finally:
            await store.close()

    assert asyncio.run(remarks(there)) == []
    (remark,) = asyncio.run(remarks(there, away, there))
    assert away in remark and "when this node starts again" in remark
    with pytest.raises(Unreachable, match=away):
        asyncio.run(remarks(there, away))


def test_a_cluster_id_is_made_once(nats_address: NatsAddress, postgres_address: PostgresAddress) -> None:
    assert 0 < open_nats(nats_address) == open_nats(nats_address)
    assert 0 < open_postgres(postgres_address) == open_postgres(postgres_address)


def test_a_cluster_id_that_another_node_has_just_written_is_waited_for(
    nats_address: NatsAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes start together: one is refused to write, and cannot read yet what the other has written."""
    cluster = open_nats(nats_address)
    get = Bucket.get
    unread = [True, True]

    async def late(self: Bucket, key: str) -> Value:
        return NOTHING if key == "cluster" and unread and unread.pop() else await get(self, key)

    monkeypatch.setattr(Bucket, "get", late)
    assert open_nats(nats_address) == cluster
    assert not unread


def test_more_replicas_than_servers_are_refused(nats_address: NatsAddress) -> None:
    with pytest.raises(Unsafe, match="cannot be created with 3 replicas"):
        open_nats(replace(nats_address, replicas=3))


def test_servers_that_have_only_just_started_are_waited_for(
    nats_address: NatsAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of several servers cannot place a stream before the others are there."""
    make = JetStreamContext.add_stream
    alone = [True, True]

    async def later(self: JetStreamContext, config: StreamConfig) -> StreamInfo:
        if alone:
            alone.pop()
            raise BadRequestError(code=400, err_code=NO_PEERS, description="no suitable peers for placement")
        return await make(self, config)

    monkeypatch.setattr(JetStreamContext, "add_stream", later)
    monkeypatch.setattr("batonq.log.jetstream.store.TRY_WAIT_S", 0.01)
    assert open_nats(nats_address)
    assert not alone


def test_a_stream_is_gone_when_it_is_missing_for_long(
    nats_address: NatsAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        store = await JetStreamStore.open(nats_address, timeout_s=60)
        try:
            there = await store.backend(1)
            assert (await there.bounds()).next == 1
            await store._context.delete_stream(f"baton-{nats_address.name}-shard-0001")
            with pytest.raises(Unreachable, match="not known to the servers"):
                await there.bounds()
            again = await store.backend(1)
            assert (await there.bounds()) == (await again.bounds())
            await store._context.delete_stream(f"baton-{nats_address.name}-shard-0001")
            with pytest.raises(Unreachable):
                await there.bounds()
            monkeypatch.setattr("batonq.log.jetstream.backend.GONE_S", 0.0)
            with pytest.raises(LogCorrupt, match="shard-0001 was deleted"):
                await there.bounds()
        finally:
            await store.close()

    asyncio.run(run())


@pytest.mark.parametrize(("has", "kind"), [(1, 3), (3, 1), (5, 3)])
def test_a_stream_must_have_the_replicas_of_its_kind(has: int, kind: int) -> None:
    wanted = StreamConfig(name="s", subjects=["s"], num_replicas=kind, discard=DiscardPolicy.NEW)
    wanted.storage, wanted.retention = StorageType.FILE, RetentionPolicy.LIMITS
    checks.check_stream(wanted, wanted)
    with pytest.raises(Unsafe, match=rf"has {has} replicas instead of {kind}.*edit s --replicas {kind}"):
        checks.check_stream(StreamConfig(**{**vars(wanted), "num_replicas": has}), wanted)


def test_a_kind_is_shown_by_a_stream_that_is_made_and_removed(nats_address: NatsAddress) -> None:
    async def run() -> None:
        store = await JetStreamStore.open(nats_address, timeout_s=60)
        try:
            await store.check_kind(1)
            with pytest.raises(Unsafe, match=r"cannot be created with 5 replicas.*at least that many servers"):
                await store.check_kind(5)
            assert not [each for each in await store._context.streams_info() if "kind" in str(each.config.name)]
        finally:
            await store.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"max_age": 60}, "max_age"),
        ({"discard": DiscardPolicy.OLD}, "discard"),
        ({"storage": StorageType.MEMORY}, "storage"),
        ({"subjects": ["foreign.>"]}, "accepts messages from other subjects"),
    ],
)
def test_a_stream_that_would_not_keep_everything_is_refused(
    nats_address: NatsAddress, other: dict[str, object], what: str
) -> None:
    async def make() -> None:
        store = await JetStreamStore.open(nats_address)
        name = f"baton-{nats_address.name}-shard-0000"
        good = {"subjects": [f"baton.{nats_address.name}.shard-0000"], "discard": DiscardPolicy.NEW}
        await store._context.add_stream(StreamConfig(**{"name": name, **good, **other}))  # type: ignore[arg-type]
        await store.close()

    asyncio.run(make())
    with pytest.raises(Unsafe, match=what):
        open_nats(nats_address, 0)


# --- PostgreSQL


def test_a_database_that_may_forget_is_refused(postgres: PostgresServer, postgres_address: PostgresAddress) -> None:
    with psycopg.connect(postgres.address, autocommit=True) as connection:
        for setting in ("fsync", "full_page_writes"):
            _set(connection, setting, "off")
            try:
                with pytest.raises(Unsafe, match=f"Set {setting} = on"):
                    open_postgres(postgres_address)
                assert open_postgres(replace(postgres_address, unsafe=True))
            finally:
                _set(connection, setting, "on")


def _set(connection: psycopg.Connection, setting: str, value: str) -> None:
    connection.execute(f"ALTER SYSTEM SET {setting} = {value}")
    connection.execute("SELECT pg_reload_conf()")
    while True:  # a session that begins now may still have the old value
        with psycopg.connect(connection.info.dsn) as fresh:
            if fresh.execute(f"SHOW {setting}").fetchone() == (value,):
                return


def test_a_commit_waits_for_the_disk_whatever_the_user_has_set(
    postgres: PostgresServer, postgres_address: PostgresAddress
) -> None:
    with psycopg.connect(postgres.address, autocommit=True) as connection:
        connection.execute("ALTER ROLE CURRENT_USER SET synchronous_commit = off")
        try:
            assert open_postgres(postgres_address), "the session sets it for itself"
        finally:
            connection.execute("ALTER ROLE CURRENT_USER RESET synchronous_commit")


def test_a_database_that_is_read_only_is_refused(postgres_address: PostgresAddress) -> None:
    conninfo = f"{postgres_address.conninfo}&options=-c%20default_transaction_read_only%3Don"
    if "?" not in postgres_address.conninfo:
        conninfo = conninfo.replace("&", "?", 1)
    with pytest.raises(Unsafe, match="is read-only"):
        open_postgres(replace(postgres_address, conninfo=conninfo))


def test_tables_of_a_newer_release_are_left_alone(postgres: PostgresServer, postgres_address: PostgresAddress) -> None:
    open_postgres(postgres_address)
    with psycopg.connect(postgres.address, autocommit=True) as connection:
        connection.execute(f"UPDATE {postgres_address.schema}.about SET version = 99")
    with pytest.raises(LogCorrupt, match="Use a newer release"):
        open_postgres(postgres_address)


def test_a_user_who_may_not_make_tables_is_told(postgres: PostgresServer, postgres_address: PostgresAddress) -> None:
    with psycopg.connect(postgres.address, autocommit=True) as connection:
        connection.execute("CREATE ROLE visitor LOGIN")
    with pytest.raises(LogError, match="needs CREATE on the database"):
        open_postgres(replace(postgres_address, conninfo=postgres_address.conninfo.replace("postgres:@", "visitor:@")))


def test_a_node_that_starts_during_a_dump_locks_no_table(
    postgres: PostgresServer, postgres_address: PostgresAddress
) -> None:
    cluster = open_postgres(postgres_address)
    with psycopg.connect(postgres.address) as dump:
        dump.execute(f"SET search_path = {postgres_address.schema}")
        dump.execute("LOCK TABLE frames, members IN ACCESS SHARE MODE")
        assert open_postgres(postgres_address, timeout_s=10) == cluster


def test_tables_of_an_older_release_are_changed_when_no_dump_uses_them(
    postgres: PostgresServer, postgres_address: PostgresAddress
) -> None:
    cluster = open_postgres(postgres_address)
    with psycopg.connect(postgres.address, autocommit=True) as connection:
        connection.execute(f"SET search_path = {postgres_address.schema}")
        connection.execute("ALTER TABLE members DROP COLUMN incarnation")
        connection.execute("ALTER TABLE frames ALTER COLUMN data SET STORAGE EXTENDED")
        with psycopg.connect(postgres.address) as dump:
            dump.execute(f"LOCK TABLE {postgres_address.schema}.frames IN ACCESS SHARE MODE")
            with pytest.raises(Unreachable, match="Start the node again when that has ended"):
                open_postgres(postgres_address)
        assert open_postgres(postgres_address) == cluster
        connection.execute("SELECT incarnation FROM members")
        storage = "SELECT attstorage FROM pg_attribute WHERE attrelid = 'frames'::regclass AND attname = 'data'"
        assert connection.execute(storage).fetchone() == ("e",)


def test_a_database_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        open_postgres(PostgresAddress("postgres://nobody@127.0.0.1:1/x"))


def test_a_monitoring_address_may_be_encrypted(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    made = authority.sign("monitor", "localhost")
    told = {"server_name": "n0", "version": "2.15.1", "max_payload": 8 << 20, "jetstream": {"config": {}}}

    class Told(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(told).encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Told) as server:
        server.socket = server_context(str(made.certificate), str(made.key)).context.wrap_socket(
            server.socket, server_side=True
        )
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            monitor = f"https://localhost:{server.server_port}"
            assert checks.fetch_server(monitor, client_context(str(authority.file))) == GOOD._replace(sync_always=False)
            with pytest.raises(Unavailable, match="certificate verify failed"):
                checks.fetch_server(monitor)
        finally:
            server.shutdown()
            serving.join()
