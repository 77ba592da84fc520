"""`baton pipeline lifecycle`: recreates the table message_lifecycle from the events and queues in the lake.

A derived table stores which content of these two tables it was made from. While that is the current one, it is not made
again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from batonq.pipeline.jobs.context import Context, Outcome
from batonq.pipeline.tables.schema import Table
from batonq.pipeline.tables.schema import table as declared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HELP = "create one row per message: sent, received, attempts, outcome (message_lifecycle)"
_TABLE = "message_lifecycle"
_SOURCES = ("events", "queues")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rebuild", action="store_true", help="make the table again even if there are no new events")


def run(context: Context) -> Outcome:
    rows = make(context) if context.options.rebuild or not _is_of_now(context, _TABLE) else context.lake.rows(_TABLE)
    summary = {"table": _TABLE, "rows": rows, "lake": context.lake.path}
    return Outcome(0, summary, f"{_TABLE} has {rows:,} rows, one per message.")


def make(context: Context) -> int:
    """Create the table. Returns its number of rows."""
    from batonq.pipeline.tables.lifecycle import TABLE, lifecycle

    return _make(context, TABLE, lifecycle)


def messages(context: Context) -> DataFrame:
    """The table, recreated if there are new events since, so that counts from both match."""
    if not _is_of_now(context, _TABLE):
        make(context)
    return context.lake.read(context.spark, _TABLE)


def remake(context: Context, table: Table, made: Callable[[DataFrame, DataFrame, DataFrame], DataFrame]) -> Outcome:
    """Recreate a table from messages, events and queues, unless it is of now."""
    lake = context.lake
    if getattr(context.options, "rebuild", False) or not _is_of_now(context, table.name):
        found = messages(context)
        rows = _make(context, table, lambda events, queues: made(found, events, queues))
    else:
        rows = lake.rows(table.name)
    return Outcome(0, {"table": table.name, "rows": rows, "lake": lake.path}, f"{table.name} has {rows:,} rows.")


def _make(context: Context, table: Table, made: Callable[[DataFrame, DataFrame], DataFrame]) -> int:
    lake = context.lake
    context.progress(f"making {table.name}")
    sources = {name: lake.snapshot(name) for name in _SOURCES}
    frames = [
        lake.read(context.spark, name, source.version, columns=declared(name).names())
        for name, source in sources.items()
    ]
    positions = {name: source.content for name, source in sources.items()}
    rows = lake.replace(made(*frames), table.name, by=table.by, positions=positions).rows
    context.progress("")
    return rows


def _is_of_now(context: Context, table: str) -> bool:
    lake = context.lake
    if not lake.has(table):
        return False
    there = lake.snapshot(table)
    columns = {field["name"] for field in there.schema["fields"]}
    return columns.issuperset(declared(table).names()) and all(
        there.position(name) == lake.snapshot(name).content for name in _SOURCES
    )
