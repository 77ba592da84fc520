"""The entries of the catalog: plain values, each with its form in the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from batonq.attribute_formats.arns import QueueName
from batonq.attribute_formats.redrive_policy import parse_redrive_policy
from batonq.core.catalog.attributes import effective, is_fifo, to_policy
from batonq.core.policy import MISSING_QUEUE, SECOND_MS, QueuePolicy
from batonq.core.spread import Spread
from batonq.queue_attributes import (
    CONTENT_DEDUPLICATION,
    DEAD_LETTER_POLICY,
    MESSAGE_BYTES,
    OWN_SHARDS,
    RECEIVE_WAIT,
    REPLICAS,
    RETIRED,
)

Record = dict[str, Any]


class Link(NamedTuple):
    """A dead-letter queue in its current state."""

    number: int
    shard: int
    spread: str = ""  # the queue's shards if it has several

    def record(self) -> list[Any]:
        return list(self) if self.spread else [self.number, self.shard]


@dataclass(slots=True, frozen=True)
class QueueEntry:
    """A queue in the catalog. Do not modify the mappings: every change creates a new entry."""

    number: int
    account: str
    name: str
    attributes: Mapping[str, str]  # only those that were set, see attributes.effective
    tags: Mapping[str, str]
    created_ms: int
    modified_ms: int
    shards: tuple[int, ...]
    dead_letter: Link | None
    policy_version: int
    purged_ms: int = 0
    slots: bytes = b""  # which shard has which keys, see spread.py
    before: bytes = b""  # which shard had them before the queue grew, until the growth is complete
    left: int = 0  # number of shards that a FIFO queue has left; message numbers continue after theirs

    # Values that every request needs, computed once.
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
            ("content_dedup", values.get(CONTENT_DEDUPLICATION) == "true"),
            ("message_bytes_max", int(values[MESSAGE_BYTES])),
            ("wait_ms", int(values[RECEIVE_WAIT]) * SECOND_MS),
        ):
            object.__setattr__(self, name, value)

    @property
    def shard(self) -> int:
        """The queue's shard, or the first of several."""
        return self.shards[0]

    @property
    def spread(self) -> Spread:
        return Spread(self.shards, self.slots, self.before, self.left)

    @property
    def own_shards(self) -> bool:
        """Whether the queue's shards are dedicated to it: no other queue is placed on them."""
        return self.attributes.get(OWN_SHARDS) == "true"

    @property
    def needs_new_format(self) -> bool:
        """Whether the queue has several shards, names its durability class, or has a dead-letter queue on several
        shards: see records.py.
        """
        several = self.slots or self.left or (self.dead_letter is not None and self.dead_letter.spread)
        return bool(several) or REPLICAS in self.attributes

    @property
    def link(self) -> Link:
        """This queue as the dead-letter queue of others. For a FIFO queue the link includes the earlier shards of
        groups.
        """
        spread = self.spread._replace(left=0) if self.fifo else self.spread.now
        return Link(self.number, spread.first, spread.text() if len(self.shards) > 1 else "")

    @property
    def key(self) -> QueueName:
        return QueueName(self.account, self.name)

    @property
    def dead_letter_target(self) -> QueueName | None:
        """The name of the dead-letter queue, whether it exists or not."""
        policy = self.attributes.get(DEAD_LETTER_POLICY)
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
    """The owner of queues and keys."""

    id: str
    title: str
    created_ms: int

    def record(self) -> Record:
        return {"title": self.title, "created_ms": self.created_ms}

    @classmethod
    def from_record(cls, id: str, record: Record) -> Account:
        return cls(id, record["title"], record["created_ms"])


# The roles of a key. A key with ADMIN may also change the server itself, if it belongs to the server's own account.
ADMIN, WRITE, READ = ROLES = ("admin", "write", "read")


@dataclass(slots=True, frozen=True)
class AccessKey:
    """A key that signs requests. Signatures need the secret itself, so it cannot be stored as a hash."""

    id: str
    secret: str = field(repr=False)
    account: str
    created_ms: int
    disabled: bool = False
    name: str = ""
    role: str = WRITE
    expires_ms: int = 0  # 0: never

    def expired(self, now_ms: int) -> bool:
        return 0 < self.expires_ms <= now_ms

    @property
    def needs_new_format(self) -> bool:
        """Whether the key has what earlier releases do not know: see records.py."""
        return bool(self.name or self.expires_ms) or self.role != WRITE

    def record(self) -> Record:
        record: Record = {
            "secret": self.secret,
            "account": self.account,
            "created_ms": self.created_ms,
            "disabled": self.disabled,
        }
        if self.name:
            record["name"] = self.name
        if self.role != WRITE:
            record["role"] = self.role
        if self.expires_ms:
            record["expires_ms"] = self.expires_ms
        return record

    @classmethod
    def from_record(cls, id: str, record: Record) -> AccessKey:
        return cls(
            id,
            record["secret"],
            record["account"],
            record["created_ms"],
            record["disabled"],
            record.get("name", ""),
            record.get("role", WRITE),
            record.get("expires_ms", 0),
        )


@dataclass(slots=True, frozen=True)
class ReceiptKey:
    """A key that seals receipts. The key with the highest id seals; the others only open."""

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
    """A shard on which queues may be placed. The number of replicas of its log is its durability class."""

    number: int
    created_ms: int
    replicas: int = 0  # 0: as in the log's address

    def record(self) -> Record:
        record = {"created_ms": self.created_ms}
        if self.replicas:
            record["replicas"] = self.replicas
        return record

    @classmethod
    def from_record(cls, number: int, record: Record) -> ShardEntry:
        return cls(number, record["created_ms"], record.get("replicas", 0))
