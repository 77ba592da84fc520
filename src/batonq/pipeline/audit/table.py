"""The violations table."""

from __future__ import annotations

from batonq.pipeline.events.schema import Column
from batonq.pipeline.tables.schema import SOURCE, Table

TABLE = Table(
    "violations",
    "One row for each break of a rule that [the audit](audit.md) found; `baton pipeline audit` writes it. No rows: "
    "every rule held.",
    (
        Column("kind", "name", "Which rule: see [the audit](audit.md)."),
        Column("shard", "int32", "The shard whose history breaks it."),
        Column("queue", "int64", "Number of the queue, if it is about one."),
        Column("queue_name", "name", "Its name."),
        Column("message_id", "text", "The message, if it is about one: its id, made from shard and sequence."),
        Column("sequence", "int64", "Its sequence in its shard."),
        Column("logical_times", "int64s", "The events that break the rule together, by `logical_time`, in order."),
        Column("events", "texts", "The same events, to be read."),
        Column("detail", "text", "What is wrong."),
        SOURCE,
    ),
)
