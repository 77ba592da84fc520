"""Statements on the user's own database connection, so that they are part of the user's transaction.

Statements are written once, with parameters as `:name`. They run on sqlite3 connections; on psycopg connections, sync
and async; and on SQLAlchemy connections and sessions for either database (their async forms through `run_sync`). No
library is imported: the connection's class tells which one it belongs to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from batonq.errors import InvalidInput

if TYPE_CHECKING:
    import sqlite3

Dialect = Literal["postgresql", "sqlite"]
Library = Literal["sqlite3", "psycopg", "sqlalchemy"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,50}(\.[A-Za-z_][A-Za-z0-9_]{0,50})?")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)")
_DIALECTS = ("postgresql", "sqlite")
_PG_IDLE = 0  # psycopg.pq.TransactionStatus.IDLE


class Kind(NamedTuple):
    """The library and database of a connection."""

    library: Library
    dialect: Dialect
    is_async: bool


class Outcome(NamedTuple):
    """The result of a statement: its rows, and the number of changed rows."""

    rows: Sequence[Any]
    changed: int

    @property
    def first(self) -> Any:
        return self.rows[0] if self.rows else None


def quoted(name: str) -> str:
    """The quoted name of a table or column, with or without a schema."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"{name!r} is not a valid table or column name. Use letters, digits, _ and at most one dot.")
    return ".".join(f'"{part}"' for part in name.split("."))


def kind_of(connection: Any) -> Kind:
    """The library and database of a connection. Raises InvalidInput for an unsupported one."""
    for parent in type(connection).__mro__:
        library = parent.__module__.partition(".")[0]
        if library == "sqlite3":
            return Kind("sqlite3", "sqlite", False)
        if library == "psycopg":
            return Kind("psycopg", "postgresql", any(c.__name__ == "AsyncConnection" for c in type(connection).__mro__))
        if library == "sqlalchemy":
            if "asyncio" in parent.__module__:
                raise InvalidInput(
                    "This is an async SQLAlchemy connection. Use `await connection.run_sync(function, …)`."
                )
            return Kind("sqlalchemy", _sqlalchemy_dialect(connection), False)
    raise InvalidInput(
        f"{type(connection).__module__}.{type(connection).__qualname__} is not supported. Use a connection of "
        "sqlite3, psycopg 3 or SQLAlchemy."
    )


def _sqlalchemy_dialect(connection: Any) -> Dialect:
    bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
    name = bind.dialect.name
    if name not in _DIALECTS:
        raise InvalidInput(f"The database {name} is not supported. Use PostgreSQL or SQLite.")
    return cast(Dialect, name)


def execute(connection: Any, sql: str, parameters: Mapping[str, Any]) -> Outcome:
    """Run one statement on a synchronous connection."""
    kind = kind_of(connection)
    if kind.is_async:
        raise InvalidInput("This connection is async. Use the function whose name ends in _async.")
    # Use own cursors: the connection's may return rows as dictionaries, or expect another parameter style.
    if kind.library == "sqlite3":
        cursor = connection.cursor()
        cursor.row_factory = None
        return _outcome(cursor.execute(sql, dict(parameters)))
    if kind.library == "psycopg":
        from psycopg import Cursor
        from psycopg.rows import tuple_row

        with Cursor(connection, row_factory=tuple_row) as own:
            return _outcome(own.execute(_for_psycopg(sql), parameters))
    return _outcome(connection.execute(_for_sqlalchemy(sql), dict(parameters)))


async def execute_async(connection: Any, sql: str, parameters: Mapping[str, Any]) -> Outcome:
    """Run one statement on any connection. A synchronous one blocks the event loop."""
    kind = kind_of(connection)
    if not kind.is_async:
        return execute(connection, sql, parameters)
    from psycopg import AsyncCursor
    from psycopg.rows import tuple_row

    async with AsyncCursor(connection, row_factory=tuple_row) as own:
        await own.execute(_for_psycopg(sql), parameters)
        rows = await own.fetchall() if own.description is not None else []
        return Outcome(rows, own.rowcount)


def require_transaction(connection: Any, what: str) -> None:
    """Raise an error if a statement would be committed on its own, not in the user's transaction."""
    kind = kind_of(connection)
    alone = False
    if kind.library == "psycopg":
        alone = connection.autocommit and connection.info.transaction_status == _PG_IDLE
    elif kind.library == "sqlite3":
        manual = connection.isolation_level is None and getattr(connection, "autocommit", -1) is not False
        alone = manual and not connection.in_transaction
    if alone:
        raise InvalidInput(
            f"{what} must be used in a transaction, but this connection commits every statement. Begin a "
            "transaction first."
        )


def _outcome(cursor: Any) -> Outcome:
    returns = cursor.returns_rows if hasattr(cursor, "returns_rows") else cursor.description is not None
    rows = cursor.fetchall() if returns else []
    return Outcome(rows, cursor.rowcount)


@lru_cache(256)
def _for_psycopg(sql: str) -> str:
    return _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))


@lru_cache(256)
def _for_sqlalchemy(sql: str) -> Any:
    from sqlalchemy import text

    return text(sql)


def load_psycopg() -> Any:
    """The psycopg module, or an error that says what to install."""
    try:
        import psycopg
    except ImportError:
        raise InvalidInput("This needs psycopg: pip install 'batonq[postgres]'.") from None
    return psycopg


@contextmanager
def immediate(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """A transaction on a connection with `isolation_level=None`: committed at the end, or rolled back.

    It is IMMEDIATE: otherwise a transaction that first reads and then writes could fail instead of waiting. A commit
    that fails leaves the transaction open, so it is rolled back too.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
