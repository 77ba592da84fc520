"""`baton pipeline files TABLE`: the exact files of a table, for DuckDB, Polars and whatever else reads Parquet."""

from __future__ import annotations

import argparse

from batonq.pipeline.jobs.context import Context, Outcome

HELP = "print the exact files of a table, for other readers of Parquet"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="TABLE", help="such as events or message_lifecycle")


def run(context: Context) -> Outcome:
    files = context.lake.files(context.options.table)
    return Outcome(0, {"table": context.options.table, "files": files}, "\n".join(files))
