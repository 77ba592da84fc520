"""The values that go into and come out of the client, with the field names of the wire.

They are msgspec structs, so a response is decoded directly into them without an intermediate dictionary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from msgspec import UNSET, Struct, field

from batonq.client.tracing import TraceContext
from batonq.priorities import NORMAL_PRIORITY

AttributeValue = str | int | float | bytes
Priority = int | Literal["lowest", "low", "normal", "high", "highest"]
MessageState = Literal["VISIBLE", "DELAYED", "IN_FLIGHT", "OWED"]


REASON_LENGTH_MAX = 500
ERROR_CLASS_LENGTH_MAX = 100


class Sent(Struct, frozen=True):
    """A message that the queue has stored durably."""

    id: str  # empty for a duplicate whose first message is no longer known
    sequence: int
    duplicate: bool = False  # it was stored before: same key, or a retry of the same request


class Outgoing(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A message to send. Times are in seconds; None means the queue's default."""

    body: Any
    dedup_key: str | None = field(default=None, name="deduplicationKey")
    group: str | None = field(default=None, name="messageGroupId")
    delay: float | None = field(default=None, name="delaySeconds")
    ttl: float | None = field(default=None, name="ttlSeconds")
    priority: Priority | None = None
    attributes: Mapping[str, AttributeValue] | None = None
    max_receives: int | None = field(default=None, name="maxReceiveCount")
    traceparent: str | None = None
    tracestate: str | None = None
    deliver_at: datetime | None = field(default=None, name="deliverAt")
    subject: str | None = None  # only for topics: shown by the envelope of subscriptions without raw delivery


class Nack(Struct, omit_defaults=True):
    """A message to nack: when it becomes visible again, and what went wrong. Without a delay, the queue's retry policy
    applies.

    With `untried` the work was not started: this is not a failure, and the receive does not count.
    """

    receipt: str = field(name="receiptHandle")
    delay: float | None = field(default=None, name="delaySeconds")
    reason: str = ""
    error_class: str = field(default="", name="errorClass")
    dead_letter: bool = field(default=False, name="deadLetter")
    untried: bool = False

    def __post_init__(self) -> None:
        self.reason = self.reason[:REASON_LENGTH_MAX]  # a traceback is longer; its beginning is better than nothing
        self.error_class = self.error_class[:ERROR_CLASS_LENGTH_MAX]


class DeadLetter(Struct, frozen=True, rename="camel"):
    """The source of a dead letter, and why it was dead-lettered."""

    queue: str = ""
    message_id: str = ""
    reason: str = ""
    error_class: str = ""
    first_failure_ms: int = 0
    last_failure_ms: int = 0
    attempts: int = 0


class Failure(Struct, frozen=True, rename="camel"):
    """How the last attempt at a message failed that is being retried."""

    reason: str = ""
    error_class: str = ""
    first_failure_ms: int = 0
    last_failure_ms: int = 0


class MessageFields(Struct, eq=False, kw_only=True):
    """The content of a received message; see `Message` for its methods."""

    id: str = field(name="messageId")
    receipt: str = field(name="receiptHandle")
    body: Any = None
    receive_count: int = field(default=1, name="receiveCount")
    sequence: int = 0
    queue: str = ""
    attributes: dict[str, Any] = {}
    group: str | None = field(default=None, name="messageGroupId")
    dedup_key: str | None = field(default=None, name="deduplicationKey")
    priority: int = NORMAL_PRIORITY
    sent_at_ms: int = field(default=0, name="sentAtMs")
    first_received_at_ms: int = field(default=0, name="firstReceivedAtMs")
    deadline_ms: int = field(default=0, name="deadlineMs")
    traceparent: str | None = None
    tracestate: str | None = None
    dead_letter: DeadLetter | None = field(default=None, name="deadLetter")
    last_failure: Failure | None = field(default=None, name="lastFailure")

    @property
    def sent_at(self) -> float:
        """When the message was sent, in seconds since 1970."""
        return self.sent_at_ms / 1000

    @property
    def first_received_at(self) -> float:
        """When the message was first received, in seconds since 1970."""
        return self.first_received_at_ms / 1000

    @property
    def deadline(self) -> float:
        """When the lease ends by the server's clock, in seconds since 1970. `extend` changes it."""
        return self.deadline_ms / 1000

    @property
    def trace(self) -> TraceContext | None:
        """The W3C trace context of the message."""
        if not self.traceparent:
            return None
        return TraceContext(self.traceparent, self.tracestate or "")


