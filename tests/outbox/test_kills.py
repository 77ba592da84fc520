"""Relays killed with -9 at random while an application commits and rolls back: nothing lost, doubled, out of order."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg

from batonq.outbox import create_tables
from batonq.sync import Baton
from tests.outbox import workload
from tests.system.process import ServerProcess


def in_background(write: Callable[[], workload.Written]) -> tuple[threading.Thread, list[workload.Written]]:
    written: list[workload.Written] = []
    thread = threading.Thread(target=lambda: written.append(write()))
    thread.start()
    return thread, written


def everything_published(dsn: str, thread: threading.Thread) -> bool:
    if thread.is_alive():
        return False
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT count(*) FROM batonq_outbox WHERE published_at IS NULL").fetchone()
    return row == (0,)


def run_postgres(
    dsn: str, url: str, queues: list[str], *, rows: int, relays: int, kills: int, seed: int, flags: tuple[str, ...] = ()
) -> workload.Written:
    with psycopg.connect(dsn) as connection:
        create_tables(connection)
    arguments = ["--dsn", dsn, "--url", url, "--poll", "200ms", *flags]
    with workload.relays(arguments, relays, seed) as running:
        thread, written = in_background(
            lambda: workload.write_postgres(dsn, queues, rows=rows, keys=240, writers=4, seed=seed)
        )
        running.run_until(lambda: everything_published(dsn, thread), pause=(0.1, 0.9), kills_max=kills)
        thread.join()
        assert running.kills >= 3
        running.stop()
    assert written[0].rolled_back > 0
    assert sum(written[0].committed.values()) == rows
    return written[0]


def test_100_000_rows_of_concurrent_transactions_with_relays_killed_at_random(
    database: str, server: ServerProcess, baton: Baton, name: str
) -> None:
    baton.create_queue(name)
    written = run_postgres(database, server.url, [name], rows=100_000, relays=3, kills=15, seed=1)
    workload.check(written, workload.delivered(baton, name))


def test_the_same_by_change_data_capture(database: str, server: ServerProcess, baton: Baton, name: str) -> None:
    baton.create_queue(name)
    written = run_postgres(database, server.url, [name], rows=100_000, relays=2, kills=12, seed=2, flags=("--cdc",))
    workload.check(written, workload.delivered(baton, name))


def test_several_queues_one_of_them_fifo_deliver_each_key_in_order(
    database: str, server: ServerProcess, baton: Baton, name: str
) -> None:
    queues = [name, f"{name}.fifo"]
    baton.create_queue(queues[0])
    baton.create_queue(queues[1], fifo=True)
    written = run_postgres(database, server.url, queues, rows=8_000, relays=2, kills=6, seed=3)
    standard, fifo = (workload.delivered(baton, queue) for queue in queues)
    workload.check(written, standard + fifo)
    last: dict[str, int] = {}
    for _, body in fifo:  # as they were delivered
        assert body["n"] == last.get(body["key"], 0) + 1
        last[body["key"]] = body["n"]


def test_relays_of_an_sqlite_file_killed_at_random(
    sqlite_path: str, server: ServerProcess, baton: Baton, name: str
) -> None:
    baton.create_queue(name)
    with closing(sqlite3.connect(sqlite_path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        create_tables(connection)
        connection.commit()

    def done(thread: threading.Thread) -> bool:
        if thread.is_alive():
            return False
        with closing(sqlite3.connect(sqlite_path, timeout=60)) as connection:
            sql = "SELECT count(*) FROM batonq_outbox WHERE published_at IS NULL"
            return bool(connection.execute(sql).fetchone() == (0,))

    with workload.relays(["--sqlite", sqlite_path, "--url", server.url, "--poll", "200ms"], 2, 4) as running:
        thread, written = in_background(
            lambda: workload.write_sqlite(sqlite_path, [name], rows=15_000, keys=50, seed=4)
        )
        running.run_until(lambda: done(thread), pause=(0.1, 0.8), kills_max=8)
        assert running.kills >= 2
        running.stop()
    workload.check(written[0], workload.delivered(baton, name))


def test_a_broker_that_is_killed_while_a_relay_publishes(database: str, tmp_path: Path, name: str) -> None:
    with psycopg.connect(database) as connection:
        create_tables(connection)
    server = ServerProcess(tmp_path)
    port = server.url.rpartition(":")[2]
    with Baton(server.url) as baton:
        baton.create_queue(name)
    thread, written = in_background(
        lambda: workload.write_postgres(database, [name], rows=20_000, keys=40, writers=2, seed=5)
    )
    try:
        with workload.relays(["--dsn", database, "--url", server.url, "--poll", "200ms"], 1, 5) as running:
            for _ in range(3):
                already = published(database)
                deadline = time.monotonic() + workload.PATIENCE_S
                while published(database) == already and not everything_published(database, thread):
                    assert time.monotonic() < deadline
                server.kill()
                server = ServerProcess(tmp_path, "--port", port)
            running.run_until(lambda: everything_published(database, thread), pause=(0.1, 0.2), kills_max=0)
            running.stop()
        with Baton(server.url) as baton:
            workload.check(written[0], workload.delivered(baton, name))
    finally:
        server.kill()


def published(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT count(*) FROM batonq_outbox WHERE published_at IS NOT NULL").fetchone()
    assert row is not None
    return int(row[0])
