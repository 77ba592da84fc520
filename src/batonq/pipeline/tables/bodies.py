"""The bodies of selected messages: from the lake if it has them (`ingest --bodies`), otherwise from history.

A message that was moved within its shard has no copy of its body: it is stored with its predecessor. So the lake first
tells which event has the body of each message, and history is then read only for those: their queues, events and time
span.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, IntegerType, LongType, MapType, StringType, StructType

from batonq.pipeline.spark.local import nothing
from batonq.pipeline.tables.lifecycle import KEY, with_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAYLOADS = ("sent", "edited", "carried", "arrived")
QUEUES_MAX = 200  # more are not worth a filter: everything is read
_COLUMNS = ("content", "attributes", "dedup_key", "body")
_TEXT = StringType()
_FOUND = (
    StructType()
    .add("source", _TEXT)
    .add("shard", IntegerType())
    .add("payload", LongType())
    .add("content", _TEXT)
    .add("attributes", MapType(_TEXT, _TEXT))
    .add("dedup_key", _TEXT)
    .add("body", BinaryType())
)
_ISO = "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"  # the session's time zone is UTC


def with_bodies(
    spark: SparkSession,
    history: Mapping[str, str],
    messages: DataFrame,
    events: DataFrame,
    lifecycle: DataFrame,
    *,
    source: str = "",
) -> DataFrame:
    """`messages` (with source, shard, sequence, first_id) and their body, content, attributes and dedup_key.

    `history` has the options of format("baton"), and belongs to `source`. A body is null if history no longer has it.
    """
    # Computed once: what is read from history depends on them, and then they are joined with it.
    places = payload_places(messages.where(f.col("source") == source), events, lifecycle).cache()
    at, columns = ["source", "shard", "payload"], (*KEY, *_COLUMNS)
    if "body" in events.columns:
        known = _placed(events.where("body is not null"))
        here = places.join(known, at).select(*columns)
        elsewhere = places.join(here, list(KEY), "left_anti")
        found = here.unionByName(elsewhere.join(_read(spark, history, elsewhere, source), at).select(*columns))
    else:
        found = places.join(_read(spark, history, places, source), at).select(*columns)
    return messages.drop(*_COLUMNS).join(found, list(KEY), "left")


def payload_places(messages: DataFrame, events: DataFrame, lifecycle: DataFrame) -> DataFrame:
    """The event with the body of each message: KEY; its logical time, as `payload`; event, queue, time.

    It is the newest in the message's line in the shard: a sequence number is never reused, and a message from another
    shard brought its body.
    """
    line = ["source", "shard", "first_id"]
    wanted = messages.select(*KEY, "first_id")
    members = lifecycle.select(*line, f.col("sequence").alias("member"))
    places = wanted.join(members, line).where("member <= sequence")
    payloads = with_source(events).where(f.col("event").isin(*PAYLOADS) & f.col("body_bytes").isNotNull())
    payloads = payloads.select(
        "source",
        "shard",
        f.col("sequence").alias("member"),
        f.struct(f.col("logical_time").alias("payload"), "event", "queue", "time").alias("place"),
    )
    newest = f.max_by("place", f.struct("member", "place.payload"))
    found = places.join(payloads, ["source", "shard", "member"])
    return found.groupBy(*KEY).agg(newest.alias("place")).select(*KEY, "place.*")


def _read(spark: SparkSession, history: Mapping[str, str], places: DataFrame, source: str) -> DataFrame:
    """Payloads in the span that contains all `places`, by their logical time."""
    span = places.agg(
        f.date_format(f.min("time"), _ISO).alias("since"),
        f.date_format(f.max("time") + f.expr("interval 1 millisecond"), _ISO).alias("until"),
        f.collect_set("event").alias("events"),
        f.collect_set("queue").alias("queues"),
    ).head()
    assert span is not None
    if span["since"] is None:
        return nothing(spark, _FOUND)
    reader = spark.read.format("baton").options(**history).options(bodies="true", names="false")
    reader = reader.options(since=span["since"], until=span["until"], events=",".join(sorted(span["events"])))
    if len(span["queues"]) <= QUEUES_MAX:
        reader = reader.option("queues", ",".join(map(str, sorted(span["queues"]))))
    return _placed(reader.load().withColumn("source", f.lit(source)))


def _placed(events: DataFrame) -> DataFrame:
    return with_source(events).select("source", "shard", f.col("logical_time").alias("payload"), *_COLUMNS)
