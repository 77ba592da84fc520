"""The attributes of topics and subscriptions, with the names that SNS gives them, and their allowed values."""

from __future__ import annotations

FIFO_TOPIC = "FifoTopic"
CONTENT_DEDUPLICATION = "ContentBasedDeduplication"
THROUGHPUT_SCOPE = "FifoThroughputScope"
PER_GROUP_SCOPE = "MessageGroup"
TOPIC_POLICY = "Policy"
RETENTION = "Baton.RetentionSeconds"  # how long a copy waits for a queue that is full or paused
RETENTION_DEFAULT_S = 345_600
RETENTION_MIN_S = 60

RAW_DELIVERY = "RawMessageDelivery"
FILTER_POLICY = "FilterPolicy"
FILTER_SCOPE = "FilterPolicyScope"
REDRIVE_POLICY = "RedrivePolicy"
SCOPES = ATTRIBUTES_SCOPE, BODY_SCOPE = "MessageAttributes", "MessageBody"

TRUTH = ("true", "false")
TEXT_BYTES_MAX = 30_720
TOPIC_TEXTS = frozenset(("DisplayName", TOPIC_POLICY, "DeliveryPolicy", "KmsMasterKeyId"))
TOPIC_CHOICES: dict[str, tuple[str, ...]] = {
    CONTENT_DEDUPLICATION: TRUTH,
    THROUGHPUT_SCOPE: ("Topic", PER_GROUP_SCOPE),
    "SignatureVersion": ("1", "2"),
    "TracingConfig": ("PassThrough", "Active"),
}
FIFO_ONLY = (CONTENT_DEDUPLICATION, THROUGHPUT_SCOPE)
SUBSCRIPTION_TEXTS = frozenset((FILTER_POLICY, REDRIVE_POLICY, "DeliveryPolicy", "SubscriptionRoleArn"))
SUBSCRIPTION_CHOICES: dict[str, tuple[str, ...]] = {RAW_DELIVERY: TRUTH, FILTER_SCOPE: SCOPES}
SUBJECT_LENGTH_MAX = 100


def is_subject(text: str) -> bool:
    """Whether a published message can have this subject."""
    return 0 < len(text) <= SUBJECT_LENGTH_MAX and text.isascii() and text.isprintable()
