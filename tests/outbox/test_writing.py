"""The application's side: `put` and `seen` in its own transaction, through every library."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from batonq.errors import InvalidInput
from batonq.outbox import create_tables, create_tables_async, prune_inbox, put, put_async, seen, seen_async
from batonq.outbox import postgres as outbox_postgres
from batonq.outbox import sqlalchemy as outbox_sqlalchemy
from batonq.outbox import sqlite as outbox_sqlite
from batonq.outbox.rows import Row, to_message


@pytest.fixture(params=["sqlite", "postgres"])
def connect(request: pytest.FixtureRequest, sqlite_path: str) -> Callable[[], Any]:
    if request.param == "sqlite":
        return lambda: sqlite3.connect(sqlite_path, timeout=20)
    database = request.getfixturevalue("database")
    return lambda: psycopg.connect(database)


@pytest.fixture
def connection(connect: Callable[[], Any]) -> Iterator[Any]:
    with closing(connect()) as made:
        create_tables(made)
        made.commit()
        yield made


def rows(connection: Any) -> list[Any]:
    found = connection.execute("SELECT queue, key, CAST(body AS text), data FROM batonq_outbox ORDER BY id").fetchall()
    return [tuple(row) for row in found]


def test_a_row_and_its_message_commit_together(connection: Any) -> None:
    connection.execute("CREATE TABLE orders (id integer)")
    connection.execute("INSERT INTO orders VALUES (1)")
    first = put(connection, "orders", {"id": 1}, key="1")
    connection.commit()
    connection.execute("INSERT INTO orders VALUES (2)")
    put(connection, "orders", {"id": 2}, key="2")
    connection.rollback()
    second = put(connection, "orders", b"\0\1")
    connection.commit()
    assert second > first
    assert rows(connection) == [("orders", "1", '{"id":1}', None), ("orders", None, None, b"\0\1")]
    assert connection.execute("SELECT count(*) FROM orders").fetchone() == (1,)


def test_a_message_is_what_was_put(connection: Any) -> None:
    put(
        connection,
        "mails",
        [1, "ü", None],
        key="k",
        delay=1.5,
        ttl=60,
        priority="low",
        attributes={"a": 1, "b": b"\xff", "c": "x"},
        max_receives=3,
        dedup_key="d",
        tracestate="t",
    )
    sql = "SELECT id, queue, key, CAST(body AS text), data, CAST(options AS text) FROM batonq_outbox"
    message = to_message(Row(*connection.execute(sql).fetchone()))
    assert (message.body, message.group, message.delay, message.ttl) == ([1, "ü", None], "k", 1.5, 60)
    assert (message.priority, message.max_receives, message.dedup_key, message.tracestate) == ("low", 3, "d", "t")
    assert message.attributes == {"a": 1, "b": b"\xff", "c": "x"}


def test_what_cannot_be_a_message_is_refused_when_it_is_put(connection: Any) -> None:
    for queue, body, key, text in (
        ("", 1, None, "not a valid queue name"),
        ("q", object(), None, "must be a JSON value"),
        ("q", b"x" * ((1 << 20) + 1), None, "the maximum is"),
        ("q", "x" * (1 << 20), None, "the maximum is"),
        ("q", 1, "", "A key must have"),
        ("q", 1, "x" * 129, "A key must have"),
    ):
        with pytest.raises(InvalidInput, match=text):
            put(connection, queue, body, key=key)
    with pytest.raises(InvalidInput, match="not a valid message"):
        to_message(Row(1, "q", None, "{", None, None))


def test_a_put_outside_of_a_transaction_is_refused(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        create_tables(connection)
        with pytest.raises(InvalidInput, match="Begin a transaction"):
            put(connection, "q", 1)
        with pytest.raises(InvalidInput, match="Begin a transaction"):
            seen(connection, "m")
        with connection.transaction():
            put(connection, "q", 1)


def test_an_id_is_noted_with_the_effect(connection: Any) -> None:
    class Message:
        id = "m-1"

    assert not seen(connection, "m-1")
    connection.rollback()
    assert not seen(connection, "m-1")
    connection.commit()
    assert seen(connection, "m-1")
    assert seen(connection, Message())  # type: ignore[arg-type]
    assert not seen(connection, "m-1", consumer="another")
    connection.commit()
    assert prune_inbox(connection, 3600) == 0
    assert prune_inbox(connection, -1) == 2
    assert not seen(connection, "m-1")
    with pytest.raises(InvalidInput, match="needs a message"):
        seen(connection, 7)  # type: ignore[arg-type]


@pytest.mark.parametrize("first_commits", [True, False])
def test_a_second_delivery_waits_for_the_first_ones_end(
    connect: Callable[[], Any], connection: Any, first_commits: bool
) -> None:
    answers: list[bool] = []
    begun = threading.Event()

    def second() -> None:
        with closing(connect()) as other:
            begun.set()
            answers.append(seen(other, "m"))
            other.commit()

    assert not seen(connection, "m")
    thread = threading.Thread(target=second)
    thread.start()
    assert begun.wait(20)
    assert answers == []
    connection.commit() if first_commits else connection.rollback()
    thread.join(30)
    assert answers == [first_commits]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_through_sqlalchemy(kind: str, sqlite_path: str, request: pytest.FixtureRequest) -> None:
    if kind == "sqlite":
        engine = create_engine(f"sqlite:///{sqlite_path}")
    else:
        database = request.getfixturevalue("database")
        engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(database))
    with engine.begin() as connection:
        outbox_sqlalchemy.create_tables(connection)
    with Session(engine) as session:
        assert put(session, "orders", {"id": 1}, key="1") == 1
        assert not seen(session, "m")
        session.commit()
        put(session, "orders", {"id": 2})
        session.rollback()
        assert seen(session, "m")
    with engine.begin() as connection:
        put(connection, "orders", b"\0")
    with closing(engine.raw_connection()) as raw:
        found = [row[:2] for row in rows(raw.driver_connection)]
    assert found == [("orders", "1"), ("orders", None)]
    engine.dispose()


def test_through_async_psycopg(database: str) -> None:
    async def main() -> list[bool]:
        async with await psycopg.AsyncConnection.connect(database) as connection:
            await create_tables_async(connection)
            await put_async(connection, "orders", {"id": 1}, key="1")
            answers = [await seen_async(connection, "m"), await seen_async(connection, "m")]
            with pytest.raises(InvalidInput, match="_async"):
                put(connection, "orders", 1)
        return answers

    assert asyncio.run(main()) == [False, True]
    with psycopg.connect(database) as connection:
        assert rows(connection) == [("orders", "1", '{"id":1}', None)]


def test_tables_made_at_once_by_several(database: str) -> None:
    failures: list[BaseException] = []

    def make() -> None:
        try:
            with psycopg.connect(database) as connection:
                create_tables(connection)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_connections_that_give_rows_of_their_own_kind(database: str, sqlite_path: str) -> None:
    def as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
        return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}

    plain = sqlite3.connect(sqlite_path)
    plain.row_factory = as_dict
    for made in (plain, psycopg.connect(database, row_factory=dict_row, cursor_factory=psycopg.RawCursor)):
        with closing(made) as connection:
            create_tables(connection)
            assert put(connection, "q", 1) == 1
            assert not seen(connection, "m")
            assert seen(connection, "m")
            connection.commit()

    async def main() -> int:
        factory: Any = dict_row
        async with await psycopg.AsyncConnection.connect(database, row_factory=factory) as connection:
            await create_tables_async(connection)
            return await put_async(connection, "q", 1)

    assert asyncio.run(main()) == 2


def test_other_names_and_schemas(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("CREATE SCHEMA shop")
        create_tables(connection, table="shop.events", inbox="shop.seen")
        put(connection, "q", 1, table="shop.events")
        assert not seen(connection, "m", table="shop.seen")
        assert connection.execute("SELECT count(*) FROM shop.events").fetchone() == (1,)
        with pytest.raises(InvalidInput, match="not a valid table or column name"):
            put(connection, "q", 1, table='x"; DROP TABLE y')


def test_each_database_has_its_module() -> None:
    assert outbox_postgres.put is outbox_sqlite.put is outbox_sqlalchemy.put is put


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"body": 1}, "name one of them"),
        ({"queue": "q", "topic": "t", "body": 1}, "name one of them"),
        ({"topic": "a/b", "body": 1}, "'a/b' is not a valid topic name"),
        ({"topic": "topic:x", "body": 1}, "'topic:x' is not a valid topic name"),
        ({"queue": "topic:x", "body": 1}, "'topic:x' is not a valid queue name"),
    ],
)
def test_a_message_is_for_a_queue_or_a_topic(connection: Any, given: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        put(connection, **given)
    with pytest.raises(TypeError, match="needs a body"):
        put(connection, "q")


def test_a_message_for_a_topic_says_so_in_its_row(connection: Any) -> None:
    put(connection, topic="orders", body={"id": 1}, key="1")
    connection.commit()
    assert rows(connection) == [("topic:orders", "1", '{"id":1}', None)]
