"""The catalog: the control plane's state machine. Accounts, keys, queues and their placement, receipt keys; topics
are in topic_commands.py.

Pure, like a shard: a command is decided against the state, writes records into the open frame and applies them at once.
Time and random bytes are arguments. A command that raises has changed nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from batonq.attribute_formats.access_policy import Statement, with_statement, without_statement
from batonq.attribute_formats.arns import QueueName, queue_arn
from batonq.attribute_formats.redrive_policy import allows_source, parse_redrive_policy
from batonq.core.catalog import attributes as attribute_table
from batonq.core.catalog.attributes import is_fifo
from batonq.core.catalog.entries import (
    ROLES,
    WRITE,
    AccessKey,
    Account,
    Link,
    QueueEntry,
    ReceiptKey,
    ShardEntry,
)
from batonq.core.catalog.names import ACCOUNT_DIGITS, check_account, check_queue_name, is_text, is_word
from batonq.core.catalog.placement import wants_own
from batonq.core.catalog.tags import TAG_VALUE_LENGTH_MAX, check_tags
from batonq.core.catalog.topic_commands import TopicCommands
from batonq.core.policy import MISSING_QUEUE, SECOND_MS, QueuePolicy
from batonq.core.records import BaseFlag, Type
from batonq.core.spread import even
from batonq.errors import (
    DeadLetterQueueRefused,
    InvalidInput,
    LogCorrupt,
    NotFound,
    OverLimit,
    PurgeInProgress,
    QueueDeletedRecently,
    QueueDoesNotExist,
    QueueExists,
)
from batonq.queue_attributes import (
    ACCESS_POLICY,
    DEAD_LETTER_POLICY,
    DEAD_LETTER_SOURCES,
    FIFO,
    RETENTION,
    RETENTION_MAX_S,
    SPREAD,
    mention,
)

DAY_MS = 86_400 * SECOND_MS
RECEIPT_KEY_LIFE_MS = RETENTION_MAX_S * SECOND_MS + DAY_MS  # counted from the creation of the next key
RECEIPT_KEY_BYTES = 32
KEY_NAME_LENGTH_MAX = 64
KEY_LIFE_MAX_MS = 100 * 366 * DAY_MS
KEYS_FORGOTTEN_MAX = 100  # at once
RECEIPT_KEY_IDS = 1 << 16
RECEIPT_KEYS_MAX = 1_000
SOURCES_MAX = 10_000  # a change of a dead-letter queue writes one record per source queue, in one frame
SHARDS_MAX = 1 << 15
BASE_RECORDS_MIN = 1_000
FRAME_OVERHEAD_BYTES = 1 << 10  # for the header and the rows


@dataclass(slots=True, frozen=True)
class Rules:
    """The catalog's settings: waits, which the development profile turns off, and limits."""

    name_wait_ms: int = 60 * SECOND_MS
    purge_wait_ms: int = 60 * SECOND_MS
    queues_max: int = 100_000
    accounts_max: int = 10_000
    access_keys_max: int = 10_000
    replicas: int = 1  # of shards whose entry names none: the log's own number
    spread: int = 1  # default number of shards for a new standard queue, if there are that many
    open_queues: bool = False  # every account may send to every queue: the development profile


