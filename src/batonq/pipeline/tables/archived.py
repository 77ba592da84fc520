"""archived_messages: messages kept before they are deleted: dead letters, and messages that expire soon."""

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
    "Whole messages, kept before they are deleted: dead letters, and messages that were about to expire. "
    "`baton pipeline archive` adds to it, in a separate directory; a message is in it once.",
    (
        SOURCE,
        Column("shard", "int32", "Shard of the message."),
        Column("sequence", "int64", "Sequence number in the shard. (source, shard, sequence) identifies the row."),
        Column("message_id", "text", "Id of the message."),
        Column("first_id", "text", "Id with which the message was first sent."),
        Column("tenant", "name", "Account of the queue."),
        Column("queue", "int64", "Number of the queue."),
        Column("queue_name", "name", "Name of the queue."),
        Column("why", "name", "Why it was archived: `dead_letter` or `expiring`."),
        Column("group", "name", "Message group."),
        Column("priority", "int16", "Priority."),
        Column("attributes", "map", "Message attributes, from name to value; binary values in base64."),
        Column("dedup_key", "text", "Deduplication key."),
        Column("content", "name", "Content of the body: text, json, bytes."),
        Column("body", "bytes", "The whole body."),
        Column("sent_at", "time", "Time when the message was sent."),
        Column("expires_at", "time", "Time when the message expires."),
        Column("receives", "int64", "Number of receives."),
        Column("died_in", "name", "For a dead letter: name of the queue in which it was dead-lettered."),
        Column("died_at", "time", "For a dead letter: time when it was dead-lettered."),
        Column("error_class", "name", "Class of the last error."),
        Column("error_text", "text", "Text of the last error."),
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
    """Existing messages that should be archived: dead letters of at least a given age, and messages that expire soon.

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
    """The table from such messages with their bodies; messages whose body is no longer in history are omitted."""
    return shaped(messages.where("body is not null"), TABLE)
