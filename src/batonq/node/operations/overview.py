"""An overview of a node at one moment, read from committed state: for the status page and the metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from batonq.core.commands import Counters
from batonq.node.events import ActiveAlarm
from batonq.node.shard_host.group_commit import CommitStatistics


class QueueReading(NamedTuple):
    account: str
    name: str
    fifo: bool
    shard: int
    sla_seconds: int
    dead_letters: bool  # the queue is another queue's dead-letter queue
    waiters: int
    counters: Counters


class ShardReading(NamedTuple):
    number: int
    state: str
    why: str
    epoch: int
    log_bytes: int
    room: str
    failures: int
    commits: CommitStatistics


class HistoryReading(NamedTuple):
    bytes_served: int = 0
    readers: int = 0
    limited: int = 0


class ArchiveReading(NamedTuple):
    shard: int
    segments: int
    failures: int
    behind_bytes: int


@dataclass(slots=True)
class Overview:
    at_ms: int
    queues: list[QueueReading] = field(default_factory=list)
    shards: list[ShardReading] = field(default_factory=list)
    alarms: list[ActiveAlarm] = field(default_factory=list)
    alarms_raised: int = 0
    missing: int = 0  # queues whose shard is not served now
    history: HistoryReading = field(default_factory=HistoryReading)
    archive: list[ArchiveReading] = field(default_factory=list)  # empty without an archive

    def age_ms(self, queue: QueueReading) -> int:
        """Age of the queue's oldest message; 0 when the queue is empty."""
        oldest_ms = queue.counters.oldest_sent_ms
        return max(0, self.at_ms - oldest_ms) if oldest_ms else 0
