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

    return lifecycle.remake(context, TABLE, lambda messages, events, queues: tenant_usage(messages, events, queues))
