"""`baton pipeline lifecycle`: recreates the table message_lifecycle from the events and queues in the lake."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from batonq.pipeline.jobs.context import Context, Outcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from batonq.pipeline.tables.schema import Table

HELP = "create one row per message: sent, received, attempts, outcome (message_lifecycle)"
_TABLE = "message_lifecycle"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options of its own."""


def run(context: Context) -> Outcome:
    rows = make(context)
    summary = {"table": _TABLE, "rows": rows, "lake": context.lake.path}
    return Outcome(0, summary, f"{_TABLE} has {rows:,} rows, one per message.")


def make(context: Context) -> int:
    """Create the table. Returns its number of rows."""
    from batonq.pipeline.tables.lifecycle import TABLE, lifecycle

    lake, spark = context.lake, context.spark
    events = lake.snapshot("events")
    context.progress(f"making {_TABLE}")
    frame = lifecycle(lake.read(spark, "events", events.version), lake.read(spark, "queues"))
    made = lake.replace(frame, _TABLE, by=TABLE.by, positions={"events": events.content})
    context.progress("")
    return made.rows


def messages(context: Context) -> DataFrame:
    """The table, recreated if there are new events since, so that counts from both match."""
    lake = context.lake
    if not lake.has(_TABLE) or lake.snapshot(_TABLE).position("events") != lake.snapshot("events").content:
        make(context)
    return lake.read(context.spark, _TABLE)


def remake(context: Context, table: Table, made: Callable[[DataFrame, DataFrame, DataFrame], DataFrame]) -> Outcome:
    """Recreate a table from messages, events and queues."""
    lake, spark = context.lake, context.spark
    found = messages(context)
    context.progress(f"making {table.name}")
    frame = made(found, lake.read(spark, "events"), lake.read(spark, "queues"))
    rows = lake.replace(frame, table.name, by=table.by).rows
    return Outcome(0, {"table": table.name, "rows": rows, "lake": lake.path}, f"{table.name} has {rows:,} rows.")
