"""Writes that have no effect the second time: the last layer, at the side effect itself. In plain SQL, on any
connection.

Each function runs one statement in the transaction of the given connection (sqlite3, psycopg, SQLAlchemy), and returns
whether it changed anything. Values are parameters; table and column names are checked. The module
`conditional_sqlalchemy` has the same functions for SQLAlchemy's tables and mapped classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from batonq.databases import execute, execute_async, quoted
from batonq.errors import InvalidInput


class Statement(NamedTuple):
    """SQL with parameters as `:name`, as accepted by SQLAlchemy's text() and by sqlite3."""

    sql: str
    parameters: dict[str, Any]


def insert_if_absent_statement(table: str, values: Mapping[str, Any], *, key: str | Sequence[str]) -> Statement:
    columns = _columns(values)
    target = ", ".join(quoted(name) for name in _names(key))
    sql = (
        f"INSERT INTO {quoted(table)} ({', '.join(quoted(name) for name in values)})"
        f" VALUES ({', '.join(':' + place for place in columns)}) ON CONFLICT ({target}) DO NOTHING"
    )
    return Statement(sql, dict(zip(columns, values.values(), strict=True)))


def update_if_version_statement(
    table: str, where: Mapping[str, Any], values: Mapping[str, Any], *, version: int, column: str = "version"
) -> Statement:
    if column in values:
        raise InvalidInput(f"{column!r} is set by this update itself. Remove it from the values.")
    places, conditions = _columns(values), _columns(where, "w")
    changes = [f"{quoted(name)} = :{place}" for name, place in zip(values, places, strict=True)]
    tests = [f"{quoted(name)} = :{place}" for name, place in zip(where, conditions, strict=True)]
    sql = (
        f"UPDATE {quoted(table)} SET {', '.join([*changes, f'{quoted(column)} = {quoted(column)} + 1'])}"
        f" WHERE {' AND '.join([*tests, f'{quoted(column)} = :expected'])}"
    )
    parameters = {
        **dict(zip(places, values.values(), strict=True)),
        **dict(zip(conditions, where.values(), strict=True)),
    }
    return Statement(sql, {**parameters, "expected": version})


def advance_status_statement(
    table: str,
    where: Mapping[str, Any],
    to: str,
    *,
    order: Sequence[str],
    values: Mapping[str, Any] | None = None,
    column: str = "status",
) -> Statement:
    before = earlier(to, order)
    extra = dict(values or {})
    places, conditions = _columns(extra, "v", empty=True), _columns(where, "w")
    olds = [_place("o", number) for number in range(len(before))]
    changes = [f"{quoted(name)} = :{place}" for name, place in zip(extra, places, strict=True)]
    tests = [f"{quoted(name)} = :{place}" for name, place in zip(where, conditions, strict=True)]
    sql = (
        f"UPDATE {quoted(table)} SET {', '.join([f'{quoted(column)} = :status', *changes])}"
        f" WHERE {' AND '.join(tests)} AND {quoted(column)} IN ({', '.join(':' + place for place in olds)})"
    )
    parameters = {
        **dict(zip(places, extra.values(), strict=True)),
        **dict(zip(conditions, where.values(), strict=True)),
    }
    return Statement(sql, {**parameters, "status": to, **dict(zip(olds, before, strict=True))})


def insert_if_absent(connection: Any, table: str, values: Mapping[str, Any], *, key: str | Sequence[str]) -> bool:
    """Insert a row unless one with the same `key` columns (a primary key or unique constraint) exists."""
    return execute(connection, *insert_if_absent_statement(table, values, key=key)).changed > 0


def update_if_version(
    connection: Any,
    table: str,
    where: Mapping[str, Any],
    values: Mapping[str, Any],
    *,
    version: int,
    column: str = "version",
) -> bool:
    """Compare and set: change the row if it still has the version that was read, and increase the version by 1."""
    return (
        execute(connection, *update_if_version_statement(table, where, values, version=version, column=column)).changed
        > 0
    )


def advance_status(
    connection: Any,
    table: str,
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
    statement = advance_status_statement(table, where, to, order=order, values=values, column=column)
    return execute(connection, *statement).changed > 0


async def insert_if_absent_async(
    connection: Any, table: str, values: Mapping[str, Any], *, key: str | Sequence[str]
) -> bool:
    return (await execute_async(connection, *insert_if_absent_statement(table, values, key=key))).changed > 0


async def update_if_version_async(
    connection: Any,
    table: str,
    where: Mapping[str, Any],
    values: Mapping[str, Any],
    *,
    version: int,
    column: str = "version",
) -> bool:
    statement = update_if_version_statement(table, where, values, version=version, column=column)
    return (await execute_async(connection, *statement)).changed > 0


async def advance_status_async(
    connection: Any,
    table: str,
    where: Mapping[str, Any],
    to: str,
    *,
    order: Sequence[str],
    values: Mapping[str, Any] | None = None,
    column: str = "status",
) -> bool:
    statement = advance_status_statement(table, where, to, order=order, values=values, column=column)
    return (await execute_async(connection, *statement)).changed > 0


def earlier(to: str, order: Sequence[str]) -> list[str]:
    """The statuses from which `to` is a step forward."""
    if to not in order:
        raise InvalidInput(f"{to!r} is not one of the statuses in order: {', '.join(order)}.")
    before = list(order[: order.index(to)])
    if not before:
        raise InvalidInput(f"{to!r} is the first status, so a row cannot advance to it.")
    return before


def _names(key: str | Sequence[str]) -> list[str]:
    names = [key] if isinstance(key, str) else list(key)
    if not names:
        raise InvalidInput("key=… must name the columns of a primary key or a unique constraint.")
    return names


def _columns(values: Mapping[str, Any], letter: str = "v", *, empty: bool = False) -> list[str]:
    """A parameter name per column: the columns' own names could clash with those of the conditions."""
    if not values and not empty:
        raise InvalidInput("At least one column is needed.")
    return [_place(letter, number) for number in range(len(values))]


def _place(letter: str, number: int) -> str:
    return f"{letter}{number}"
