"""Every queue attribute, declared once: its names, type, range, default, meaning, and where a shard's policy has it.

What SQS and REST accept and return, the keywords of the Python client, what the catalog validates, the policy of a
shard, the OpenAPI document and the reference pages all derive from these rows. To add an attribute, add a row here and,
if a shard has to know the value, a field to `QueuePolicy`; then run `make sync docs`, which writes the client's types
and the pages. What the attribute does is then up to the code that reads the policy.

A queue's attributes are stored as text under their SQS names, and only those that were set.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

PREFIX = "Baton."
DURABILITY = (1, 3, 5)
SPREAD_MAX = 32  # shards of one queue: an empty receive may have to ask each of them
RETENTION_MAX_S = 1_209_600
LABEL_LENGTH_MAX = 64
MAX_RECEIVES_MAX = 1000
KMS_REUSE_DEFAULT = "300"


class ValueKind(Enum):
    INTEGER = "integer"
    BOOLEAN = "true or false"
    CHOICE = "one of a few words"
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
    seconds: bool = False  # an integer that is a duration: REST and the client take it as a number of seconds
    access: Access = Access.SETTABLE
    fifo_only: bool = False

    # REST and the Python client
    field: str = ""  # REST's name in snake case, after a dot inside of an object; camelCase on the wire. "": SQS only
    setting: str = ""  # the client's keyword, where it is not `field`
    rest_doc: str = ""  # where REST and the client have another form of the attribute
    rest_default: str = ""  # of queues that REST creates, where it is not SQS's
    rest_boolean: bool = False  # REST has a boolean in place of the words: whether the value is `word`
    composite: bool = False  # api/rest/queues.py reads and writes it together with another attribute

    # a shard
    policy: str = ""  # field of QueuePolicy; in milliseconds if its name says so
    word: str = ""  # the policy has a boolean: whether the value is this word
    divided: bool = False  # a limit of the whole queue, of which each shard gets its part
    counter: str = ""  # the counter that a read-only attribute shows

    @property
    def own(self) -> bool:
        """Baton's rather than SQS's."""
        return self.name.startswith(PREFIX)

    @property
    def removable(self) -> bool:
        """An empty value resets it to its default. SQS refuses that for its numbers and words."""
        text = self.kind in (ValueKind.TEXT, ValueKind.JSON)
        return self.own or text or self.name == "KmsDataKeyReusePeriodSeconds"

    @property
    def allowed(self) -> str:
        """The values that it accepts, in words."""
        if self.kind is ValueKind.INTEGER:
            return f"{self.low} to {self.high}"
        return ", ".join(self.choices) or self.kind.value

    @property
    def numeric(self) -> bool:
        """Its value is a whole number, from a range or one of a few."""
        return self.kind is ValueKind.INTEGER or (bool(self.choices) and all(map(str.isdigit, self.choices)))

    @property
    def parent(self) -> str:
        """The REST field that is an object and has this one inside; empty for a field of the queue itself."""
        return self.field.rpartition(".")[0]

    @property
    def member(self) -> str:
        """The name of the REST field in its parent, or in the queue."""
        return self.field.rpartition(".")[2]

    @property
    def keyword(self) -> str:
        """The keyword of the Python client; empty for a field inside of an object."""
        return "" if self.parent else self.setting or self.field

    @property
    def meaning(self) -> str:
        """What REST and the client say about it."""
        if self.rest_doc:
            return self.rest_doc
        default = self.rest_default or self.default
        if default is None:
            return self.doc
        return f"{self.doc} Default: {f'{int(default):,}' if self.numeric else default}."


def camel(field: str) -> str:
    """The name on the wire of a REST field."""
    head, *rest = field.split("_")
    return head + "".join(word.capitalize() for word in rest)


_INTEGER, _BOOLEAN, _CHOICE = ValueKind.INTEGER, ValueKind.BOOLEAN, ValueKind.CHOICE
_LABEL, _TEXT, _JSON = ValueKind.LABEL, ValueKind.TEXT, ValueKind.JSON
_TRUE_OR_FALSE = ("true", "false")


def _reading(name: str, doc: str, counter: str = "", kind: ValueKind = _INTEGER) -> QueueAttribute:
    return QueueAttribute(name=name, doc=doc, kind=kind, access=Access.READ_ONLY, counter=counter)


_SETTABLE = (
    QueueAttribute(
        name="MessageRetentionPeriod",
        doc="Seconds after which a message expires if nobody deletes it.",
        kind=_INTEGER,
        low=60,
        high=RETENTION_MAX_S,
        default="345600",
        seconds=True,
        field="retention_seconds",
        setting="retention",
        policy="retention_ms",
    ),
    QueueAttribute(
        name="VisibilityTimeout",
        doc="Seconds that a lease lasts if the receive does not say.",
        kind=_INTEGER,
        low=0,
        high=43_200,
        default="30",
        seconds=True,
        field="default_visibility_timeout_seconds",
        setting="visibility",
        policy="visibility_ms",
    ),
    QueueAttribute(
        name="DelaySeconds",
        doc="Seconds that a new message stays invisible if the send does not say.",
        kind=_INTEGER,
        low=0,
        high=900,
        default="0",
        seconds=True,
        field="delay_seconds",
        setting="delay",
        policy="delay_ms",
    ),
    QueueAttribute(
        name="ReceiveMessageWaitTimeSeconds",
        doc="Seconds that a receive waits for a message if the receive does not say.",
        kind=_INTEGER,
        low=0,
        high=20,
        default="0",
        seconds=True,
        field="receive_wait_seconds",
        setting="receive_wait",
    ),
    QueueAttribute(
        name="Baton.MaxReceives",
        doc="Receives after which a message is dead, in a queue without RedrivePolicy. 0 means unlimited.",
        kind=_INTEGER,
        low=0,
        high=MAX_RECEIVES_MAX,
        default="0",
        field="max_receive_count",
        setting="max_receives",
        rest_doc="Receives after which a message is dead. Default: 10 with a dead-letter queue, otherwise 0, which "
        "means unlimited.",
        composite=True,
        policy="max_receives",
    ),
    QueueAttribute(
        name="RedrivePolicy",
        doc=f"Where dead letters go: deadLetterTargetArn and maxReceiveCount (1 to {MAX_RECEIVES_MAX}).",
        kind=_JSON,
        field="dead_letter_queue",
        rest_doc="Name of the queue that dead letters go to. It is created with 14 days of retention if it does not "
        "exist. It cannot have a dead-letter queue itself.",
        composite=True,
    ),
    QueueAttribute(
        name="Baton.DeadLetterOn",
        doc="When a message that used up its receives becomes a dead letter: at the next `receive`, as in SQS, or at "
        "the last `failure`.",
        kind=_CHOICE,
        choices=("receive", "failure"),
        default="receive",
        field="dead_letter_on",
        rest_default="failure",
        policy="dead_letter_on_failure",
        word="failure",
    ),
    QueueAttribute(
        name="Baton.RetryPolicy",
        doc="How long a message waits after a nack that does not say: kind exponential (baseSeconds, factor, "
        "maxSeconds) or schedule (delaysSeconds), both with jitter, 0 to 1.",
        kind=_JSON,
        field="retry",
        rest_doc="How long a message waits after a nack that does not say. Unset: not at all.",
        policy="retry",
    ),
    QueueAttribute(
        name="MaximumMessageSize",
        doc="Size of the largest message in bytes, its attributes included.",
        kind=_INTEGER,
        low=1024,
        high=1_048_576,
        default="1048576",
        field="max_message_bytes",
    ),
    QueueAttribute(
        name="Baton.StrictReceipts",
        doc="Every receipt that is not the current lease's is refused, also from SQS clients.",
        kind=_BOOLEAN,
        choices=_TRUE_OR_FALSE,
        default="false",
        field="strict_receipts",
        rest_default="true",
        policy="strict_receipts",
    ),
    QueueAttribute(
        name="Baton.DeduplicationWindow",
        doc="Seconds for which a deduplication key counts.",
        kind=_INTEGER,
        low=1,
        high=RETENTION_MAX_S,
        default="300",
        seconds=True,
        field="deduplication.window_seconds",
        policy="dedup_window_ms",
    ),
    QueueAttribute(
        name="Baton.DeduplicationScope",
        doc="Whether a deduplication key counts for the `window` only, or also for as long as its message `lives`.",
        kind=_CHOICE,
        choices=("window", "lives"),
        default="window",
        field="deduplication.scope",
        policy="dedup_lives",
        word="lives",
    ),
    QueueAttribute(
        name="ContentBasedDeduplication",
        doc="The SHA-256 of the body stands in for a missing deduplication id.",
        kind=_BOOLEAN,
        choices=_TRUE_OR_FALSE,
        default="false",
        fifo_only=True,
        field="deduplication.content_based",
        rest_doc="FIFO queues only: the SHA-256 of the body stands in for a missing deduplication key.",
    ),
    QueueAttribute(
        name="DeduplicationScope",
        doc="Whether a deduplication id counts in the whole queue or in its message group.",
        kind=_CHOICE,
        choices=("queue", "messageGroup"),
        default="queue",
        fifo_only=True,
        field="deduplication.per_group",
        rest_doc="FIFO queues only: a deduplication key counts within its message group.",
        rest_boolean=True,
        policy="dedup_per_group",
        word="messageGroup",
    ),
    QueueAttribute(
        name="Baton.ExpiryToDeadLetter",
        doc="An expired message becomes a dead letter; otherwise it is deleted.",
        kind=_BOOLEAN,
        choices=_TRUE_OR_FALSE,
        default="false",
        field="expiry_to_dead_letter",
        policy="expiry_to_dead_letter",
    ),
    QueueAttribute(
        name="Baton.PriorityAgeingSeconds",
        doc="Seconds of waiting that raise a message by one step of priority. 0 means no ageing.",
        kind=_INTEGER,
        low=0,
        high=86_400,
        default="300",
        seconds=True,
        field="priority_ageing_seconds",
        setting="priority_ageing",
        policy="ageing_ms",
    ),
    QueueAttribute(
        name="Baton.SLASeconds",
        doc="Age in seconds that no message should reach; the status page marks a queue with an older one. 0 means "
        "none.",
        kind=_INTEGER,
        low=0,
        high=RETENTION_MAX_S,
        default="0",
        seconds=True,
        field="sla_seconds",
        setting="sla",
        policy="sla_seconds",
    ),
    QueueAttribute(
        name="Baton.AlarmSeverity",
        doc=f"Severity of the queue's alarms, a word of at most {LABEL_LENGTH_MAX} characters.",
        kind=_LABEL,
        field="alarm_severity",
        policy="alarm_severity",
    ),
    QueueAttribute(
        name="Baton.MaximumInFlight",
        doc="Maximum number of messages in flight.",
        kind=_INTEGER,
        low=1,
        high=120_000,
        default="120000",
        field="max_in_flight",
        policy="in_flight_max",
        divided=True,
    ),
    QueueAttribute(
        name="Baton.MaximumMessages",
        doc="Maximum number of messages in the queue. 0 means no limit.",
        kind=_INTEGER,
        low=0,
        high=10**12,
        default="0",
        field="max_messages",
        policy="messages_max",
        divided=True,
    ),
    QueueAttribute(
        name="Baton.MaximumBytes",
        doc="Maximum number of bytes in the queue. 0 means no limit.",
        kind=_INTEGER,
        low=0,
        high=10**15,
        default="0",
        field="max_bytes",
        policy="bytes_max",
        divided=True,
    ),
    QueueAttribute(
        name="Baton.Spread",
        doc="Number of shards that hold the queue. It can grow, never shrink.",
        kind=_INTEGER,
        low=1,
        high=SPREAD_MAX,
        default="1",
        field="spread",
    ),
    QueueAttribute(
        name="Baton.Durability",
        doc="Number of replicas of each message: the queue is placed on shards with as many. Unset: as the log's "
        "address says.",
        kind=_CHOICE,
        choices=tuple(map(str, DURABILITY)),
        field="durability",
    ),
    QueueAttribute(
        name="Baton.OwnShards",
        doc="The queue gets empty shards, and no other new queue is placed on them.",
        kind=_BOOLEAN,
        choices=_TRUE_OR_FALSE,
        default="false",
        field="own_shards",
    ),
    # --- for SQS clients only
    QueueAttribute(
        name="RedriveAllowPolicy",
        doc="Which queues may use this one for their dead letters: allowAll, denyAll, or byQueue with sourceQueueArns.",
        kind=_JSON,
    ),
    QueueAttribute(name="Policy", doc="Who else may use the queue, as an access policy.", kind=_JSON),
    QueueAttribute(name="KmsMasterKeyId", doc="Stored and returned; Baton encrypts nothing with it.", kind=_TEXT),
    QueueAttribute(
        name="KmsDataKeyReusePeriodSeconds",
        doc=f"Stored and returned; {KMS_REUSE_DEFAULT} if a KMS key is set.",
        kind=_INTEGER,
        low=60,
        high=86_400,
        seconds=True,
    ),
    QueueAttribute(
        name="SqsManagedSseEnabled",
        doc="Stored and returned; excludes KmsMasterKeyId.",
        kind=_BOOLEAN,
        choices=_TRUE_OR_FALSE,
        default="true",
    ),
    QueueAttribute(
        name="FifoQueue",
        doc="A FIFO queue; its name ends in .fifo.",
        kind=_BOOLEAN,
        choices=("true",),
        access=Access.AT_CREATION,
        fifo_only=True,
        policy="fifo",
    ),
    QueueAttribute(
        name="FifoThroughputLimit",
        doc="Stored and returned; perMessageGroupId needs DeduplicationScope to be messageGroup.",
        kind=_CHOICE,
        choices=("perQueue", "perMessageGroupId"),
        default="perQueue",
        fifo_only=True,
    ),
)

_READ_ONLY = (
    _reading("ApproximateNumberOfMessages", "Messages that can be received now (exact, as are all counts).", "visible"),
    _reading("ApproximateNumberOfMessagesNotVisible", "Messages in flight.", "in_flight"),
    _reading("ApproximateNumberOfMessagesDelayed", "Messages whose delay is not over.", "delayed"),
    _reading("CreatedTimestamp", "When the queue was created, in seconds since 1970."),
    _reading("LastModifiedTimestamp", "When its attributes were last changed, in seconds since 1970."),
    _reading("QueueArn", "The queue's ARN.", kind=_TEXT),
    _reading("Baton.AgeOfOldestMessage", "Seconds since the oldest message was sent; 0 in an empty queue."),
    _reading("Baton.DeadMessages", "Messages that used up their receives and have no dead-letter queue.", "dead"),
    _reading("Baton.OwedMessages", "Messages on their way to another queue.", "owed"),
    _reading("Baton.StoredBytes", "Bytes of the messages in the queue.", "bytes"),
    _reading("Baton.MessagesSent", "Messages sent since the queue was created.", "sent"),
    _reading("Baton.MessagesReceived", "Leases given since the queue was created.", "received"),
    _reading("Baton.MessagesDeleted", "Messages deleted since the queue was created.", "deleted"),
    _reading("Baton.MessagesReturned", "Leases that ended without a delete since the queue was created.", "returned"),
    _reading("Baton.MessagesExpired", "Messages that expired since the queue was created.", "expired_messages"),
    _reading(
        "Baton.MessagesDeadLettered",
        "Messages that became dead letters since the queue was created.",
        "dead_lettered",
    ),
    _reading("Baton.StaleDeletes", "Deletes with a receipt that another lease had replaced.", "stale_deletes"),
)

ATTRIBUTES: dict[str, QueueAttribute] = {row.name: row for row in (*_SETTABLE, *_READ_ONLY)}
REST_ATTRIBUTES = tuple(row for row in _SETTABLE if row.field)
# A queue's own fields in REST, in order, each with its row; an object has the rows of what is inside.
REST_FIELDS: dict[str, tuple[QueueAttribute, ...]] = {
    name: tuple(row for row in REST_ATTRIBUTES if name in (row.field, row.parent))
    for name in (row.parent or row.field for row in REST_ATTRIBUTES)
}

# Attributes of earlier releases, which a catalog may still hold: they are dropped when it is read.
RETIRED = frozenset({"Baton.ShedClass"})
