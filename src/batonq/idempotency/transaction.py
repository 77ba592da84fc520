"""Claim, effect and mark in one transaction of the user's own connection, so that a crash leaves all or nothing.

The mark is inserted first and commits with the effect. A second delivery in the meantime waits at the unique key until
the first transaction has ended: after a commit it is a duplicate, after a rollback or a crash it does the work.
"""

from __future__ import annotations

import functools
import inspect
import sqlite3
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

from batonq import databases
from batonq.databases import Dialect, Outcome
from batonq.errors import InvalidInput
from batonq.idempotency import tables
from batonq.idempotency.decorator import DAY_S, KeyOf, id_of
from batonq.idempotency.failures import Busy, OutOfOrder
from batonq.idempotency.store import Place, checked_key

_SQLITE_NOW = "((julianday('now') - 2440587.5) * 86400.0)"


def once(connection: Any, key: str, *, ttl: float = 7 * DAY_S, table: str = tables.CLAIMS) -> bool:
    """True if the work of this key must be done now, in this transaction; False if it was already done."""
    databases.require_transaction(connection, "once()")
    mark, look = _once_statements(databases.kind_of(connection).dialect, table)
    given = {"key": checked_key(key), "ttl": ttl}
    if databases.execute(connection, mark, given).rows:
        return True
    return _standing(databases.execute(connection, look, {"key": key}))


async def once_async(connection: Any, key: str, *, ttl: float = 7 * DAY_S, table: str = tables.CLAIMS) -> bool:
    """`once` for psycopg's async connections."""
    databases.require_transaction(connection, "once_async()")
    mark, look = _once_statements(databases.kind_of(connection).dialect, table)
    given = {"key": checked_key(key), "ttl": ttl}
    if (await databases.execute_async(connection, mark, given)).rows:
        return True
    return _standing(await databases.execute_async(connection, look, {"key": key}))


def create_tables(connection: Any, *, table: str = tables.CLAIMS) -> None:
    """Create the tables of `once` and `next_in_order` (those of the stores) if they do not exist."""
    names = tables.Names(table)
    postgres = databases.kind_of(connection).dialect == "postgresql"
    for statement in tables.postgres_schema(names) if postgres else tables.sqlite_schema(names):
        databases.execute(connection, statement, {})


def next_in_order(
    connection: Any, key: str, sequence: int, *, first: int = 1, table: str = tables.CLAIMS, retry_after: float = 1.0
) -> bool:
    """True if this message is the next of its key, and record it in this transaction; False if it was already
    processed.

    Raises `OutOfOrder` if its predecessor is missing. A second consumer of the key waits for the end of this
    transaction.
    """
    databases.require_transaction(connection, "next_in_order()")
    lines = tables.Names(table).lines
    given = {"key": checked_key(key), "sequence": sequence, "before": first - 1}
    databases.execute(
        connection,
        f"INSERT INTO {lines} (key, last, owner, until) VALUES (:key, :before, '', {_epoch(connection)})"
        " ON CONFLICT (key) DO NOTHING",
        {"key": key, "before": first - 1},
    )
    moved = databases.execute(
        connection,
        f"UPDATE {lines} SET last = :sequence WHERE key = :key AND last = :before",
        {**given, "before": sequence - 1},
    )
    if moved.changed:
        return True
    last = databases.execute(connection, f"SELECT last FROM {lines} WHERE key = :key", {"key": key}).first[0]
    if place(sequence, last) is Place.SEEN:
        return False
    raise OutOfOrder(retry_after, f"message {sequence} of {key!r} arrived while the last processed one is {last}")


def place(sequence: int, last: int) -> Place:
    if sequence <= last:
        return Place.SEEN
    return Place.NEXT if sequence == last + 1 else Place.GAP


def idempotent_in_transaction(
    connect: Callable[[], Any],
    *,
    key: KeyOf | None = None,
    ttl: float = 7 * DAY_S,
    scope: str | None = None,
    table: str = tables.CLAIMS,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run the handler in a transaction that also contains its mark; the handler gets the connection as `connection=`.

    `connect` returns a context manager for a connection that commits at its end and rolls back after an exception, as
    `psycopg.connect`, a pool's `connection`, SQLAlchemy's `engine.begin` and `Session.begin` do. An sqlite3 connection
    is accepted as well, and closed. For a coroutine function it returns an async one.
    """

    def decorate(handler: Callable[..., Any]) -> Callable[..., Any]:
        name = handler.__qualname__ if scope is None else scope
        key_of = key or id_of

        if inspect.iscoroutinefunction(handler):

            @functools.wraps(handler)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                opened = connect()
                if inspect.isawaitable(opened):
                    opened = await opened
                manager: AbstractAsyncContextManager[Any] = opened
                async with manager as connection:
                    if not await once_async(connection, f"{name}:{key_of(*args, **kwargs)}", ttl=ttl, table=table):
                        return None
                    return await handler(*args, connection=connection, **kwargs)

            return run_async

        @functools.wraps(handler)
        def run(*args: Any, **kwargs: Any) -> Any:
            with _opened(connect()) as connection:
                if not once(connection, f"{name}:{key_of(*args, **kwargs)}", ttl=ttl, table=table):
                    return None
                return handler(*args, connection=connection, **kwargs)

        return run

    return decorate


class _opened(AbstractContextManager[Any]):  # noqa: N801
    """The context manager itself; for an sqlite3 connection, whose own one does not close it, a transaction."""

    def __init__(self, given: Any) -> None:
        self._given = given
        if not hasattr(given, "__enter__"):
            raise InvalidInput("connect=… must return a context manager for a connection, such as psycopg.connect(…).")

    def __enter__(self) -> Any:
        connection = self._given.__enter__()
        if isinstance(connection, sqlite3.Connection) and not connection.in_transaction:
            connection.execute("BEGIN IMMEDIATE")
        return connection

    def __exit__(self, *exc: Any) -> Any:
        try:
            return self._given.__exit__(*exc)
        finally:
            if isinstance(self._given, sqlite3.Connection):
                self._given.close()


def _epoch(connection: Any) -> str:
    return "clock_timestamp()" if databases.kind_of(connection).dialect == "postgresql" else _SQLITE_NOW


@functools.lru_cache(64)
def _once_statements(dialect: Dialect, table: str) -> tuple[str, str]:
    claims = tables.Names(table).claims
    if dialect == "postgresql":
        now, end = "clock_timestamp()", "clock_timestamp() + make_interval(secs => :ttl)"
        left = "CAST(extract(epoch FROM until - clock_timestamp()) AS float8)"
        yes = "true"
    else:
        now, end, left = _SQLITE_NOW, f"{_SQLITE_NOW} + :ttl", f"until - {_SQLITE_NOW}"
        yes = "1"
    mark = (
        f"INSERT INTO {claims} AS mine (key, owner, done, until) VALUES (:key, '', {yes}, {end}) ON CONFLICT (key)"
        f" DO UPDATE SET owner = '', done = {yes}, until = excluded.until, result = NULL"
        f" WHERE mine.until <= {now} RETURNING 1"
    )
    return mark, f"SELECT done, {left} FROM {claims} WHERE key = :key"


def _standing(found: Outcome) -> bool:
    if found.first is None:  # it was removed between the two statements
        raise Busy(0.0)
    done, left = found.first
    if not done:
        raise Busy(left)
    return False
