"""`baton outbox`, as a process."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing

import psycopg
import pytest

from batonq.outbox import put
from batonq.sync import Baton
from tests.system.process import ServerProcess, baton


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_from_the_tables_to_the_pruned_rows(
    kind: str, sqlite_path: str, request: pytest.FixtureRequest, server: ServerProcess, name: str
) -> None:
    address = sqlite_path if kind == "sqlite" else request.getfixturevalue("database")
    where = ["--sqlite" if kind == "sqlite" else "--dsn", address]
    assert " exist." in baton("outbox", "init", *where).stdout
    with closing(sqlite3.connect(address) if kind == "sqlite" else psycopg.connect(address)) as connection:
        for number in range(3):
            put(connection, name, number)
        connection.commit()
    assert json.loads(baton("outbox", "status", *where, "--format", "json").stdout)["waiting"] == 3
    with Baton(server.url) as client:
        client.create_queue(name)
        told = baton("outbox", "relay", *where, "--url", server.url, "--once")
        assert told.stdout == "3 rows published, 0 refused, 0 left.\n", told.stderr
        assert sorted(message.body for message in client.queue(name).receive(10, wait=5)) == [0, 1, 2]
    told = baton("outbox", "status", *where)
    assert told.stdout.split() == ["waiting", "0", "in", "doubt", "0", "refused", "0", "published", "3"]
    assert "baton_outbox_published_rows 3\n" in baton("outbox", "status", *where, "--format", "prometheus").stdout
    assert baton("outbox", "retry", *where).stdout == "0 rows will be retried.\n"
    assert baton("outbox", "prune", *where, "--older-than", "1h").stdout == "0 rows were deleted.\n"
    assert baton("outbox", "prune", *where, "--older-than", "0s").stdout == "3 rows were deleted.\n"


def test_rows_that_are_left_are_told_by_the_exit_code(sqlite_path: str, server: ServerProcess, name: str) -> None:
    baton("outbox", "init", "--sqlite", sqlite_path)
    with closing(sqlite3.connect(sqlite_path)) as connection:
        put(connection, f"{name}-missing", 1)
        connection.commit()
    told = baton("outbox", "relay", "--sqlite", sqlite_path, "--url", server.url, "--once")
    assert (told.returncode, told.stdout) == (1, "0 rows published, 0 refused, 1 left.\n")
    assert f"queue {name}-missing accepts nothing at the moment" in told.stderr


def test_a_relay_ends_when_it_is_told_to(sqlite_path: str, server: ServerProcess) -> None:
    baton("outbox", "init", "--sqlite", sqlite_path)
    command = [sys.executable, "-m", "batonq", "outbox", "relay", "--sqlite", sqlite_path, "--url", server.url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "Publishing from batonq_outbox.\n"
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert output.startswith("Stopped: 0 rows published")


def test_mistakes_are_told(sqlite_path: str, database: str) -> None:
    for arguments, text in (
        (["status", "--sqlite", sqlite_path], "does not exist"),
        (["status", "--dsn", database], "baton outbox init"),
        (["init", "--dsn", "host=/nowhere"], "cannot be reached"),
        (["status", "--dsn", "host=/nowhere"], "is unavailable"),
        (["init", "--dsn", database, "--table", "a b"], "is not a valid table or column name"),
    ):
        told = baton("outbox", *arguments)
        assert told.returncode == 1
        assert text in told.stderr
    sqlite3.connect(sqlite_path).close()
    baton("outbox", "init", "--sqlite", sqlite_path)
    assert "--cdc works only with PostgreSQL" in baton("outbox", "relay", "--sqlite", sqlite_path, "--cdc").stderr
