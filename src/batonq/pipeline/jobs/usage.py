"""`baton pipeline usage`: the table tenant_usage, made anew from the lake."""

from __future__ import annotations

import argparse

from batonq.pipeline.jobs import lifecycle
from batonq.pipeline.jobs.context import Context, Outcome

HELP = "operations, messages, bytes and storage of each account and queue, day by day (tenant_usage)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None of its own."""


def run(context: Context) -> Outcome:
    from batonq.pipeline.tables.usage import TABLE, tenant_usage

    lake, spark = context.lake, context.spark
    messages = lifecycle.messages(context)
    context.progress(f"making {TABLE.name}")
    frame = tenant_usage(messages, lake.read(spark, "events"), lake.read(spark, "queues"))
    lake.replace(frame, TABLE.name, by=TABLE.by, wait_s=lifecycle.WAIT_S)
    rows = lake.rows(TABLE.name)
    return Outcome(0, {"table": TABLE.name, "rows": rows, "lake": str(lake.path)}, f"{TABLE.name} has {rows:,} rows.")
