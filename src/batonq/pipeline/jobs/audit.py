"""`baton pipeline audit`: checks all invariants, over the lake or directly over the history."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from batonq.pipeline.jobs.context import Context, Outcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Ends = Callable[[str], Mapping[int, int]]  # by cluster: the last frame of each shard, where it is known
HELP = "check every rule over the whole history; exit code 1 if one is violated (table violations)"
SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--direct",
        action="store_true",
        help="read --history directly, without a lake; this is also the default if the lake has no events",
    )
    parser.add_argument(
        "--show", type=int, default=SHOWN, metavar="N", help=f"maximum number of violations to print (default {SHOWN})"
    )


def run(context: Context) -> Outcome:
    direct = context.options.direct or not context.lake.has("events")
    since = 0 if direct else context.lake.content("violations")
    events, queues, ends = _straight(context) if direct else _of_lake(context)
    context.progress("checking every rule")
    found = violations(events, queues, ends).persist()
    try:
        kinds = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
        order = ("source", "kind", "shard", "logical_times")
        rows = [row.asDict() for row in found.orderBy(*order).limit(max(context.options.show, 0)).collect()]
        if not direct:
            context.lake.replace(found, "violations", since=since)
        count = events.count()
    finally:
        found.unpersist()
        events.unpersist()
    context.progress("")
    return outcome(count, kinds, rows, context.history if direct else context.lake.path)


def violations(events: DataFrame, queues: DataFrame, ends: Ends) -> DataFrame:
    """The audit of each cluster, separately: shards of two clusters have the same numbers."""
    from functools import reduce

    from pyspark.sql import DataFrame
    from pyspark.sql.functions import coalesce, lit

    from batonq.pipeline.audit.audit import audit
    from batonq.pipeline.audit.table import TABLE
    from batonq.pipeline.tables.schema import shaped

    if "source" not in events.columns:
        return audit(events, queues, ends(""))
    of = coalesce("source", lit(""))
    sources = sorted(row[0] for row in events.select(of).distinct().collect())
    if len(sources) <= 1:
        source = sources[0] if sources else ""
        return shaped(audit(events, queues, ends(source)).drop("source").withColumn("source", lit(source)), TABLE)
    each = [
        audit(events.where(of == one), queues.where(of == one), ends(one)).drop("source").withColumn("source", lit(one))
        for one in sources
    ]
    return shaped(reduce(DataFrame.unionByName, each), TABLE)


def _of_lake(context: Context) -> tuple[DataFrame, DataFrame, Ends]:
    """The lake's tables, and how far ingests have loaded the events in them."""
    from batonq.pipeline.lake.ingested import positions

    events = context.lake.snapshot("events")

    def ends(source: str) -> Mapping[int, int]:
        return {shard: following - 1 for shard, following in positions(events, source).items()}

    read = context.lake.read
    return read(context.spark, "events", events.version), read(context.spark, "queues"), ends


def _straight(context: Context) -> tuple[DataFrame, DataFrame, Ends]:
    """The history itself, cached: the rules read it several times."""
    from pyspark.storagelevel import StorageLevel

    from batonq.pipeline.audit.audit import needed
    from batonq.pipeline.reading.history import last_frames, open_history
    from batonq.pipeline.tables.queues import queues

    context.progress("reading history")
    reader = context.spark.read.format("baton").options(**context.source_options)
    ends = last_frames(open_history(context.history, access_key=context.keys.access, secret_key=context.keys.secret))
    events = needed(reader.load()).persist(StorageLevel.DISK_ONLY)
    return events, queues(events), lambda _: ends


def outcome(events: int, kinds: dict[str, int], rows: list[dict[str, Any]], where: str) -> Outcome:
    total = sum(kinds.values())
    summary = {"history": where, "events": events, "violations": total, "kinds": kinds, "shown": rows}
    if not total:
        return Outcome(0, summary, f"{events:,} events, every rule holds.")
    told = [f"{events:,} events, {total:,} violations:"]
    told += [f"  {kind}: {count:,}" for kind, count in sorted(kinds.items())]
    told += [text(row) for row in rows]
    if total > len(rows):
        told.append(f"… and {total - len(rows):,} more: see the table violations, or use --show.")
    return Outcome(1, summary, "\n".join(told))


def text(row: dict[str, Any]) -> str:
    """One violation with its events, as text."""
    about = [f"shard {row['shard']}"]
    if row["queue"] is not None:
        about.append(f"queue {row['queue_name'] or row['queue']}")
    if row["message_id"] is not None:
        about.append(f"message {row['message_id']} (sequence {row['sequence']})")
    lines = [f"\n{row['kind']}: {', '.join(about)}", f"  {row['detail']}"]
    return "\n".join([*lines, *(f"    {event}" for event in row["events"])])
