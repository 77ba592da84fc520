"""The records of a log: record types, the eight words of a row, and the reasons.

A record is one outcome. It is a row of eight unsigned 64-bit words and, for some types, a variable part:

    w0  type (8) | flags (8) | priority (8) | reason (8) | queue number (32), lowest bits first
    w1  sequence of the message
    w2  time, milliseconds since the Unix epoch, of the shard's clock
    w3  until: visible-at, deadline or expiry, milliseconds
    w4  lease epoch (32) | receive count (32), lowest bits first
    w5  position of the message's previous record (0 for none)
    w6  variable offset (32) | variable length (32), lowest bits first; the offset is from the start of the
        frame's variable section
    w7  slot (32) | auxiliary (32), lowest bits first

`Sent` has no previous record and no lease, so its w4 is the hash of its group (0: none) and its w5 the hash of its
deduplication key (0: none). Other exceptions are listed with the type. A position is `frame number << 16 | row`.

FORMAT_VERSION is raised when a type or a word changes its meaning. A reader refuses a version that it does not know,
and old readers are kept (see docs/reference/log-format.md). A log is written in the oldest version that has everything
it uses, so that nodes of an earlier release can follow it.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag

FORMAT_VERSION = 6
PAYLOADS_VERSION = 6  # once a message has its body in a payload store
PACING_VERSION = 6  # once a queue in the log is paused, paced or limited to some messages
RETAINING_VERSION = 6  # once a queue retains messages, or has a reader group
SCHEDULES_VERSION = 6  # once a shard has a schedule
TOPICS_VERSION = 6  # once a shard or the catalog has a topic, or a shard has a copy of a published message
REPLAYING_VERSION = 6  # while a shard remembers a replay job, and once it has messages of one
ROLES_VERSION = 5  # once a key in the catalog has a name, a role or an expiry
EDITING_VERSION = 5  # once an operator has edited a delayed message
DELETING_VERSION = 5  # while a shard remembers a job that deletes: earlier releases would redrive its messages
SPREAD_VERSION = 4  # once a queue in the log has several shards or names its durability class
PLAIN_VERSION = 3
ROW_WORDS = 8
ROW_BYTES = 64
FRAME_ROWS_MAX = 0xFFFF
NO_SLOT = 0xFFFFFFFF


class Type(IntEnum):
    """A shard's record types, then the catalog's (from 64). Only types that something writes are listed."""

    EPOCH = 1  # w1 ownership epoch, w3 time base, w4 lease grace ms, w7 format version
    BASE = 2  # var: the state that must survive the dropped front; w1 next sequence, w3 first retained frame; w4 number
    #           of the part (from 0) if there are several, all but the last with MORE
    SENT = 3  # reason: the message's own maximum of receives; aux: expiry s; var: payload
    EDITED = 4  # a whole message after a change: as Carried, but var begins with the key of the job (8 bytes; 0: none)
    LEASED = 5  # w3 deadline; aux: attempt window ms; var: holder and attempt id, shared by the rows of one receive
    EXTENDED = 6  # w3 deadline
    RETURNED = 7  # reason; w3 visible-at; var: error class and text
    DELETED = 8  # reason
    CARRIED = 9  # aux: expiry s; var: CARRIED_PREFIX, payload; a whole message copied forward
    OWED = 11  # reason; w3 destination shard (16) | channel number (48); aux: destination queue; var: lineage
    ARRIVED = 12  # reason; w3 sent time; w4 receive count; w5 source shard (16) | channel number (48), or with
    #               OVERLAY the source's slot; var: group, origin, payload, or with OVERLAY the lineage
    SETTLED = 13  # reason (accepted or refusal); w3 as in Owed; w4 visible-at when refused; aux: Owed's reason
    POLICY_SET = 14  # var: the policy; w1 catalog version
    QUEUE_PURGED = 15  # w1 first sequence that survives this step; w3 is 1 in the last step; w5 first sequence whose
    #                    deduplication id is still known after the purge, 0: none is
    QUEUE_CLOSED = 16  # w1 catalog version
    READER_SET = 17  # var: the reader group as this shard knows it
    SCHEDULE_SET = (
        18  # w1 sequence of the message that a firing sent (0: none), w3 next due time; var: name and changes
    )
    SUBSCRIPTION_SET = 19  # queue: the topic; w1 catalog version; w4 subscription; w3 1: removed; var: the subscription
    JOB_SET = 20  # var: the job
    PUBLISHED = (
        21  # queue: the topic; reason: the message's own maximum of receives; w3 copies (32) | dropped copies (32),
    )
    #                 lowest bits first; w4 and w5 as in Sent; aux: length of the envelope; var: envelope, payload
    REQUESTED = 25  # w1 first sequence (0: not accepted here), w3 expiry (0: forgotten), w4 messages (0: some accepted,
    #                 2: a duplicate, if it is one message of a request with an Idempotency-Key), w5 hash of its name
    PRODUCED = 27  # a producer's numbers up to w3 were accepted: w1 sequence of the last number's message, w4 how many
    #                numbers up to w3 became consecutive messages, w5 hash of queue and producer; aux: expiry s

    CATALOG_SET = 64  # var: kind, key, value as JSON; a null value removes the entry
    CATALOG_BASE = 65  # var: the whole catalog, or with MORE (and w4) a part of it


MESSAGE_TYPES = frozenset(type_ for type_ in Type if Type.SENT <= type_ <= Type.SETTLED)  # records about one message

# Flags of a row (w0, bits 8 to 15). The meaning of a bit depends on the record type.


class SentFlag(IntFlag):
    DEDUPLICATED = 1  # a deduplication entry was added for this message
    DEDUP_LIVES = 2  # ... which lives as long as the message
    FIFO = 4
    STORED = 64  # the body is in a payload store, and the payload has a pointer to it
    SCHEDULED = 16  # by a schedule
    FANNED = 8  # a copy of a published message: w5 is the subscription
    WAITING = 128  # with FANNED: the copy waits in its topic (queue) until the subscription's queue accepts it
    REPLAYED = 32  # sent again from retained history by a replay job; the payload's lineage names the first message


class LeaseFlag(IntFlag):
    """Flags of Leased and Extended."""

    ATTEMPT = 1  # with a receive request attempt id


class ReturnedFlag(IntFlag):
    UNCHARGED = 16  # this return does not count as an attempt


class DeletedFlag(IntFlag):
    LATE = 8  # after the lease expired, by its last holder


class ArrivedFlag(IntFlag):
    NOTED = 2  # var begins with ARRIVED_NOTED instead of ARRIVED_PREFIX
    OVERLAY = 64  # var is a lineage overlay for the payload at the source's position, not a payload
    REFUSED = 128  # refused; only the entry number is used up (with OVERLAY, w5 is the source's slot | number << 32)


class CarriedFlag(IntFlag):
    WAITING = 128  # a copy of a published message that waits in its topic: the group in the prefix is that of its line


class BaseFlag(IntFlag):
    """Flags of Base and CatalogBase."""

    MORE = 1  # another part follows


FLAGS: dict[int, type[IntFlag]] = {
    Type.SENT: SentFlag,
    Type.PUBLISHED: SentFlag,
    Type.LEASED: LeaseFlag,
    Type.EXTENDED: LeaseFlag,
    Type.RETURNED: ReturnedFlag,
    Type.DELETED: DeletedFlag,
    Type.ARRIVED: ArrivedFlag,
    Type.CARRIED: CarriedFlag,
    Type.BASE: BaseFlag,
    Type.CATALOG_BASE: BaseFlag,
}


class Reason(IntEnum):
    """The reason of a return, a delete, a move or a refusal."""

    NONE = 0
    # Returned
    NACK = 1
    EXPIRED = 2  # the lease expired
    RELEASED = 3  # visibility changed to zero
    UNDELIVERABLE = 4  # exhausted, or refused by its destination, and no dead-letter queue: it becomes DEAD
    # Deleted
    ACK = 10
    LATE_ACK = 11
    RETENTION = 12
    PURGED = 14
    # Returned (made visible before its delay ended), Deleted
    OPERATOR = 15  # by an operator who named the message, or by a delete job
    # Owed, Arrived
    DEAD_LETTER = 20
    REDRIVE = 21
    FANOUT = 22  # a copy of a published message, from its topic to a subscribed queue
    EXPIRY_DEAD_LETTER = 24  # expired, in a queue whose policy dead-letters expired messages
    # Settled, Arrived refused
    ACCEPTED = 30
    REFUSED_NO_QUEUE = 31
    REFUSED_FULL = 32
    REFUSED_TYPE = 33
    REFUSED_MOVED = 34  # the queue has grown, and the message now belongs to another shard
    REFUSED_PAUSED = 35  # sends to the queue are paused


class State(IntEnum):
    """Delivery state of one message. FREE is an unused slot."""

    FREE = 0
    DELAYED = 1
    VISIBLE = 2
    IN_FLIGHT = 3
    OWED = 4
    DEAD = 5  # exhausted its receives and has no dead-letter queue: stored, not delivered
    DELETED = 6  # never stored; the end state of the lifecycle table


def word0(type_: int, flags: int, priority: int, reason: int, queue: int) -> int:
    return type_ | flags << 8 | priority << 16 | reason << 24 | queue << 32


# --- variable parts ------------------------------------------------------------------------------------

FOREVER_MS = (1 << 64) - 1
CARRIED_PREFIX = struct.Struct("<BBHIIQQ")  # state, doomed, own maximum, first received, leased, group, sent
EDITED_PREFIX = struct.Struct("<Q")  # key of the job; CARRIED_PREFIX follows
ARRIVED_PREFIX = struct.Struct("<QQ")  # group, origin
ARRIVED_NOTED = struct.Struct("<QQQH")  # with ArrivedFlag.NOTED: group, origin, key of the job, own maximum of receives
_LOW32 = 0xFFFFFFFF


def arrived_prefix(flags: int) -> int:
    """The length of the prefix before the payload of an Arrived record."""
    return ARRIVED_NOTED.size if flags & ArrivedFlag.NOTED else ARRIVED_PREFIX.size


def decode_notes(variable: bytes) -> tuple[str, str]:
    """Two texts in one variable part: holder and attempt of a lease, or class and text of a failure."""
    length = variable[0] | variable[1] << 8
    return variable[2 : 2 + length].decode(), variable[2 + length :].decode()


def encode_notes(first: str, second: str) -> bytes:
    raw = first.encode()
    return len(raw).to_bytes(2, "little") + raw + second.encode()


def part_of(variable: bytes, w6: int) -> bytes:
    """The variable part that a record's w6 names."""
    offset = w6 & _LOW32
    return variable[offset : offset + (w6 >> 32)]


def skip(w6: int, prefix: int) -> int:
    """The extent without its first `prefix` bytes."""
    return (w6 & _LOW32) + prefix | ((w6 >> 32) - prefix) << 32
