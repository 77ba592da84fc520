"""dead_letter_messages: one row per dead-lettering of a message, and the outcome of the dead letter.

A dead letter contains its cause: the lineage of the event by which it arrived, or was carried. A message that died in a
queue without a dead-letter queue stays there, and has a return without an end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from batonq.pipeline.events.schema import Column
from batonq.pipeline.tables.lifecycle import KEY, with_source
from batonq.pipeline.tables.schema import SOURCE, Table, shaped
from batonq.pipeline.tables.shapes import shape, shown

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

TABLE = Table(
    "dead_letter_messages",
    "One row for each time that a message was dead-lettered: where, why, and where its dead letter is now. "
    "`baton pipeline dead-letters` creates it; `dead_letters` groups it.",
    (
        SOURCE,
        Column("shard", "int32", "Shard of the dead letter."),
        Column("sequence", "int64", "Sequence number in the shard. (source, shard, sequence) identifies the row."),
        Column("message_id", "text", "Current id of the dead letter, for a redrive."),
        Column("first_id", "text", "Id with which the message was first sent."),
        Column("died_id", "text", "Id of the message when it was dead-lettered."),
        Column("tenant", "name", "Account of the queues."),
        Column("queue", "int64", "Number of the queue in which it was dead-lettered."),
        Column("queue_name", "name", "Name of that queue."),
        Column("dead_letter_queue", "int64", "Number of the dead-letter queue; the same queue if it has none."),
        Column("dead_letter_queue_name", "name", "Name of the dead-letter queue."),
        Column(
            "how", "name", "Cause: `dead_letter`, `expiry` (of its time to live), or `in_place` (no dead-letter queue)."
        ),
        Column("error_class", "name", "Class of the last error; null: no consumer reported one."),
        Column("error_text", "text", "Text of the last error."),
        Column("content", "name", "Content of the body: text, json, bytes."),
        Column("shape", "text", "Shape of the body: keys and types of JSON, or a text without its numbers and ids."),
        Column("body", "text", "The beginning of the body; bytes in base64."),
        Column("body_bytes", "int64", "Size of the body."),
        Column("attempts", "int64", "Number of receives."),
        Column("sent_at", "time", "Time when the message was sent."),
        Column("first_failed_at", "time", "Time of the first failed attempt."),
        Column(
            "died_at",
            "time",
            "Time when it was dead-lettered. If that was in place before history begins: the beginning of history.",
        ),
        Column(
            "fate", "name", "Outcome of the dead letter: waiting, redriven, dead_lettered, deleted, expired, unknown."
        ),
        Column("ended_at", "time", "Time of the outcome; null while it is waiting."),
        Column("expires_at", "time", "Time when the dead letter expires."),
        Column("date", "date", "Day of `died_at`, in UTC."),
    ),
    by=("date",),
)
BODY_COLUMNS = ("content", "shape", "body")

_LINEAGE = (
    "moved string, moved_ms bigint, source_queue bigint, source_arn string, error_class string, reason string, "
    "attempts bigint, first_failure_ms bigint"
)
_FATES = {
    "waiting": ("waiting", "delayed", "in_flight", "dead"),
    "redriven": ("redriven", "moved", "owed"),
    "dead_lettered": ("dead_lettered",),
    "deleted": ("acked", "late_acked", "purged", "queue_deleted", "deleted"),
    "expired": ("expired",),
}


def of_moved(events: DataFrame) -> DataFrame:
    """Events of messages that were moved or died in place, and events without a message: enough for their lifecycle."""
    events = with_source(events)
    told = events.where(
        "sequence is not null and (event in ('owed', 'arrived') or lineage is not null or " + _DIED_IN_PLACE + ")"
    )
    keys = told.select(*KEY).distinct()
    return events.where("sequence is null").unionByName(
        events.where("sequence is not null").join(keys, list(KEY), "left_semi").select(events.columns)
    )


def dead_letter_messages(events: DataFrame, lifecycle: DataFrame) -> DataFrame:
    """The table from events and message_lifecycle, without the columns from bodies (see `with_shapes`)."""
    events = with_source(events)
    letters = _letters(events)
    deaths = letters.unionByName(_in_place(events).join(letters, list(KEY), "left_anti"), allowMissingColumns=True)
    lives = lifecycle.select(
        *KEY,
        "message_id",
        "first_id",
        f.col("previous_id").alias("died_id"),
        f.col("queue").alias("dead_letter_queue"),
        f.col("queue_name").alias("dead_letter_queue_name"),
        "tenant",
        "body_bytes",
        "sent_at",
        "expires_at",
        "ended_at",
        "outcome",
        "last_error_class",
        "last_error_text",
    )
    found = deaths.join(lives, list(KEY)).join(_owed(events), ["source", "died_id"], "left")
    past = f.from_json(f.coalesce("owed_lineage", "lineage"), _LINEAGE)
    return shaped(_told(found.withColumn("past", past)), TABLE)


def _told(found: DataFrame) -> DataFrame:
    in_place = f.col("how").isNotNull()

    def either(here: str, past: Expression) -> Expression:
        return f.when(in_place, f.col(here)).otherwise(past)

    columns = {
        "died_id": either("message_id", f.col("died_id")),
        "queue": either("dead_letter_queue", f.col("past.source_queue")),
        "queue_name": either("dead_letter_queue_name", f.substring_index("past.source_arn", ":", -1)),
        "error_class": either("last_error_class", f.col("past.error_class")),
        "error_text": either("last_error_text", f.col("past.reason")),
        "attempts": f.coalesce("tried", "attempts", f.col("past.attempts"), f.lit(0)),
        "first_failed_at": _time(f.col("past.first_failure_ms")),
        "died_at": either("died_at", _time(f.col("past.moved_ms"))),
        "fate": fate(f.col("outcome")),
        "how": f.coalesce("how", "past.moved"),
    }
    return found.withColumns(columns).withColumn("date", f.to_date("died_at"))


def with_shapes(messages: DataFrame) -> DataFrame:
    """Rows with their bodies (bytes) in the table's format: the shape, and the beginning of the body."""
    body, content = f.col("body"), f.col("content")
    return shaped(messages.withColumns({"shape": shape(body, content), "body": shown(body, content)}), TABLE)


