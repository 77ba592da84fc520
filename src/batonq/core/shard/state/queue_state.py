"""One queue's slice on a shard: its policy, its counters, its messages in arrival order, and its ready order."""

from __future__ import annotations

from batonq.core.commands import Counters, ExactCounters
from batonq.core.policy import PAUSES_SENDS, QueuePolicy
from batonq.core.shard.state.columns import NIL
from batonq.core.shard.state.delivery_gate import DeliveryGate, gate_of
from batonq.core.shard.state.lines import Lines
from batonq.core.shard.state.readers import Reader
from batonq.core.shard.state.ready_order import Ready
from batonq.core.shard.state.retained import Retained
from batonq.errors import BatonError, OverLimit, QueuePaused

# GAUGES and TOTALS follow from records and are replayed; SOFT counters are not. `sent_bytes` is the size of the bodies
# and attributes of sent messages.
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
# Totals that releases before them did not store: a state without them infers them (`infer_moves`).
MOVES = ("moved", "expired_moved")
SOFT = ("stale_deletes", "duplicates", "sent_bytes")


class QueueState:
    __slots__ = (
        *GAUGES,
        *TOTALS,
        *MOVES,
        *SOFT,
        "closed",
        "dedup_generation",
        "fifo",
        "forgotten_below",
        "gate",
        "head",
        "number",
        "policy",
        "purge_generation",
        "readers",
        "ready",
        "sends_paused",
        "retained",
        "tail",
    )

    gate: DeliveryGate | None  # what restricts deliveries; None: nothing
    sends_paused: bool

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
    moved: int  # messages that left for another queue, or for a fresh start in this one
    expired_moved: int  # how many of `expired_messages` were dead-lettered, so that `moved` has them too
    stale_deletes: int
    duplicates: int
    sent_bytes: int

    def __init__(self, policy: QueuePolicy, lines: Lines) -> None:
        self.number = policy.queue
        self.gate = None
        self.set_policy(policy)
        self.fifo = policy.fifo
        self.ready = Ready(lines, policy.queue, policy.fifo)
        self.head = NIL  # messages in arrival order are linked by queue_next and queue_previous
        self.tail = NIL
        self.retained: Retained | None = None  # None: nothing is retained
        self.readers: dict[str, Reader] | None = None  # reader groups by name
        self.closed = False
        self.purge_generation = 0  # number of completed purges
        self.forgotten_below = 0  # a purge forgot the deduplication ids of messages below this sequence
        self.dedup_generation = 0  # the last purge whose record names no sequence: it forgot all deduplication ids
        for name in (*GAUGES, *TOTALS, *MOVES, *SOFT):
            setattr(self, name, 0)

    def set_policy(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.gate = gate_of(policy, self.gate)
        self.sends_paused = policy.paused in PAUSES_SENDS

    @property
    def messages(self) -> int:
        return self.visible + self.in_flight + self.delayed + self.owed + self.dead

    def infer_moves(self) -> None:
        """Set the totals of a state that was stored without them, from the other counters.

        How many messages left is exact. Of those, the state does not tell redriven ones from ones that expired and
        were dead-lettered, if the queue had both.
        """
        left = self.sent + self.arrived - self.deleted - self.expired_messages - self.messages
        self.moved = max(left, self.dead_lettered)
        self.expired_moved = self.moved - left

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

    def refusal(self, added_bytes: int, others: int = 0, other_bytes: int = 0) -> BatonError | None:
        """Why the queue refuses one more message, in addition to `others` that are sent with it; None if it takes
        the message.
        """
        if self.sends_paused:
            return QueuePaused(f"Sends to queue {self.policy.name} are paused. Retry when they are resumed.")
        full = self.full(added_bytes, others, other_bytes)
        return OverLimit(full) if full else None

    def counters(self, oldest_sent_ms: int, oldest_visible_ms: int) -> Counters:
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
            oldest_visible_ms=oldest_visible_ms,
        )

    def exact(self, position: int, counters: Counters) -> ExactCounters:
        return ExactCounters(position, counters, self.moved, self.expired_moved)
