"""queue_minute: counts per queue and minute, its level at the end, and latencies.

Counts and levels are sums over minutes, never a scan of all messages per minute. The oldest message at the end of a
minute is the first of those that ended later: a minimum by minute of end, then a running minimum from the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

from batonq.pipeline.events.schema import Column
from batonq.pipeline.tables.leases import leases
from batonq.pipeline.tables.lifecycle import names, with_source
from batonq.pipeline.tables.schema import SOURCE, Table, shaped

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}
LATENCIES = {
    "wait": "from arrival in the queue to the first receive, for messages first received in this minute",
    "handling": "from the last receive to the acknowledgement, for messages acknowledged in this minute",
    "end_to_end": "from the send to the acknowledgement, for messages acknowledged in this minute",
}
COUNTS = {
    "sends": "Number of messages sent.",
    "arrivals": "Number of messages that arrived by a move.",
    "receives": "Number of messages received: every lease counts.",
    "acks": "Number of messages acknowledged, including late ones.",
    "late_acks": "Of these, after the lease had expired.",
    "nacks": "Number of nacks.",
    "releases": "Number of leases returned by a visibility timeout of zero.",
    "extensions": "Number of lease extensions.",
    "lease_expiries": "Number of expired leases.",
    "expired": "Number of expired messages.",
    "dead_letters": "Number of dead-lettered messages.",
    "redrives": "Number of messages moved away by a redrive.",
    "removed": "Number of messages removed by a purge, by an operator or with their queue.",
    "sent_bytes": "Total size of the bodies sent.",
}
TABLE = Table(
    "queue_minute",
    "One row for each queue and minute with events, and one for each of its shards. `shard` is null in the "
    "row of the whole queue. A minute without events has no row: levels do not change.",
    (
        SOURCE,
        Column("queue", "int64", "Number of the queue."),
        Column("queue_name", "name", "Name of the queue."),
        Column("tenant", "name", "Account of the queue."),
        Column("shard", "int32", "The shard; null: all shards together."),
        Column("minute", "time", "Start of the minute."),
        *(Column(name, "int64", doc) for name, doc in COUNTS.items()),
        Column("depth", "int64", "Number of messages in the queue at the end of the minute, in any state."),
        Column("in_flight", "int64", "Number of messages in flight at the end of the minute."),
        Column("oldest_age_ms", "int64", "Age of the oldest of them at the end of the minute."),
        *(
            Column(f"{name}_{share}_ms", "float64", f"{share} of the time {doc}; exact.")
            for name, doc in LATENCIES.items()
            for share in SHARES
        ),
        Column("date", "date", "Day of `minute`, in UTC."),
    ),
    by=("date",),
)
_QUEUE = ["source", "queue", "shard"]
_MINUTE = [*_QUEUE, "minute"]
_MINUTE_S = 60
_WHOLE = -1  # means all shards, until the end: a null does not join


def queue_minute(events: DataFrame, lifecycle: DataFrame, queues: DataFrame) -> DataFrame:
    """queue_minute from the events, message_lifecycle and queues tables."""
    events = with_source(events)
    messages = lifecycle.withColumn("came_at", f.coalesce("arrived_at", "sent_at"))
    ends = _lease_ends(leases(events), messages)
    shards = _summed(_MINUTE, _happened(events), _ended(messages), ends.where("minute is not null").drop("openings"))
    openings = _summed(_QUEUE, _opened(messages), ends.groupBy(*_QUEUE).agg(f.sum("openings").alias("opening_leases")))
    found = _both(shards, _MINUTE).join(f.broadcast(_both(openings, _QUEUE)), _QUEUE, "left")
    found = _levels(found).join(_latencies(messages), _MINUTE, "left")
    found = found.join(f.broadcast(names(queues)), ["source", "queue"], "left")
    shard = f.nullif(f.col("shard"), f.lit(_WHOLE))
    return shaped(found.withColumns({"shard": shard, "date": f.to_date("minute")}), TABLE)


def _minute(time: str) -> Expression:
    return f.date_trunc("minute", f.col(time))


# --- what happened ----------------------------------------------------------------------------------


def _happened(events: DataFrame) -> DataFrame:
    event, reason = f.col("event"), f.col("reason")
    returned, deleted = event == "returned", event == "deleted"
    told = {
        "sends": event == "sent",
        "arrivals": (event == "arrived") & f.col("sequence").isNotNull(),
        "receives": event == "leased",
        "acks": deleted & reason.isin("ack", "late_ack"),
        "late_acks": deleted & (reason == "late_ack"),
        "nacks": returned & (reason == "nack"),
        "releases": returned & (reason == "released"),
        "extensions": event == "extended",
        "lease_expiries": returned & (reason == "expired"),
        "expired": deleted & (reason == "retention"),
    }
    rows = events.where("queue is not null").select(
        *_QUEUE,
        _minute("time").alias("minute"),
        *(f.coalesce(condition, f.lit(False)).cast("int").alias(name) for name, condition in told.items()),
        f.when(event == "sent", f.col("body_bytes")).otherwise(0).alias("sent_bytes"),
    )
    return rows.groupBy(*_MINUTE).agg(*(f.sum(name).alias(name) for name in (*told, "sent_bytes")))


def _ended(messages: DataFrame) -> DataFrame:
    outcome = f.col("outcome")
    removed = outcome.isin("purged", "queue_deleted", "deleted")
    return (
        messages.where("ended_at is not null")
        .groupBy(*_QUEUE, _minute("ended_at").alias("minute"))
        .agg(
            f.count_if(outcome == "dead_lettered").alias("dead_letters"),
            f.count_if(outcome == "redriven").alias("redrives"),
            f.count_if(removed).alias("removed"),
            f.count(f.lit(1)).alias("ends"),
            f.min("came_at").alias("oldest_ended"),
        )
    )


def _lease_ends(held: DataFrame, messages: DataFrame) -> DataFrame:
    """Leases by the minute of their end (null: running), and those that began before history did."""
    ends = held.groupBy(*_QUEUE, _minute("ended_at").alias("minute")).agg(
        f.count("ended_at").alias("lease_ends"), f.count_if(f.col("leased_at").isNull()).alias("openings")
    )
    purged = messages.where("outcome in ('purged', 'queue_deleted') and deadline is not null")
    more = purged.groupBy(*_QUEUE, _minute("ended_at").alias("minute")).agg(f.count(f.lit(1)).alias("lease_ends"))
    return ends.unionByName(more.withColumn("openings", f.lit(0)))


def _opened(messages: DataFrame) -> DataFrame:
    """Messages that existed before history began, and the oldest of those that exist at its end."""
    return messages.groupBy(*_QUEUE).agg(
        f.count_if("opened").alias("opening"),
        f.min(f.when(f.col("ended_at").isNull(), f.col("came_at"))).alias("oldest_there"),
    )


# --- levels -----------------------------------------------------------------------------------------


def _summed(by: list[str], *parts: DataFrame) -> DataFrame:
    """Rows with the same keys combined: numbers are added, of times the first is kept."""
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionByName(part, allowMissingColumns=True)
    return _added(whole, by)


def _added(whole: DataFrame, by: list[str]) -> DataFrame:
    values = [name for name in whole.columns if name not in by]
    added = (f.min(name) if name.startswith("oldest") else f.coalesce(f.sum(name), f.lit(0)) for name in values)
    return whole.groupBy(*by).agg(*(value.alias(name) for name, value in zip(values, added, strict=True)))


def _both(shards: DataFrame, by: list[str]) -> DataFrame:
    """The rows of the shards, and those of the queues."""
    return shards.unionByName(_added(shards.withColumn("shard", f.lit(_WHOLE)), by))


def _levels(found: DataFrame) -> DataFrame:
    order = Window.partitionBy(*_QUEUE).orderBy("minute")
    so_far = order.rowsBetween(Window.unboundedPreceding, 0)
    later = order.rowsBetween(1, Window.unboundedFollowing)
    oldest = f.least(f.min("oldest_ended").over(later), f.col("oldest_there"))
    end = f.unix_millis("minute") + _MINUTE_S * 1000
    age = end - f.unix_millis(oldest)
    zero = f.lit(0)
    came = f.sum(f.col("sends") + f.col("arrivals") - f.coalesce("ends", zero)).over(so_far)
    leased = f.sum(f.col("receives") - f.coalesce("lease_ends", zero)).over(so_far)
    return found.withColumns(
        {
            "depth": f.coalesce("opening", zero) + came,
            "in_flight": f.coalesce("opening_leases", zero) + leased,
            "oldest_age_ms": f.when(age > 0, age),
        }
    )


# --- how long it took -------------------------------------------------------------------------------


def _latencies(messages: DataFrame) -> DataFrame:
    """Exact percentiles: equal values are counted first, so that little is sorted."""
    kinds = f.array(
        f.struct(
            f.lit("wait").alias("kind"),
            _minute("first_receive_at").alias("minute"),
            (f.unix_millis("first_receive_at") - f.unix_millis("came_at")).alias("value"),
        ),
        *(
            f.struct(f.lit(kind).alias("kind"), _minute("ended_at").alias("minute"), f.col(f"{kind}_ms").alias("value"))
            for kind in ("handling", "end_to_end")
        ),
    )
    values = messages.select(*_QUEUE, f.inline(kinds)).where("value is not null and minute is not null")
    counted = values.groupBy(*_MINUTE, "kind", "value").agg(f.count(f.lit(1)).alias("times"))
    every = counted.withColumn("shard", f.explode(f.array("shard", f.lit(_WHOLE))))
    shares = f.array(*(f.lit(share) for share in SHARES.values()))
    found = every.groupBy(*_MINUTE).agg(
        *(
            f.percentile(f.when(f.col("kind") == kind, f.col("value")), shares, f.col("times")).alias(kind)
            for kind in LATENCIES
        )
    )
    return found.select(
        *_MINUTE,
        *(
            f.get(kind, f.lit(index)).alias(f"{kind}_{share}_ms")
            for kind in LATENCIES
            for index, share in enumerate(SHARES)
        ),
    )
