"""PostgreSQL that asks for a password, and a way to it that is encrypted: what libpq reads, told plainly when wrong.

The server of these tests speaks no TLS itself, so a proxy in front of it does, as poolers and clouds have it.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from batonq.errors import AccessDenied, BatonError, InvalidInput
from batonq.log.postgres.address import parse
from batonq.log.postgres.store import PostgresStore
from tests.support.authority import Authority
from tests.support.postgres import PostgresServer
from tests.support.proxy import Proxy

SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"


class TlsFront(Proxy):
    """Answers a client's question for TLS, and passes on what comes then."""

    def __init__(self, socket_path: str, context: ssl.SSLContext | None) -> None:
        super().__init__(lambda: asyncio.open_unix_connection(socket_path))
        self._context = context

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(len(SSL_REQUEST)) == SSL_REQUEST
        writer.write(b"S" if self._context else b"N")
        try:
            if self._context is not None:
                await writer.start_tls(self._context)
            await super()._accept(reader, writer)
        except OSError:
            writer.transport.abort()


@pytest.fixture
def guarded(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """A user who must give the password `hush`; gives the path of the server's socket."""
    for variable in ("PGPASSWORD", "PGPASSFILE"):
        monkeypatch.delenv(variable, raising=False)
    with psycopg.connect(postgres.address, autocommit=True) as connection:
        if not connection.execute("SELECT FROM pg_roles WHERE rolname = 'guarded'").fetchall():
            connection.execute("CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 'hush'")
        (rules,) = connection.execute("SHOW hba_file").fetchone() or ("",)
        path = Path(rules)
        if "guarded" not in path.read_text():
            path.write_text("local all guarded scram-sha-256\n" + path.read_text())
        connection.execute("SELECT pg_reload_conf()")
    return f"{conninfo_to_dict(postgres.address)['host']}/.s.PGSQL.5432"


async def get_in(log: str) -> int:
    store = await PostgresStore.open(parse(log), timeout_s=60)
    await store.close()
    return store.cluster


async def is_let_in(log: str) -> bool:
    try:
        return bool(await get_in(log))
    except AccessDenied:
        return False


async def refused(log: str, kind: type[BatonError], said: str) -> None:
    with pytest.raises(kind, match=said) as caught:
        await get_in(log)
    assert "hush" not in str(caught.value)


def test_passwords_come_from_a_file_from_the_environment_or_by_the_address(
    guarded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = quote(str(Path(guarded).parent), safe="")

    async def run() -> None:
        log = f"postgres://guarded@{host}/postgres?schema=logins"
        while await is_let_in(log):  # until the server has read its rules
            pass
        await refused(log, AccessDenied, "PGPASSFILE")
        await refused(log.replace("@", ":hushed@"), AccessDenied, "password authentication failed")
        cluster = await get_in(log.replace("@", ":hush@"))
        file = tmp_path / "passwords"
        file.write_text("*:*:*:guarded:hush\n")
        file.chmod(0o600)
        monkeypatch.setenv("PGPASSFILE", str(file))
        assert await get_in(log) == cluster
        assert await get_in(f"{log}&passfile={quote(str(file))}") == cluster
        monkeypatch.setenv("PGPASSFILE", "/nowhere")
        monkeypatch.setenv("PGPASSWORD", "hush")
        assert await get_in(log) == cluster

    asyncio.run(run())


def test_the_way_is_encrypted_and_the_server_is_known(guarded: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    made = authority.sign("database", "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)

    async def run() -> None:
        async with TlsFront(guarded, context) as front, TlsFront(guarded, None) as plain:
            log = f"postgres://guarded:hush@localhost:{front.port}/postgres?schema=logins"
            assert await get_in(f"{log}&sslmode=verify-full&sslrootcert={authority.file}")
            other = Authority(tmp_path, "other").file
            await refused(f"{log}&sslmode=verify-full&sslrootcert={other}", InvalidInput, "sslrootcert")
            elsewhere = log.replace("localhost", "127.0.0.1")
            await refused(
                f"{elsewhere}&sslmode=verify-full&sslrootcert={authority.file}", InvalidInput, "does not match"
            )
            unsecured = log.replace(str(front.port), str(plain.port))
            await refused(f"{unsecured}&sslmode=require", InvalidInput, "does not support SSL")

    asyncio.run(run())
