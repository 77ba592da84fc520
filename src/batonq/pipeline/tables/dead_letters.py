"""dead_letters: dead letters grouped by queue, error class and shape of the body."""

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
    "Causes of dead letters: messages that were dead-lettered in one queue, with one error class and bodies "
    "of one shape. `baton pipeline dead-letters` creates it.",
    (
        SOURCE,
        Column("tenant", "name", "Account of the queue."),
        Column("queue", "int64", "Number of the queue in which they were dead-lettered."),
        Column("queue_name", "name", "Name of that queue."),
        Column("error_class", "name", "Class of the last error; null: no consumer reported one."),
        Column("shape", "text", "Shape of the bodies; null: history no longer has the bodies."),
        Column("messages", "int64", "Number of dead letters; a message that was dead-lettered twice counts twice."),
        Column("waiting", "int64", "Number of dead letters that are still waiting."),
        Column("redriven", "int64", "Number that were redriven."),
        Column("deleted", "int64", "Number that were acknowledged, purged, or deleted with their queue."),
        Column("expired", "int64", "Number that expired."),
        Column("first_seen", "time", "Time of the first one."),
        Column("last_seen", "time", "Time of the last one."),
        Column("last_error_text", "text", "Text of the last error."),
        Column("examples", "texts", f"Ids of up to {EXAMPLES_MAX} dead letters: the newest of the waiting ones."),
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
    """dead_letter_messages, with the columns of its group in each row, for the condition of a redrive."""
    renamed = groups.withColumnsRenamed({name: f"_{name}" for name in GROUP})
    same = [f.col(name).eqNullSafe(f.col(f"_{name}")) for name in GROUP]
    return messages.join(renamed, same).drop(*(f"_{name}" for name in GROUP))
