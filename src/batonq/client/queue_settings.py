# Made by tools/make_settings.py from batonq/queue_attributes.py; change that one.
"""A queue's settings by the names that Python programs use, and by those of the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from msgspec import Struct

from batonq.client.models import RetryPolicy


class Deduplication(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """How a queue recognises a message that it has had: for a window, or for as long as the first one lives."""

    # Seconds for which a deduplication key counts. Default: 300.
    window_seconds: float | None = None
    # Whether a deduplication key counts for the `window` only, or also for as long as its message `lives`. Default:
    # window.
    scope: Literal["window", "lives"] | None = None
    # FIFO queues only: the SHA-256 of the body stands in for a missing deduplication key.
    content_based: bool | None = None
    # FIFO queues only: a deduplication key counts within its message group.
    per_group: bool | None = None


class QueueSettings(TypedDict, total=False):
    """What a queue can be told. Times are in seconds; what is left out has the server's default."""

    # Seconds after which a message expires if nobody deletes it. Default: 345,600.
    retention: float
    # Seconds that a lease lasts if the receive does not say. Default: 30.
    visibility: float
    # Seconds that a new message stays invisible if the send does not say. Default: 0.
    delay: float
    # Seconds that a receive waits for a message if the receive does not say. Default: 0.
    receive_wait: float
    # Receives after which a message is dead. Default: 10 with a dead-letter queue, otherwise 0, which means unlimited.
    max_receives: int
    # Name of the queue that dead letters go to. It is created with 14 days of retention if it does not exist. It cannot
    # have a dead-letter queue itself.
    dead_letter_queue: str
    # When a message that used up its receives becomes a dead letter: at the next `receive`, as in SQS, or at the last
    # `failure`. Default: failure.
    dead_letter_on: Literal["receive", "failure"]
    # How long a message waits after a nack that does not say. Unset: not at all.
    retry: RetryPolicy | None
    # Size of the largest message in bytes, its attributes included. Default: 1,048,576.
    max_message_bytes: int
    # Every receipt that is not the current lease's is refused, also from SQS clients. Default: true.
    strict_receipts: bool
    # How the queue recognises duplicates.
    deduplication: Deduplication | None
    # An expired message becomes a dead letter; otherwise it is deleted. Default: false.
    expiry_to_dead_letter: bool
    # Seconds of waiting that raise a message by one step of priority. 0 means no ageing. Default: 300.
    priority_ageing: float
    # Age in seconds that no message should reach; the status page marks a queue with an older one. 0 means none.
    # Default: 0.
    sla: float
    # Severity of the queue's alarms, a word of at most 64 characters.
    alarm_severity: str
    # Maximum number of messages in flight. Default: 120,000.
    max_in_flight: int
    # Maximum number of messages in the queue. 0 means no limit. Default: 0.
    max_messages: int
    # Maximum number of bytes in the queue. 0 means no limit. Default: 0.
    max_bytes: int
    # Number of shards that hold the queue. It can grow, never shrink. Default: 1.
    spread: int
    # Number of replicas of each message: the queue is placed on shards with as many. Unset: as the log's address says.
    durability: Literal[1, 3, 5]
    # The queue gets empty shards, and no other new queue is placed on them. Default: false.
    own_shards: bool
    # Names and values of your own, up to 50.
    tags: Mapping[str, str]


class QueueInfo(Struct, rename="camel"):
    """A queue's settings, as it has them now."""

    queue_id: str
    name: str
    mode: str = "STANDARD"
    fifo: bool = False
    arn: str = ""
    created_at_ms: int = 0
    modified_at_ms: int = 0
    retention_seconds: float | None = None
    default_visibility_timeout_seconds: float | None = None
    delay_seconds: float | None = None
    receive_wait_seconds: float | None = None
    max_receive_count: int | None = None
    dead_letter_queue: str | None = None
    dead_letter_on: str | None = None
    retry: RetryPolicy | None = None
    max_message_bytes: int | None = None
    strict_receipts: bool | None = None
    deduplication: dict[str, Any] | None = None
    expiry_to_dead_letter: bool | None = None
    priority_ageing_seconds: float | None = None
    sla_seconds: float | None = None
    alarm_severity: str | None = None
    max_in_flight: int | None = None
    max_messages: int | None = None
    max_bytes: int | None = None
    spread: int | None = None
    durability: int | None = None
    own_shards: bool | None = None
    tags: dict[str, str] = {}


WIRE_NAMES = {
    "retention": "retentionSeconds",
    "visibility": "defaultVisibilityTimeoutSeconds",
    "delay": "delaySeconds",
    "receive_wait": "receiveWaitSeconds",
    "max_receives": "maxReceiveCount",
    "dead_letter_queue": "deadLetterQueue",
    "dead_letter_on": "deadLetterOn",
    "retry": "retry",
    "max_message_bytes": "maxMessageBytes",
    "strict_receipts": "strictReceipts",
    "deduplication": "deduplication",
    "expiry_to_dead_letter": "expiryToDeadLetter",
    "priority_ageing": "priorityAgeingSeconds",
    "sla": "slaSeconds",
    "alarm_severity": "alarmSeverity",
    "max_in_flight": "maxInFlight",
    "max_messages": "maxMessages",
    "max_bytes": "maxBytes",
    "spread": "spread",
    "durability": "durability",
    "own_shards": "ownShards",
    "tags": "tags",
}
