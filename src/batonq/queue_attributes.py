"""Every queue attribute, declared once: its names, type, range, default, description, and its field in a shard's
policy.

SQS and REST, the keywords of the Python client, the catalog's validation, the policy of a shard, the OpenAPI document
and the reference pages are all derived from these rows. To add an attribute, add a row here and, if a shard needs the
value, a field to `QueuePolicy`; then run `make sync docs`, which writes the client's types and the pages. The code that
reads the policy implements the attribute.

A queue's attributes are stored as text under their SQS names, and only those that were set.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import partial

PREFIX = "Baton."

# The stored names of the attributes that code refers to one by one.
FIFO = "FifoQueue"
RECEIVE_WAIT = "ReceiveMessageWaitTimeSeconds"
MESSAGE_BYTES = "MaximumMessageSize"
RETENTION = "MessageRetentionPeriod"
MAX_RECEIVES = "Baton.MaxReceives"
CONTENT_DEDUPLICATION = "ContentBasedDeduplication"
DEDUPLICATION_SCOPE = "DeduplicationScope"
PER_GROUP = "messageGroup"  # a value of DEDUPLICATION_SCOPE
DEAD_LETTER_POLICY = "RedrivePolicy"  # which dead-letter queue the queue uses
DEAD_LETTER_SOURCES = "RedriveAllowPolicy"  # which queues may use the queue as their dead-letter queue
ACCESS_POLICY = "Policy"
RETRY_POLICY = "Baton.RetryPolicy"
RETAIN = "Baton.RetainSeconds"
SPREAD = "Baton.Spread"
REPLICAS = "Baton.Durability"
OWN_SHARDS = "Baton.OwnShards"
ALARM_DEPTH = "Baton.AlarmDepth"
OLDEST_AGE = "Baton.AgeOfOldestMessage"
WARNINGS = "Baton.Warnings"
OLDEST_VISIBLE_AGE = "Baton.AgeOfOldestVisibleMessage"
PAUSED = "Baton.Paused"
DELIVERIES_PER_SECOND = "Baton.DeliveriesPerSecond"
ONLY_GROUP = "Baton.OnlyGroup"
MINIMUM_PRIORITY = "Baton.MinimumPriority"
RESTRICTIONS = (PAUSED, DELIVERIES_PER_SECOND, ONLY_GROUP, MINIMUM_PRIORITY)
NOT_PAUSED = "none"  # a value of PAUSED

DURABILITY = (1, 3, 5)
MESSAGE_BYTES_DEFAULT = 1_048_576
SPREAD_MAX = 32  # shards of one queue: an empty receive may have to ask each of them
RETENTION_MAX_S = 1_209_600
DELAY_MAX_S = 366 * 86_400  # of one message
# Of queues that REST and the client create: 1 s, 2 s, 4 s … 5 minutes, each up to 20 % shorter or longer.
RETRY_DEFAULT = '{"kind":"exponential","baseSeconds":1,"factor":2,"maxSeconds":300,"jitter":0.2}'
RETAIN_MAX_S = 31_622_400  # 366 days
LABEL_LENGTH_MAX = 64
GROUP_LENGTH_MAX = 128
MAX_RECEIVES_MAX = 1000
KMS_REUSE_DEFAULT = "300"


class ValueKind(Enum):
    INTEGER = "integer"
    BOOLEAN = "true or false"
    CHOICE = "one of the listed values"
    LABEL = "a word of letters, digits, hyphens and underscores"
    TEXT = "text"
    JSON = "JSON"


class Access(Enum):
    SETTABLE = "settable"
    AT_CREATION = "at creation only"
    READ_ONLY = "read only"


@dataclass(frozen=True, kw_only=True)
class QueueAttribute:
    """One queue attribute. `default` is None where nothing is returned until the attribute is set."""

    name: str  # of SQS; Baton's own have the prefix
    doc: str
    kind: ValueKind
    default: str | None = None
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()
    seconds: bool = False  # an integer that is a duration: a number of seconds in REST and in the client
    access: Access = Access.SETTABLE
    fifo_only: bool = False

    # REST and the Python client
    field: str = ""  # REST's name in snake case, after a dot inside an object; camelCase on the wire. "": SQS only
    setting: str = ""  # the client's keyword, if it is not `field`
    rest_doc: str = ""  # if REST and the client have another form of the attribute
    rest_default: str = ""  # for queues created through REST, if it is not SQS's
    rest_boolean: bool = False  # REST has a boolean instead of words: whether the value is `word`
    composite: bool = False  # api/rest/queues.py reads and writes it together with another attribute

    # a shard
    policy: str = ""  # field of QueuePolicy; in milliseconds if its name says so
    word: str = ""  # the policy has a boolean: whether the value is this word
    unset: str = ""  # the value that is empty in the policy
    divided: bool = False  # a limit of the whole queue, divided among its shards
    counter: str = ""  # the counter of a read-only attribute

    @property
    def own(self) -> bool:
        """Whether it is Baton's own attribute, not SQS's."""
        return self.name.startswith(PREFIX)

    @property
    def removable(self) -> bool:
        """An empty value resets it to its default. SQS refuses that for its numbers and words."""
        text = self.kind in (ValueKind.TEXT, ValueKind.JSON)
        return self.own or text or self.name == "KmsDataKeyReusePeriodSeconds"

    @property
    def allowed(self) -> str:
        """The accepted values as text."""
        if self.kind is ValueKind.INTEGER:
            return f"{self.low} to {self.high}"
        if self.kind is ValueKind.TEXT and self.high:
            return f"text of at most {self.high} characters"
        return ", ".join(self.choices) or self.kind.value

    @property
    def numeric(self) -> bool:
        """Whether its value is an integer, from a range or one of a list."""
        return self.kind is ValueKind.INTEGER or (bool(self.choices) and all(map(str.isdigit, self.choices)))

    @property
    def parent(self) -> str:
        """The REST object that contains this field; empty for a field of the queue itself."""
        return self.field.rpartition(".")[0]

    @property
    def member(self) -> str:
        """The name of the REST field in its parent, or in the queue."""
        return self.field.rpartition(".")[2]

    @property
    def keyword(self) -> str:
        """The keyword of the Python client; empty for a field inside an object."""
        return "" if self.parent else self.setting or self.field

    @property
    def meaning(self) -> str:
        """The description in REST and in the client."""
        if self.rest_doc:
            return self.rest_doc
        default = self.rest_default or self.default
        if default is None:
            return self.doc
        return f"{self.doc} Default: {f'{int(default):,}' if self.numeric else default}."


def mention(name: str, word: str = "") -> str:
    """An attribute, or its value `word`, in an error text of the catalog. The catalog does not know which interface
    the user is using, so each interface replaces the mention by its own name: see `in_words_of_sqs` and
    `in_words_of_rest`.
    """
    return f"«{name} {word}»" if word else f"«{name}»"


def in_words_of_sqs(text: str) -> str:
    return _MENTION.sub(lambda found: found[0][1:-1] if found["name"] in ATTRIBUTES else found[0], text)


def in_words_of_rest(text: str) -> str:
    return _MENTION.sub(_in_rest, text)


def _in_rest(found: re.Match[str]) -> str:
    row = ATTRIBUTES.get(found["name"])
    if row is None or not row.field:
        return in_words_of_sqs(found[0])
    name = ".".join(map(camel, row.field.split(".")))
    return name if row.rest_boolean or not found["word"] else f"{name} {found['word']}"


_MENTION = re.compile(r"«(?P<name>[A-Za-z.]+)(?: (?P<word>\w+))?»")


def camel(field: str) -> str:
    """The wire name of a REST field."""
    head, *rest = field.split("_")
    return head + "".join(word.capitalize() for word in rest)


_number = partial(QueueAttribute, kind=ValueKind.INTEGER)
_duration = partial(QueueAttribute, kind=ValueKind.INTEGER, seconds=True)
_flag = partial(QueueAttribute, kind=ValueKind.BOOLEAN, choices=("true", "false"), default="false")
_choice = partial(QueueAttribute, kind=ValueKind.CHOICE)
_LABEL, _TEXT, _JSON = ValueKind.LABEL, ValueKind.TEXT, ValueKind.JSON


def _reading(name: str, doc: str, counter: str = "", kind: ValueKind = ValueKind.INTEGER) -> QueueAttribute:
    return QueueAttribute(name=name, doc=doc, kind=kind, access=Access.READ_ONLY, counter=counter)


_SETTABLE = (
    _duration(
        name=RETENTION,
        doc=(
            "Seconds after which a message expires if it is not deleted. A queue that did not set it gets 14 days when "
            "it becomes a dead-letter queue."
        ),
        low=60,
        high=RETENTION_MAX_S,
        default="345600",
        field="retention_seconds",
        setting="retention",
        policy="retention_ms",
    ),
    _duration(
        name="VisibilityTimeout",
        doc="Default visibility timeout of a receive, in seconds.",
        high=43_200,
        default="30",
        field="default_visibility_timeout_seconds",
        setting="visibility",
        policy="visibility_ms",
    ),
    _duration(
        name="DelaySeconds",
        doc="Default delay before a new message becomes visible, in seconds.",
        high=900,
        default="0",
        field="delay_seconds",
        setting="delay",
        policy="delay_ms",
    ),
    _duration(
        name=RECEIVE_WAIT,
        doc="Default wait time of a receive, in seconds.",
        high=20,
        default="0",
        field="receive_wait_seconds",
        setting="receive_wait",
    ),
    _number(
        name=MAX_RECEIVES,
        doc="Maximum number of receives per message in a queue without RedrivePolicy. 0 means unlimited.",
        high=MAX_RECEIVES_MAX,
        default="0",
        field="max_receive_count",
        setting="max_receives",
        rest_doc=(
            "Maximum number of receives per message. Default: 10 with a dead-letter queue, otherwise 0, which "
            "means unlimited."
        ),
        composite=True,
        policy="max_receives",
    ),
    QueueAttribute(
        name=DEAD_LETTER_POLICY,
        doc=(
            "Dead-letter queue and maximum number of receives: deadLetterTargetArn and maxReceiveCount (1 to "
            f"{MAX_RECEIVES_MAX})."
        ),
        kind=_JSON,
        field="dead_letter_queue",
        rest_doc=(
            "Name of the dead-letter queue. If it does not exist, it is created with a retention of 14 days. It "
            "cannot have a dead-letter queue itself."
        ),
        composite=True,
    ),
    _choice(
        name="Baton.DeadLetterOn",
        doc=(
            "When a message that has used up its receives is dead-lettered: at the next `receive`, as in SQS, or "
            "at the last `failure`."
        ),
        choices=("receive", "failure"),
        default="receive",
        field="dead_letter_on",
        rest_default="failure",
        policy="dead_letter_on_failure",
        word="failure",
    ),
    _duration(
        name=RETAIN,
        doc=(
            "Seconds for which the history of the queue is retained for reader groups and replays, whether its "
            "messages are deleted or not. 0: not at all."
        ),
        high=RETAIN_MAX_S,
        default="0",
        field="retain_seconds",
        setting="retain",
        policy="retain_ms",
    ),
    QueueAttribute(
        name=RETRY_POLICY,
        doc=(
            "Default delay before a message becomes visible again after a nack: kind exponential (baseSeconds, "
            "factor, maxSeconds) or schedule (delaysSeconds), both with jitter, 0 to 1."
        ),
        kind=_JSON,
        field="retry",
        rest_doc=(
            "Default delay before a message becomes visible again after a nack. Default: exponential from 1 second to "
            "5 minutes, with a jitter of 0.2. Kind none: no delay."
        ),
        rest_default=RETRY_DEFAULT,
        policy="retry",
    ),
    _flag(
        name="Baton.RetryExpiredLeases",
        doc="The retry policy's delay also applies when a lease expires, not only after a nack.",
        field="retry_expired_leases",
        policy="retry_expired",
    ),
    _number(
        name=MESSAGE_BYTES,
        doc="Maximum size of a message in bytes, including its attributes.",
        low=1024,
        high=MESSAGE_BYTES_DEFAULT,
        default=str(MESSAGE_BYTES_DEFAULT),
        field="max_message_bytes",
    ),
    _flag(
        name="Baton.StrictReceipts",
        doc="Receipts of expired leases are refused, also from SQS clients.",
        field="strict_receipts",
        rest_default="true",
        policy="strict_receipts",
    ),
    _duration(
        name="Baton.DeduplicationWindow",
        doc="Seconds for which a deduplication key is remembered, unless the scope is `lives`.",
        low=1,
        high=RETENTION_MAX_S,
        default="300",
        field="deduplication.window_seconds",
        policy="dedup_window_ms",
    ),
    _choice(
        name="Baton.DeduplicationScope",
        doc=(
            "Whether a deduplication key is remembered for the `window`, or for exactly as long as its message "
            "`lives`: until the message is deleted, expires or is dead-lettered."
        ),
        choices=("window", "lives"),
        default="window",
        field="deduplication.scope",
        policy="dedup_lives",
        word="lives",
    ),
    _flag(
        name=CONTENT_DEDUPLICATION,
        doc="If a message has no deduplication id, the SHA-256 of its body is used.",
        fifo_only=True,
        field="deduplication.content_based",
        rest_doc="FIFO queues only: if a message has no deduplication key, the SHA-256 of its body is used.",
    ),
    _choice(
        name=DEDUPLICATION_SCOPE,
        doc="Whether deduplication applies to the whole queue or to each message group.",
        choices=("queue", PER_GROUP),
        default="queue",
        fifo_only=True,
        field="deduplication.per_group",
        rest_doc="FIFO queues only: deduplication keys are compared within a message group.",
        rest_boolean=True,
        policy="dedup_per_group",
        word=PER_GROUP,
    ),
    _flag(
        name="Baton.ExpiryToDeadLetter",
        doc="Expired messages are dead-lettered instead of deleted.",
        field="expiry_to_dead_letter",
        policy="expiry_to_dead_letter",
    ),
    _duration(
        name="Baton.PriorityAgeingSeconds",
        doc="Seconds of waiting that raise a message by one priority level. 0 disables ageing.",
        high=86_400,
        default="300",
        field="priority_ageing_seconds",
        setting="priority_ageing",
        policy="ageing_ms",
    ),
    _duration(
        name="Baton.SLASeconds",
        doc=(
            "Maximum acceptable age of a message in seconds; a queue with an older one is reported as late. 0 means "
            "none."
        ),
        high=RETENTION_MAX_S,
        default="0",
        field="sla_seconds",
        setting="sla",
        policy="sla_seconds",
    ),
    QueueAttribute(
        name="Baton.AlarmSeverity",
        doc=(
            "Severity of the queue's alarms: info, warning or critical; or a word of the user's own, of at most "
            f"{LABEL_LENGTH_MAX} characters, which the queue's alarms have as their label."
        ),
        kind=_LABEL,
        field="alarm_severity",
        policy="alarm_severity",
    ),
    _number(
        name=ALARM_DEPTH,
        doc="Number of waiting messages above which the queue has an alarm. 0 means the server's --alarm-depth.",
        high=10**12,
        default="0",
        field="alarm_depth",
    ),
    _number(
        name="Baton.MaximumInFlight",
        doc="Maximum number of messages in flight.",
        low=1,
        high=120_000,
        default="120000",
        field="max_in_flight",
        policy="in_flight_max",
        divided=True,
    ),
    _number(
        name="Baton.MaximumMessages",
        doc="Maximum number of messages in the queue. 0 means no limit.",
        high=10**12,
        default="0",
        field="max_messages",
        policy="messages_max",
        divided=True,
    ),
    _number(
        name="Baton.MaximumBytes",
        doc="Maximum number of bytes in the queue. 0 means no limit.",
        high=10**15,
        default="0",
        field="max_bytes",
        policy="bytes_max",
        divided=True,
    ),
    _choice(
        name=PAUSED,
        doc=(
            "What is paused: `delivery` (receives get nothing, and long polls wait), `sends` (new messages are "
            "refused, also those that are moved here), `both` or `none`."
        ),
        choices=(NOT_PAUSED, "delivery", "sends", "both"),
        default=NOT_PAUSED,
        field="paused",
        policy="paused",
        unset=NOT_PAUSED,
    ),
    _number(
        name=DELIVERIES_PER_SECOND,
        doc="Maximum number of messages delivered per second, evenly spaced. 0 means no limit.",
        high=1_000_000,
        default="0",
        field="deliveries_per_second",
        policy="deliveries_per_s",
    ),
    QueueAttribute(
        name=ONLY_GROUP,
        doc="If set, only messages of this message group are delivered; all others wait.",
        kind=_TEXT,
        high=GROUP_LENGTH_MAX,
        field="only_group",
        policy="only_group",
    ),
    _number(
        name=MINIMUM_PRIORITY,
        doc="Only messages of this priority or a higher one are delivered; all others wait. 0 means all.",
        high=255,  # see priorities.py
        default="0",
        field="minimum_priority",
        policy="priority_min",
    ),
    _number(
        name=SPREAD,
        doc="Number of shards of the queue. It can be increased but not decreased.",
        low=1,
        high=SPREAD_MAX,
        default="1",
        field="spread",
    ),
    _choice(
        name=REPLICAS,
        doc="Number of replicas of each message. Unset: as in the log's URL.",
        choices=tuple(map(str, DURABILITY)),
        field="durability",
    ),
    _flag(
        name=OWN_SHARDS,
        doc="Dedicated shards: the queue is placed on empty shards that accept no other new queue.",
        field="own_shards",
    ),
    # --- for SQS clients only
    QueueAttribute(
        name=DEAD_LETTER_SOURCES,
        doc=(
            "Which queues may use this queue as their dead-letter queue: allowAll, denyAll, or byQueue with "
            "sourceQueueArns."
        ),
        kind=_JSON,
    ),
    QueueAttribute(name=ACCESS_POLICY, doc="Access policy: which other accounts may use the queue.", kind=_JSON),
    QueueAttribute(name="KmsMasterKeyId", doc="Stored and returned; Baton does not encrypt with it.", kind=_TEXT),
    _duration(
        name="KmsDataKeyReusePeriodSeconds",
        doc=f"Stored and returned; {KMS_REUSE_DEFAULT} if a KMS key is set.",
        low=60,
        high=86_400,
    ),
    _flag(
        name="SqsManagedSseEnabled",
        doc="Stored and returned; cannot be combined with KmsMasterKeyId.",
        default="true",
    ),
    QueueAttribute(
        name=FIFO,
        doc="Makes the queue a FIFO queue; its name must end in .fifo.",
        kind=ValueKind.BOOLEAN,
        choices=("true",),
        access=Access.AT_CREATION,
        fifo_only=True,
        policy="fifo",
    ),
    _choice(
        name="FifoThroughputLimit",
        doc="Stored and returned; perMessageGroupId needs DeduplicationScope to be messageGroup.",
        choices=("perQueue", "perMessageGroupId"),
        default="perQueue",
        fifo_only=True,
    ),
)

_READ_ONLY = (
    _reading(
        "ApproximateNumberOfMessages",
        "Number of messages that can be received now. This and all other counts are exact.",
        "visible",
    ),
    _reading("ApproximateNumberOfMessagesNotVisible", "Number of messages in flight.", "in_flight"),
    _reading("ApproximateNumberOfMessagesDelayed", "Number of delayed messages.", "delayed"),
    _reading("CreatedTimestamp", "Time when the queue was created, in seconds since 1970."),
    _reading("LastModifiedTimestamp", "Time when the queue's attributes were last changed, in seconds since 1970."),
    _reading("QueueArn", "The queue's ARN.", kind=_TEXT),
    _reading(
        WARNINGS,
        "Settings of the queue that lose good messages or hide dead letters, one sentence each; empty if there are "
        "none.",
        kind=_TEXT,
    ),
    _reading(OLDEST_AGE, "Age of the oldest message in seconds; 0 if the queue is empty."),
    _reading(
        OLDEST_VISIBLE_AGE,
        "Age of the oldest message that can be received, in seconds: delayed messages and messages in flight do not "
        "count. 0 if there is none.",
    ),
    _reading(
        "Baton.DeadMessages",
        "Number of messages that have used up their receives and have no dead-letter queue.",
        "dead",
    ),
    _reading("Baton.OwedMessages", "Number of messages being moved to another queue.", "owed"),
    _reading("Baton.StoredBytes", "Total size of the messages in the queue, in bytes.", "bytes"),
    _reading("Baton.MessagesSent", "Number of messages sent since the queue was created.", "sent"),
    _reading(
        "Baton.MessagesReceived",
        "Number of messages received since the queue was created: every lease counts.",
        "received",
    ),
    _reading("Baton.MessagesDeleted", "Number of messages deleted since the queue was created.", "deleted"),
    _reading(
        "Baton.MessagesReturned",
        "Number of leases that ended without a delete since the queue was created.",
        "returned",
    ),
    _reading(
        "Baton.MessagesExpired", "Number of messages that expired since the queue was created.", "expired_messages"
    ),
    _reading(
        "Baton.MessagesDeadLettered",
        "Number of messages that were dead-lettered since the queue was created.",
        "dead_lettered",
    ),
    _reading(
        "Baton.StaleDeletes", "Number of deletes with a receipt that a newer lease had replaced.", "stale_deletes"
    ),
)

ATTRIBUTES: dict[str, QueueAttribute] = {row.name: row for row in (*_SETTABLE, *_READ_ONLY)}
REST_ATTRIBUTES = tuple(row for row in _SETTABLE if row.field)
# A queue's fields in REST, in order, each with its row; an object has the rows of its fields.
REST_FIELDS: dict[str, tuple[QueueAttribute, ...]] = {
    name: tuple(row for row in REST_ATTRIBUTES if name in (row.field, row.parent))
    for name in (row.parent or row.field for row in REST_ATTRIBUTES)
}

# Attributes of earlier releases, which a catalog may still contain: they are dropped when it is read.
RETIRED = frozenset({"Baton.ShedClass"})
