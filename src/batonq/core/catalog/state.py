"""The catalog's state, and what each record does to it.

A record gives the new value of one entry, by kind and key; null removes the entry. The live path, followers and
recovery all use `_apply_set`, which never chooses. `version` is the number of such records so far. `changed` and
`records_since_base` are soft state and not replayed.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, insort
from typing import Any

from batonq.attribute_formats.arns import QueueName
from batonq.core.catalog.entries import (
    AccessKey,
    Account,
    Link,
    QueueEntry,
    ReceiptKey,
    Record,
    ShardEntry,
)
from batonq.core.catalog.topic_entries import SubscriptionEntry, TopicEntry, TopicTables
from batonq.core.open_frame import OpenFrame
from batonq.core.policy import MISSING_QUEUE, QueuePolicy
from batonq.core.records import (
    PACING_VERSION,
    PLAIN_VERSION,
    ROLES_VERSION,
    SPREAD_VERSION,
    TOPICS_VERSION,
    BaseFlag,
    Type,
    word0,
)
from batonq.core.spread import GROWTHS_MAX, PLACES_MAX, SLOTS
from batonq.errors import LogCorrupt

CATALOG_SHARD = 65535
_LOW32 = 0xFFFFFFFF


def encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


class CatalogState:
    number = CATALOG_SHARD

    def __init__(self) -> None:
        self.frame = OpenFrame()
        self.epoch = 0
        self.format = PLAIN_VERSION  # format version of the frames that are written, see records.py
        self.last_time_ms = 0
        self.before_base = False  # the log's front was dropped, and its Base has not been read yet
        self.changed: dict[int, frozenset[int]] = {}  # queue or topic with a changed or removed policy → its shards
        self.changed_subscriptions: dict[int, set[int]] = {}  # topic → its subscriptions that changed or were removed
        self.records_since_base = 0
        self._base_parts: list[bytes] = []  # the parts read so far of a Base
        self._clear()

    def _clear(self) -> None:
        self.version = 0
        self.next_queue = 1
        self.next_receipt_key = 1
        self.accounts: dict[str, Account] = {}
        self.access_keys: dict[str, AccessKey] = {}
        self.queues: dict[int, QueueEntry] = {}
        self.deleted: dict[QueueName, int] = {}  # name that cannot be reused yet → until when, ms
        self.receipt_keys: dict[int, ReceiptKey] = {}
        self.shards: dict[int, ShardEntry] = {}
        # Indexes, derived from `queues`.
        self.by_name: dict[QueueName, QueueEntry] = {}
        self._names: dict[str, list[str]] = {}  # account → names, sorted
        self._sources: dict[QueueName, set[int]] = {}  # dead-letter queue → the queues that use it
        self._loads: dict[int, int] = {}  # shard → number of its queues
        self.growing: set[int] = set()  # queues with an unfinished growth
        self._taken: dict[int, int] = {}  # shard → number of queues that it is dedicated to
        self.tables = TopicTables()

    def _time(self, now: int) -> int:
        return max(now, self.last_time_ms)

    def _write(self, kind: str, key: str | int, value: Any, now: int) -> None:
        version = self.version + 1
        data = encode({"kind": kind, "key": str(key), "value": value})
        head = word0(Type.CATALOG_SET, 0, 0, 0, int(key) if kind in ("queue", "topic") else 0)
        self.frame.add(head, version, now, 0, 0, 0, self.frame.put(data), 0)
        self._apply_set(version, now, data)

    def sources_of(self, queue: QueueName) -> list[QueueEntry]:
        """The queues that use this queue as their dead-letter queue, sorted by name."""
        numbers = self._sources.get(queue, ())
        return sorted((self.queues[number] for number in numbers), key=lambda entry: entry.name)

    # --- applying frames -----------------------------------------------------------------------

    def apply_frame(self, number: int, words: array[int], variable: bytes) -> None:
        """Apply one committed frame. Raises LogCorrupt if a record does not fit the state."""
        for at in range(0, len(words), 8):
            w0, w1, w2, w3, w4, _, w6, _ = words[at : at + 8]
            offset = w6 & _LOW32
            data = variable[offset : offset + (w6 >> 32)]
            if w0 & 0xFF == Type.CATALOG_BASE:
                whole = self._base_part(w4, bool(w0 >> 8 & BaseFlag.MORE), data)
                if whole is None:
                    continue
                data = whole
            self._apply(w0 & 0xFF, w1, w2, w3, data)
        if self.frame.number <= number:
            self.frame.begin(number + 1)

    def _apply(self, kind: int, w1: int, time: int, w3: int, data: bytes) -> None:
        if kind == Type.CATALOG_SET:
            self._apply_set(w1, time, data)
        elif kind == Type.CATALOG_BASE:
            self._apply_base(w1, time, data)
        elif kind == Type.EPOCH:
            self._apply_epoch(w1, w3)
        else:
            raise LogCorrupt(f"unknown record type {kind} in the catalog's log: use a newer release")

    def _base_part(self, part: int, more: bool, data: bytes) -> bytes | None:
        """The whole Base once its last part has been read; otherwise None. If an owner left a Base incomplete, the
        next one begins with part 0.
        """
        if part == 0:
            self._base_parts.clear()
        if part and not self._base_parts and (self.before_base or self.version == 0):
            self.before_base = True  # the front was dropped in the middle of an older Base
            return None
        if part != len(self._base_parts):
            raise LogCorrupt(f"part {part} of the catalog's base follows {len(self._base_parts)} parts of it")
        self._base_parts.append(data)
        if more:
            return None
        whole = b"".join(self._base_parts)
        self._base_parts.clear()
        return whole

    def _apply_epoch(self, epoch: int, base_ms: int) -> None:
        if epoch <= self.epoch:
            raise LogCorrupt(f"ownership epoch {epoch} of the catalog after {self.epoch}")
        self.epoch = epoch
        self.last_time_ms = max(self.last_time_ms, base_ms)

    def _apply_set(self, version: int, time: int, data: bytes) -> None:
        if self.version == 0 and version != 1:
            self.before_base = True
        if self.before_base:
            return  # the Base that follows includes this record
        if version != self.version + 1:
            raise LogCorrupt(f"catalog record {version} after {self.version}")
        self.version = version
        self.last_time_ms = max(self.last_time_ms, time)
        self.records_since_base += 1
        try:
            record = json.loads(data)
            self._set(record["kind"], record["key"], record["value"], time)
        except (ValueError, KeyError, TypeError) as problem:
            raise LogCorrupt(f"catalog record {version} cannot be read: {problem!r}") from problem

    def _set(self, kind: str, key: str, value: Any, time: int) -> None:
        if kind == "queue":
            self._set_queue(int(key), None if value is None else QueueEntry.from_record(int(key), value))
        elif kind == "deleted":
            self._set_deleted(QueueName(*key.split("/", 1)), value, time)
        elif kind == "account":
            _put(self.accounts, key, None if value is None else Account.from_record(key, value))
        elif kind == "access_key":
            entry = None if value is None else AccessKey.from_record(key, value)
            _put(self.access_keys, key, entry)
            if entry is not None and entry.needs_new_format:
                self._use_format(ROLES_VERSION)
        elif kind == "receipt_key":
            _put(self.receipt_keys, int(key), None if value is None else ReceiptKey.from_record(int(key), value))
            self.next_receipt_key = max(self.next_receipt_key, int(key) + 1)
        elif kind == "shard":
            _put(self.shards, int(key), None if value is None else ShardEntry.from_record(int(key), value))
            self._loads.setdefault(int(key), 0)
            if value is not None and value.get("replicas"):
                self._use_format(SPREAD_VERSION)
        elif kind == "topic":
            self._set_topic(int(key), None if value is None else TopicEntry.from_record(int(key), value))
        elif kind == "subscription":
            entry_of = SubscriptionEntry.from_record
            self._set_subscription(int(key), None if value is None else entry_of(int(key), value))
        else:
            raise LogCorrupt(f"unknown kind {kind!r} of catalog record: use a newer release")

    def _use_format(self, version: int) -> None:
        self.format = max(self.format, version)

    def _set_deleted(self, name: QueueName, value: Record | None, time: int) -> None:
        """Set or remove the wait for a deleted name. Expired waits are dropped, so that names of deleted queues do
        not accumulate.
        """
        self.deleted = {other: until for other, until in self.deleted.items() if until > time and other != name}
        if value is not None:
            self.deleted[name] = value["until_ms"]

    def _set_queue(self, number: int, entry: QueueEntry | None) -> None:
        old = self.queues.get(number)
        if old is not None:
            self._unindex(old)
        if entry is not None:
            self._index(entry)
        self.next_queue = max(self.next_queue, number + 1)
        before = old.policy if old is not None else None
        if entry is None or entry.policy != before or (old is not None and old.shards != entry.shards):
            concerned = {*(old.shards if old else ()), *(entry.shards if entry else ())}
            self.changed[number] = self.changed.get(number, frozenset()) | concerned

    def _set_topic(self, number: int, entry: TopicEntry | None) -> None:
        self._use_format(TOPICS_VERSION)
        old = self.tables.set_topic(number, entry)
        self.next_queue = max(self.next_queue, number + 1)
        if old is not None:
            self._loads[old.shard] -= 1
        if entry is not None:
            self._loads[entry.shard] = self._loads.get(entry.shard, 0) + 1
        if entry is None or old is None or entry.policy != old.policy:
            concerned = {each.shard for each in (old, entry) if each is not None}
            self.changed[number] = self.changed.get(number, frozenset()) | concerned

    def _set_subscription(self, number: int, entry: SubscriptionEntry | None) -> None:
        self._use_format(TOPICS_VERSION)
        old = self.tables.set_subscription(number, entry)
        if old is not None and entry is not None and old.policy == entry.policy:
            return
        for each in (old, entry):
            topic = self.tables.topics.get(each.topic) if each is not None else None
            if topic is not None:
                self.changed[topic.number] = self.changed.get(topic.number, frozenset()) | {topic.shard}
                self.changed_subscriptions.setdefault(topic.number, set()).add(number)

    def placed(self, number: int) -> QueueEntry | TopicEntry | None:
        """The queue or the topic of this number; None if there is none."""
        return self.queues.get(number) or self.tables.topics.get(number)

    def _index(self, entry: QueueEntry) -> None:
        self.queues[entry.number] = entry
        if entry.needs_new_format:
            self._use_format(SPREAD_VERSION)
        if entry.policy.is_restricted:
            self._use_format(PACING_VERSION)
        if entry.before:
            self.growing.add(entry.number)
        self.by_name[entry.key] = entry
        insort(self._names.setdefault(entry.account, []), entry.name)
        target = entry.dead_letter_target
        if target is not None:
            self._sources.setdefault(target, set()).add(entry.number)
        for shard in entry.shards:
            self._loads[shard] = self._loads.get(shard, 0) + 1
            if entry.own_shards:
                self._taken[shard] = self._taken.get(shard, 0) + 1

    def _unindex(self, entry: QueueEntry) -> None:
        del self.queues[entry.number]
        self.growing.discard(entry.number)
        del self.by_name[entry.key]
        names = self._names[entry.account]
        del names[bisect_left(names, entry.name)]
        if not names:
            del self._names[entry.account]
        target = entry.dead_letter_target
        if target is not None:
            self._sources[target].discard(entry.number)
            if not self._sources[target]:
                del self._sources[target]
        for shard in entry.shards:
            self._loads[shard] -= 1
            if entry.own_shards:
                self._taken[shard] -= 1
                if not self._taken[shard]:
                    del self._taken[shard]

    # --- dump and Base -------------------------------------------------------------------------

    def dump(self) -> bytes:
        """The state in its canonical form: equal states give equal bytes. A Base holds the same bytes."""
        return encode(
            {
                "version": self.version,
                "epoch": self.epoch,
                "last_time_ms": self.last_time_ms,
                "next_queue": self.next_queue,
                "next_receipt_key": self.next_receipt_key,
                "accounts": {key: entry.record() for key, entry in self.accounts.items()},
                "access_keys": {key: entry.record() for key, entry in self.access_keys.items()},
                "queues": {str(key): entry.record() for key, entry in self.queues.items()},
                "deleted": {f"{name.account}/{name.name}": until for name, until in self.deleted.items()},
                "receipt_keys": {str(key): entry.record() for key, entry in self.receipt_keys.items()},
                "shards": {str(key): entry.record() for key, entry in self.shards.items()},
                "settings": {},  # always empty; earlier releases wrote it, and a Base must equal theirs
                **self.tables.facts(),
            }
        )

    def _apply_base(self, version: int, time: int, data: bytes) -> None:
        fresh = self.version == 0 or self.before_base
        self.last_time_ms = max(self.last_time_ms, time)
        self.records_since_base = 0
        if fresh:
            self._load(json.loads(data))
        if self.version != version or (not fresh and self.dump() != data):
            raise LogCorrupt(f"the catalog's base at version {version} does not agree with the records before it")
        self.before_base = False

    def _load(self, base: Record) -> None:
        self._clear()
        for kind, name in (
            ("account", "accounts"),
            ("access_key", "access_keys"),
            ("receipt_key", "receipt_keys"),
            ("shard", "shards"),
            ("queue", "queues"),
            ("topic", "topics"),
            ("subscription", "subscriptions"),
        ):
            for key, value in base.get(name, {}).items():
                self._set(kind, key, value, 0)
        self.deleted = {QueueName(*key.split("/", 1)): until for key, until in base["deleted"].items()}
        self.version = base["version"]
        self.epoch = max(self.epoch, base["epoch"])
        self.last_time_ms = max(self.last_time_ms, base["last_time_ms"])
        self.next_queue = base["next_queue"]
        self.next_receipt_key = base["next_receipt_key"]
        self.tables.next_subscription = base.get("next_subscription", 1)

    # --- policies of a shard -------------------------------------------------------------------

    def policies_for_shard(self, shard: int) -> dict[int, QueuePolicy]:
        """The policy of every queue and topic that is placed on the shard, by its number."""
        queues = {entry.number: entry.policy for entry in self.queues.values() if shard in entry.shards}
        return queues | {entry.number: entry.policy for entry in self.tables.topics.values() if shard == entry.shard}

    def validate(self) -> None:
        """Assert every invariant."""
        assert not self.before_base
        assert self.by_name == {entry.key: entry for entry in self.queues.values()}, "one queue a name"
        assert self._names == _sorted_names(self.by_name), "names in order"
        assert all(number < self.next_queue for number in self.queues), "queue numbers are never used again"
        assert self.next_queue <= MISSING_QUEUE
        assert all(id < self.next_receipt_key for id in self.receipt_keys)
        assert not self.deleted.keys() & self.by_name.keys(), "a name that exists does not wait"
        assert all(key.account in self.accounts for key in self.access_keys.values())
        loads = dict.fromkeys(self.shards, 0)
        taken: dict[int, int] = {}
        sources: dict[QueueName, set[int]] = {}
        for entry in self.queues.values():
            assert entry.shards and set(entry.shards) <= self.shards.keys(), "a queue lies on shards that exist"
            assert len(set(entry.shards)) == len(entry.shards) <= PLACES_MAX - entry.left
            assert not entry.left or entry.fifo
            assert len(entry.slots) == (SLOTS if len(entry.shards) > 1 else 0), "every slot belongs to a shard"
            assert all(place < len(entry.shards) for place in entry.slots + entry.before)
            assert len(entry.before) % SLOTS == 0 and entry.spread.growths <= GROWTHS_MAX
            assert 0 < entry.policy_version <= self.version
            assert entry.created_ms <= entry.modified_ms <= self.last_time_ms
            for shard in entry.shards:
                loads[shard] += 1
                if entry.own_shards:
                    taken[shard] = taken.get(shard, 0) + 1
            target = entry.dead_letter_target
            assert entry.dead_letter == self._link(target), "a policy points to its dead-letter queue as it is now"
            if target is not None:
                assert target != entry.key and target.account == entry.account
                sources.setdefault(target, set()).add(entry.number)
        for topic in self.tables.topics.values():
            assert topic.shard in self.shards and topic.number < self.next_queue and topic.number not in self.queues
            assert 0 < topic.policy_version <= self.version
            loads[topic.shard] += 1
        for subscription in self.tables.subscriptions.values():
            links = (subscription.link, subscription.dead_letter_link)
            names = (subscription.queue, subscription.dead_letter)
            assert links == tuple(map(self._link, names)), "a subscription points to its queues as they are now"
        self.tables.validate()
        assert self._loads == loads
        assert self._taken == taken
        assert self.growing == {entry.number for entry in self.queues.values() if entry.before}
        assert self._sources == sources

    def _link(self, target: QueueName | None) -> Link | None:
        """A dead-letter queue in its current state; None if it does not exist."""
        queue = self.by_name.get(target) if target is not None else None
        return queue.link if queue is not None else None


def _put(table: dict[Any, Any], key: str | int, value: object) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _sorted_names(names: dict[QueueName, QueueEntry]) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {}
    for name in sorted(names):
        result.setdefault(name.account, []).append(name.name)
    return result
