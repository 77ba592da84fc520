"""`baton pipeline lifecycle`: the table message_lifecycle, made anew from the events and queues in the lake."""

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

HELP = "one row a message: sent, received, tried, ended (message_lifecycle)"
WAIT_S = 600.0  # for a compaction that holds the table
_TABLE = "message_lifecycle"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None of its own."""


def run(context: Context) -> Outcome:
    rows = make(context)
    summary = {"table": _TABLE, "rows": rows, "lake": str(context.lake.path)}
    return Outcome(0, summary, f"{_TABLE} has {rows:,} rows, one for each message.")


def make(context: Context) -> int:
    """Make the table; how many rows it has."""
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
    """The table, made anew if the events have grown since: what is counted from both fits together."""
    if not _is_of_now(context.lake):
        make(context)
    return context.lake.read(context.spark, _TABLE)


def remake(context: Context, table: Table, made: Callable[[DataFrame, DataFrame, DataFrame], DataFrame]) -> Outcome:
    """Make anew a table that is `made` of messages, events and queues."""
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
    """Which events it was made of. Without this note it is made once more, which does no harm."""
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
