"""Deduplication ids: which message has which id, and for how long a second one is a duplicate."""

from __future__ import annotations

from batonq.core.commands import Send
from batonq.core.ids import key_hash
from batonq.core.shard.state.columns import Columns
from batonq.core.shard.state.dedup_table import FOREVER_S, DedupTable, Known
from batonq.core.shard.state.journal import Journal
from batonq.core.shard.state.queue_state import QueueState


class Deduplication:
    def __init__(self, journal: Journal, columns: Columns) -> None:
        self.journal = journal
        self.columns = columns
        self.table = DedupTable()
        self.living: dict[int, tuple[int, int]] = {}  # slot → key that lives as long as its message, window end (s)

    def key_of(self, queue: QueueState, command: Send, at: int) -> int:
        """The hash of a message's deduplication id; 0 if it has none."""
        dedup_id = command.dedup_ids[at] if command.dedup_ids else ""
        if not dedup_id:
            return 0
        scope = command.groups[at] if queue.policy.dedup_per_group and command.groups else ""
        return key_hash(queue.number, queue.dedup_generation, scope, dedup_id)

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
        window_end_s = -(-(time + queue.policy.dedup_window_ms) // 1000)
        now_s = time // 1000
        if lives:
            self.living[slot] = (key, window_end_s)
            self.table.put(key, sequence, FOREVER_S, mark, now_s)
        else:
            self.table.put(key, sequence, window_end_s, mark, now_s)

    def end_life(self, slot: int) -> None:
        """Let a deduplication key that lives as long as its message expire with its window, because the message is
        gone or dead.
        """
        if slot in self.living:
            key, window_end_s = self.living.pop(slot)
            self.table.end_life(key, self.columns.sequence[slot], window_end_s, self.journal.last_time_ms // 1000)
