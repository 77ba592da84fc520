"""What outbox and idempotency share of the user's databases."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from batonq.databases import immediate


def test_a_transaction_is_committed_or_taken_back() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE t (n INTEGER UNIQUE)")
        with immediate(connection):
            connection.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(sqlite3.IntegrityError), immediate(connection):
            connection.executemany("INSERT INTO t VALUES (?)", [(2,), (1,)])
        assert connection.execute("SELECT n FROM t").fetchall() == [(1,)]


def test_a_commit_that_fails_leaves_no_transaction_open() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
        connection.execute("CREATE TABLE child (of INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
        with pytest.raises(sqlite3.IntegrityError), immediate(connection):
            connection.execute("INSERT INTO child VALUES (1)")
        with immediate(connection):
            connection.execute("INSERT INTO parent VALUES (1)")
            connection.execute("INSERT INTO child VALUES (1)")
        assert connection.execute("SELECT count(*) FROM child").fetchone() == (1,)
