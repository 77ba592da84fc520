"""`baton pipeline usage`: recreates the table tenant_usage from the lake."""

from __future__ import annotations

import argparse

from batonq.pipeline.jobs import lifecycle
from batonq.pipeline.jobs.context import Context, Outcome

HELP = "create operations, messages, bytes and storage per account, queue and day (tenant_usage)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    lifecycle.add_arguments(parser)


def run(context: Context) -> Outcome:
    from batonq.pipeline.tables.usage import TABLE, tenant_usage

    return lifecycle.remake(context, TABLE, lambda messages, events, queues: tenant_usage(messages, events, queues))
