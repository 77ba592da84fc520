"""What the catalog holds: plain values, each with the form that its record has in the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from batonq.core.catalog.attributes import effective, is_fifo, to_policy
from batonq.core.catalog.names import QueueName
from batonq.core.catalog.redrive import parse_redrive_policy
from batonq.core.policy import SECOND_MS, QueuePolicy
from batonq.core.spread import Spread
from batonq.queue_attributes import RETIRED

# Stands for a dead-letter queue that was deleted. No queue ever has this number, so a dead letter for it is refused,
# stays where it is and raises an alarm, until a queue of that name exists again.
MISSING_QUEUE = 0xFFFFFFFF

Record = dict[str, Any]


class Link(NamedTuple):
    """The queue that a RedrivePolicy names, as it is now."""

    number: int
    shard: int
    spread: str = ""  # its shards when it has several

    def record(self) -> list[Any]:
        return list(self) if self.spread else [self.number, self.shard]


@dataclass(slots=True, frozen=True)
class QueueEntry:
    """A queue as the catalog knows it. The mappings are not to be changed: a change makes a new entry."""

    number: int
    account: str
    name: str
    attributes: Mapping[str, str]  # only what was set, see attributes.effective
    tags: Mapping[str, str]
    created_ms: int
    modified_ms: int
    shards: tuple[int, ...]
    dead_letter: Link | None  # the queue that RedrivePolicy names
    policy_version: int
    purged_ms: int = 0
    slots: bytes = b""  # which shard has which keys, see spread.py
    before: bytes = b""  # and which had them before the queue grew, while that is not over
    left: int = 0  # shards that a FIFO queue has left: numbers of messages go on behind theirs

    # What every request asks for, worked out once.
    policy: QueuePolicy = field(init=False, compare=False)
    fifo: bool = field(init=False, compare=False)
    content_dedup: bool = field(init=False, compare=False)
    message_bytes_max: int = field(init=False, compare=False)
    wait_ms: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        values = effective(self.attributes)
        link = self.dead_letter or Link(MISSING_QUEUE, self.shards[0])
        policy = to_policy(
            self.number,
            self.account,
            self.name,
            self.policy_version,
            self.attributes,
            lambda _target: link,
            shards=len(self.shards),
            spread=self.spread.now.text() if len(self.shards) > 1 or self.left else "",
        )
        for name, value in (
            ("policy", policy),
            ("fifo", is_fifo(self.attributes)),
            ("content_dedup", values.get("ContentBasedDeduplication") == "true"),
            ("message_bytes_max", int(values["MaximumMessageSize"])),
            ("wait_ms", int(values["ReceiveMessageWaitTimeSeconds"]) * SECOND_MS),
        ):
            object.__setattr__(self, name, value)

    @property
    def shard(self) -> int:
        """The shard that holds the queue, or the first of several."""
        return self.shards[0]

    @property
    def spread(self) -> Spread:
        return Spread(self.shards, self.slots, self.before, self.left)

    @property
    def own_shards(self) -> bool:
        """No other queue is placed on its shards."""
        return self.attributes.get("Baton.OwnShards") == "true"

    @property
    def needs_new_format(self) -> bool:
        """It lies on several shards, or names its class, or its dead-letter queue lies on several: see records.py."""
        several = self.slots or self.left or (self.dead_letter is not None and self.dead_letter.spread)
        return bool(several) or "Baton.Durability" in self.attributes

    @property
    def link(self) -> Link:
        """This queue as the dead-letter queue of others. FIFO groups are looked for where they were, too."""
        spread = self.spread._replace(left=0) if self.fifo else self.spread.now
        return Link(self.number, spread.first, spread.text() if len(self.shards) > 1 else "")

    @property
    def key(self) -> QueueName:
        return QueueName(self.account, self.name)

    @property
    def dead_letter_target(self) -> QueueName | None:
        """The queue that RedrivePolicy names, whether it exists or not."""
        policy = self.attributes.get("RedrivePolicy")
        return parse_redrive_policy(policy).target if policy else None

    def record(self) -> Record:
        record = {
            "account": self.account,
            "name": self.name,
            "attributes": dict(self.attributes),
            "tags": dict(self.tags),
            "created_ms": self.created_ms,
            "modified_ms": self.modified_ms,
            "shards": list(self.shards),
            "dead_letter": self.dead_letter.record() if self.dead_letter else None,
            "policy_version": self.policy_version,
            "purged_ms": self.purged_ms,
        }
        if self.slots:
            record["slots"] = self.slots.hex()
        if self.before:
            record["before"] = self.before.hex()
        if self.left:
            record["left"] = self.left
        return record

    @classmethod
    def from_record(cls, number: int, record: Record) -> QueueEntry:
        link = record["dead_letter"]
        return cls(
            number=number,
            account=record["account"],
            name=record["name"],
            attributes={name: text for name, text in record["attributes"].items() if name not in RETIRED},
            tags=record["tags"],
            created_ms=record["created_ms"],
            modified_ms=record["modified_ms"],
            shards=tuple(record["shards"]),
            dead_letter=Link(*link) if link else None,
            policy_version=record["policy_version"],
            purged_ms=record["purged_ms"],
            slots=bytes.fromhex(record.get("slots", "")),
            before=bytes.fromhex(record.get("before", "")),
            left=record.get("left", 0),
        )


@dataclass(slots=True, frozen=True)
class Account:
    """A tenant: who owns queues and keys."""

    id: str
    title: str
    created_ms: int

    def record(self) -> Record:
        return {"title": self.title, "created_ms": self.created_ms}

    @classmethod
    def from_record(cls, id: str, record: Record) -> Account:
        return cls(id, record["title"], record["created_ms"])


@dataclass(slots=True, frozen=True)
class AccessKey:
    """A key that signs requests. Signatures are made with the secret itself, so it cannot be kept as a hash."""

    id: str
    secret: str = field(repr=False)
    account: str
    created_ms: int
    disabled: bool = False

    def record(self) -> Record:
        return {
            "secret": self.secret,
            "account": self.account,
            "created_ms": self.created_ms,
            "disabled": self.disabled,
        }

    @classmethod
    def from_record(cls, id: str, record: Record) -> AccessKey:
        return cls(id, record["secret"], record["account"], record["created_ms"], record["disabled"])


@dataclass(slots=True, frozen=True)
class ReceiptKey:
    """A key that receipts are sealed with. The one with the highest id seals; the others only open."""

    id: int
    key: bytes = field(repr=False)
    created_ms: int

    def record(self) -> Record:
        return {"key": self.key.hex(), "created_ms": self.created_ms}

    @classmethod
    def from_record(cls, id: int, record: Record) -> ReceiptKey:
        return cls(id, bytes.fromhex(record["key"]), record["created_ms"])


@dataclass(slots=True, frozen=True)
class ShardEntry:
    """A shard that queues may be placed on. How many replicas its log has is its kind."""

    number: int
    created_ms: int
    replicas: int = 0  # 0: as the log's address says

    def record(self) -> Record:
        record = {"created_ms": self.created_ms}
        if self.replicas:
            record["replicas"] = self.replicas
        return record

    @classmethod
    def from_record(cls, number: int, record: Record) -> ShardEntry:
        return cls(number, record["created_ms"], record.get("replicas", 0))
