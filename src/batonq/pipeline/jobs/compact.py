"""`baton pipeline compact`: rewrites small files of the lake into files of about 128 MB. Readers are not affected."""

from __future__ import annotations

import argparse

from batonq.pipeline.jobs.context import Context, Outcome

HELP = "rewrite small files of the lake into files of about 128 MB"
WAIT_S = 600.0  # to wait for the end of an ingest batch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="tables to compact (default: all)")
    parser.add_argument(
        "--file-megabytes", type=int, default=128, metavar="N", help="target file size in MB (default 128)"
    )


def run(context: Context) -> Outcome:
    summary = {}
    for table in context.options.tables or context.lake.tables():
        before = len(context.lake.files(table))
        rows = 0
        for group in context.lake.compact(
            context.spark, table, file_bytes=context.options.file_megabytes << 20, wait_s=WAIT_S
        ):
            rows += group.rows
            context.progress(f"{table} {group.partition}", rows)
        summary[table] = {"files": len(context.lake.files(table)), "filesBefore": before, "rowsRewritten": rows}
    lines = [
        f"{table}: {one['filesBefore']:,} files are now {one['files']:,}; {one['rowsRewritten']:,} rows were rewritten"
        for table, one in summary.items()
    ]
    return Outcome(0, {"tables": summary}, "\n".join(lines) or f"The lake {context.lake.path} has no tables.")
