"""The queues table: the queues in the history, from the events that describe them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batonq.pipeline.events.schema import Column
from batonq.pipeline.tables.schema import SOURCE, Table, shaped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TABLE = Table(
    "queues",
    "One row each time that a shard's log describes a queue: at a `policy_set`, for every queue in a `base`, "
    "and at a `queue_closed`. A queue's number is never reused, and its name never changes; its policy does, "
    "and the row with the highest `logical_time` of a shard has the current one. `baton pipeline ingest` "
    "writes it.",
    (
        Column("shard", "int32", "Shard of the log."),
        Column("logical_time", "int64", "Logical time of the event."),
        Column("time", "time", "Time of the event, by the shard's clock."),
        Column("event", "name", "policy_set, base or queue_closed."),
        Column("queue", "int64", "Number of the queue."),
        Column("tenant", "name", "Account of the queue."),
        Column("name", "name", "Name of the queue."),
        Column("fifo", "bool", "Whether it is a FIFO queue.", "policy_set, base"),
        Column("policy", "text", "The whole policy, as JSON.", "policy_set, base"),
        Column("closed", "bool", "Whether the queue is deleted."),
        SOURCE,
    ),
)
TELLING = ("policy_set", "base", "queue_closed")


def queues(events: DataFrame) -> DataFrame:
    """The rows for these events."""
    from pyspark.sql import functions as f

    told = events.where(f.col("event").isin(*TELLING))
    policies = f.when(f.col("event") == "base", f.from_json("detail", "array<string>")).otherwise(f.array("detail"))
    rows = told.withColumn("policy", f.explode_outer(policies)).where("event != 'base' OR policy IS NOT NULL")
    rows = rows.withColumn("said", f.from_json("policy", "queue BIGINT, tenant STRING, name STRING, fifo BOOLEAN"))
    return shaped(
        rows.withColumns(
            {
                "queue": f.coalesce("said.queue", "queue"),
                "tenant": f.coalesce("said.tenant", "tenant"),
                "name": f.coalesce("said.name", "queue_name"),
                "fifo": f.col("said.fifo"),
                "closed": f.col("event") == "queue_closed",
            }
        ),
        TABLE,
    )
