"""The conditional writes for SQLAlchemy's tables and mapped classes, with their column types and names.

`connection` is a Connection or a Session; for an async one: `await session.run_sync(insert_if_absent, Order, {...})`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from batonq.databases import kind_of
from batonq.errors import InvalidInput
from batonq.idempotency.conditional import earlier

if TYPE_CHECKING:
    from sqlalchemy import Table


def insert_if_absent(
    connection: Any, table: Any, values: Mapping[str, Any], *, key: str | Sequence[str] | None = None
) -> bool:
    """Insert a row unless one with the same key exists; `key` defaults to the primary key."""
    from sqlalchemy.dialects import postgresql, sqlite

    found = _table(table)
    names = [key] if isinstance(key, str) else list(key or [column.name for column in found.primary_key])
    dialect: Any = postgresql if kind_of(connection).dialect == "postgresql" else sqlite
    statement = dialect.insert(found).values(dict(values)).on_conflict_do_nothing(index_elements=names)
    # A session does not report the row count of an insert; its returned rows do.
    return connection.execute(statement.returning(*(found.c[name] for name in names))).first() is not None


def update_if_version(
    connection: Any,
    table: Any,
    where: Mapping[str, Any],
    values: Mapping[str, Any],
    *,
    version: int,
    column: str = "version",
) -> bool:
    """Compare and set: change the row if it still has the version that was read, and increase the version by 1."""
    from sqlalchemy import update

    found = _table(table)
    if column in values:
        raise InvalidInput(f"{column!r} is set by this update itself. Remove it from the values.")
    statement = (
        update(found)
        .where(*_conditions(found, where), found.c[column] == version)
        .values({**values, column: found.c[column] + 1})
    )
    return bool(connection.execute(statement).rowcount > 0)


def advance_status(
    connection: Any,
    table: Any,
    where: Mapping[str, Any],
    to: str,
    *,
    order: Sequence[str],
    values: Mapping[str, Any] | None = None,
    column: str = "status",
) -> bool:
    """Set a status if the current one comes earlier in `order`: a status never goes back, and a repetition changes
    nothing.
    """
    from sqlalchemy import update

    found = _table(table)
    statement = (
        update(found)
        .where(*_conditions(found, where), found.c[column].in_(earlier(to, order)))
        .values({**(values or {}), column: to})
    )
    return bool(connection.execute(statement).rowcount > 0)


def _table(given: Any) -> Table:
    table: Table = getattr(given, "__table__", given)
    if not hasattr(table, "primary_key"):
        raise InvalidInput(
            "The table must be an SQLAlchemy Table or a mapped class. For a table name use "
            "batonq.idempotency.conditional."
        )
    return table


def _conditions(table: Table, where: Mapping[str, Any]) -> list[Any]:
    if not where:
        raise InvalidInput("where=… must identify the row: at least one column and its value.")
    return [table.c[name] == value for name, value in where.items()]
