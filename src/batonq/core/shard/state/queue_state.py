"""One queue's slice on a shard: its policy, its counters, its messages in arrival order, and its ready order."""

from __future__ import annotations

from batonq.core.commands import Counters
from batonq.core.policy import QueuePolicy
from batonq.core.shard.state.columns import NIL
from batonq.core.shard.state.lines import Lines
from batonq.core.shard.state.ready_order import Ready

# GAUGES and TOTALS follow from records and are replayed; SOFT counters are not.
GAUGES = ("visible", "in_flight", "delayed", "owed", "dead", "bytes")
TOTALS = (
    "sent",
    "received",
    "deleted",
    "returned",
    "expired_leases",
    "expired_messages",
    "dead_lettered",
    "arrived",
    "late_deletes",
)
SOFT = ("stale_deletes", "duplicates")


class QueueState:
    __slots__ = (
        *GAUGES,
        *TOTALS,
        *SOFT,
        "closed",
        "dedup_generation",
        "fifo",
        "forgotten_below",
        "head",
        "number",
        "policy",
        "purge_generation",
        "ready",
        "tail",
    )

    visible: int
    in_flight: int
    delayed: int
    owed: int
    dead: int
    bytes: int
    sent: int
    received: int
    deleted: int
    returned: int
    expired_leases: int
    expired_messages: int
    dead_lettered: int
    arrived: int
    late_deletes: int
    stale_deletes: int
    duplicates: int

    def __init__(self, policy: QueuePolicy, lines: Lines) -> None:
        self.number = policy.queue
        self.policy = policy
        self.fifo = policy.fifo
        self.ready = Ready(lines, policy.queue, policy.fifo)
        self.head = NIL  # messages in arrival order are linked by queue_next and queue_previous
        self.tail = NIL
        self.closed = False
        self.purge_generation = 0  # number of completed purges
        self.forgotten_below = 0  # a purge forgot the deduplication ids of messages below this sequence
        self.dedup_generation = 0  # the last purge whose record names no sequence: it forgot all deduplication ids
        for name in (*GAUGES, *TOTALS, *SOFT):
            setattr(self, name, 0)

    @property
    def messages(self) -> int:
        return self.visible + self.in_flight + self.delayed + self.owed + self.dead

    def full(self, added_bytes: int, others: int = 0, other_bytes: int = 0) -> str:
        """Why the queue's limits refuse one more message, in addition to `others` that are sent with it; empty if the
        queue has room.
        """
        policy = self.policy
        messages, size = self.messages + others, self.bytes + other_bytes
        if policy.messages_max and messages >= policy.messages_max:
            return f"Queue {policy.name} is full: it holds {messages} messages, its limit."
        if policy.bytes_max and size + added_bytes > policy.bytes_max:
            return f"Queue {policy.name} is full: it holds {size} bytes, and its limit is {policy.bytes_max}."
        return ""

    def counters(self, oldest_sent_ms: int) -> Counters:
        return Counters(
            visible=self.visible,
            in_flight=self.in_flight,
            delayed=self.delayed,
            owed=self.owed,
            dead=self.dead,
            bytes=self.bytes,
            oldest_sent_ms=oldest_sent_ms,
            sent=self.sent,
            received=self.received,
            deleted=self.deleted,
            returned=self.returned,
            expired_leases=self.expired_leases,
            expired_messages=self.expired_messages,
            dead_lettered=self.dead_lettered,
            arrived=self.arrived,
            stale_deletes=self.stale_deletes,
            late_deletes=self.late_deletes,
            duplicates=self.duplicates,
        )
