"""`baton pipeline archive`: copies dead letters and messages that expire soon, with their
bodies, into separate files.
"""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime, timedelta

from batonq.errors import InvalidInput
from batonq.pipeline.jobs.context import Context, Outcome

HELP = "archive dead letters and messages that expire soon, with their bodies"
RUNS = "archive"
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SPAN = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[smhd])")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--to", required=True, metavar="DIR", help="target directory, or s3://bucket/prefix; each run adds to it"
    )
    parser.add_argument(
        "--older-than",
        default="0s",
        metavar="SPAN",
        help="only dead letters of at least this age, for example 30m or 7d",
    )
    parser.add_argument(
        "--expiring-within",
        default="1h",
        metavar="SPAN",
        help="include messages that expire within this time (default 1h; 0s: none)",
    )
    parser.add_argument(
        "--cluster", default="", metavar="NAME", help="cluster of the history, as in `ingest --cluster`"
    )


def span(text: str, option: str) -> timedelta:
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise InvalidInput(
            f"{option} must be a number followed by s, m, h or d, for example 90s, 30m, 12h or 7d, not {text!r}."
        )
    return timedelta(seconds=float(found["number"]) * _UNITS_S[found["unit"]])


def run(context: Context) -> Outcome:
    options = context.options
    older_than = span(options.older_than, "--older-than")
    expiring_within = span(options.expiring_within, "--expiring-within")

    from pyspark.sql import functions as f

    from batonq.pipeline.lake import Lake
    from batonq.pipeline.lake.delta import Step
    from batonq.pipeline.tables import archived
    from batonq.pipeline.tables.bodies import with_bodies
    from batonq.pipeline.tables.dead_letter_messages import dead_letter_messages
    from batonq.pipeline.tables.lifecycle import KEY, lifecycle, with_source
    from batonq.pipeline.tables.schema import spark_schema

    spark = context.spark
    context.progress("reading events")
    events = with_source(context.lake.read(spark, "events")).where(f.col("source") == options.cluster)
    lives = lifecycle(events, context.lake.read(spark, "queues")).cache()
    found = archived.endangered(
        lives,
        dead_letter_messages(events, lives),
        older_than=older_than,
        expiring_within=expiring_within,
        now=datetime.now(UTC).isoformat(),
    )
    kept, table = Lake(options.to), archived.TABLE
    there = kept.prepare(table.name, spark_schema(table).jsonValue(), table.by)
    found = found.join(kept.read(spark, table.name, there.version).select(*KEY), list(KEY), "left_anti").cache()
    chosen = {row["why"]: row["count"] for row in found.groupBy("why").count().collect()}
    new = 0
    if chosen:
        context.progress("reading bodies")
        whole = with_bodies(spark, context.source_options, found, events, lives, source=options.cluster)
        runs = there.position(RUNS)
        step = Step({RUNS: runs}, {RUNS: (runs or 0) + 1})  # of two runs at once the second is refused
        new = sum(file.rows for file in kept.write(archived.archived(whole), table.name, by=table.by, step=step))
    rows = kept.rows(table.name)
    found.unpersist()
    lives.unpersist()
    missing = sum(chosen.values()) - new
    summary = {
        "deadLetters": chosen.get("dead_letter", 0),
        "expiring": chosen.get("expiring", 0),
        "added": new,
        "withoutBody": missing,
        "messages": rows,
        "to": kept.path,
    }
    text = f"{new:,} messages were added to {kept.path}; it now has {rows:,}."
    if missing:
        text += f" The bodies of {missing:,} messages are no longer in history."
    return Outcome(0, summary, text)
