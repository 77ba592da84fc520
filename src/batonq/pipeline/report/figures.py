"""The numbers of the report: a bounded number of figures, whatever the size of the tables."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BUCKETS_MAX = 120
QUEUES_MAX = 8  # in the plots by queue
ROWS_MAX = 25  # in a table
CAUSES_MAX = 12
LEASES_MAX = 10
_MINUTE_S = 60
_STEPS_S = tuple(_MINUTE_S * minutes for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 360, 720, 1440))
RATES = ("sends", "receives", "acks", "retries", "dead_letters")
LATENCIES = {"wait": "sent to first receive", "end_to_end": "sent to acknowledged"}
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}

Series = list[float | None]


@dataclass(slots=True)
class Clock:
    """The time axis of all plots: buckets of `step_s` seconds from `start_s` on."""

    start_s: int
    step_s: int
    count: int

    @classmethod
    def over(cls, first_s: int, last_s: int) -> Clock:
        span = last_s - first_s + _MINUTE_S
        step = next((step for step in _STEPS_S if span <= step * BUCKETS_MAX), 0)
        step = step or math.ceil(span / BUCKETS_MAX / _STEPS_S[-1]) * _STEPS_S[-1]
        start = first_s // step * step
        return cls(start, step, (last_s - start) // step + 1)


@dataclass(slots=True)
class QueueLine:
    """A queue in the plots and tables. `name` may be any text."""

    name: str
    totals: dict[str, int]
    depth: int
    in_flight: int
    oldest_age_ms: int | None
    percentiles: dict[str, float | None]
    rates: Series = field(default_factory=list)
    depths: Series = field(default_factory=list)


@dataclass(slots=True)
class Figures:
    clock: Clock
    rates: dict[str, Series]  # per second
    depth: Series
    in_flight: Series
    heat: dict[str, dict[tuple[int, int], int]]  # latency: (bucket, power of two of the milliseconds): messages
    percentiles: dict[str, dict[str, Series]]
    queues: list[QueueLine]  # the busiest
    queue_count: int
    leases: dict[int, int]  # leases of a message: how many messages
    causes: list[tuple[str, int]]
    outcomes: dict[str, int]
    usage: list[dict[str, Any]]
    usage_count: int


def collect(minutes: DataFrame, messages: DataFrame, usage: DataFrame) -> Figures | None:
    """From queue_minute, message_lifecycle and tenant_usage; None if there are no events."""
    from pyspark.sql import functions as f

    whole = minutes.where("shard is null")
    span = whole.agg(
        f.min(f.unix_seconds("minute")), f.max(f.unix_seconds("minute")), f.count_distinct("source", "queue")
    )
    row = span.first()
    if row is None or row[0] is None:
        return None
    clock = Clock.over(row[0], row[1])
    rates = _rates(whole, clock)
    depth, in_flight = _levels(whole, clock)
    heat = {name: _heat(messages, name, clock) for name in LATENCIES}
    usage_count, used = _usage(usage)
    return Figures(
        clock,
        rates,
        depth,
        in_flight,
        heat,
        {name: _percentiles(messages, name, clock) for name in LATENCIES},
        _queues(whole, messages, clock),
        row[2],
        _leases(messages),
        _causes(messages),
        {row[0]: row[1] for row in messages.groupBy("outcome").count().collect()},
        used,
        usage_count,
    )


def _bucket(time: str, clock: Clock) -> Any:
    from pyspark.sql import functions as f

    seconds = f.unix_seconds(time) - clock.start_s
    return (
        f.least(f.greatest(f.floor(seconds / clock.step_s), f.lit(0)), f.lit(clock.count - 1))
        .cast("int")
        .alias("bucket")
    )


def _filled(clock: Clock, found: dict[int, float]) -> Series:
    return [found.get(bucket, 0.0) for bucket in range(clock.count)]


def _rates(whole: DataFrame, clock: Clock) -> dict[str, Series]:
    from pyspark.sql import functions as f

    rows = whole.withColumn("retries", f.col("nacks") + f.col("lease_expiries"))
    sums = rows.groupBy(_bucket("minute", clock)).agg(*(f.sum(name).alias(name) for name in RATES)).collect()
    return {name: _filled(clock, {row["bucket"]: row[name] / clock.step_s for row in sums}) for name in RATES}


def _levels(whole: DataFrame, clock: Clock) -> tuple[Series, Series]:
    """Depth and in-flight messages of all queues together: the sum of their changes."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    order = Window.partitionBy("source", "queue").orderBy("minute")
    names = ("depth", "in_flight")
    changes = whole.select(
        _bucket("minute", clock),
        *((f.col(name) - f.coalesce(f.lag(name).over(order), f.lit(0))).alias(name) for name in names),
    )
    sums = changes.groupBy("bucket").agg(*(f.sum(name).alias(name) for name in names)).collect()
    depth, in_flight = (
        list(accumulate(value or 0.0 for value in _filled(clock, {row["bucket"]: row[name] for row in sums})))
        for name in names
    )
    return [*depth], [*in_flight]


def _latency(messages: DataFrame, name: str, clock: Clock) -> DataFrame:
    from pyspark.sql import functions as f

    if name == "wait":
        came = f.coalesce("arrived_at", "sent_at")
        value, at = f.unix_millis("first_receive_at") - f.unix_millis(came), "first_receive_at"
    else:
        value, at = f.col("end_to_end_ms"), "ended_at"
    found = messages.select("source", "queue", _bucket(at, clock), value.alias("value"))
    return found.where("value is not null")


