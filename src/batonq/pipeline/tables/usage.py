"""tenant_usage: the usage of each account, by queue and day."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from batonq.pipeline.events.schema import Column
from batonq.pipeline.tables.lifecycle import KEY, names, with_source
from batonq.pipeline.tables.schema import SOURCE, Table, shaped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TABLE = Table(
    "tenant_usage",
    "One row for each account, queue and day on which the queue was used or contained a message. It is "
    "computed from history, which contains only outcomes: empty receives and refused requests are not "
    "included.",
    (
        SOURCE,
        Column("tenant", "name", "Account of the queue."),
        Column("queue", "int64", "Number of the queue."),
        Column("queue_name", "name", "Name of the queue."),
        Column("date", "date", "The day, in UTC."),
        Column(
            "operations",
            "int64",
            "Client operations, one per message: sends, receives, extensions, nacks, releases, "
            "acknowledgements, cancellations; a batch of ten counts as ten.",
        ),
        Column("sends", "int64", "Number of messages sent."),
        Column("receives", "int64", "Number of messages received: every lease counts."),
        Column("acks", "int64", "Number of messages acknowledged."),
        Column("sent_bytes", "int64", "Total size of bodies and attributes of the messages sent."),
        Column("received_bytes", "int64", "Total size of bodies and attributes of the messages received, each time."),
        Column(
            "stored_byte_hours",
            "float64",
            "Size of bodies and attributes, multiplied by the hours that they were stored on this day; "
            "messages from before history began count from when they were sent.",
        ),
    ),
    by=("date",),
)
_DAY = ["source", "queue", "date"]
_DAY_MS = 86_400_000
_HOUR_MS = 3_600_000
_BY_CLIENTS = (
    "event in ('sent', 'leased', 'extended') or event = 'returned' and reason in ('nack', 'released') "
    "or event = 'deleted' and reason in ('ack', 'late_ack')"
)


def tenant_usage(lifecycle: DataFrame, events: DataFrame, queues: DataFrame) -> DataFrame:
    """tenant_usage from the message_lifecycle, events and queues tables."""
    parts = [_done(with_source(events)), _received(with_source(events), lifecycle), _stored(lifecycle)]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionByName(part, allowMissingColumns=True)
    values = [name for name in whole.columns if name not in _DAY]
    found = whole.groupBy(*_DAY).agg(*(f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in values))
    hours = f.col("stored").cast("double") / _HOUR_MS
    found = found.withColumn("stored_byte_hours", hours).join(f.broadcast(names(queues)), ["source", "queue"], "left")
    return shaped(found, TABLE)


def _done(events: DataFrame) -> DataFrame:
    event = f.col("event")
    sent_bytes = f.when(event == "sent", f.col("body_bytes") + f.col("attributes_bytes")).otherwise(0)
    rows = events.where(_BY_CLIENTS).select(
        "source", "queue", f.to_date("time").alias("date"), "event", "reason", sent_bytes.alias("bytes")
    )
    return rows.groupBy(*_DAY).agg(
        f.count(f.lit(1)).alias("operations"),
        f.count_if(event == "sent").alias("sends"),
        f.count_if(event == "leased").alias("receives"),
        f.count_if((event == "deleted") & f.col("reason").isin("ack", "late_ack")).alias("acks"),
        f.sum("bytes").alias("sent_bytes"),
    )


def _sizes(lifecycle: DataFrame) -> DataFrame:
    size = f.coalesce("body_bytes", f.lit(0)) + f.coalesce("attributes_bytes", f.lit(0))
    return lifecycle.withColumn("bytes", size)


def _received(events: DataFrame, lifecycle: DataFrame) -> DataFrame:
    given = events.where("event = 'leased'").groupBy(*KEY, "queue", f.to_date("time").alias("date"))
    met = given.agg(f.count(f.lit(1)).alias("times")).join(_sizes(lifecycle).select(*KEY, "bytes"), [*KEY])
    return met.groupBy(*_DAY).agg(f.sum(f.col("times") * f.col("bytes")).alias("received_bytes"))


def _stored(lifecycle: DataFrame) -> DataFrame:
    """Bytes times milliseconds, by the days that a message existed; in decimals, so that the sum is exact."""
    start, stop = f.unix_millis(f.coalesce("arrived_at", "sent_at")), f.unix_millis(f.coalesce("ended_at", "as_of"))
    kept = _sizes(lifecycle).select("source", "queue", "bytes", start.alias("start"), stop.alias("stop"))
    kept = kept.where("bytes > 0 and start is not null")
    days = f.sequence(f.floor(f.col("start") / _DAY_MS), f.floor(f.col("stop") / _DAY_MS))
    each = kept.withColumn("day", f.explode(days))
    begin = f.col("day") * _DAY_MS
    within = f.least(f.col("stop"), begin + _DAY_MS) - f.greatest(f.col("start"), begin)
    return (
        each.withColumns(
            {
                "date": f.date_from_unix_date(f.col("day").cast("int")),
                "stored": (f.col("bytes") * within).cast("decimal(38,0)"),
            }
        )
        .where("stored > 0")
        .groupBy(*_DAY)
        .agg(f.sum("stored").alias("stored"))
    )