def fate(outcome: Expression) -> Expression:
    found = f.lit("unknown")
    for name, outcomes in _FATES.items():
        found = f.when(outcome.isin(*outcomes), name).otherwise(found)
    return found


_DIED_IN_PLACE = "event = 'returned' and visible_at is null or event = 'carried' and state = 'dead'"


def _letters(events: DataFrame) -> DataFrame:
    """Messages that arrived as dead letters, and their lineage."""
    moved = f.get_json_object("lineage", "$.moved").isin("dead_letter", "expiry")
    told = events.where("sequence is not null and lineage is not null and event in ('arrived', 'carried', 'edited')")
    return told.where(moved).groupBy(*KEY).agg(f.min_by("lineage", "logical_time").alias("lineage"))


def _owed(events: DataFrame) -> DataFrame:
    """The new part of a message's history when it left for the dead-letter queue: the lineage that arrived may be
    older.
    """
    left = events.where("event = 'owed' and reason in ('dead_letter', 'expiry_dead_letter')")
    newest = f.max_by(f.struct("lineage", "receive_count"), "logical_time").alias("owed")
    found = left.groupBy("source", f.col("message_id").alias("died_id")).agg(newest)
    return found.select(
        "source", "died_id", f.col("owed.lineage").alias("owed_lineage"), f.col("owed.receive_count").alias("attempts")
    )


def _in_place(events: DataFrame) -> DataFrame:
    told = events.where(f"sequence is not null and ({_DIED_IN_PLACE})")
    died = told.groupBy(*KEY).agg(f.min_by(f.struct("receive_count", "time"), "logical_time").alias("death"))
    return died.select(
        *KEY, f.lit("in_place").alias("how"), f.col("death.receive_count").alias("tried"), "death.time"
    ).withColumnRenamed("time", "died_at")


def _time(time_ms: Expression) -> Expression:
    return f.when(time_ms > 0, f.timestamp_millis(time_ms))
