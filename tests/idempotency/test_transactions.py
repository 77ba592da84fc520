"""Claim, effect and mark in one transaction of the user's own connection."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from batonq.errors import InvalidInput
from batonq.idempotency import (
    Busy,
    OutOfOrder,
    PostgresStore,
    idempotent_in_transaction,
    next_in_order,
    once,
)
from batonq.idempotency.transaction import create_tables


def prepare(connect: Callable[[], Any]) -> None:
    with closing(connect()) as connection:
        create_tables(connection)
        create_tables(connection)
        connection.execute("CREATE TABLE effects (name text)")
        connection.commit()


def effects(connect: Callable[[], Any]) -> list[str]:
    with closing(connect()) as connection:
        return [row[0] for row in connection.execute("SELECT name FROM effects ORDER BY name").fetchall()]


def test_a_mark_commits_with_the_effect_and_goes_with_it(connect: Callable[[], Any]) -> None:
    prepare(connect)
    with closing(connect()) as connection:
        assert once(connection, "k")
        connection.execute("INSERT INTO effects VALUES ('first')")
        connection.rollback()
        assert once(connection, "k")
        connection.execute("INSERT INTO effects VALUES ('second')")
        connection.commit()
        assert not once(connection, "k")
        connection.commit()
        assert once(connection, "expired", ttl=-1)
        connection.commit()
        assert once(connection, "expired")
        connection.commit()
    assert effects(connect) == ["second"]


@pytest.mark.parametrize("first_commits", [True, False])
def test_a_second_delivery_waits_for_the_first_transaction(connect: Callable[[], Any], first_commits: bool) -> None:
    prepare(connect)
    answers: list[bool] = []
    begun = threading.Event()

    def second() -> None:
        with closing(connect()) as connection:
            begun.set()
            answers.append(once(connection, "k"))
            connection.commit()

    with closing(connect()) as connection:
        assert once(connection, "k")
        thread = threading.Thread(target=second)
        thread.start()
        assert begun.wait(300)
        assert answers == []
        connection.commit() if first_commits else connection.rollback()
        thread.join(300)
    assert answers == [not first_commits]


def test_a_live_claim_of_a_store_is_busy_for_a_transaction(database: str) -> None:
    with closing(PostgresStore(database)) as store, psycopg.connect(database) as connection:
        store.claim("k", "a", 600)
        with pytest.raises(Busy) as busy:
            once(connection, "k")
        assert 500 < busy.value.delay <= 600
        connection.rollback()
        store.release("k", "a")
        assert once(connection, "k")
        connection.commit()
        assert store.claim("k", "b", 60).state.value == "done"


def test_without_a_transaction_it_is_refused(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        create_tables(connection)
        with pytest.raises(InvalidInput, match="Begin a transaction"):
            once(connection, "k")
        with connection.transaction():
            assert once(connection, "k")
    with (
        closing(sqlite3.connect(":memory:", isolation_level=None)) as plain,
        pytest.raises(InvalidInput, match="Begin a transaction"),
    ):
        once(plain, "k")
    with pytest.raises(InvalidInput, match=r"is not supported\. Use a connection of"):
        once(object(), "k")


def test_a_decorated_handler_and_its_mark_are_one_transaction(connect: Callable[[], Any]) -> None:
    prepare(connect)
    fail = [True]

    @idempotent_in_transaction(connect, key=lambda key: key)
    def handle(key: str, connection: Any) -> str:
        connection.execute(f"INSERT INTO effects VALUES ('{key}')")
        if fail[0]:
            raise OSError("away")
        return "done"

    with pytest.raises(OSError, match="away"):
        handle("a")
    assert effects(connect) == []
    fail[0] = False
    assert [handle("a"), handle("a"), handle("b")] == ["done", None, "done"]
    assert effects(connect) == ["a", "b"]


def test_an_async_handler_and_its_mark_are_one_transaction(database: str) -> None:
    prepare(lambda: psycopg.connect(database))

    @idempotent_in_transaction(lambda: psycopg.AsyncConnection.connect(database), key=lambda key: key)
    async def handle(key: str, connection: Any) -> str:
        await connection.execute("INSERT INTO effects VALUES (%s)", (key,))
        return "done"

    async def main() -> list[str | None]:
        return [await handle("a"), await handle("a")]

    assert asyncio.run(main()) == ["done", None]
    assert effects(lambda: psycopg.connect(database)) == ["a"]


def test_through_sqlalchemy(address_of: Callable[[str], str]) -> None:
    for kind in ("sqlite", "postgres"):
        url = f"sqlite:///{address_of(kind)}" if kind == "sqlite" else "postgresql+psycopg://"
        options = {} if kind == "sqlite" else {"creator": lambda: psycopg.connect(address_of("postgres"))}
        engine = create_engine(url, **options)
        with engine.begin() as connection:
            create_tables(connection)
        with Session(engine) as session, session.begin():
            assert once(session, "k")
        with engine.begin() as connection:
            assert not once(connection, "k")
            assert next_in_order(connection, "k", 1)
        engine.dispose()


def test_order_in_the_effects_own_transaction(connect: Callable[[], Any]) -> None:
    prepare(connect)
    with closing(connect()) as connection:
        with pytest.raises(OutOfOrder, match="the last processed one is 0"):
            next_in_order(connection, "k", 2)
        assert next_in_order(connection, "k", 1)
        connection.rollback()
        assert next_in_order(connection, "k", 1)
        connection.commit()
        assert not next_in_order(connection, "k", 1)
        assert next_in_order(connection, "k", 2)
        connection.commit()


def test_a_store_and_a_transaction_on_connections_that_give_dictionaries(database: str) -> None:
    with closing(PostgresStore(lambda: psycopg.connect(database, row_factory=dict_row))) as store:
        assert store.claim("k", "a", 60).state.value == "taken"
        assert store.claim("k", "b", 60).state.value == "busy"
    with psycopg.connect(database, row_factory=dict_row) as connection:
        assert once(connection, "other")
        assert not once(connection, "other")
        assert next_in_order(connection, "k", 1)
        assert not next_in_order(connection, "k", 1)
