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

    return lifecycle.remake(context, TABLE, lambda messages, events, queues: queue_minute(events, messages, queues))
