"""`baton pipeline dead-letters`: groups dead letters by cause. Creates the tables dead_letter_messages and
dead_letters.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from batonq.pipeline.jobs.context import Context, Outcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HELP = "group dead letters by queue, error and shape of the body"
SHOWN_MAX = 20
SHAPE_SHOWN = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cluster", default="", metavar="NAME", help="cluster of the history, as in `ingest --cluster`"
    )
    parser.add_argument(
        "--no-bodies", action="store_true", help="leave out the shapes of bodies, so that history is not read"
    )


def run(context: Context) -> Outcome:
    from batonq.pipeline.tables import dead_letter_messages as messages
    from batonq.pipeline.tables import dead_letters as groups

    lake, spark = context.lake, context.spark
    context.progress("reading events")
    cached: list[DataFrame] = []
    try:
        since = lake.content(messages.TABLE.name)
        lake.replace(_messages(context, cached), messages.TABLE.name, by=messages.TABLE.by, since=since)
    finally:
        for frame in cached:
            frame.unpersist()
    context.progress("grouping")
    since = lake.content(groups.TABLE.name)
    made = lake.read(spark, messages.TABLE.name)
    lake.replace(groups.dead_letters(made), groups.TABLE.name, by=groups.TABLE.by, since=since)
    return _told(lake.read(spark, groups.TABLE.name))


def _messages(context: Context, cached: list[DataFrame]) -> DataFrame:
    """Create dead_letter_messages from cached frames.

    The shapes of bodies from an earlier run are kept, because history may no longer have the bodies.
    """
    from pyspark.sql import functions as f

    from batonq.pipeline.tables import dead_letter_messages as messages
    from batonq.pipeline.tables.bodies import with_bodies
    from batonq.pipeline.tables.lifecycle import KEY, lifecycle, with_source

    lake, spark, options = context.lake, context.spark, context.options
    events = messages.of_moved(with_source(lake.read(spark, "events"))).cache()
    lives = lifecycle(events, lake.read(spark, "queues")).cache()
    found = messages.dead_letter_messages(events, lives)
    if lake.has(messages.TABLE.name):
        before = lake.read(spark, messages.TABLE.name).where("shape is not null")
        before = before.select(*KEY, *messages.BODY_COLUMNS)
        found = found.drop(*messages.BODY_COLUMNS).join(before, list(KEY), "left").select(*found.columns)
    found = found.cache()
    cached += [events, lives, found]
    if options.no_bodies:
        return found
    new = found.where(f.col("shape").isNull())
    told = with_bodies(spark, context.source_options, new, events, lives, source=options.cluster)
    return found.where(f.col("shape").isNotNull()).unionByName(messages.with_shapes(told))


def _told(groups: DataFrame) -> Outcome:
    from pyspark.sql import functions as f

    sums = groups.agg(
        f.count("*").alias("groups"),
        *(f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in ("messages", "waiting", "redriven")),
        f.coalesce(f.sum(f.when(f.col("shape").isNull(), f.col("messages"))), f.lit(0)).alias("withoutBody"),
    ).head()
    assert sums is not None
    largest = groups.orderBy(f.desc("waiting"), f.desc("messages"), "queue_name", "error_class", "shape")
    shown = [row.asDict() for row in largest.limit(SHOWN_MAX).collect()]
    return Outcome(0, {**sums.asDict(), "largest": shown}, _text(sums.asDict(), shown))


def _text(sums: dict[str, Any], shown: list[dict[str, Any]]) -> str:
    if not sums["groups"]:
        return "No message was dead-lettered."
    lines = [f"{sums['messages']:,} dead letters in {sums['groups']:,} groups; {sums['waiting']:,} are still waiting."]
    lines += group_lines(shown)
    if sums["groups"] > len(shown):
        lines.append(f"… and {sums['groups'] - len(shown):,} more groups: see the table dead_letters.")
    if sums["withoutBody"]:
        lines.append(
            f"The bodies of {sums['withoutBody']:,} dead letters are no longer in history, or were not requested."
        )
    return "\n".join(lines)


def group_lines(groups: list[dict[str, Any]], *, count: str = "waiting") -> list[str]:
    """The groups as text, one line each."""
    lines = []
    for group in groups:
        shape = group["shape"] or "?"
        shape = shape if len(shape) <= SHAPE_SHOWN else shape[:SHAPE_SHOWN] + "…"
        last = f"{group['last_seen']:%Y-%m-%d %H:%M:%S}" if group["last_seen"] else "?"
        lines.append(f"{group[count]:>9,}  {group['queue_name']}  {group['error_class'] or '-'}  last {last}  {shape}")
    return lines
