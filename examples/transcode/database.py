"""The tables of the application, and a pool of connections for its threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, LifoQueue
from typing import Any

import psycopg

from batonq import outbox

Connection = psycopg.Connection[Any]

# A status only moves to the right, even if a message is delivered twice or late.
STATUSES = ("pending", "corrupt", "done")

SCHEMA = """
CREATE TABLE users (id text PRIMARY KEY, tier text NOT NULL);

CREATE TABLE images (
    id text PRIMARY KEY,
    user_id text NOT NULL REFERENCES users,
    status text NOT NULL,
    variants jsonb,
    why text,
    uploaded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    thumbnail_at timestamptz,
    done_at timestamptz,
    uploads_repeated integer NOT NULL DEFAULT 0,
    jobs_repeated integer NOT NULL DEFAULT 0
);

CREATE TABLE notices (image_id text PRIMARY KEY REFERENCES images, times integer NOT NULL);
"""


class Database:
    """`with database.transaction() as connection:` commits at the end, or rolls back on an exception."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._idle: LifoQueue[Connection] = LifoQueue()

    def create(self) -> None:
        with self.transaction() as connection:
            connection.execute(SCHEMA)
            outbox.create_tables(connection)  # includes the inbox

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        try:
            connection = self._idle.get_nowait()
        except Empty:
            connection = psycopg.connect(self._dsn, autocommit=True)
        try:
            with connection.transaction():
                yield connection
        finally:
            if not connection.closed:  # for example by the server; the next transaction opens a new one
                self._idle.put(connection)

    def rows(self, sql: str, *parameters: Any) -> list[Any]:
        with self.transaction() as connection:
            return connection.execute(sql, parameters).fetchall()

    def close(self) -> None:
        while not self._idle.empty():
            self._idle.get_nowait().close()
