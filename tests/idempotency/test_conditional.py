"""Conditional writes, in plain SQL and through SQLAlchemy: the second time changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from batonq.errors import InvalidInput
from batonq.idempotency import conditional, conditional_sqlalchemy

TABLE = (
    "CREATE TABLE orders (id integer PRIMARY KEY, status text, version integer NOT NULL DEFAULT 1, note text,"
    " UNIQUE (status, note))"
)
ORDER = ("pending", "paid", "shipped")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str]
    version: Mapped[int] = mapped_column(default=1)
    note: Mapped[str | None]


def check(writes: Any, connection: Any, table: Any, row: Callable[[], tuple[Any, ...]]) -> None:
    """The same expectations of every form."""
    first = {"id": 1, "status": "pending", "note": "a", "version": 1}
    assert writes.insert_if_absent(connection, table, first, key="id")
    assert not writes.insert_if_absent(connection, table, {**first, "note": "b"}, key=["id"])
    assert row() == ("pending", 1, "a")
    assert writes.update_if_version(connection, table, {"id": 1}, {"note": "c"}, version=1)
    assert not writes.update_if_version(connection, table, {"id": 1}, {"note": "d"}, version=1)
    assert row() == ("pending", 2, "c")
    assert writes.advance_status(connection, table, {"id": 1}, "shipped", order=ORDER, values={"note": "e"})
    assert not writes.advance_status(connection, table, {"id": 1}, "shipped", order=ORDER)
    assert not writes.advance_status(connection, table, {"id": 1}, "paid", order=ORDER)
    assert row() == ("shipped", 2, "e")
    with pytest.raises(InvalidInput, match="the first status"):
        writes.advance_status(connection, table, {"id": 1}, "pending", order=ORDER)
    with pytest.raises(InvalidInput, match="not one of"):
        writes.advance_status(connection, table, {"id": 1}, "lost", order=ORDER)
    with pytest.raises(InvalidInput, match="Remove it from the values"):
        writes.update_if_version(connection, table, {"id": 1}, {"version": 7}, version=1)
    with pytest.raises(InvalidInput):
        writes.update_if_version(connection, table, {}, {"note": "x"}, version=1)


def test_plain_sql(connect: Callable[[], Any]) -> None:
    with closing(connect()) as connection:
        connection.execute(TABLE)
        select = "SELECT status, version, note FROM orders"
        check(conditional, connection, "orders", lambda: tuple(connection.execute(select).fetchone()))
        with pytest.raises(InvalidInput, match="is not a valid table or column name"):
            conditional.insert_if_absent(connection, "orders; DROP TABLE orders", {"id": 1}, key="id")


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_sqlalchemy(kind: str, address_of: Callable[[str], str]) -> None:
    address = address_of(kind)
    if kind == "sqlite":
        engine = create_engine(f"sqlite:///{address}")
    else:
        engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(address))
    Base.metadata.create_all(engine)
    with Session(engine) as session:

        def row() -> tuple[Any, ...]:
            session.expire_all()
            order = session.get_one(Order, 1)
            return order.status, order.version, order.note

        check(conditional_sqlalchemy, session, Order, row)
        assert not conditional_sqlalchemy.insert_if_absent(session, Order.__table__, {"id": 1, "status": "pending"})
        with pytest.raises(InvalidInput, match="mapped class"):
            conditional_sqlalchemy.insert_if_absent(session, "orders", {"id": 1})
    engine.dispose()


def test_plain_sql_on_an_async_connection(database: str) -> None:
    async def main() -> list[bool]:
        async with await psycopg.AsyncConnection.connect(database) as connection:
            await connection.execute(TABLE)
            values = {"id": 1, "status": "pending"}
            answers = [await conditional.insert_if_absent_async(connection, "orders", values, key="id") for _ in "ab"]
            for _ in "ab":
                answers.append(
                    await conditional.update_if_version_async(connection, "orders", {"id": 1}, {"note": "x"}, version=1)
                )
            for _ in "ab":
                answers.append(
                    await conditional.advance_status_async(connection, "orders", {"id": 1}, "paid", order=ORDER)
                )
            with pytest.raises(InvalidInput, match="_async"):
                conditional.insert_if_absent(connection, "orders", values, key="id")
            return answers

    assert asyncio.run(main()) == [True, False, True, False, True, False]
