"""An application's database with an outbox, and small relays for it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from batonq.outbox import Relay, create_tables, put
from batonq.outbox.cdc import StreamSource
from batonq.outbox.postgres import PostgresSource
from batonq.outbox.source import Source
from batonq.outbox.sqlite import SqliteSource
from batonq.sync import Baton
from tests.outbox import workload

PATIENCE_S = 300


class Shop:
    """An application's database with an outbox, and relays for it."""

    def __init__(self, kind: str, address: str) -> None:
        self.kind = kind
        self.address = address
        with self.connection() as connection:
            create_tables(connection)
            connection.commit()

    @contextmanager
    def connection(self) -> Iterator[Any]:
        made: Any
        made = sqlite3.connect(self.address) if self.kind == "sqlite" else psycopg.connect(self.address)
        with closing(made) as connection:
            yield connection

    def put(self, queue: str, *bodies: Any, key: str | None = "k", **options: Any) -> list[int]:
        with self.connection() as connection:
            ids = [put(connection, queue, body, key=key, **options) for body in bodies]
            connection.commit()
        return ids

    def source(self) -> Source:
        if self.kind == "sqlite":
            return SqliteSource(self.address)
        return StreamSource(self.address) if self.kind == "cdc" else PostgresSource(self.address)

    def scalar(self, sql: str) -> Any:
        with self.connection() as connection:
            return connection.execute(sql).fetchone()[0]


def publish(source: Source, publisher: Any, rows: int) -> None:
    """Run a relay until so many rows are settled."""
    relay = Relay(source, publisher)
    deadline = time.monotonic() + PATIENCE_S
    while rows > 0:
        settled = relay.run_once()
        rows -= settled
        assert time.monotonic() < deadline
        if not settled:
            source.wait(0.1)


def bodies(baton: Baton, queue: str) -> list[Any]:
    return [body for _, body in sorted(workload.delivered(baton, queue), key=lambda message: message[0])]
