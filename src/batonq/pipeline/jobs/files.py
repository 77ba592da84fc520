"""`baton pipeline files TABLE`: the exact files of a table, for DuckDB, Polars and other Parquet readers."""

from __future__ import annotations

import argparse

from batonq.pipeline.jobs.context import Context, Outcome

HELP = "print the exact files of a table, for other Parquet readers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="TABLE", help="name of the table, for example events or message_lifecycle")


def run(context: Context) -> Outcome:
    files = context.lake.files(context.options.table)
    return Outcome(0, {"table": context.options.table, "files": files}, "\n".join(files))
