"""archived_messages: messages kept before they are gone: dead letters, and those that are about to expire."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from batonq.pipeline.events.schema import Column
from batonq.pipeline.tables.lifecycle import KEY
from batonq.pipeline.tables.schema import SOURCE, Table, shaped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TABLE = Table(
    "archived_messages",
    "Whole messages, kept before they were gone: dead letters, and messages that were about to expire. `baton pipeline "
    "archive` adds to it, in a directory of its own; a message is in it once.",
    (
        SOURCE,
        Column("shard", "int32", "The shard that had it."),
        Column("sequence", "int64", "Its sequence there. (source, shard, sequence) names the row."),
        Column("message_id", "text", "Its id."),
        Column("first_id", "text", "The id under which it was first sent."),
        Column("tenant", "name", "Account of the queue."),
        Column("queue", "int64", "Number of the queue that it was in."),
        Column("queue_name", "name", "Name of that queue."),
        Column("why", "name", "Why it was kept: `dead_letter` or `expiring`."),
        Column("group", "name", "Message group."),
        Column("priority", "int16", "Priority."),
        Column("attributes", "map", "Message attributes, name to value; binary ones in base64."),
        Column("dedup_key", "text", "Deduplication key."),
        Column("content", "name", "What the body is: text, json, bytes."),
        Column("body", "bytes", "The body, whole."),
        Column("sent_at", "time", "When it was sent."),
        Column("expires_at", "time", "End of its retention."),
        Column("receives", "int64", "How often it was received."),
        Column("died_in", "name", "Of a dead letter: name of the queue that it died in."),
        Column("died_at", "time", "Of a dead letter: when it died."),
        Column("error_class", "name", "Class of its last error."),
        Column("error_text", "text", "Text of it."),
        Column("date", "date", "Day of `sent_at`, in UTC."),
    ),
    by=("date",),
)
THERE = ("waiting", "delayed", "in_flight", "dead")


def endangered(
    lifecycle: DataFrame,
    deaths: DataFrame,
    *,
    older_than: timedelta = timedelta(0),
    expiring_within: timedelta = timedelta(hours=1),
    now: str | None = None,
) -> DataFrame:
    """Messages that are there and should be kept: dead letters that died so long ago, and what expires so soon.

    The time is that of each shard's last event, or `now` (UTC, as ISO 8601) if that is later.
    """
    time = f.greatest("as_of", f.lit(now).cast("timestamp")) if now else f.col("as_of")
    died = deaths.select(
        *KEY,
        f.col("queue_name").alias("died_in"),
        "died_at",
        "error_class",
        "error_text",
    )
    lives = lifecycle.where(f.col("outcome").isin(*THERE)).join(died, list(KEY), "left")
    dead = f.col("died_at").isNotNull() & (f.col("died_at") <= time - f.lit(older_than))
    expiring = f.col("expires_at") <= time + f.lit(expiring_within)
    found = lives.withColumns(
        {
            "why": f.when(dead, "dead_letter").when(expiring, "expiring"),
            "error_class": f.coalesce("error_class", "last_error_class"),
            "error_text": f.coalesce("error_text", "last_error_text"),
        }
    )
    return found.where("why is not null")


def archived(messages: DataFrame) -> DataFrame:
    """The table from such messages with their bodies; one whose body is not in history any more is left out."""
    return shaped(messages.where("body is not null"), TABLE)
