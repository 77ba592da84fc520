"""`baton pipeline files TABLE`: the exact files of a table, for DuckDB, Polars and other Parquet readers."""

from __future__ import annotations

import argparse

from batonq.pipeline.jobs.context import Context, Outcome

HELP = "print the exact files of a table, for other Parquet readers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="TABLE", help="name of the table, for example events or message_lifecycle")
    parser.add_argument("--version", type=int, metavar="N", help="an older version of the table (default: the newest)")


def run(context: Context) -> Outcome:
    snapshot = context.lake.snapshot(context.options.table, context.options.version)
    files = context.lake.files(context.options.table, snapshot.version)
    summary = {"table": context.options.table, "version": snapshot.version, "rows": snapshot.rows, "files": files}
    return Outcome(0, summary, "\n".join(files))
