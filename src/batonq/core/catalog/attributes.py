"""Every queue attribute, in one table: SQS's own, and Baton's with the prefix `Baton.`.

A queue's attributes are kept as the user set them, name to text, and only those that were set. `effective` adds the
defaults, `readings` what is counted rather than set, and `to_policy` makes of them what a shard has to know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from batonq.core.catalog import redrive
from batonq.core.catalog.names import QueueName, is_text, is_word
from batonq.core.catalog.permissions import check_policy
from batonq.core.commands import Counters
from batonq.core.policy import SECOND_MS, QueuePolicy
from batonq.core.retry import parse_retry
from batonq.core.spread import SPREAD_MAX
from batonq.errors import InvalidAttributeName, InvalidAttributeValue

PREFIX = "Baton."
DURABILITY = (1, 3, 5)
TEXT_BYTES_MAX = 8192
RETENTION_MAX_S = 1_209_600
RETENTION_MAX_MS = RETENTION_MAX_S * SECOND_MS
LABEL_LENGTH_MAX = 64
KMS_REUSE_DEFAULT = "300"
DIVIDED = ("Baton.MaximumInFlight", "Baton.MaximumMessages", "Baton.MaximumBytes")  # among a queue's shards
_EMPTIED_BY_AN_EMPTY_MAP = ("RedrivePolicy", "RedriveAllowPolicy")  # as tools take them back, beside an empty text

ResolveDeadLetterQueue = Callable[[QueueName], tuple[int, int, str]]  # number, first shard, spread


class Kind(Enum):
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


@dataclass(slots=True, frozen=True)
class Attribute:
    """One row of the table. `default` is None where nothing is returned until the attribute is set."""

    name: str
    doc: str
    kind: Kind
    default: str | None = None
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()
    access: Access = Access.SETTABLE
    fifo_only: bool = False
    check: Callable[[str], object] | None = None

    @property
    def own(self) -> bool:
        """Ours rather than SQS's."""
        return self.name.startswith(PREFIX)

    @property
    def removable(self) -> bool:
        """An empty value takes it back to its default. SQS refuses that for its numbers and words."""
        return self.own or self.kind in (Kind.TEXT, Kind.JSON) or self.name == "KmsDataKeyReusePeriodSeconds"

    @property
    def allowed(self) -> str:
        """The values that it takes, in words."""
        if self.kind is Kind.INTEGER:
            return f"{self.low} to {self.high}"
        return ", ".join(self.choices) or self.kind.value


def _integer(name: str, low: int, high: int, default: int | None, doc: str) -> Attribute:
    return Attribute(name, doc, Kind.INTEGER, None if default is None else str(default), low, high)


def _boolean(name: str, doc: str, *, default: str = "false", fifo_only: bool = False) -> Attribute:
    return Attribute(name, doc, Kind.BOOLEAN, default, choices=("true", "false"), fifo_only=fifo_only)


def _choice(name: str, choices: tuple[str, ...], doc: str, *, fifo_only: bool = False) -> Attribute:
    return Attribute(name, doc, Kind.CHOICE, choices[0], choices=choices, fifo_only=fifo_only)


def _json(name: str, check: Callable[[str], object], doc: str) -> Attribute:
    return Attribute(name, doc, Kind.JSON, check=check)


def _reading(name: str, doc: str, kind: Kind = Kind.INTEGER) -> Attribute:
    return Attribute(name, doc, kind, access=Access.READ_ONLY)


