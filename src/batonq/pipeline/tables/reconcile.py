"""reconciliation: compares the histories of several regions or clusters.

A message is identified by its business key, a user-defined expression; with a version, key and version together
identify one event. Moves within a cluster do not create a second message: a line counts once, at its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from batonq.pipeline.events.schema import Column
from batonq.pipeline.tables.lines import told_first_id
from batonq.pipeline.tables.schema import Table, shaped

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

KINDS = ("duplicate", "missing", "repeated", "order")
NAMED_MAX = 10  # maximum number of messages in a row
TABLE = Table(
    "reconciliation",
    "Differences between the histories of several regions or clusters, by business key. `baton pipeline "
    "reconcile` creates it.",
    (
        Column(
            "kind",
            "name",
            "`duplicate`: in several sources; `missing`: not in all; `repeated`: more than once in one; "
            "`order`: in a different order, or not in the order of their versions.",
        ),
        Column("key", "text", "The business key."),
        Column("version", "text", "The version, if one was requested."),
        Column("sources", "texts", "The sources that have it; for `order`, those that differ."),
        Column("messages", "texts", f"Up to {NAMED_MAX} of the messages, as `source/id`."),
        Column("count", "int64", "Number of messages."),
        Column("detail", "text", "A description of the difference."),
        Column("first_at", "time", "Time when the first of them was sent."),
        Column("last_at", "time", "Time when the last of them was sent."),
    ),
)


def originals(events: DataFrame, source: str) -> DataFrame:
    """One row per message of a history, as first known: at the beginning of its line, or its substitute.

    `body` is its text, if bodies were read and it is text.
    """
    first_id = f.coalesce(told_first_id(), f.col("message_id"))
    body = f.col("body") if "body" in events.columns else f.lit(None).cast("binary")
    told = events.where("sequence is not null and body_bytes is not null").select(
        f.lit(source).alias("source"),
        first_id.alias("message_id"),
        "queue_name",
        "tenant",
        "group",
        "priority",
        "attributes",
        "dedup_key",
        "sender",
        "trace",
        "content",
        f.when(f.col("content") != "bytes", body.cast("string")).alias("body"),
        f.when(body.isNotNull(), f.xxhash64("content", body)).alias("fingerprint"),
        f.col("sent_at"),
        f.struct(f.col("event") != "sent", "time", "shard", "logical_time").alias("place"),
    )
    rest = [name for name in told.columns if name not in ("source", "message_id")]
    first = told.groupBy("source", "message_id").agg(f.min_by(f.struct(*rest), "place").alias("first"))
    return first.select("source", "message_id", "first.*").withColumns(
        {"time": f.col("place.time"), "order": f.struct("place.time", "place.shard", "place.logical_time")}
    )


def reconciliation(
    messages: DataFrame, sources: Sequence[str], *, versions: bool, kinds: Sequence[str] = KINDS
) -> DataFrame:
    """The table from originals of all sources with their `key` and, if there are `versions`, their `version`."""
    known = messages.where("key is not null")
    if not versions:
        known = known.withColumn("version", f.lit(None).cast("string"))
    found = None
    if set(kinds) - {"order"}:
        found = _presence(known, sorted(sources), kinds)
    if "order" in kinds:
        order = _falling(known) if versions else _other_order(known)
        found = order if found is None else found.unionByName(order)
    assert found is not None
    return shaped(found, TABLE)


def _presence(known: DataFrame, sources: Sequence[str], kinds: Sequence[str]) -> DataFrame:
    of_source = known.groupBy("key", "version", "source").agg(
        f.count("*").alias("n"),
        f.min_by(f.concat_ws("/", "source", "message_id"), "order", NAMED_MAX).alias("named"),
        f.min("time").alias("first_at"),
        f.max("time").alias("last_at"),
    )
    one = f.struct("source", "n", "named")
    found = of_source.groupBy("key", "version").agg(
        f.sort_array(f.collect_list(one)).alias("has"),
        f.sum("n").alias("count"),
        f.min("first_at").alias("first_at"),
        f.max("last_at").alias("last_at"),
    )
    has = f.col("has")
    every = f.array(*map(f.lit, sources))
    lacking = f.array_except(every, has["source"])
    repeated = f.filter(has, lambda each: each["n"] > 1)
    rows = {
        "duplicate": (f.size(has) > 1, f.concat(f.lit("in "), f.array_join(has["source"], " and in "))),
        "missing": (
            f.size(lacking) > 0,
            f.concat(f.lit("in "), f.array_join(has["source"], ", "), f.lit("; not in "), f.array_join(lacking, ", ")),
        ),
        "repeated": (
            f.size(repeated) > 0,
            f.array_join(
                f.transform(repeated, lambda each: f.concat(each["n"], f.lit(" times in "), each["source"])), ", "
            ),
        ),
    }
    told = [
        f.when(holds, f.struct(f.lit(kind).alias("kind"), detail.alias("detail")))
        for kind, (holds, detail) in rows.items()
        if kind in kinds
    ]
    found = found.withColumn("told", f.explode(f.array_compact(f.array(*told))))
    names = {"sources": has["source"], "messages": f.slice(f.flatten(has["named"]), 1, NAMED_MAX)}
    return found.withColumns(names).select(
        "told.kind",
        "key",
        f.col("version").cast("string"),
        "sources",
        "messages",
        "count",
        "told.detail",
        "first_at",
        "last_at",
    )


def _falling(known: DataFrame) -> DataFrame:
    """For one key in one source, a version that comes after a later one."""
    from pyspark.sql import Window

    along = Window.partitionBy("key", "source").orderBy("order")
    before = {name: f.lag(name).over(along) for name in ("version", "message_id", "time")}
    seen = known.withColumns({f"before_{name}": column for name, column in before.items()})
    falls = seen.where("version < before_version").groupBy("key", "source")
    texts = [f.col(name).cast("string") for name in ("source", "version", "before_version")]
    first = f.struct(
        f.concat(f.lit("in "), texts[0], f.lit(": "), texts[1], f.lit(" comes after "), texts[2]).alias("detail"),
        f.array(_named("before_message_id"), _named("message_id")).alias("messages"),
        f.col("version").cast("string").alias("version"),
        f.col("before_time").alias("first_at"),
        f.col("time").alias("last_at"),
    )
    found = falls.agg((f.count("*") + 1).alias("count"), f.min_by(first, "order").alias("fall"))
    return found.select(f.lit("order").alias("kind"), "key", f.array("source").alias("sources"), "count", "fall.*")


def _other_order(known: DataFrame) -> DataFrame:
    """For one key, the same bodies in another order than in the first source that has it."""
    sent = f.sort_array(f.collect_list(f.struct("order", "fingerprint", "message_id")))
    of_source = known.where("fingerprint is not null").groupBy("key", "source").agg(sent.alias("sent"))
    prints = f.array_distinct(f.col("sent")["fingerprint"])
    of_source = of_source.where(f.size("sent") > 1).select(
        "key",
        f.struct(
            "source",
            prints.alias("prints"),
            f.size("sent").alias("n"),
            f.transform(
                f.slice("sent", 1, NAMED_MAX), lambda each: f.concat_ws("/", f.col("source"), each["message_id"])
            ).alias("named"),
            f.col("sent")[0]["order"]["time"].alias("first_at"),
            f.element_at("sent", -1)["order"]["time"].alias("last_at"),
        ).alias("one"),
    )
    found = of_source.groupBy("key").agg(f.sort_array(f.collect_list("one")).alias("has"))
    has = f.col("has")
    first = has[0]

    def differs(each: Expression) -> Expression:
        return f.array_intersect(each["prints"], first["prints"]) != f.array_intersect(first["prints"], each["prints"])

    others = f.filter(has, differs)
    found = found.where(f.size(others) > 0)
    told = f.concat(f.array_join(others["source"], ", "), f.lit(": not in the order of "), first["source"])
    about = f.concat(f.array(first), others)
    return found.select(
        f.lit("order").alias("kind"),
        "key",
        f.lit(None).cast("string").alias("version"),
        about["source"].alias("sources"),
        f.slice(f.flatten(about["named"]), 1, NAMED_MAX).alias("messages"),
        f.aggregate(about["n"], f.lit(0), lambda sum_, n: sum_ + n).cast("bigint").alias("count"),
        told.alias("detail"),
        f.array_min(about["first_at"]).alias("first_at"),
        f.array_max(about["last_at"]).alias("last_at"),
    )


def _named(name: str) -> Expression:
    return f.concat_ws("/", "source", name)
