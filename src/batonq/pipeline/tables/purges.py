"""The messages that a purge, or the deletion of a queue, removed: it is one event for many messages, in steps.

A step removes the queue's messages below a sequence number, except those that are being moved elsewhere. So a message
without an end was removed by the first step above its sequence number, unless it has an event after that step: then it
was being moved at the time, was returned, and a later step applies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

QUEUE = ["source", "shard", "queue"]
_ADDED = {"purged_at": "timestamp", "purged_by": "bigint", "queue_closed": "boolean"}
# messages and steps are joined by bins of this many sequence numbers, so that a long purge does not cause a cross join
_BIN_BITS = 14


def purged(found: DataFrame, rare: DataFrame, living: Expression, *, any_steps: bool) -> DataFrame:
    """`found` with `purged_at`, `purged_by` (the position of that step) and `queue_closed` (whether its queue was
    deleted by then).

    All three are null for messages that no purge removed. `living` marks rows without an end that are not being moved;
    `last_at` is the position of the last event.
    """
    if not any_steps:
        return found.withColumns({name: f.lit(None).cast(kind) for name, kind in _ADDED.items()})
    steps = _steps(rare)
    bins = f.sequence(_bin(f.col("start")), _bin(f.col("number") - 1))
    first = steps.where("start < number").select(
        *QUEUE, f.explode(bins).alias("bin"), "start", f.col("number").alias("stop"), f.struct(*_STEP).alias("first")
    )
    every = steps.groupBy(*QUEUE).agg(f.collect_list(f.struct(*_STEP)).alias("steps"))
    sequence, last_at = f.col("sequence"), f.col("last_at")
    within = (sequence >= f.col("start")) & (sequence < f.col("stop"))
    keys = found.withColumn("bin", _bin(sequence)).alias("message")
    same = [f.col(f"message.{name}") == f.col(f"first.{name}") for name in (*QUEUE, "bin")]
    met = keys.join(f.broadcast(first.alias("first")), [*same, within], "left").select(
        *(f.col(f"message.`{name}`") for name in found.columns), f.col("first.first").alias("first")
    )
    met = met.join(f.broadcast(every), QUEUE, "left")
    later = f.array_min(f.filter("steps", lambda step: (step["at"] > last_at) & (step["number"] > sequence)))
    step = f.when(f.col("first")["at"] > last_at, f.col("first")).when(f.col("first").isNotNull(), later)
    removed = met.withColumn("step", f.when(living, step)).drop("first", "steps")
    step = f.col("step")
    return removed.withColumns(
        {"purged_at": step["time"], "purged_by": step["at"], "queue_closed": step["closed"]}
    ).drop("step")


_STEP = ("at", "number", "time", "closed")


def _steps(rare: DataFrame) -> DataFrame:
    """Every step, with the first sequence number that no earlier step covered, and whether its queue was closed by
    then.
    """
    order = Window.partitionBy(*QUEUE).orderBy("at")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    rows = rare.where("event = 'queue_closed' or event = 'queue_purged' and number > 0")
    rows = rows.select(
        *QUEUE,
        f.col("logical_time").alias("at"),
        "time",
        f.when(f.col("event") == "queue_purged", f.col("number")).alias("number"),
    )
    marked = rows.select(
        *QUEUE,
        "at",
        "time",
        "number",
        f.coalesce(f.max("number").over(before), f.lit(0)).alias("start"),
        f.coalesce(f.max(f.col("number").isNull()).over(before), f.lit(False)).alias("closed"),
    )
    return marked.where("number is not null")


def _bin(sequence: Expression) -> Expression:
    return f.shiftright(sequence, _BIN_BITS)
