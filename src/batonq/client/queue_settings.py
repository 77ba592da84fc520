# Made by tools/make_settings.py from batonq/queue_attributes.py; change that one.
"""A queue's settings, with Python names and wire names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from msgspec import Struct

from batonq.client.models import RetryPolicy


class Deduplication(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """How a queue recognizes duplicates: within a window, or for as long as the first message exists."""

    # Seconds for which a deduplication key is remembered, unless the scope is `lives`. Default: 300.
    window_seconds: float | None = None
    # Whether a deduplication key is remembered for the `window`, or for exactly as long as its message `lives`: until
    # the message is deleted, expires or is dead-lettered. Default: window.
    scope: Literal["window", "lives"] | None = None
    # FIFO queues only: if a message has no deduplication key, the SHA-256 of its body is used.
    content_based: bool | None = None
    # FIFO queues only: deduplication keys are compared within a message group.
    per_group: bool | None = None


class QueueSettings(TypedDict, total=False):
    """Settings of a queue. Times are in seconds; omitted settings have the server's default."""

    # Seconds after which a message expires if it is not deleted. A queue that did not set it gets 14 days when it
    # becomes a dead-letter queue. Default: 345,600.
    retention: float
    # Default visibility timeout of a receive, in seconds. Default: 30.
    visibility: float
    # Default delay before a new message becomes visible, in seconds. Default: 0.
    delay: float
    # Default wait time of a receive, in seconds. Default: 0.
    receive_wait: float
    # Maximum number of receives per message. Default: 10 with a dead-letter queue, otherwise 0, which means unlimited.
    max_receives: int
    # Name of the dead-letter queue. If it does not exist, it is created with a retention of 14 days. It cannot have a
    # dead-letter queue itself.
    dead_letter_queue: str
    # When a message that has used up its receives is dead-lettered: at the next `receive`, as in SQS, or at the last
    # `failure`. Default: failure.
    dead_letter_on: Literal["receive", "failure"]
    # Seconds for which the history of the queue is retained for reader groups and replays, whether its messages are
    # deleted or not. 0: not at all. Default: 0.
    retain: float
    # Default delay before a message becomes visible again after a nack. Default: exponential from 1 second to 5
    # minutes, with a jitter of 0.2. Kind none: no delay.
    retry: RetryPolicy | None
    # The retry policy's delay also applies when a lease expires, not only after a nack. Default: false.
    retry_expired_leases: bool
    # Maximum size of a message in bytes, including its attributes. Default: 1,048,576.
    max_message_bytes: int
    # Receipts of expired leases are refused, also from SQS clients. Default: true.
    strict_receipts: bool
    # How the queue recognizes duplicates.
    deduplication: Deduplication | None
    # Expired messages are dead-lettered instead of deleted. Default: false.
    expiry_to_dead_letter: bool
    # Seconds of waiting that raise a message by one priority level. 0 disables ageing. Default: 300.
    priority_ageing: float
    # Maximum acceptable age of a message in seconds; a queue with an older one is reported as late. 0 means none.
    # Default: 0.
    sla: float
    # Severity of the queue's alarms: info, warning or critical; or a word of the user's own, of at most 64 characters,
    # which the queue's alarms have as their label.
    alarm_severity: str
    # Number of waiting messages above which the queue has an alarm. 0 means the server's --alarm-depth. Default: 0.
    alarm_depth: int
    # Maximum number of messages in flight. Default: 120,000.
    max_in_flight: int
    # Maximum number of messages in the queue. 0 means no limit. Default: 0.
    max_messages: int
    # Maximum number of bytes in the queue. 0 means no limit. Default: 0.
    max_bytes: int
    # What is paused: `delivery` (receives get nothing, and long polls wait), `sends` (new messages are refused, also
    # those that are moved here), `both` or `none`. Default: none.
    paused: Literal["none", "delivery", "sends", "both"]
    # Maximum number of messages delivered per second, evenly spaced. 0 means no limit. Default: 0.
    deliveries_per_second: int
    # If set, only messages of this message group are delivered; all others wait.
    only_group: str
    # Only messages of this priority or a higher one are delivered; all others wait. 0 means all. Default: 0.
    minimum_priority: int
    # Number of shards of the queue. It can be increased but not decreased. Default: 1.
    spread: int
    # Number of replicas of each message. Unset: as in the log's URL.
    durability: Literal[1, 3, 5]
    # Dedicated shards: the queue is placed on empty shards that accept no other new queue. Default: false.
    own_shards: bool
    # Names and values of your own, up to 50.
    tags: Mapping[str, str]


class QueueInfo(Struct, rename="camel"):
    """A queue's current settings."""

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
    retain_seconds: float | None = None
    retry: RetryPolicy | None = None
    retry_expired_leases: bool | None = None
    max_message_bytes: int | None = None
    strict_receipts: bool | None = None
    deduplication: dict[str, Any] | None = None
    expiry_to_dead_letter: bool | None = None
    priority_ageing_seconds: float | None = None
    sla_seconds: float | None = None
    alarm_severity: str | None = None
    alarm_depth: int | None = None
    max_in_flight: int | None = None
    max_messages: int | None = None
    max_bytes: int | None = None
    paused: str | None = None
    deliveries_per_second: int | None = None
    only_group: str | None = None
    minimum_priority: int | None = None
    spread: int | None = None
    durability: int | None = None
    own_shards: bool | None = None
    tags: dict[str, str] = {}
    subscriptions: int = 0  # number of topics that the queue is subscribed to; only in `Queue.info`
    subscribed_topics: list[str] = []  # names of the first 100 of them
    warnings: list[str] = []  # settings that lose good messages or hide dead letters, one sentence each


WIRE_NAMES = {
    "retention": "retentionSeconds",
    "visibility": "defaultVisibilityTimeoutSeconds",
    "delay": "delaySeconds",
    "receive_wait": "receiveWaitSeconds",
    "max_receives": "maxReceiveCount",
    "dead_letter_queue": "deadLetterQueue",
    "dead_letter_on": "deadLetterOn",
    "retain": "retainSeconds",
    "retry": "retry",
    "retry_expired_leases": "retryExpiredLeases",
    "max_message_bytes": "maxMessageBytes",
    "strict_receipts": "strictReceipts",
    "deduplication": "deduplication",
    "expiry_to_dead_letter": "expiryToDeadLetter",
    "priority_ageing": "priorityAgeingSeconds",
    "sla": "slaSeconds",
    "alarm_severity": "alarmSeverity",
    "alarm_depth": "alarmDepth",
    "max_in_flight": "maxInFlight",
    "max_messages": "maxMessages",
    "max_bytes": "maxBytes",
    "paused": "paused",
    "deliveries_per_second": "deliveriesPerSecond",
    "only_group": "onlyGroup",
    "minimum_priority": "minimumPriority",
    "spread": "spread",
    "durability": "durability",
    "own_shards": "ownShards",
    "tags": "tags",
}
