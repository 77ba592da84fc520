"""Leases: one row each, with beginning and end. The number in flight at a time is counted from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEY = ["source", "shard", "sequence"]


def leases(events: DataFrame) -> DataFrame:
    """`leased_at` (null: before history began) and `ended_at` (null: running) of every lease.

    A lease ends with the first event of its epoch that returns, removes or moves the message. A purge has no event per
    message: a lease that it ended counts as running here.
    """
    event, reason, at, time = f.col("event"), f.col("reason"), f.col("logical_time"), f.col("time")
    held = (
        event.isin("leased", "extended")
        | ((event == "returned") & (reason != "undeliverable"))
        | ((event == "deleted") & (reason == "ack"))
        | (f.col("state") == "in_flight")
    )
    rows = events.where("sequence is not null and lease_epoch > 0").select(
        *KEY,
        "lease_epoch",
        "queue",
        (f.shiftleft(at, 1) + f.coalesce(held, f.lit(False)).cast("int")).alias("first"),
        f.when(event == "leased", time).alias("leased"),
        f.when(event.isin("returned", "deleted", "owed"), at).alias("end"),
        time,
    )
    return (
        rows.groupBy(*KEY, "lease_epoch")
        .agg(
            f.max("queue").alias("queue"),
            f.min("first").alias("first"),
            f.min("leased").alias("leased_at"),
            f.min_by("time", "end").alias("ended_at"),
        )
        .where(f.col("first").bitwiseAND(1) == 1)
        .drop("first")
    )