class Peeked(Struct, rename="camel"):
    """A message in its current state, seen without receiving it."""

    message_id: str
    sequence: int = 0
    state: str = ""  # DELAYED, VISIBLE, IN_FLIGHT, OWED or DEAD
    until_ms: int = 0  # end of the delay or of the lease
    holder: str = ""
    receive_count: int = 0
    body: Any = None
    body_bytes: int = 0
    attributes: dict[str, Any] = {}
    group: str | None = field(default=None, name="messageGroupId")
    dedup_key: str | None = field(default=None, name="deduplicationKey")
    priority: int = NORMAL_PRIORITY
    sent_at_ms: int = 0
    first_received_at_ms: int = 0
    expires_at_ms: int = 0
    dead_letter: DeadLetter | None = None
    last_failure: Failure | None = None
    problem: str = ""  # why the body cannot be shown
    replay_of: str = ""  # id of the message that a replay sent again as this one
    why: str = ""  # one sentence: why it is not being delivered now, or that it waits for a receive
    current_id: str = ""  # the current id: what `RedriveFilter.message_ids` needs

    @property
    def id(self) -> str:
        return self.message_id


class Stats(Struct, frozen=True, rename="camel"):
    """Statistics of a queue: its current content, and counts since it was created."""

    visible: int = 0
    in_flight: int = 0
    delayed: int = 0
    owed: int = 0
    dead: int = 0
    bytes: int = 0
    oldest_age_seconds: float = 0.0
    oldest_visible_age_seconds: float = 0.0  # of messages that can be received: not delayed, not in flight
    sent: int = 0
    received: int = 0
    deleted: int = 0
    returned: int = 0
    expired_leases: int = 0
    expired: int = 0
    dead_lettered: int = 0
    arrived: int = 0
    duplicates: int = 0
    stale_acks: int = 0  # with a receipt of an earlier lease
    late_acks: int = 0  # after the lease had ended, before another consumer had the message
    waiting_receives: int = 0
    at_ms: int = 0  # time of the measurement
    paused: str = "none"  # delivery, sends or both

    @property
    def depth(self) -> int:
        """Number of messages that are still to be processed: visible, delayed and in flight."""
        return self.visible + self.in_flight + self.delayed


class Finding(Struct, frozen=True, rename="camel"):
    """One reason why messages of a queue wait."""

    cause: str  # a stable name, such as consumers-gone
    kind: str  # cause, or note for what is only worth knowing
    text: str
    action: str  # what to do about it
    figures: dict[str, float | str] = {}


class BusyGroup(Struct, frozen=True, rename="camel"):
    """One of the message groups of a queue that had the most messages lately."""

    message_group_id: str
    share: float = 0.0  # of the messages that the queue got, an estimate
    waiting: int = 0


class Flow(Struct, frozen=True, rename="camel"):
    """Messages per second, and the median time that consumers take for one."""

    sent_per_second: float = 0.0
    received_per_second: float = 0.0
    acked_per_second: float = 0.0
    retried_per_second: float = 0.0
    handling_p50_ms: float | None = None


class Explanation(Struct, frozen=True, rename="camel"):
    """Why the messages of a queue wait: the most important finding first."""

    queue: str
    at_ms: int
    text: str
    findings: list[Finding]
    paused: str = "none"
    visible: int = 0
    in_flight: int = 0
    delayed: int = 0
    oldest_age_seconds: float = 0.0
    oldest_visible_age_seconds: float = 0.0
    waiting_receives: int = 0
    consumers: int = 0
    now: Flow = Flow()
    before: Flow | None = None
    groups: list[BusyGroup] = []


class Counters(Struct, frozen=True, rename="camel"):
    """Exact counts since a queue was created, and the messages that it has now.

    sent + arrived = deleted + expired + moved + present, always.
    """

    sent: int = 0
    arrived: int = 0  # from other queues
    deleted: int = 0  # acked, purged, or deleted by an operator
    expired: int = 0  # and deleted; messages that expired and were dead-lettered are in `moved`
    moved: int = 0  # to other queues, or to a fresh start in this one; includes dead letters
    present: int = 0  # in the queue now, in whatever state
    unaccounted: int = 0  # the difference between the two sides: 0
    dead_lettered: int = 0
    delivered: int = 0  # every lease counts
    returned: int = 0
    expired_leases: int = 0
    visible: int = 0
    in_flight: int = 0
    delayed: int = 0
    owed: int = 0
    dead: int = 0
    bytes: int = 0


class ShardCounters(Struct, frozen=True, rename="camel"):
    """The counters of a queue on one shard: what exactly the records before the log position `position` did."""

    shard: int
    position: str
    counters: Counters


class QueueCounters(Struct, frozen=True, rename="camel"):
    """The counters of a queue at the log positions of its shards."""

    queue: str
    at_ms: int
    positions: list[str]
    counters: Counters  # the sums over all shards
    shards: list[ShardCounters]


