"""dead_letters: deaths of messages, grouped by queue, class of error and shape of the body."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from batonq.pipeline.events.schema import Column
from batonq.pipeline.tables.schema import SOURCE, Table, shaped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EXAMPLES_MAX = 3
GROUP = ("source", "tenant", "queue", "queue_name", "error_class", "shape")
TABLE = Table(
    "dead_letters",
    "What dies of what: messages that died in one queue, of one class of error, with bodies of one shape. `baton "
    "pipeline dead-letters` makes it.",
    (
        SOURCE,
        Column("tenant", "name", "Account of the queue."),
        Column("queue", "int64", "Number of the queue that they died in."),
        Column("queue_name", "name", "Name of that queue."),
        Column("error_class", "name", "Class of their last error; null: no consumer named one."),
        Column("shape", "text", "Shape of their bodies; null: history has the bodies no more."),
        Column("messages", "int64", "How many died; a message that died twice is counted twice."),
        Column("waiting", "int64", "How many of the dead letters are still there."),
        Column("redriven", "int64", "How many were redriven."),
        Column("deleted", "int64", "How many were acknowledged, purged, or gone with their queue."),
        Column("expired", "int64", "How many were not looked at in time."),
        Column("first_seen", "time", "When the first of them died."),
        Column("last_seen", "time", "When the last of them died."),
        Column("last_error_text", "text", "What its error said."),
        Column("examples", "texts", f"Ids of up to {EXAMPLES_MAX} dead letters: of those that wait, the newest."),
        Column("example_bodies", "texts", "The beginnings of their bodies."),
    ),
)


def dead_letters(messages: DataFrame) -> DataFrame:
    """The table from dead_letter_messages."""
    fate, died_at = f.col("fate"), f.col("died_at")
    newest = f.struct(died_at, f.col("message_id"))
    first = f.struct((fate == "waiting").alias("waits"), died_at, f.col("message_id"))
    example = f.struct("message_id", f.coalesce("body", f.lit("")).alias("body"))
    found = messages.groupBy(*GROUP).agg(
        f.count("*").alias("messages"),
        *(f.count_if(fate == name).alias(name) for name in ("waiting", "redriven", "deleted", "expired")),
        f.min("died_at").alias("first_seen"),
        f.max("died_at").alias("last_seen"),
        f.max_by("error_text", newest).alias("last_error_text"),
        f.max_by(example, first, EXAMPLES_MAX).alias("best"),
    )
    best = {"examples": f.col("best.message_id"), "example_bodies": f.col("best.body")}
    return shaped(found.withColumns(best), TABLE)


def with_groups(messages: DataFrame, groups: DataFrame) -> DataFrame:
    """dead_letter_messages, each row with the columns of its group: what a redrive's condition is about."""
    renamed = groups.withColumnsRenamed({name: f"_{name}" for name in GROUP})
    same = [f.col(name).eqNullSafe(f.col(f"_{name}")) for name in GROUP]
    return messages.join(renamed, same).drop(*(f"_{name}" for name in GROUP))
