"""The table of messages that Spark reads, from a queue (read=messages) or from its history (read=replay)."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from batonq.pipeline.events.schema import Column, arrow_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from batonq.client.models import MessageFields

COLUMNS = (
    Column("message_id", "text", "Id of the message."),
    Column("body", "bytes", "The body."),
    Column("text", "text", "The body, if it is text or JSON."),
    Column("content", "text", "Content of the body: `text`, `json` or `bytes`."),
    Column("group", "text", "Message group."),
    Column("priority", "int16", "Priority, 0 to 255."),
    Column("sequence", "int64", "Sequence number of the message in its queue."),
    Column("sent_at", "time", "Time when the message was sent."),
    Column("receive_count", "int64", "Number of receives, including this one. Null in a replay."),
    Column("attributes", "map", "Message attributes, from name to value; binary values in base64."),
    Column("trace", "text", "W3C trace context: traceparent, and tracestate after a space."),
    Column("dedup_key", "text", "Deduplication key."),
    Column("queue", "text", "Name of the queue."),
)
EVENT_COLUMNS = (  # what of_events needs of the events table
    *("message_id", "body", "content", "group", "priority", "sequence", "sent_at"),
    *("attributes", "trace", "dedup_key", "queue_name"),
)


def arrow_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema([(column.name, arrow_type(column.kind, dictionaries=False)) for column in COLUMNS])


def spark_schema() -> StructType:
    from pyspark.sql.types import StructField, StructType

    from batonq.pipeline.tables.schema import spark_type

    return StructType([StructField(column.name, spark_type(column.kind)) for column in COLUMNS])


def of_messages(messages: Sequence[MessageFields]) -> pa.RecordBatch:
    """Received messages as rows."""
    import pyarrow as pa

    bodies = [stored(message.body) for message in messages]
    columns: dict[str, list[Any]] = {
        "message_id": [message.id for message in messages],
        "body": [body for body, _ in bodies],
        "text": [None if content == "bytes" else body for body, content in bodies],
        "content": [content for _, content in bodies],
        "group": [message.group or None for message in messages],
        "priority": [message.priority for message in messages],
        "sequence": [message.sequence for message in messages],
        "sent_at": [message.sent_at_ms * 1000 for message in messages],
        "receive_count": [message.receive_count for message in messages],
        "attributes": [
            [(name, _text(value)) for name, value in message.attributes.items()] or None for message in messages
        ],
        "trace": [" ".join(filter(None, (message.traceparent, message.tracestate))) or None for message in messages],
        "dedup_key": [message.dedup_key or None for message in messages],
        "queue": [message.queue for message in messages],
    }
    schema = arrow_schema()
    return pa.RecordBatch.from_arrays([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


def stored(body: Any) -> tuple[bytes, str]:
    """A body as stored in the log, and its content type."""
    if isinstance(body, bytes):
        return body, "bytes"
    if isinstance(body, str):
        return body.encode(), "text"
    return msgspec.json.encode(body), "json"


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return value if isinstance(value, str) else repr(value)


def of_events(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The messages of sent events, which have bodies."""
    import pyarrow as pa
    import pyarrow.compute as pc

    body, content = batch["body"], batch["content"]
    legible = pc.if_else(pc.equal(content, "bytes"), pa.scalar(None, pa.binary()), body)
    made = {
        "text": legible.cast(pa.string()),
        "receive_count": pa.nulls(batch.num_rows, pa.int64()),
        "queue": batch["queue_name"],
    }
    schema = arrow_schema()
    columns = [made[name] if name in made else batch[name] for name in schema.names]
    return pa.RecordBatch.from_arrays(
        [column.cast(kind) for column, kind in zip(columns, schema.types, strict=True)], schema=schema
    )
