"""Relays killed with -9 while an application commits and rolls back: nothing lost, doubled, out of order.

How many kills there are, and after how many published rows, is settled; what a relay is at in that moment is not.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg

from batonq.outbox import create_tables
from batonq.sync import Baton
from tests.outbox import workload
from tests.support.ports import reserve_port
from tests.system.process import ServerProcess

SQLITE_KILLS = 6
BROKER_KILLS = 3


def in_background(write: Callable[[], workload.Written]) -> tuple[threading.Thread, list[workload.Written]]:
    written: list[workload.Written] = []
    thread = threading.Thread(target=lambda: written.append(write()))
    thread.start()
    return thread, written


def counted(dsn: str, condition: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(f"SELECT count(*) FROM batonq_outbox WHERE published_at {condition}").fetchone()
    assert row is not None
    return int(row[0])


def published(dsn: str) -> int:
    return counted(dsn, "IS NOT NULL")


def finished(thread: threading.Thread, unpublished: Callable[[], int]) -> None:
    """Everything is written, and everything that was is published."""
    thread.join(workload.PATIENCE_S)
    assert not thread.is_alive()
    workload.wait_until(lambda: unpublished() == 0, "the relays did not come to an end")


def run_postgres(
    dsn: str, url: str, queues: list[str], *, rows: int, relays: int, kills: int, seed: int, flags: tuple[str, ...] = ()
) -> workload.Written:
    with psycopg.connect(dsn) as connection:
        create_tables(connection)
    arguments = ["--dsn", dsn, "--url", url, "--poll", "200ms", *flags]
    portions = workload.Portions(rows, kills + 1)
    with workload.relays(arguments, relays, seed) as running:
        thread, written = in_background(
            lambda: workload.write_postgres(dsn, queues, rows=rows, keys=240, writers=4, seed=seed, portions=portions)
        )
        running.kill_while_they_publish(lambda: published(dsn), portions, kills)
        finished(thread, lambda: counted(dsn, "IS NULL"))
        assert running.kills == kills
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
    assert standard and fifo
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

    def rows(condition: str) -> int:
        with closing(sqlite3.connect(sqlite_path, timeout=workload.PATIENCE_S)) as connection:
            row = connection.execute(f"SELECT count(*) FROM batonq_outbox WHERE published_at {condition}").fetchone()
        return int(row[0])

    portions = workload.Portions(15_000, SQLITE_KILLS + 1)
    with workload.relays(["--sqlite", sqlite_path, "--url", server.url, "--poll", "200ms"], 2, 4) as running:
        thread, written = in_background(
            lambda: workload.write_sqlite(sqlite_path, [name], rows=15_000, keys=50, seed=4, portions=portions)
        )
        running.kill_while_they_publish(lambda: rows("IS NOT NULL"), portions, SQLITE_KILLS)
        finished(thread, lambda: rows("IS NULL"))
        assert running.kills == SQLITE_KILLS
        running.stop()
    workload.check(written[0], workload.delivered(baton, name))


def test_a_broker_that_is_killed_while_a_relay_publishes(database: str, tmp_path: Path, name: str) -> None:
    with psycopg.connect(database) as connection:
        create_tables(connection)
    port = str(reserve_port())
    server = ServerProcess(tmp_path, "--port", port)
    with Baton(server.url) as baton:
        baton.create_queue(name)
    portions = workload.Portions(20_000, BROKER_KILLS + 1)
    thread, written = in_background(
        lambda: workload.write_postgres(database, [name], rows=20_000, keys=40, writers=2, seed=5, portions=portions)
    )
    try:
        with workload.relays(["--dsn", database, "--url", server.url, "--poll", "200ms"], 1, 5) as running:
            for kill in range(BROKER_KILLS):
                some = portions.size * kill
                workload.wait_until(lambda some=some: published(database) > some, "nothing is published")  # type: ignore[misc]
                server.kill()
                portions.release()
                server = ServerProcess(tmp_path, "--port", port)
            finished(thread, lambda: counted(database, "IS NULL"))
            running.stop()
        with Baton(server.url) as baton:
            workload.check(written[0], workload.delivered(baton, name))
    finally:
        server.kill()
