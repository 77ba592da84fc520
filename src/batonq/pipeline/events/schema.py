"""The events table: one row per record of a shard's log. Every column, its meaning, and which records have it.

The reference page, the Arrow schema and the tests that compare the two decoders use this table. Columns are only added,
at the end; a column without a value in a record is null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from batonq.core.payload import STORED, Content
from batonq.core.records import Reason, State, Type

if TYPE_CHECKING:
    import pyarrow as pa

FIRST_CATALOG_TYPE = Type.CATALOG_SET
EVENTS = {int(kind): kind.name.lower() for kind in Type if kind < FIRST_CATALOG_TYPE}
REASONS = {int(reason): reason.name.lower() for reason in Reason if reason}
STATES = {int(state): state.name.lower() for state in State if state}
CONTENTS = {int(content): content.name.lower() for content in Content} | {
    content | STORED: f"stored {content.name.lower()}" for content in Content
}
# A time at or after the year 10000 means "never" in the log.
NEVER_MS = 253_402_300_800_000


@dataclass(slots=True, frozen=True)
class Column:
    """`kind`: int16, int32, int64, time (UTC), text, name (a text that many rows share), map (of texts), bytes."""

    name: str
    kind: str
    doc: str
    of: str = "all"  # the events that have it


_MESSAGES = "events of a message"
_KEPT = "sent, edited, carried, arrived"
_PAYLOADS = f"{_KEPT}, published"
_LEASES = "leased, extended, returned, deleted, owed, edited, carried"
_CHANNEL = "owed, settled, arrived"

COLUMNS = (
    Column("shard", "int32", "Shard of the log."),
    Column("frame", "int64", "Number of the frame (one group commit)."),
    Column("row", "int32", "Position of the record in its frame. (shard, frame, row) identifies an event."),
    Column(
        "logical_time", "int64", "`frame << 16 | row`: increases with every event of a shard, whatever its clock did."
    ),
    Column("region", "int32", "Region of the node that wrote the frame."),
    Column("owner_epoch", "int64", "Ownership epoch of the frame."),
    Column("time", "time", "Time of the event, by the shard's clock."),
    Column("event", "name", "What happened: " + ", ".join(EVENTS.values()) + "."),
    Column("flags", "int16", "The record's flags, as in the log's format."),
    Column("queue", "int64", "Number of the queue; it is never reused.", "all but epoch and base"),
    Column("queue_name", "name", "Name of the queue, if an earlier policy_set or base contains it."),
    Column("tenant", "name", "Account of the queue, if an earlier policy_set or base contains it."),
    Column("sequence", "int64", "Sequence number of the message in its shard.", _MESSAGES),
    Column(
        "message_id",
        "text",
        "Message id, derived from shard and sequence. For a moved message see `lineage`.",
        _MESSAGES,
    ),
    Column("slot", "int64", "Slot of the message in the shard's memory; it is reused afterwards.", _MESSAGES),
    Column("group", "name", "Message group.", _PAYLOADS),
    Column("priority", "int16", "Priority, 0 to 255.", _MESSAGES),
    Column("lease_epoch", "int64", "Epoch of the message's last lease.", _LEASES),
    Column("receive_count", "int64", "Number of receives.", _LEASES + ", arrived"),
    Column(
        "receives_max", "int32", "The message's own maximum number of receives, if it has one.", "sent, edited, carried"
    ),
    Column("holder", "name", "Consumer that got the lease.", "leased"),
    Column("attempt", "name", "Receive request attempt id, if there was one.", "leased"),
    Column("deadline", "time", "When the lease ends.", "leased, extended; edited and carried in flight"),
    Column(
        "visible_at",
        "time",
        "When the message becomes visible.",
        "sent, returned, settled (refused), edited, carried, arrived (delayed)",
    ),
    Column("expires_at", "time", "When the message expires.", _KEPT),
    Column("sent_at", "time", "When it was first sent.", _KEPT),
    Column("state", "name", "Delivery state: " + ", ".join(STATES.values()) + ".", "edited, carried"),
    Column("reason", "name", "Why: " + ", ".join(REASONS.values()) + ".", "all but sent"),
    Column("error_class", "name", "Error class that the consumer reported.", "returned"),
    Column("error_text", "name", "Error text that the consumer reported.", "returned"),
    Column("other_shard", "int32", "The destination shard (owed, settled) or the source shard (arrived).", _CHANNEL),
    Column(
        "other_queue",
        "int64",
        "The destination queue, or the queue in which the message was dead-lettered.",
        "owed, arrived",
    ),
    Column("channel_number", "int64", "Number of the entry in the channel between the two shards.", _CHANNEL),
    Column("source_slot", "int64", "For a move within the shard: the slot of the old message.", "arrived"),
    Column("dedup_key", "text", "Deduplication key.", _PAYLOADS),
    Column("sender", "name", "Producer of the message.", _PAYLOADS),
    Column("trace", "text", "Trace header.", _PAYLOADS),
    Column(
        "content",
        "name",
        "Content of the body: "
        + ", ".join(CONTENTS.values())
        + ". The body of a stored one is a pointer into the payload store: the key, which ends with the SHA-256, and "
        "the size.",
        _PAYLOADS,
    ),
    Column("attributes", "map", "Message attributes, from name to value; binary values in base64.", _PAYLOADS),
    Column("attributes_bytes", "int64", "Size of the attributes as stored.", _PAYLOADS),
    Column("body_bytes", "int64", "Size of the body.", _PAYLOADS),
    Column("variable_bytes", "int64", "Size of the record without its row."),
    Column("lineage", "text", "Origin of a moved message, as JSON.", "owed, arrived, edited, carried"),
    Column(
        "number",
        "int64",
        "epoch: the ownership epoch; base: the next sequence number; policy_set, queue_closed: catalog "
        "version; queue_purged: first remaining sequence number; reader_set: committed position; requested: first "
        "sequence number, 0 if not accepted here or forgotten; produced: last sequence number; schedule_set: sequence "
        "number of the message that a firing sent, otherwise 0; published: sequence number of the publish; "
        "subscription_set: catalog version.",
        "events that are not of one message",
    ),
    Column(
        "messages",
        "int64",
        "Number of messages of the event; of a published message, its copies without those that were dropped.",
        "requested, produced, queue_purged, published",
    ),
    Column("grace_ms", "int64", "Grace period that leases got after an outage.", "epoch"),
    Column("first_frame", "int64", "First retained frame.", "base"),
    Column(
        "detail",
        "text",
        "The policy, the job, the reader group, what changes of a schedule, the subscription, or a list of all "
        "policies, as JSON.",
        "policy_set, job_set, reader_set, schedule_set, subscription_set, base",
    ),
    Column(
        "subscription",
        "int64",
        "Number of the subscription: of a copy of a published message, or the one that was set.",
        "sent (copies), subscription_set",
    ),
)
BODY = Column("body", "bytes", "The body, if bodies are requested.", _PAYLOADS)


def columns(*, bodies: bool = False) -> tuple[Column, ...]:
    return (*COLUMNS, BODY) if bodies else COLUMNS


def arrow_type(kind: str, *, dictionaries: bool = True) -> pa.DataType:
    import pyarrow as pa

    texts = pa.dictionary(pa.int32(), pa.string()) if dictionaries else pa.string()
    return {
        "int16": pa.int16(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "time": pa.timestamp("us", "UTC"),
        "text": pa.string(),
        "name": texts,
        "map": pa.map_(pa.string(), pa.string()),
        "bytes": pa.binary(),
    }[kind]


def arrow_schema(*, bodies: bool = False, dictionaries: bool = True) -> pa.Schema:
    """The table's Arrow schema. Without dictionaries names are plain strings, which every reader understands."""
    import pyarrow as pa

    return pa.schema(
        [(column.name, arrow_type(column.kind, dictionaries=dictionaries)) for column in columns(bodies=bodies)]
    )
