"""Deduplication ids: which message has which id, and for how long a second one is a duplicate."""

from __future__ import annotations

from collections.abc import Sequence

from batonq.core.commands import Send
from batonq.core.ids import key_hashes
from batonq.core.shard.state.columns import Columns
from batonq.core.shard.state.dedup_table import FOREVER_S, DedupTable, Known
from batonq.core.shard.state.journal import Journal
from batonq.core.shard.state.queue_state import QueueState


class Deduplication:
    def __init__(self, journal: Journal, columns: Columns) -> None:
        self.journal = journal
        self.columns = columns
        self.table = DedupTable()
        self.living: dict[
            int, tuple[int, int]
        ] = {}  # slot → key that lives as long as its message, and until when (s) at least

    def keys_of(self, queue: QueueState, command: Send) -> list[int]:
        """The hash of each message's deduplication id, 0 for a message without one; empty if no message has one."""
        ids = command.dedup_ids
        if not any(ids):
            return []
        start = f"{queue.number}\x00{queue.dedup_generation}\x00"
        if queue.policy.dedup_per_group and command.groups:
            texts = [f"{start}{scope}\x00{own}" for scope, own in zip(command.groups, ids, strict=True)]
        else:
            texts = [f"{start}\x00{own}" for own in ids]
        keys = key_hashes(texts)
        return keys if all(ids) else [key if own else 0 for key, own in zip(keys, ids, strict=True)]

    def are_new(self, keys: Sequence[int], beside: int) -> bool:
        """Whether no message has any of these keys, and the table has room for them and for `beside` other keys."""
        room = self.journal.limits.dedup_entries_max - len(self.table) - beside
        return room >= len(keys) and self.table.has_none(keys)

    def known(self, queue: QueueState, key: int, now: int) -> Known | None:
        """The message with this deduplication id, or None. Ids that a purge has forgotten are not found. An
        exception is a message that survived the purge (on its way to another shard) and whose id lives as long as the
        message.
        """
        known = self.table.get(key, now // 1000)
        if known is None or (known.sequence < queue.forgotten_below and known.expires_s != FOREVER_S):
            return None
        return known

    def put(self, queue: QueueState, slot: int, sequence: int, time: int, key: int, mark: int, lives: bool) -> None:
        """Store a message's deduplication key. `mark` is the fingerprint of the content."""
        now_s = time // 1000
        if lives:
            self.living[slot] = (key, now_s)
            self.table.put(key, sequence, FOREVER_S, mark, now_s)
        else:
            self.table.put(key, sequence, -(-(time + queue.policy.dedup_window_ms) // 1000), mark, now_s)

    def put_run(
        self, queue: QueueState, slots: Sequence[int], first: int, time: int, keys: Sequence[int], marks: Sequence[int]
    ) -> None:
        """Store the keys of messages with consecutive sequences. None of the keys is known; 0 means no key."""
        policy = queue.policy
        if policy.dedup_lives or 0 in keys:
            for at, key in enumerate(keys):
                if key:
                    self.put(queue, slots[at], first + at, time, key, marks[at], policy.dedup_lives)
            return
        self.table.put_run(keys, first, -(-(time + policy.dedup_window_ms) // 1000), marks, time // 1000)

    def end_life(self, slot: int) -> None:
        """Forget a deduplication key that lives as long as its message, because the message is gone or dead."""
        if slot in self.living:
            key, window_end_s = self.living.pop(slot)
            self.table.end_life(key, self.columns.sequence[slot], window_end_s, self.journal.last_time_ms // 1000)