_TABLE = (
    # --- SQS's
    _integer("DelaySeconds", 0, 900, 0, "Seconds before a new message becomes visible."),
    _integer(
        "MaximumMessageSize",
        1024,
        1_048_576,
        1_048_576,
        "Maximum size of a message in bytes, including its attributes.",
    ),
    _integer("MessageRetentionPeriod", 60, RETENTION_MAX_S, 345_600, "Seconds after which a message expires."),
    _integer("ReceiveMessageWaitTimeSeconds", 0, 20, 0, "Default wait time of a receive, in seconds."),
    _integer("VisibilityTimeout", 0, 43_200, 30, "Default visibility timeout of a receive, in seconds."),
    _json(
        "RedrivePolicy",
        redrive.parse_redrive_policy,
        "Dead-letter queue and maximum number of receives: deadLetterTargetArn and maxReceiveCount (1 to 1000).",
    ),
    _json(
        "RedriveAllowPolicy",
        redrive.check_redrive_allow_policy,
        "Which queues may use this queue as their dead-letter queue: allowAll, denyAll, or byQueue with "
        "sourceQueueArns.",
    ),
    _json("Policy", check_policy, "Access policy: which other accounts may use the queue."),
    Attribute("KmsMasterKeyId", "Stored and returned; Baton does not encrypt with it.", Kind.TEXT),
    _integer("KmsDataKeyReusePeriodSeconds", 60, 86_400, None, "Stored and returned; 300 when a KMS key is set."),
    _boolean("SqsManagedSseEnabled", "Stored and returned; cannot be combined with KmsMasterKeyId.", default="true"),
    Attribute(
        "FifoQueue",
        "Makes the queue a FIFO queue; its name must end in .fifo.",
        Kind.BOOLEAN,
        choices=("true",),
        access=Access.AT_CREATION,
        fifo_only=True,
    ),
    _boolean(
        "ContentBasedDeduplication",
        "If a message has no deduplication id, the SHA-256 of its body is used.",
        fifo_only=True,
    ),
    _choice(
        "DeduplicationScope",
        ("queue", "messageGroup"),
        "Whether deduplication applies to the whole queue or to each message group.",
        fifo_only=True,
    ),
    _choice(
        "FifoThroughputLimit",
        ("perQueue", "perMessageGroupId"),
        "Stored and returned; perMessageGroupId needs DeduplicationScope to be messageGroup.",
        fifo_only=True,
    ),
    # --- ours
    _boolean("Baton.StrictReceipts", "Refuse every receipt of an expired lease, as the REST API does."),
    _choice(
        "Baton.DeadLetterOn",
        ("receive", "failure"),
        "When a message that has used up its receives is dead-lettered: at the next receive, as in SQS, or at the "
        "last failure.",
    ),
    _integer(
        "Baton.DeduplicationWindow", 1, RETENTION_MAX_S, 300, "Seconds for which a deduplication key is remembered."
    ),
    _choice(
        "Baton.DeduplicationScope",
        ("window", "lives"),
        "Whether a deduplication key is remembered for the window only, or also for as long as its message exists.",
    ),
    _integer(
        "Baton.PriorityAgeingSeconds",
        0,
        86_400,
        300,
        "Seconds of waiting that raise a message by one priority level; 0 disables ageing.",
    ),
    _integer(
        "Baton.MaxReceives",
        0,
        redrive.MAX_RECEIVES_MAX,
        0,
        "Maximum number of receives per message in a queue without RedrivePolicy; 0: unlimited.",
    ),
    _json(
        "Baton.RetryPolicy",
        parse_retry,
        "Default delay before a message is received again after a nack: kind exponential (baseSeconds, factor, "
        "maxSeconds) or schedule (delaysSeconds), both with jitter, 0 to 1.",
    ),
    _boolean("Baton.ExpiryToDeadLetter", "Move expired messages to the dead-letter queue instead of deleting them."),
    _integer(
        "Baton.SLASeconds",
        0,
        RETENTION_MAX_S,
        0,
        "Maximum acceptable age of a message in seconds; the queue is reported as late beyond it. 0: none.",
    ),
    Attribute("Baton.ShedClass", "Load-shedding class of the queue.", Kind.LABEL),
    Attribute("Baton.AlarmSeverity", "Severity of the queue's alarms.", Kind.LABEL),
    _integer("Baton.MaximumInFlight", 1, 120_000, 120_000, "Maximum number of messages in flight."),
    _integer("Baton.MaximumMessages", 0, 10**12, 0, "Maximum number of messages in the queue; 0: no limit."),
    _integer("Baton.MaximumBytes", 0, 10**15, 0, "Maximum number of bytes in the queue; 0: no limit."),
    _integer(
        "Baton.Spread",
        1,
        SPREAD_MAX,
        1,
        "Number of shards of the queue. It can be increased but not decreased.",
    ),
    Attribute(
        "Baton.Durability",
        "Number of replicas of each message. Default: as in the log's URL.",
        Kind.CHOICE,
        choices=tuple(map(str, DURABILITY)),
    ),
    _boolean(
        "Baton.OwnShards", "Dedicated shards: the queue is placed on empty shards that accept no other new queue."
    ),
    # --- counted or given, never set
    _reading(
        "ApproximateNumberOfMessages",
        "Number of messages that can be received now. This and all other counts here are exact.",
    ),
    _reading("ApproximateNumberOfMessagesNotVisible", "Number of messages in flight."),
    _reading("ApproximateNumberOfMessagesDelayed", "Number of delayed messages."),
    _reading("CreatedTimestamp", "Time when the queue was created, in seconds since 1970."),
    _reading("LastModifiedTimestamp", "Time when the queue's attributes were last changed, in seconds since 1970."),
    _reading("QueueArn", "The queue's ARN.", Kind.TEXT),
    _reading("Baton.AgeOfOldestMessage", "Age of the oldest message in seconds; 0 if the queue is empty."),
    _reading(
        "Baton.DeadMessages", "Number of messages that have used up their receives and have no dead-letter queue."
    ),
    _reading("Baton.OwedMessages", "Number of messages being moved to another queue."),
    _reading("Baton.StoredBytes", "Total size of the messages in the queue, in bytes."),
    _reading("Baton.MessagesSent", "Number of messages sent since the queue was created."),
    _reading("Baton.MessagesReceived", "Number of messages received since the queue was created: every lease counts."),
    _reading("Baton.MessagesDeleted", "Number of messages deleted since the queue was created."),
    _reading("Baton.MessagesReturned", "Number of leases that ended without a delete since the queue was created."),
    _reading("Baton.MessagesExpired", "Number of messages that expired since the queue was created."),
    _reading("Baton.MessagesDeadLettered", "Number of messages that were dead-lettered since the queue was created."),
    _reading("Baton.StaleDeletes", "Number of deletes with a receipt that a newer lease had replaced."),
)

