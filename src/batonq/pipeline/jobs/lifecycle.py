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

    from batonq.pipeline.lake.delta import Snapshot

    Sources = dict[str, Snapshot]

HELP = "create one row per message: sent, received, attempts, outcome (message_lifecycle)"
_TABLE = "message_lifecycle"
_SOURCES = ("events", "queues")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rebuild", action="store_true", help="make the table again even if there are no new events")


def run(context: Context) -> Outcome:
    made = _messages(context, _sources(context), rebuild=context.options.rebuild)
    summary = {"table": _TABLE, "rows": made.rows, "lake": context.lake.path}
    return Outcome(0, summary, f"{_TABLE} has {made.rows:,} rows, one per message.")


def messages(context: Context) -> DataFrame:
    """The table, recreated if there are new events since."""
    return context.lake.read(context.spark, _TABLE, _messages(context, _sources(context)).version)


def remake(context: Context, table: Table, made: Callable[[DataFrame, DataFrame, DataFrame], DataFrame]) -> Outcome:
    """Recreate a table from messages, events and queues, unless it is of now. All are of the same moment."""
    lake = context.lake
    sources = _sources(context)
    if getattr(context.options, "rebuild", False) or not _is_made_of(context, table.name, sources):
        found = lake.read(context.spark, _TABLE, _messages(context, sources).version)
        rows = _make(context, table, lambda events, queues: made(found, events, queues), sources).rows
    else:
        rows = lake.rows(table.name)
    return Outcome(0, {"table": table.name, "rows": rows, "lake": lake.path}, f"{table.name} has {rows:,} rows.")


def _sources(context: Context) -> Sources:
    return {name: context.lake.snapshot(name) for name in _SOURCES}


def _messages(context: Context, sources: Sources, *, rebuild: bool = False) -> Snapshot:
    from batonq.pipeline.tables.lifecycle import TABLE, lifecycle

    if rebuild or not _is_made_of(context, _TABLE, sources):
        return _make(context, TABLE, lifecycle, sources)
    return context.lake.snapshot(_TABLE)


def _make(
    context: Context, table: Table, made: Callable[[DataFrame, DataFrame], DataFrame], sources: Sources
) -> Snapshot:
    lake = context.lake
    context.progress(f"making {table.name}")
    since = lake.content(table.name)
    frames = [
        lake.read(context.spark, name, source.version, columns=declared(name).names())
        for name, source in sources.items()
    ]
    there = lake.replace(made(*frames), table.name, by=table.by, positions=_positions(sources), since=since)
    context.progress("")
    return there


def _positions(sources: Sources) -> dict[str, int]:
    """What a table is made of. A source that was deleted and made again is another one."""
    return {f"{name}/{source.id}": source.content for name, source in sources.items()}


def _is_made_of(context: Context, table: str, sources: Sources) -> bool:
    if not context.lake.has(table):
        return False
    there = context.lake.snapshot(table)
    columns = {field["name"] for field in there.schema["fields"]}
    return columns.issuperset(declared(table).names()) and all(
        there.position(name) == content for name, content in _positions(sources).items()
    )
