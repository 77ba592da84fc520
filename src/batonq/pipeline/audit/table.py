"""The violations table."""

from __future__ import annotations

from batonq.pipeline.events.schema import Column
from batonq.pipeline.tables.schema import SOURCE, Table

TABLE = Table(
    "violations",
    "One row per violation that [the audit](audit.md) found; `baton pipeline audit` writes it. No rows: every "
    "rule holds.",
    (
        Column("kind", "name", "Kind of violation: see [the audit](audit.md)."),
        Column("shard", "int32", "The shard with the violation."),
        Column("queue", "int64", "Number of the queue, if there is one."),
        Column("queue_name", "name", "Name of the queue."),
        Column("message_id", "text", "Id of the message, if there is one."),
        Column("sequence", "int64", "Sequence number of the message in its shard."),
        Column("logical_times", "int64s", "The events that violate the rule, by `logical_time`, in order."),
        Column("events", "texts", "The same events as text."),
        Column("detail", "text", "What is wrong."),
        SOURCE,
    ),
)
