"""`baton pipeline compact`: rewrites small files of the lake into files of about 128 MB. Readers are not affected."""

from __future__ import annotations

import argparse

from batonq.errors import InvalidInput
from batonq.pipeline.jobs.context import Context, Outcome
from batonq.pipeline.lake.tables import GRACE_HOURS

GRACE_HOURS_MAX = 168
HELP = "rewrite small files of the lake into files of about 128 MB"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="tables to compact (default: all)")
    parser.add_argument(
        "--grace-hours",
        type=int,
        default=GRACE_HOURS,
        metavar="N",
        help=f"hours for which replaced files are kept, for readers and for older versions (default {GRACE_HOURS})",
    )
    parser.add_argument(
        "--file-megabytes", type=int, default=128, metavar="N", help="target file size in MB (default 128)"
    )


def run(context: Context) -> Outcome:
    if not 0 <= context.options.grace_hours <= GRACE_HOURS_MAX:
        raise InvalidInput(
            f"--grace-hours must be between 0 and {GRACE_HOURS_MAX}, not {context.options.grace_hours}: a Delta table "
            "forgets after a week when a file was replaced."
        )
    summary = {}
    for table in context.options.tables or context.lake.tables():
        before = len(context.lake.files(table))
        rows = 0
        for group in context.lake.compact(context.spark, table, file_bytes=context.options.file_megabytes << 20):
            rows += group.rows
            context.progress(f"{table} {group.day or ''}", rows)
        deleted = context.lake.vacuum(table, context.options.grace_hours)
        after = len(context.lake.files(table))
        summary[table] = {"files": after, "filesBefore": before, "rowsRewritten": rows, "filesDeleted": deleted}
    lines = [
        f"{table}: {one['filesBefore']:,} files are now {one['files']:,}; {one['rowsRewritten']:,} rows were rewritten "
        f"and {one['filesDeleted']:,} old files deleted"
        for table, one in summary.items()
    ]
    return Outcome(0, {"tables": summary}, "\n".join(lines) or f"The lake {context.lake.path} has no tables.")
