"""dead_letter_messages: one row a death of a message, and what became of the dead letter.

A dead letter tells of its death itself: the lineage of the event by which it arrived, or was carried, says what it died
of. A message that died in a queue without dead letters stays where it is, and tells it by a return for ever.
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
    "One row for each time that a message died: where, of what, and where its dead letter is now. `baton pipeline "
    "dead-letters` makes it; `dead_letters` groups it.",
    (
        SOURCE,
        Column("shard", "int32", "The shard that has, or had, the dead letter."),
        Column("sequence", "int64", "Its sequence there. (source, shard, sequence) names the row."),
        Column("message_id", "text", "The dead letter's id where it lies: what a redrive takes."),
        Column("first_id", "text", "The id under which the message was first sent."),
        Column("died_id", "text", "The id that it had when it died."),
        Column("tenant", "name", "Account of the queues."),
        Column("queue", "int64", "Number of the queue that it died in."),
        Column("queue_name", "name", "Name of that queue."),
        Column("dead_letter_queue", "int64", "Number of the queue that has the dead letter; the same if it has none."),
        Column("dead_letter_queue_name", "name", "Name of that queue."),
        Column("how", "name", "How it died: `dead_letter`, `expiry` (of its time to live), `in_place`."),
        Column("error_class", "name", "Class of its last error; null: no consumer named one."),
        Column("error_text", "text", "Text of it."),
        Column("content", "name", "What the body is: text, json, bytes."),
        Column("shape", "text", "Shape of the body: keys and types of JSON, a text without its numbers and ids."),
        Column("body", "text", "The beginning of the body; bytes in base64."),
        Column("body_bytes", "int64", "Size of the body."),
        Column("attempts", "int64", "Receives that it had."),
        Column("sent_at", "time", "When it was sent."),
        Column("first_failed_at", "time", "When an attempt first failed."),
        Column("died_at", "time", "When it died. Of one that died in place before history begins: that beginning."),
        Column(
            "fate", "name", "Where the dead letter is: waiting, redriven, dead_lettered, deleted, expired, unknown."
        ),
        Column("ended_at", "time", "When it left, unless it waits."),
        Column("expires_at", "time", "End of its retention."),
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
    "deleted": ("acked", "late_acked", "purged", "queue_deleted"),
    "expired": ("expired",),
}


def of_moved(events: DataFrame) -> DataFrame:
    """Events of messages that were moved, or died where they were, and those of no message: enough for their lives."""
    events = with_source(events)
    told = events.where(
        "sequence is not null and (event in ('owed', 'arrived') or lineage is not null or " + _DIED_IN_PLACE + ")"
    )
    keys = told.select(*KEY).distinct()
    return events.where("sequence is null").unionByName(
        events.where("sequence is not null").join(keys, list(KEY), "left_semi").select(events.columns)
    )


def dead_letter_messages(events: DataFrame, lifecycle: DataFrame) -> DataFrame:
    """The table from events and message_lifecycle, without what its bodies tell (see `with_shapes`)."""
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
    """Rows with their bodies (bytes), as the table has them: the shape, and the beginning of the body."""
    body, content = f.col("body"), f.col("content")
    return shaped(messages.withColumns({"shape": shape(body, content), "body": shown(body, content)}), TABLE)


def fate(outcome: Expression) -> Expression:
    found = f.lit("unknown")
    for name, outcomes in _FATES.items():
        found = f.when(outcome.isin(*outcomes), name).otherwise(found)
    return found


_DIED_IN_PLACE = "event = 'returned' and visible_at is null or event = 'carried' and state = 'dead'"


def _letters(events: DataFrame) -> DataFrame:
    """Messages that came as dead letters, and the lineage that they came with."""
    moved = f.get_json_object("lineage", "$.moved").isin("dead_letter", "expiry")
    told = events.where("sequence is not null and lineage is not null and event in ('arrived', 'carried', 'edited')")
    return told.where(moved).groupBy(*KEY).agg(f.min_by("lineage", "logical_time").alias("lineage"))


def _owed(events: DataFrame) -> DataFrame:
    """What was new about a message's past when it left for the dead letters: a lineage that arrived may be older."""
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