class Catalog(TopicCommands):
    def __init__(self, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        super().__init__(self.rules.replicas)
        self.open_queues = self.rules.open_queues

    # --- the frame, ownership, truncation ------------------------------------------------------

    def begin_frame(self, number: int) -> None:
        """Start filling the frame with this number, after the open frame was sealed."""
        self.frame.begin(number)

    def seal(self) -> tuple[bytes, bytes]:
        return self.frame.seal()

    def take_ownership(self, epoch: int, base_ms: int, grace_ms: int = 0) -> None:
        """Write the first record of a new owner."""
        if self.before_base:
            raise LogCorrupt("the beginning of the catalog's log is missing, and no Base record replaces it")
        assert epoch > self.epoch, "an owner's epoch is above every one before"
        base_ms = max(base_ms, self.last_time_ms)
        self.frame.add(Type.EPOCH, epoch, base_ms, base_ms, grace_ms, 0, 0, self.format)
        self._apply_epoch(epoch, base_ms)

    @property
    def wants_base(self) -> bool:
        """Whether enough has changed since the last Base to make truncating the log worthwhile."""
        return self.records_since_base >= max(BASE_RECORDS_MIN, 4 * len(self.queues))

    def write_base(self, first_frame: int, frame_bytes_max: int, now: int) -> None:
        """Write the whole state, after which frames below the open one may be dropped from the log.

        A Base that is too long for one frame is written in parts, in consecutive frames.
        """
        now = self._time(now)
        self.last_time_ms = now
        data = self.dump()
        length = max(1, frame_bytes_max // 2)
        starts = range(0, len(data), length)
        for number, start in enumerate(starts):
            part = data[start : start + length]
            more = BaseFlag.MORE << 8 if number + 1 < len(starts) else 0
            if self.frame.size + len(part) > frame_bytes_max - FRAME_OVERHEAD_BYTES:
                self.frame.roll()
            w6 = self.frame.put(part)
            self.frame.add(Type.CATALOG_BASE | more, self.version, now, first_frame, number, 0, w6, 0)
        self._apply_base(self.version, now, data)

    # --- reading -------------------------------------------------------------------------------

    def queue_by_number(self, number: int) -> QueueEntry:
        entry = self.queues.get(number)
        if entry is None:
            raise QueueDoesNotExist
        return entry

    def list_queues(self, account: str, prefix: str = "") -> list[QueueEntry]:
        """An account's queues whose names start with `prefix`, sorted by name."""
        names = self._names.get(account, [])
        result = []
        for at in range(bisect_left(names, prefix), len(names)):
            if not names[at].startswith(prefix):
                break
            result.append(self.by_name[QueueName(account, names[at])])
        return result

    def dead_letter_sources(self, number: int) -> list[QueueEntry]:
        """The queues that use this queue as their dead-letter queue, sorted by name."""
        return self.sources_of(self.queue_by_number(number).key)

    def find_key(self, key_id: str) -> AccessKey | None:
        """The access key; None if it does not exist or is disabled."""
        key = self.access_keys.get(key_id)
        return None if key is None or key.disabled else key

    def reconcile(self, shard: int, held: Mapping[int, int]) -> tuple[list[QueuePolicy], list[int]]:
        """What to tell a shard that holds these queues (number → policy version): policies to set, queues to close."""
        wanted = self.policies_for_shard(shard)
        to_set = [wanted[number] for number in sorted(wanted) if held.get(number) != wanted[number].version]
        return to_set, sorted(held.keys() - wanted.keys())

    # --- queues --------------------------------------------------------------------------------

    def create_queue(
        self,
        account: str,
        name: str,
        attributes: Mapping[str, str],
        tags: Mapping[str, str],
        now: int,
        *,
        any_name: bool = False,
        chains: bool = True,
    ) -> QueueEntry:
        """Create a queue, or return the existing one if it has the same attributes.

        With `any_name` the name of a FIFO queue need not end in .fifo. With `chains` a dead-letter queue
        may have a dead-letter queue itself.
        """
        now = self._time(now)
        fifo = attributes.get(FIFO, "").lower() == "true"
        check_queue_name(name, fifo=fifo, any_name=any_name)
        check_account(account)
        key = QueueName(account, name)
        existing = self.by_name.get(key)
        if existing is not None:
            return self._same_queue(existing, attributes)
        values = attribute_table.validate(attributes, fifo=fifo, creating=True)
        check_tags(f"queue {name}", tags)
        link = self._check_redrive(key, fifo, values.get(DEAD_LETTER_POLICY), chains)
        if self.deleted.get(key, 0) > now:
            raise QueueDeletedRecently
        if len(self.queues) >= self.rules.queues_max or self.next_queue >= MISSING_QUEUE:
            raise OverLimit(f"The limit of {len(self.queues)} queues is reached. Delete a queue first.")
        number = self.next_queue
        values = self._with_spread(values)
        spread = even(self._choose_shards(int(values.get(SPREAD, "1")), values))
        entry = QueueEntry(
            number=number,
            account=account,
            name=name,
            attributes=values,
            tags=dict(tags),
            created_ms=now,
            modified_ms=now,
            shards=spread.shards,
            slots=spread.slots,
            dead_letter=link,
            policy_version=self.version + 1,
        )
        self._write("queue", number, entry.record(), now)
        if key in self.deleted:
            self._write("deleted", f"{account}/{name}", None, now)
        self._refresh_sources(key, now)
        self._keep_dead_letters(self.queues[number], now)
        return self.queues[number]

    def _same_queue(self, existing: QueueEntry, passed: Mapping[str, str]) -> QueueEntry:
        difference = attribute_table.first_difference(passed, existing.attributes)
        if difference is not None:
            raise QueueExists(
                f"A queue already exists with the same name and a different value for attribute {mention(difference)}"
            )
        return existing

    def _with_spread(self, values: dict[str, str]) -> dict[str, str]:
        """Add the default number of shards to a standard queue that names none, as far as the rules allow."""
        if is_fifo(values) or SPREAD in values or wants_own(values):
            return values
        if self.rules.spread == 1 or self.spread_refused:
            return values
        limits = [int(values.get(name, "0")) or SHARDS_MAX for name in attribute_table.DIVIDED]
        wanted = min(self.rules.spread, len(self._free_shards(values)), *limits)
        return {**values, SPREAD: str(wanted)} if wanted > 1 else values

    def _check_redrive(self, source: QueueName, fifo: bool, policy: str | None, chains: bool = True) -> Link | None:
        """The dead-letter queue in its current state. Raises DeadLetterQueueRefused if this source cannot
        use it."""
        if not policy:
            return None
        target = parse_redrive_policy(policy).target
        if target.account != source.account:
            raise DeadLetterQueueRefused("Dead-letter target owner should be same as the source.")
        queue = self.by_name.get(target)
        if queue is None:
            raise DeadLetterQueueRefused("Dead letter target does not exist.")
        if target == source:
            raise DeadLetterQueueRefused("A queue cannot be its own dead-letter queue.")
        if not chains:
            self._check_no_chain(source, queue)
        if queue.fifo != fifo:
            raise DeadLetterQueueRefused("Dead-letter queue must be same type of queue as the source.")
        if not allows_source(queue.attributes.get(DEAD_LETTER_SOURCES, ""), source):
            raise DeadLetterQueueRefused(
                f"The {mention(DEAD_LETTER_SOURCES)} of queue {target.name} does not allow {source.name} as a source "
                "queue."
            )
        sources = self._sources.get(target, set())
        if len(sources) >= SOURCES_MAX and (source not in self.by_name or self.by_name[source].number not in sources):
            raise OverLimit(
                f"Queue {target.name} is already the dead-letter queue of {len(sources)} queues, which is the maximum."
            )
        return queue.link

    def _check_no_chain(self, source: QueueName, target: QueueEntry) -> None:
        """Refuse a chain of dead-letter queues, because dead letters that die again must stay where they are."""
        further = target.dead_letter_target
        if further is not None:
            raise DeadLetterQueueRefused(
                f"{target.name} cannot be a dead-letter queue because it has a dead-letter queue itself "
                f"({further.name}). Choose a queue without one."
            )
        others = self._sources.get(source)
        if others:
            raise DeadLetterQueueRefused(
                f"{source.name} cannot have a dead-letter queue because it is itself the dead-letter queue of "
                f"{self.queues[min(others)].name}."
            )

    def _keep_dead_letters(self, source: QueueEntry, now: int) -> None:
        """Give the queue's dead-letter queue the maximum retention, unless someone has chosen its retention."""
        target = source.dead_letter_target
        dead = None if target is None else self.by_name.get(target)
        if dead is not None and RETENTION not in dead.attributes:
            attributes = {**dead.attributes, RETENTION: str(RETENTION_MAX_S)}
            self._change(replace(dead, attributes=attributes, modified_ms=now), now)

    def _refresh_sources(self, target: QueueName, now: int) -> None:
        """Update the policies of the queues that dead-letter to `target`, and the subscriptions that deliver to it,
        after it was created, deleted or moved.
        """
        for number in sorted(self._sources.get(target, ())):
            self._change(replace(self.queues[number], dead_letter=self._link(target)), now)
        self._refresh_subscriptions(target, now)

    def _change(self, entry: QueueEntry, now: int) -> QueueEntry:
        """Write a queue's new state, if it differs. The policy's version rises only if the policy differs."""
        old = self.queues[entry.number]
        if entry == old:
            return old
        if entry.policy != old.policy:
            entry = replace(entry, policy_version=self.version + 1)
        self._write("queue", entry.number, entry.record(), now)
        return self.queues[entry.number]

    def delete_queue(self, number: int, now: int) -> QueueEntry:
        """Delete a queue; returns its last entry. The number is never reused."""
        now = self._time(now)
        entry = self.queue_by_number(number)
        self._write("queue", number, None, now)
        if self.rules.name_wait_ms:
            until = {"until_ms": now + self.rules.name_wait_ms}
            self._write("deleted", f"{entry.account}/{entry.name}", until, now)
        self._refresh_sources(entry.key, now)
        return entry

    def set_attributes(self, number: int, changes: Mapping[str, str], now: int, *, chains: bool = True) -> QueueEntry:
        """Change attributes; an empty value removes one. `chains` is as in `create_queue`."""
        now = self._time(now)
        entry = self.queue_by_number(number)
        values = attribute_table.validate(changes, fifo=entry.fifo, creating=False, current=entry.attributes)
        if entry.fifo != is_fifo(values):
            raise AssertionError("the type of a queue never changes")
        link = entry.dead_letter
        if DEAD_LETTER_POLICY in changes:
            link = self._check_redrive(entry.key, entry.fifo, values.get(DEAD_LETTER_POLICY), chains)
        if values == entry.attributes:
            return entry
        spread = self._placed(entry, values)
        changed = self._change(
            replace(
                entry,
                attributes=values,
                dead_letter=link,
                modified_ms=now,
                shards=spread.shards,
                slots=spread.slots,
                before=spread.before,
            ),
            now,
        )
        if changed.link != entry.link:
            self._refresh_sources(changed.key, now)
        elif ACCESS_POLICY in changes:
            self._refresh_subscriptions(changed.key, now)
        if DEAD_LETTER_POLICY in changes:
            self._keep_dead_letters(changed, now)
        return changed

    def set_tags(self, number: int, add: Mapping[str, str], remove: Iterable[str], now: int) -> QueueEntry:
        """Add or change tags, then remove some."""
        entry = self.queue_by_number(number)
        gone = set(remove)
        tags = {key: value for key, value in {**entry.tags, **add}.items() if key not in gone}
        check_tags(f"queue {entry.name}", {**tags, **add})
        return self._change(replace(entry, tags=tags), self._time(now))

    def set_permission(self, number: int, label: str, statement: Statement | None, now: int) -> QueueEntry:
        """Add a statement to the queue's access policy under a label; None removes it."""
        entry = self.queue_by_number(number)
        policy = entry.attributes.get(ACCESS_POLICY, "")
        if statement is None:
            changed = without_statement(policy, label)
        else:
            arn = str(statement.get("Resource") or queue_arn(entry.account, entry.name))
            changed = with_statement(policy, arn, label, statement)
        return self.set_attributes(number, {ACCESS_POLICY: changed}, now)

    def purge_queue(self, number: int, now: int) -> None:
        """Check that the queue may be purged now, and record the time. The shard does the purge."""
        now = self._time(now)
        entry = self.queue_by_number(number)
        wait_ms = self.rules.purge_wait_ms
        if not wait_ms:
            return
        if entry.purged_ms and now < entry.purged_ms + wait_ms:
            raise PurgeInProgress(f"Only one purge of {entry.name} is allowed every {wait_ms // SECOND_MS} seconds.")
        self._change(replace(entry, purged_ms=now), now)

    def settle_spread(self, number: int, shard: int, now: int) -> QueueEntry:
        """Record that a shard has nothing left of the slots that it gave up when the queue grew or moved. If it gave
        up all of its slots, the queue leaves the shard.
        """
        entry = self.queue_by_number(number)
        if not entry.before:
            return entry
        now = self._time(now)
        spread = entry.spread.settled(shard)
        left = spread.left if entry.fifo else 0
        changed = self._change(
            replace(entry, shards=spread.shards, slots=spread.slots, before=spread.before, left=left), now
        )
        if changed.link != entry.link:
            self._refresh_sources(changed.key, now)
        return changed

    # --- shards --------------------------------------------------------------------------------

    def open_shards(self, count: int, now: int, *, replicas: int = 0) -> list[int]:
        """Make sure that `count` shards with this many replicas exist (0: the log's own number), numbered after the
        existing shards. The count never decreases. Returns the new shards.
        """
        now = self._time(now)
        kind = 0 if replicas == self.own_replicas else replicas
        have = len(self.shards_of(replicas))
        if not have <= count <= SHARDS_MAX - len(self.shards) + have:
            raise InvalidInput(
                f"The number of these shards cannot be changed from {have} to {count}: it cannot decrease, and there "
                f"can be at most {SHARDS_MAX} shards in total."
            )
        added = list(range(len(self.shards), len(self.shards) + count - have))
        if kind and added and self.spread_refused:
            raise InvalidInput(self.spread_refused)
        for number in added:
            self._write("shard", number, ShardEntry(number, now, kind).record(), now)
        return added

    # --- accounts and their keys ---------------------------------------------------------------

    def put_account(self, account: str, title: str, now: int) -> Account:
        now = self._time(now)
        if len(account) != ACCOUNT_DIGITS or not (account.isascii() and account.isdigit()):
            raise InvalidInput(f"An account id must be {ACCOUNT_DIGITS} digits, not {account[:64]!r}.")
        if not is_text(title, TAG_VALUE_LENGTH_MAX):
            raise InvalidInput(f"The title of an account can be at most {TAG_VALUE_LENGTH_MAX} bytes long.")
        old = self.accounts.get(account)
        if old is None and len(self.accounts) >= self.rules.accounts_max:
            raise OverLimit(f"The limit of {len(self.accounts)} accounts is reached.")
        if old is None or old.title != title:
            created_ms = old.created_ms if old is not None else now
            self._write("account", account, Account(account, title, created_ms).record(), now)
        return self.accounts[account]

    def put_key(
        self,
        key_id: str,
        secret: str,
        account: str,
        now: int,
        *,
        name: str = "",
        role: str = WRITE,
        lasts_ms: int = 0,
    ) -> AccessKey:
        """Add an access key to an account, which is created if it does not exist. `lasts_ms` 0: it never expires."""
        now = self._time(now)
        if not is_word(key_id, 128) or not secret or not is_text(secret, 256):
            raise InvalidInput("The id of a key must be 1 to 128 letters and digits, and its secret at most 256 bytes.")
        if key_id in self.access_keys:
            raise InvalidInput(f"Key {key_id} already exists. Choose another id.")
        if len(name) > KEY_NAME_LENGTH_MAX or not name.isprintable():
            raise InvalidInput(f"The name of a key can be at most {KEY_NAME_LENGTH_MAX} printable characters long.")
        if role not in ROLES:
            raise InvalidInput(f"{role[:64]!r} is not a role of a key. Use {', '.join(ROLES)}.")
        if not 0 <= lasts_ms <= KEY_LIFE_MAX_MS:
            raise InvalidInput("A key must expire in the future, at most 100 years from now.")
        if len(self.access_keys) >= self.rules.access_keys_max and not self._forget_expired_keys(now):
            raise OverLimit(f"The limit of {len(self.access_keys)} keys is reached. No more keys can be created.")
        if account not in self.accounts:
            self.put_account(account, "", now)
        key = AccessKey(
            key_id, secret, account, now, name=name, role=role, expires_ms=now + lasts_ms if lasts_ms else 0
        )
        self._write("access_key", key_id, key.record(), now)
        return self.access_keys[key_id]

    def _forget_expired_keys(self, now: int) -> bool:
        """Remove keys that expired, those first that expired longest ago. Returns whether there were any."""
        expired = sorted((key.expires_ms, key.id) for key in self.access_keys.values() if key.expired(now))
        for _, key_id in expired[:KEYS_FORGOTTEN_MAX]:
            self._write("access_key", key_id, None, now)
        return bool(expired)

    def disable_key(self, key_id: str, now: int, *, disabled: bool = True) -> AccessKey:
        """Disable a key, or enable it again."""
        key = self._access_key(key_id)
        if key.disabled != disabled:
            self._write("access_key", key_id, replace(key, disabled=disabled).record(), self._time(now))
        return self.access_keys[key_id]

    def _access_key(self, key_id: str) -> AccessKey:
        key = self.access_keys.get(key_id)
        if key is None:
            raise NotFound(f"Key {key_id[:128]!r} does not exist. The list of keys shows the ids of all keys.")
        return key

    # --- receipt keys --------------------------------------------------------------------------

    def receipt_key_due_ms(self, rotation_ms: int) -> int:
        """When the next receipt key should be created; 0 if there is none yet."""
        if not self.receipt_keys:
            return 0
        return self.receipt_keys[max(self.receipt_keys)].created_ms + rotation_ms

    def rotate_receipt_key(self, key: bytes, now: int) -> ReceiptKey:
        """Start using a new receipt key, which the caller creates at random. Keys that no receipt can need any more
        are removed.

        A message lives at most as long as the longest retention, so receipts of a replaced key are useless after that
        time. One more day allows for clock differences and grace.
        """
        now = self._time(now)
        assert len(key) == RECEIPT_KEY_BYTES
        id = self.next_receipt_key
        ids = sorted(self.receipt_keys)
        replaced_ms = {old: self.receipt_keys[newer].created_ms for old, newer in pairwise(ids)}
        expired = [old for old, since_ms in replaced_ms.items() if now >= since_ms + RECEIPT_KEY_LIFE_MS]
        if len(ids) - len(expired) >= RECEIPT_KEYS_MAX or id >= RECEIPT_KEY_IDS:
            raise OverLimit(f"There are already {len(ids)} receipt keys in use. Rotate them less often.")
        self._write("receipt_key", id, ReceiptKey(id, key, now).record(), now)
        for old in expired:
            self._write("receipt_key", old, None, now)
        return self.receipt_keys[id]
