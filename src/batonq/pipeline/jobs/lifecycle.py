"""`baton pipeline lifecycle`: recreates the table message_lifecycle from the events and queues in the lake."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from batonq.log.disk import RealDisk, write_atomically
from batonq.pipeline.jobs.context import Context, Outcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from batonq.pipeline.lake import Lake
    from batonq.pipeline.tables.schema import Table

HELP = "create one row per message: sent, received, attempts, outcome (message_lifecycle)"
WAIT_S = 600.0  # to wait for a compaction that holds the table
_TABLE = "message_lifecycle"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options of its own."""


def run(context: Context) -> Outcome:
    rows = make(context)
    summary = {"table": _TABLE, "rows": rows, "lake": str(context.lake.path)}
    return Outcome(0, summary, f"{_TABLE} has {rows:,} rows, one per message.")


def make(context: Context) -> int:
    """Create the table. Returns its number of rows."""
    from batonq.pipeline.tables.lifecycle import TABLE, lifecycle

    lake, spark = context.lake, context.spark
    of = _batches(lake, "events")
    context.progress(f"making {_TABLE}")
    frame = lifecycle(lake.read(spark, "events"), lake.read(spark, "queues"))
    lake.replace(frame, _TABLE, by=TABLE.by, wait_s=WAIT_S)
    _note(lake, of)
    context.progress("")
    return lake.rows(_TABLE)


def messages(context: Context) -> DataFrame:
    """The table, recreated if there are new events since, so that counts from both match."""
    if not _is_of_now(context.lake):
        make(context)
    return context.lake.read(context.spark, _TABLE)


def remake(context: Context, table: Table, made: Callable[[DataFrame, DataFrame, DataFrame], DataFrame]) -> Outcome:
    """Recreate a table from messages, events and queues."""
    lake, spark = context.lake, context.spark
    found = messages(context)
    context.progress(f"making {table.name}")
    frame = made(found, lake.read(spark, "events"), lake.read(spark, "queues"))
    lake.replace(frame, table.name, by=table.by, wait_s=WAIT_S)
    rows = lake.rows(table.name)
    return Outcome(0, {"table": table.name, "rows": rows, "lake": str(lake.path)}, f"{table.name} has {rows:,} rows.")


def _batches(lake: Lake, table: str) -> list[str]:
    return sorted(note.batch for note in lake.notes(table))


def _note(lake: Lake, events: list[str]) -> None:
    """Record which events it was created from. Without this record it is recreated, which is harmless."""
    path = lake.path / "_checkpoints" / "lifecycle.json"
    path.parent.mkdir(exist_ok=True)
    said = {"events": events, _TABLE: _batches(lake, _TABLE)}
    write_atomically(RealDisk(), str(path), [json.dumps(said).encode()])


def _is_of_now(lake: Lake) -> bool:
    try:
        said = json.loads((lake.path / "_checkpoints" / "lifecycle.json").read_bytes())
    except (OSError, ValueError):
        return False
    return bool(said == {"events": _batches(lake, "events"), _TABLE: _batches(lake, _TABLE)})
