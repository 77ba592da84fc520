"""The events table: one row a record of a shard's log. Every column, what it holds, and which records have it.

The reference page is made from this table, and so are the Arrow schema and the tests that compare the two decoders.
Columns are only ever added, at the end; one that a record has no value for is null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from batonq.core.payload import Content
from batonq.core.records import Reason, State, Type

if TYPE_CHECKING:
    import pyarrow as pa

FIRST_CATALOG_TYPE = Type.CATALOG_SET
EVENTS = {int(kind): kind.name.lower() for kind in Type if kind < FIRST_CATALOG_TYPE}
REASONS = {int(reason): reason.name.lower() for reason in Reason if reason}
STATES = {int(state): state.name.lower() for state in State if state}
CONTENTS = {int(content): content.name.lower() for content in Content}
# A time at or after the year 10000 is no time: it is how the log says "never".
NEVER_MS = 253_402_300_800_000


@dataclass(slots=True, frozen=True)
class Column:
    """`kind`: int16, int32, int64, time (UTC), text, name (a text that many rows share), map (of texts), bytes."""

    name: str
    kind: str
    doc: str
    of: str = "all"  # which events have it


_MESSAGES = "events of a message"
_PAYLOADS = "sent, edited, carried, arrived"
_LEASES = "leased, extended, returned, deleted, owed, edited, carried"
_CHANNEL = "owed, settled, arrived"

COLUMNS = (
    Column("shard", "int32", "The shard whose log this is from."),
    Column("frame", "int64", "Number of the frame (one group commit)."),
    Column("row", "int32", "Place of the record in its frame. (shard, frame, row) names an event."),
    Column("logical_time", "int64", "`frame << 16 | row`: rises with every event of a shard, whatever its clock did."),
    Column("region", "int32", "Region of the node that wrote the frame."),
    Column("owner_epoch", "int64", "Ownership epoch under which the frame was written."),
    Column("time", "time", "When it happened, by the shard's clock."),
    Column("event", "name", "What happened: " + ", ".join(EVENTS.values()) + "."),
    Column("flags", "int16", "The record's flags, as in the log's format."),
    Column("queue", "int64", "Number of the queue; a number is never used again.", "all but epoch and base"),
    Column("queue_name", "name", "Name of the queue, once a policy_set or base before this event told it."),
    Column("tenant", "name", "Account of the queue, likewise."),
    Column("sequence", "int64", "Sequence of the message in its shard.", _MESSAGES),
    Column("message_id", "text", "Id made from shard and sequence. A moved message: see `lineage`.", _MESSAGES),
    Column("slot", "int64", "Where the shard keeps the message; used again after its end.", _MESSAGES),
    Column("group", "name", "Message group.", _PAYLOADS),
    Column("priority", "int16", "Priority, 0 to 255.", _MESSAGES),
    Column("lease_epoch", "int64", "Epoch of the message's last lease.", _LEASES),
    Column("receive_count", "int64", "How often the message was received.", _LEASES + ", arrived"),
    Column("receives_max", "int32", "The message's own maximum of receives, if it has one.", "sent, edited, carried"),
    Column("holder", "name", "Who got the lease.", "leased"),
    Column("attempt", "name", "Receive request attempt id, if there was one.", "leased"),
    Column("deadline", "time", "When the lease ends.", "leased, extended; edited and carried in flight"),
    Column("visible_at", "time", "When it can be received.", "sent, returned, settled (refused), edited, carried"),
    Column("expires_at", "time", "End of its retention.", _PAYLOADS),
    Column("sent_at", "time", "When it was first sent.", _PAYLOADS),
    Column("state", "name", "Delivery state: " + ", ".join(STATES.values()) + ".", "edited, carried"),
    Column("reason", "name", "Why: " + ", ".join(REASONS.values()) + ".", "all but sent"),
    Column("error_class", "name", "Class of the error that the holder gave.", "returned"),
    Column("error_text", "name", "Text of it.", "returned"),
    Column("other_shard", "int32", "The shard that it goes to (owed, settled) or comes from (arrived).", _CHANNEL),
    Column("other_queue", "int64", "The queue that it goes to, or that it was dead-lettered from.", "owed, arrived"),
    Column("channel_number", "int64", "Number of the entry in the channel between the two shards.", _CHANNEL),
    Column("source_slot", "int64", "Of a move within the shard: the slot of the old message.", "arrived"),
    Column("dedup_key", "text", "Deduplication key.", _PAYLOADS),
    Column("sender", "name", "Who sent it.", _PAYLOADS),
    Column("trace", "text", "Trace header.", _PAYLOADS),
    Column("content", "name", "What the body is: " + ", ".join(CONTENTS.values()) + ".", _PAYLOADS),
    Column("attributes", "map", "Message attributes, name to value; binary ones in base64.", _PAYLOADS),
    Column("attributes_bytes", "int64", "Size of the attributes as stored.", _PAYLOADS),
    Column("body_bytes", "int64", "Size of the body.", _PAYLOADS),
    Column("variable_bytes", "int64", "Size of all that the record has beside its row."),
    Column("lineage", "text", "Where a moved message came from, as JSON.", "owed, arrived, edited, carried"),
    Column(
        "number",
        "int64",
        "epoch: the ownership epoch; base: the next sequence; policy_set, queue_closed: catalog version; queue_purged: "
        "first sequence that stays; requested: first sequence, 0 if not taken here or forgotten; produced: last "
        "sequence.",
        "events that are not of one message",
    ),
    Column("messages", "int64", "How many messages it was about.", "requested, produced, queue_purged"),
    Column("grace_ms", "int64", "Time that running leases were given for an outage.", "epoch"),
    Column("first_frame", "int64", "First frame that is kept.", "base"),
    Column("detail", "text", "The policy, the job, or a list of all policies, as JSON.", "policy_set, job_set, base"),
)
BODY = Column("body", "bytes", "The body, when bodies are asked for.", _PAYLOADS)


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
    """The table's Arrow schema. Without dictionaries names are plain texts, which every reader understands."""
    import pyarrow as pa

    return pa.schema(
        [(column.name, arrow_type(column.kind, dictionaries=dictionaries)) for column in columns(bodies=bodies)]
    )