class Exponential(Struct, frozen=True, tag_field="kind", tag="exponential", rename="camel"):
    """Retry policy: first `base_seconds`, then `factor` times as long each time, up to `max_seconds`."""

    base_seconds: float = 1.0
    factor: float = 2.0
    max_seconds: float = 3600.0
    jitter: float = 0.1  # share of the delay that varies at random


class Schedule(Struct, frozen=True, tag_field="kind", tag="schedule", rename="camel"):
    """Retry policy: these delays in order; the last one repeats."""

    delays_seconds: Sequence[float]
    jitter: float = 0.1


class NoRetryDelay(Struct, frozen=True, tag_field="kind", tag="none", rename="camel"):
    """Retry policy: no delay. A nacked message becomes visible at once."""


RetryPolicy = Exponential | Schedule | NoRetryDelay


class RedriveFilter(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which dead letters to redrive: all conditions must be met."""

    attributes: Mapping[str, AttributeValue] | None = None
    error_class: str | None = field(default=None, name="errorClass")
    reason_contains: str | None = field(default=None, name="reasonContains")
    min_age: float | None = field(default=None, name="minAgeSeconds")
    max_age: float | None = field(default=None, name="maxAgeSeconds")
    body_contains: str | None = field(default=None, name="bodyContains")
    message_ids: Sequence[str] | None = field(default=None, name="messageIds")


class RedriveEdit(Struct, frozen=True, kw_only=True):
    """How to change dead letters before they are moved: attributes, and the whole body or texts in it."""

    set_attributes: Mapping[str, AttributeValue] | None = None
    remove_attributes: Sequence[str] | None = None
    replace_body: Any = UNSET
    replace_text: Mapping[str, str] | None = None  # each text and its replacement


class JobFields(Struct, kw_only=True, rename="camel"):
    """The progress of a job; see `Job` for its methods."""

    job_id: str
    kind: str = "redrive"
    source_queue: str = ""
    target_queue: str | None = None
    state: str = ""
    why: str = ""
    max_messages_per_second: float = 0
    current_rate: float = 0
    started_at_ms: int = 0
    ended_at_ms: int | None = None
    examined: int = 0
    matched: int = 0
    moved: int = 0
    remaining: int = 0
    died_again: int = 0
    not_found: int = 0
    dry_run: bool = False
    sample: list[Any] = []

    @property
    def id(self) -> str:
        return self.job_id

    @property
    def done(self) -> bool:
        """Whether the job has ended: completed, cancelled or failed."""
        return self.state in ("COMPLETED", "CANCELLED", "FAILED")


# --- reader groups ------------------------------------------------------------------------------


class RetainedFields(Struct, eq=False, kw_only=True):
    """A message of a queue's retained history."""

    position: str
    id: str = field(name="messageId")
    body: Any = None
    sequence: int = 0
    attributes: dict[str, Any] = {}
    group: str | None = field(default=None, name="messageGroupId")
    dedup_key: str | None = field(default=None, name="deduplicationKey")
    priority: int = NORMAL_PRIORITY
    sent_at_ms: int = field(default=0, name="sentAtMs")
    entered_at_ms: int = field(default=0, name="enteredAtMs")
    traceparent: str | None = None
    tracestate: str | None = None

    @property
    def shard(self) -> int:
        """The shard of the queue that the message is on. Positions are ordered on each shard."""
        return int(self.position.partition(":")[0])

    @property
    def sent_at(self) -> float:
        """When the message was sent, in seconds since 1970."""
        return self.sent_at_ms / 1000


class ReaderMember(Struct):
    member: str
    shards: list[int]


class ReaderShard(Struct, rename="camel"):
    """A group's progress on one shard of its queue. Everything up to `committed` is done."""

    shard: int
    committed: str
    lag_messages: int = 0
    lag_seconds: float = 0.0
    last: str = ""
    member: str = ""
    failed_position: str = ""
    failures: int = 0
    error: str = ""


class ReaderInfo(Struct, rename="camel"):
    """A reader group: its settings, members, and how far it is behind."""

    name: str
    queue: str
    created_at_ms: int = 0
    epoch: int = 0
    max_failures: int = 3
    session_seconds: float = 30.0
    lag_messages: int = 0
    lag_seconds: float = 0.0
    members: list[ReaderMember] = []
    shards: list[ReaderShard] = []
    dead_letter_queue: str = ""


class FailedPosition(Struct, rename="camel"):
    """The result of `Reader.fail`."""

    failures: int
    skipped: bool = False
    why: str = ""  # why it was not skipped although it has failed often enough
