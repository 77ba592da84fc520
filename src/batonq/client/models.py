"""What goes in and comes out of the client, apart from what can be done with it: plain values with the wire's names.

They are msgspec structs, so that an answer is decoded straight into them, without a dictionary on the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """A message that the queue has taken: it is on the disk."""

    id: str  # empty for a duplicate whose first one is not known any more
    sequence: int
    duplicate: bool = False  # it was there already, by its key or because this was a retry


class Outgoing(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A message to send. Times are in seconds; what is None is the queue's default."""

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


class Nack(Struct, omit_defaults=True):
    """A message to give back: when it may be tried again and what went wrong. No delay: the queue's retry policy.

    `untried` says that nobody has begun with it: that is no failure, and its receive does not count.
    """

    receipt: str = field(name="receiptHandle")
    delay: float | None = field(default=None, name="delaySeconds")
    reason: str = ""
    error_class: str = field(default="", name="errorClass")
    dead_letter: bool = field(default=False, name="deadLetter")
    untried: bool = False

    def __post_init__(self) -> None:
        self.reason = self.reason[:REASON_LENGTH_MAX]  # a traceback is longer, and its beginning is better than nothing
        self.error_class = self.error_class[:ERROR_CLASS_LENGTH_MAX]


class DeadLetter(Struct, frozen=True, rename="camel"):
    """Where a dead letter came from, and why it died."""

    queue: str = ""
    message_id: str = ""
    reason: str = ""
    error_class: str = ""
    first_failure_ms: int = 0
    last_failure_ms: int = 0
    attempts: int = 0


class Failure(Struct, frozen=True, rename="camel"):
    """How the last attempt at a message failed that is being tried again."""

    reason: str = ""
    error_class: str = ""
    first_failure_ms: int = 0
    last_failure_ms: int = 0


class MessageFields(Struct, eq=False, kw_only=True):
    """What a received message holds; see `Message` for what can be done with it."""

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
        """When it was sent: seconds since 1970."""
        return self.sent_at_ms / 1000

    @property
    def first_received_at(self) -> float:
        """When it was first received: seconds since 1970."""
        return self.first_received_at_ms / 1000

    @property
    def deadline(self) -> float:
        """When the lease ends, by the server's clock: seconds since 1970. `extend` moves it."""
        return self.deadline_ms / 1000

    @property
    def trace(self) -> TraceContext | None:
        """The W3C trace context that the sender's message carries."""
        if not self.traceparent:
            return None
        return TraceContext(self.traceparent, self.tracestate or "")


class Peeked(Struct, rename="camel"):
    """A message as it stands in its queue, seen without receiving it."""

    message_id: str
    sequence: int = 0
    state: str = ""  # DELAYED, VISIBLE, IN_FLIGHT, OWED or DEAD
    until_ms: int = 0  # the end of its delay, or of its lease
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
    problem: str = ""  # why it cannot be shown whole
    current_id: str = ""  # where it lies now: what `RedriveFilter.message_ids` takes

    @property
    def id(self) -> str:
        return self.message_id


class Stats(Struct, frozen=True, rename="camel"):
    """A queue's counts: what stands in it now, and what has happened to it since it was made."""

    visible: int = 0
    in_flight: int = 0
    delayed: int = 0
    owed: int = 0
    dead: int = 0
    bytes: int = 0
    oldest_age_seconds: float = 0.0
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
    late_acks: int = 0  # after the lease had ended, and before anybody else had the message
    waiting_receives: int = 0
    at_ms: int = 0  # when this was read

    @property
    def depth(self) -> int:
        """Messages that are still to be done: waiting, delayed and in somebody's hands."""
        return self.visible + self.in_flight + self.delayed


class Exponential(Struct, frozen=True, tag_field="kind", tag="exponential", rename="camel"):
    """Retry policy: `base_seconds`, then `factor` times as long each time, up to `max_seconds`."""

    base_seconds: float = 1.0
    factor: float = 2.0
    max_seconds: float = 3600.0
    jitter: float = 0.1  # share of the delay that is left to chance


class Schedule(Struct, frozen=True, tag_field="kind", tag="schedule", rename="camel"):
    """Retry policy: these delays one after another, and the last one from then on."""

    delays_seconds: Sequence[float]
    jitter: float = 0.1


RetryPolicy = Exponential | Schedule


class RedriveFilter(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which dead letters to redrive: those of which all of this is true."""

    attributes: Mapping[str, AttributeValue] | None = None
    error_class: str | None = field(default=None, name="errorClass")
    reason_contains: str | None = field(default=None, name="reasonContains")
    min_age: float | None = field(default=None, name="minAgeSeconds")
    max_age: float | None = field(default=None, name="maxAgeSeconds")
    body_contains: str | None = field(default=None, name="bodyContains")
    message_ids: Sequence[str] | None = field(default=None, name="messageIds")


class RedriveEdit(Struct, frozen=True, kw_only=True):
    """How to change dead letters on the way: attributes, and the whole body or texts in it."""

    set_attributes: Mapping[str, AttributeValue] | None = None
    remove_attributes: Sequence[str] | None = None
    replace_body: Any = UNSET
    replace_text: Mapping[str, str] | None = None  # each text, and what takes its place


class JobFields(Struct, kw_only=True, rename="camel"):
    """What a job says about itself; see `Job` for what can be done with it."""

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
        """It has ended, one way or another."""
        return self.state in ("COMPLETED", "CANCELLED", "FAILED")