ATTRIBUTES: dict[str, Attribute] = {attribute.name: attribute for attribute in _TABLE}
_ALWAYS = tuple(row for row in _TABLE if row.default is not None and not row.fifo_only)
_FIFO_ALWAYS = tuple(row for row in _TABLE if row.default is not None)


def is_fifo(attributes: Mapping[str, str]) -> bool:
    return attributes.get("FifoQueue") == "true"


def check_name(name: str) -> Attribute:
    """The row of an attribute; raises InvalidAttributeName when there is none."""
    attribute = ATTRIBUTES.get(name)
    if attribute is None:
        raise InvalidAttributeName(f"Unknown Attribute {name[:256]}.")
    return attribute


def validate(
    changes: Mapping[str, str], *, fifo: bool, creating: bool, current: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The attributes that a queue has once `changes` are made to `current`; an empty value removes an attribute.

    Raises InvalidAttributeName, InvalidAttributeValue or InvalidInput. Whether a dead-letter queue exists is the
    catalog's to say.
    """
    canonical = {name: _canonical(name, value, fifo=fifo, creating=creating) for name, value in changes.items()}
    result = {**(current or {}), **canonical}
    _settle_encryption(canonical, result)
    result = {name: value for name, value in result.items() if value != ""}
    if result.get("FifoThroughputLimit") == "perMessageGroupId" and result.get("DeduplicationScope") != "messageGroup":
        raise InvalidAttributeValue(
            "The perMessageGroupId value is allowed only when the value for DeduplicationScope is messageGroup"
        )
    _check_spread(result, fifo)
    return result


def _check_spread(values: Mapping[str, str], fifo: bool) -> None:
    """What is counted or compared in the whole queue must work on each of its shards."""
    spread = int(values.get("Baton.Spread", "1"))
    if spread > 1 and fifo and values.get("DeduplicationScope") != "messageGroup":
        raise InvalidAttributeValue(
            "Baton.Spread above 1 needs DeduplicationScope messageGroup on a FIFO queue. Deduplication for the "
            "whole queue works only on one shard."
        )
    for name in DIVIDED:
        limit = int(values.get(name, "0"))
        if limit and limit < spread:
            raise InvalidAttributeValue(
                f"{name} is divided among the queue's shards, so it must be at least as large as Baton.Spread."
            )


def _canonical(name: str, value: str, *, fifo: bool, creating: bool) -> str:
    """The value of one attribute as it is kept; empty when it is to be removed."""
    attribute = check_name(name)
    if attribute.access is Access.READ_ONLY:
        raise InvalidAttributeName(f"Unknown Attribute {name}.")
    if attribute.access is Access.AT_CREATION:
        return _queue_type(name, value, fifo=fifo, creating=creating)
    if attribute.fifo_only and not fifo:
        if name == "ContentBasedDeduplication":  # SQS has other words for this one
            raise InvalidAttributeName(f"Unknown Attribute {name}.")
        raise InvalidAttributeName(f"You can specify the {name} only when FifoQueue is set to true.")
    if value == "" and attribute.removable:
        return ""
    if attribute.kind is Kind.INTEGER:
        if not (value.isascii() and value.isdigit() and len(value) <= 18):
            raise _refuse(attribute)
        number = int(value)
        if not attribute.low <= number <= attribute.high:
            raise _refuse(attribute)
        return str(number)
    if attribute.kind is Kind.BOOLEAN:
        value = value.lower()
    if attribute.choices and value not in attribute.choices:
        raise _refuse(attribute)
    if attribute.kind is Kind.LABEL and not is_word(value, LABEL_LENGTH_MAX):
        raise _refuse(attribute)
    if not is_text(value, TEXT_BYTES_MAX):
        raise InvalidAttributeValue(
            f"Invalid value for the parameter {name}. "
            f"Reason: Must be at most {TEXT_BYTES_MAX} bytes of text without control characters."
        )
    if attribute.check is not None:
        if name in _EMPTIED_BY_AN_EMPTY_MAP and redrive.parse_json(value) == {}:
            return ""
        attribute.check(value)
    return value


def _refuse(attribute: Attribute) -> InvalidAttributeValue:
    return InvalidAttributeValue(
        f"Invalid value for the parameter {attribute.name}. Reason: Must be {attribute.allowed}."
    )


def _queue_type(name: str, value: str, *, fifo: bool, creating: bool) -> str:
    """FifoQueue says nothing new later, and SQS does not know it for a standard queue."""
    wanted = value.lower()
    if wanted != "true" if creating else not fifo:
        raise InvalidAttributeName(f"Unknown Attribute {name}.")
    if wanted != "true":
        raise InvalidAttributeValue(
            f"Invalid value for the parameter {name}. Reason: Modifying queue type is not supported."
        )
    return "true" if fifo else ""


def _settle_encryption(changes: Mapping[str, str], result: dict[str, str]) -> None:
    """A queue has one kind of encryption: the one that was asked for last takes the other's place."""
    managed = changes.get("SqsManagedSseEnabled") == "true"
    if managed and changes.get("KmsMasterKeyId"):
        raise InvalidAttributeName(
            "You can use one type of server-side encryption (SSE) at one time. "
            "You can either enable KMS SSE or SQS SSE."
        )
    if managed:
        result["KmsMasterKeyId"] = ""
    elif changes.get("KmsMasterKeyId"):
        result["SqsManagedSseEnabled"] = "false"
    if not result.get("KmsMasterKeyId") and (managed or "KmsMasterKeyId" in changes):
        # The reuse period belongs to the key that is gone; one that came with this very change stays, unless it is
        # the default, by which tools take it back.
        period = changes.get("KmsDataKeyReusePeriodSeconds", "")
        result["KmsDataKeyReusePeriodSeconds"] = "" if period == KMS_REUSE_DEFAULT else period


def effective(attributes: Mapping[str, str]) -> dict[str, str]:
    """What is set and what holds by default: all that GetQueueAttributes gives beside `readings`."""
    rows = _FIFO_ALWAYS if is_fifo(attributes) else _ALWAYS
    result = {row.name: row.default for row in rows if row.default is not None}
    result.update(attributes)
    if attributes.get("KmsMasterKeyId"):
        result.setdefault("KmsDataKeyReusePeriodSeconds", KMS_REUSE_DEFAULT)
    return result


def readings(counters: Counters, now_ms: int) -> dict[str, str]:
    """The read-only attributes that come from a queue's counters."""
    age_ms = max(0, now_ms - counters.oldest_sent_ms) if counters.oldest_sent_ms else 0
    values = {
        "ApproximateNumberOfMessages": counters.visible,
        "ApproximateNumberOfMessagesNotVisible": counters.in_flight,
        "ApproximateNumberOfMessagesDelayed": counters.delayed,
        "Baton.AgeOfOldestMessage": age_ms // SECOND_MS,
        "Baton.DeadMessages": counters.dead,
        "Baton.OwedMessages": counters.owed,
        "Baton.StoredBytes": counters.bytes,
        "Baton.MessagesSent": counters.sent,
        "Baton.MessagesReceived": counters.received,
        "Baton.MessagesDeleted": counters.deleted,
        "Baton.MessagesReturned": counters.returned,
        "Baton.MessagesExpired": counters.expired_messages,
        "Baton.MessagesDeadLettered": counters.dead_lettered,
        "Baton.StaleDeletes": counters.stale_deletes,
    }
    return {name: str(value) for name, value in values.items()}


def first_difference(passed: Mapping[str, str], existing: Mapping[str, str]) -> str | None:
    """The first attribute that was passed to CreateQueue and has another value in the queue that exists.

    Only what was passed counts, defaults are values too, and two JSON texts with one meaning are the same.
    """
    have = effective(existing)
    for name, value in passed.items():
        canonical = _canonical(name, value, fifo=is_fifo(existing), creating=True)
        there = have.get(name, "")
        same = canonical == there
        if not same and ATTRIBUTES[name].kind is Kind.JSON and canonical and there:
            same = redrive.parse_json(canonical) == redrive.parse_json(there)
        if not same:
            return name
    return None


def to_policy(
    queue_number: int,
    account: str,
    name: str,
    version: int,
    attributes: Mapping[str, str],
    resolve_dlq: ResolveDeadLetterQueue,
    shards: int = 1,
    spread: str = "",
) -> QueuePolicy:
    """What a shard has to know, which has its part of the limits when there are several.

    `resolve_dlq` gives number, shard and spread of the queue that a RedrivePolicy names.
    """
    values = effective(attributes)

    def part(name: str) -> int:
        limit = int(values[name])
        return max(limit // shards, 1) if limit else 0

    dead_letter_queue, dead_letter_shard, dead_letter_spread = 0, 0, ""
    max_receives = int(values["Baton.MaxReceives"])
    if values.get("RedrivePolicy"):
        target = redrive.parse_redrive_policy(values["RedrivePolicy"])
        dead_letter_queue, dead_letter_shard, dead_letter_spread = resolve_dlq(target.target)
        max_receives = target.max_receives
    return QueuePolicy(
        queue=queue_number,
        tenant=account,
        name=name,
        version=version,
        fifo=is_fifo(attributes),
        delay_ms=int(values["DelaySeconds"]) * SECOND_MS,
        visibility_ms=int(values["VisibilityTimeout"]) * SECOND_MS,
        retention_ms=int(values["MessageRetentionPeriod"]) * SECOND_MS,
        dedup_window_ms=int(values["Baton.DeduplicationWindow"]) * SECOND_MS,
        dedup_per_group=values.get("DeduplicationScope") == "messageGroup",
        dedup_lives=values["Baton.DeduplicationScope"] == "lives",
        max_receives=max_receives,
        dead_letter_queue=dead_letter_queue,
        dead_letter_shard=dead_letter_shard,
        dead_letter_spread=dead_letter_spread,
        dead_letter_on_failure=values["Baton.DeadLetterOn"] == "failure",
        expiry_to_dead_letter=values["Baton.ExpiryToDeadLetter"] == "true",
        strict_receipts=values["Baton.StrictReceipts"] == "true",
        ageing_ms=int(values["Baton.PriorityAgeingSeconds"]) * SECOND_MS,
        in_flight_max=part("Baton.MaximumInFlight"),
        messages_max=part("Baton.MaximumMessages"),
        bytes_max=part("Baton.MaximumBytes"),
        spread=spread,
        sla_seconds=int(values["Baton.SLASeconds"]),
        shed_class=values.get("Baton.ShedClass", ""),
        alarm_severity=values.get("Baton.AlarmSeverity", ""),
        retry=values.get("Baton.RetryPolicy", ""),
    )
