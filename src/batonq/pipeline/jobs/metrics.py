"""`baton pipeline metrics`: the table queue_minute, made anew from the lake."""

from __future__ import annotations

import argparse

from batonq.pipeline.jobs import lifecycle
from batonq.pipeline.jobs.context import Context, Outcome

HELP = "rates, depth, ages and latencies of each queue, minute by minute (queue_minute)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None of its own."""


def run(context: Context) -> Outcome:
    from batonq.pipeline.tables.minutes import TABLE, queue_minute

    lake, spark = context.lake, context.spark
    messages = lifecycle.messages(context)
    context.progress(f"making {TABLE.name}")
    frame = queue_minute(lake.read(spark, "events"), messages, lake.read(spark, "queues"))
    lake.replace(frame, TABLE.name, by=TABLE.by, wait_s=lifecycle.WAIT_S)
    rows = lake.rows(TABLE.name)
    return Outcome(0, {"table": TABLE.name, "rows": rows, "lake": str(lake.path)}, f"{TABLE.name} has {rows:,} rows.")