def _heat(messages: DataFrame, name: str, clock: Clock) -> dict[tuple[int, int], int]:
    from pyspark.sql import functions as f

    power = f.floor(f.log2(f.greatest(f.col("value"), f.lit(1)))).cast("int").alias("power")
    rows = _latency(messages, name, clock).groupBy("bucket", power).count().collect()
    return {(row["bucket"], row["power"]): row["count"] for row in rows}


def _percentiles(messages: DataFrame, name: str, clock: Clock) -> dict[str, Series]:
    rows = _latency(messages, name, clock).groupBy("bucket").agg(_shares()).collect()
    found = {row["bucket"]: row["shares"] for row in rows}
    return {
        share: [found[bucket][index] if bucket in found else None for bucket in range(clock.count)]
        for index, share in enumerate(SHARES)
    }


def _shares() -> Any:
    from pyspark.sql import functions as f

    return f.percentile_approx("value", list(SHARES.values())).alias("shares")


def _queues(whole: DataFrame, messages: DataFrame, clock: Clock) -> list[QueueLine]:
    """The busiest queues. Plots show the first few of them."""
    import pyarrow as pa
    from pyspark.sql import functions as f

    from batonq.pipeline.spark.local import frame_of

    key = ["source", "queue"]
    sums = [
        f.sum(name).alias(name) for name in ("sends", "receives", "acks", "nacks", "lease_expiries", "dead_letters")
    ]
    lasts = [f.max_by(name, "minute").alias(name) for name in ("depth", "in_flight", "oldest_age_ms")]
    busy = whole.groupBy(*key).agg(f.max("queue_name").alias("name"), *sums, *lasts)
    top = busy.orderBy(f.desc(f.col("sends") + f.col("receives")), *key).limit(ROWS_MAX).collect()
    if not top:
        return []
    keys = [(row["source"], row["queue"]) for row in top]
    schema = pa.schema([("source", pa.string()), ("queue", pa.int64())])
    chosen = f.broadcast(frame_of(whole.sparkSession, keys, schema))
    shares = {
        (row["source"], row["queue"]): row["shares"]
        for row in _latency(messages, "end_to_end", clock).join(chosen, key).groupBy(*key).agg(_shares()).collect()
    }
    series = whole.join(chosen, key).groupBy(*key, _bucket("minute", clock))
    sent: dict[tuple[str, int], dict[int, float]] = {}
    deep: dict[tuple[str, int], dict[int, float]] = {}
    for row in series.agg(f.sum("sends").alias("sends"), f.max_by("depth", "minute").alias("depth")).collect():
        of = row["source"], row["queue"]
        sent.setdefault(of, {})[row["bucket"]] = row["sends"] / clock.step_s
        deep.setdefault(of, {})[row["bucket"]] = row["depth"]
    lines = []
    for row in top:
        of = row["source"], row["queue"]
        found = shares.get(of)
        name = row["name"] or f"queue {row['queue']}"
        lines.append(
            QueueLine(
                f"{row['source']}/{name}" if row["source"] else name,
                {one: row[one] for one in ("sends", "receives", "acks", "nacks", "lease_expiries", "dead_letters")},
                row["depth"],
                row["in_flight"],
                row["oldest_age_ms"],
                {share: found[index] if found else None for index, share in enumerate(SHARES)},
                _filled(clock, sent[of]),
                _carried(clock, deep[of]),
            )
        )
    return lines


def _carried(clock: Clock, found: dict[int, float]) -> Series:
    """A level stays the same until it changes; before the first value it is unknown."""
    level: float | None = None
    series: Series = []
    for bucket in range(clock.count):
        level = found.get(bucket, level)
        series.append(level)
    return series


def _leases(messages: DataFrame) -> dict[int, int]:
    from pyspark.sql import functions as f

    capped = f.least(f.col("leases"), f.lit(LEASES_MAX)).cast("int").alias("leases")
    rows = messages.where("ended_at is not null").groupBy(capped).count().collect()
    return {row["leases"]: row["count"] for row in rows}


def _causes(messages: DataFrame) -> list[tuple[str, int]]:
    """Error classes of dead letters, the most frequent first; the rest as one."""
    from pyspark.sql import functions as f

    died = messages.where("outcome in ('dead_lettered', 'dead')")
    name = f.coalesce(
        "last_error_class", f.when(f.col("expiries") > 0, "(lease expired)"), f.lit("(no class reported)")
    )
    counted = died.groupBy(name.alias("cause")).count()
    top = [
        (row["cause"], row["count"]) for row in counted.orderBy(f.desc("count"), "cause").limit(CAUSES_MAX).collect()
    ]
    total = died.count()
    rest = total - sum(count for _, count in top)
    return [*top, ("(other classes)", rest)] if rest else top


def _usage(usage: DataFrame) -> tuple[int, list[dict[str, Any]]]:
    from pyspark.sql import functions as f

    values = ("operations", "sends", "sent_bytes", "received_bytes", "stored_byte_hours")
    rows = usage.groupBy("source", "tenant", "queue").agg(
        f.max("queue_name").alias("name"), *(f.sum(name).alias(name) for name in values)
    )
    top = rows.orderBy(f.desc("operations"), "tenant", "queue").limit(ROWS_MAX).collect()
    return rows.count(), [row.asDict() for row in top]
