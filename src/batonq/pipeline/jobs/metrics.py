"""`baton pipeline metrics`: recreates the table queue_minute from the lake."""

from __future__ import annotations

import argparse

from batonq.pipeline.jobs import lifecycle
from batonq.pipeline.jobs.context import Context, Outcome

HELP = "create rates, depth, ages and latencies per queue and minute (queue_minute)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    lifecycle.add_arguments(parser)


def run(context: Context) -> Outcome:
    from batonq.pipeline.tables.minutes import TABLE, queue_minute

    return lifecycle.remake(context, TABLE, lambda messages, events, queues: queue_minute(events, messages, queues))
