"""An overview of the whole server at one moment, read from committed state: for pages, metrics and alarms.

Each node or process reads its own shards (`OverviewReader`); `joined` makes one overview of all parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

import msgspec

from batonq import __version__
from batonq.core.catalog.entries import QueueEntry
from batonq.core.catalog.machine import Catalog
from batonq.core.commands import Counters
from batonq.core.shard.state.queue_state import GAUGES, SOFT, TOTALS
from batonq.errors import BatonError
from batonq.node.alarms.book import Alarm, AlarmBook, merged
from batonq.node.catalog.catalog_host import CatalogHost
from batonq.node.monitoring.everywhere import Part
from batonq.node.monitoring.process import ProcessReading, read_process
from batonq.node.monitoring.sampler import NO_RATES, Rates, Sampler
from batonq.node.operations.history import History
from batonq.node.routing.splitter import summed
from batonq.node.shard_host.archiving import Archiving
from batonq.node.shard_host.group_commit import CommitStatistics
from batonq.node.shard_host.host import committed
from batonq.node.shard_host.keeper import KeeperState, ShardKeeper
from batonq.queue_attributes import ALARM_DEPTH

READ_AT_ONCE = 200  # queues whose counters are read before other requests get a turn
LINES_AT_ONCE = 20_000  # and groups
READ_TIMEOUT_S = 2.0
SERVED_ELSEWHERE = (KeeperState.FOLLOWING.value, KeeperState.ELSEWHERE.value)
AWAY = "No process or node serves the shard at the moment. Retry."


class QueueReading(NamedTuple):
    account: str
    name: str
    fifo: bool
    shard: int
    sla_seconds: int
    dead_letters: bool  # the queue is another queue's dead-letter queue
    waiters: int
    counters: Counters
    number: int = 0
    shards: int = 1  # shards of the queue that were read
    blocked_groups: int = 0  # FIFO groups with messages that wait for the group's first message
    rates: Rates = NO_RATES
    retention_seconds: int = 0
    dead_letter_queue: str = ""
    sources: tuple[str, ...] = ()  # the queues that have this one as their dead-letter queue
    max_receives: int = 0  # 0: unlimited
    severity: str = ""  # of the queue's alarms, as its owner has set it
    created_ms: int = 0
    alarm_depth: int = 0  # 0: the server's
    expiry_to_dead_letter: bool = False
    paused: str = ""  # delivery, sends or both
    deliveries_per_s: int = 0  # 0: no cap
    only_group: str = ""
    priority_min: int = 0


class ShardReading(NamedTuple):
    number: int
    state: str
    why: str
    epoch: int
    log_bytes: int
    room: str
    failures: int
    commits: CommitStatistics
    owner: str = ""


class NodeReading(NamedTuple):
    """A node or process of the server, as it describes itself."""

    name: str
    problem: str = ""  # why it did not answer
    version: str = ""
    started_ms: int = 0
    at_ms: int = 0
    process: ProcessReading = ProcessReading()


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
    alarms: list[Alarm] = field(default_factory=list)
    alarms_raised: int = 0
    missing: int = 0  # queues of which at least one shard was not read
    history: HistoryReading = field(default_factory=HistoryReading)
    archive: list[ArchiveReading] = field(default_factory=list)  # empty without an archive
    nodes: list[NodeReading] = field(default_factory=list)

    def age_ms(self, queue: QueueReading) -> int:
        """Age of the queue's oldest message; 0 when the queue is empty."""
        return self._age_ms(queue.counters.oldest_sent_ms)

    def visible_age_ms(self, queue: QueueReading) -> int:
        """Age of the queue's oldest message that can be received; 0 when there is none."""
        return self._age_ms(queue.counters.oldest_visible_ms)

    def _age_ms(self, sent_ms: int) -> int:
        return max(0, self.at_ms - sent_ms) if sent_ms else 0

    @property
    def started_ms(self) -> int:
        """When the first node or process of the server started; 0 if none answered."""
        return min((node.started_ms for node in self.nodes if node.started_ms), default=0)


_seen_of = attrgetter(*GAUGES, *TOTALS, *SOFT, "head")
NO_COUNTERS = Counters(*(0,) * len(Counters._fields))
DECODER = msgspec.msgpack.Decoder(Overview)


class OverviewReader:
    """Reads the overview of the shards that this node serves."""

    def __init__(
        self,
        *,
        name: str,
        data: str,
        now_ms: Callable[[], int],
        started_ms: int,
        catalog: CatalogHost,
        shards: Sequence[ShardKeeper],
        alarms: AlarmBook,
        history: Callable[[], History],
        archiving: Archiving | None,
        sampler: Sampler,
    ) -> None:
        self._name = name
        self._data = data
        self._now_ms = now_ms
        self._started_ms = started_ms
        self._catalog = catalog
        self._shards = shards
        self._alarms = alarms
        self._history = history
        self._archiving = archiving
        self._sampler = sampler
        self._last: Overview | None = None
        # by queue: the catalog's version, what was seen of its slices, and the reading
        self._kept: dict[int, tuple[int, list[tuple[int, ...]], QueueReading]] = {}

    async def read(self) -> Overview:
        """All queues and shards, from committed state. If the disk hangs, the queues that were last read."""
        try:
            self._last = await asyncio.wait_for(self._read(), READ_TIMEOUT_S)
        except (BatonError, TimeoutError):
            if self._last is None:
                self._last = Overview(self._now_ms())
        overview = self._last
        overview.shards = [read_shard(keeper, self._name) for keeper in self._shards]
        overview.alarms = self._alarms.active()
        overview.alarms_raised = self._alarms.raised
        history = self._history()
        overview.history = HistoryReading(history.bytes_served, history.readers, history.limited)
        overview.archive = self._read_archive()
        node = NodeReading(self._name, "", __version__, self._started_ms, self._now_ms(), read_process(self._data))
        overview.nodes = [node]
        return overview

    def _read_archive(self) -> list[ArchiveReading]:
        archiving = self._archiving
        if archiving is None:
            return []
        logs = [keeper.host().log for keeper in self._shards if keeper.serving]
        return [
            ArchiveReading(
                log.shard,
                archiving.segments.get(log.shard, 0),
                archiving.failures.get(log.shard, 0),
                archiving.behind_bytes(log),
            )
            for log in logs
        ]

    async def _read(self) -> Overview:
        overview = Overview(self._now_ms())
        catalog = self._catalog.current()
        blocked = await self._blocked_groups()
        for number in [number for number in self._kept if number not in catalog.queues]:
            del self._kept[number]
        entries = sorted(catalog.queues.values(), key=lambda entry: (entry.account, entry.name))
        for start in range(0, len(entries), READ_AT_ONCE):
            serving = {keeper.number: keeper for keeper in self._shards if keeper.serving and _advance(keeper)}
            for entry in entries[start : start + READ_AT_ONCE]:
                keepers = [serving[shard] for shard in entry.shards if shard in serving]
                reading = self._read_queue(catalog, entry, keepers, blocked)
                if reading is None or reading.shards < len(entry.shards):
                    overview.missing += 1
                if reading is not None:
                    overview.queues.append(reading)
            for keeper in serving.values():
                await committed(keeper.host())
            await asyncio.sleep(0)
        return overview

    def depths(self, number: int, now_ms: int) -> list[float]:
        """Visible, in flight and delayed messages of a queue, and the age of the oldest in seconds, as they are now on
        this node's shards.
        """
        hosts = [keeper.host() for keeper in self._shards if keeper.serving]
        found = [host.shard.counters(number) for host in hosts if number in host.shard.queues]
        whole = summed(found) if found else NO_COUNTERS
        age_s = max(0, now_ms - whole.oldest_sent_ms) / 1000 if whole.oldest_sent_ms else 0.0
        return [whole.visible, whole.in_flight, whole.delayed, age_s]

    async def read_queues(self, numbers: Sequence[int]) -> list[QueueReading]:
        """The readings of some queues, as far as this node serves them. Blocked groups are not counted."""
        catalog = self._catalog.current()
        serving = {keeper.number: keeper for keeper in self._shards if keeper.serving and _advance(keeper)}
        found: list[QueueReading] = []
        for number in numbers:
            entry = catalog.queues.get(number)
            if entry is None:
                continue
            keepers = [serving[shard] for shard in entry.shards if shard in serving]
            reading = self._read_queue(catalog, entry, keepers, {})
            if reading is not None:
                found.append(reading)
        for keeper in serving.values():
            await committed(keeper.host())
        return found

    def _read_queue(
        self, catalog: Catalog, entry: QueueEntry, keepers: Sequence[ShardKeeper], blocked: dict[tuple[int, int], int]
    ) -> QueueReading | None:
        """The reading of a queue; None if none of its shards can be read. What did not change is not read again."""
        number = entry.number
        read: list[ShardKeeper] = []
        seen: list[tuple[int, ...]] = []
        for keeper in keepers:
            queue = keeper.host().shard.queues.get(number)
            if queue is not None and not queue.closed:
                read.append(keeper)
                seen.append((keeper.number, *_seen_of(queue)))
        if not read:
            return None
        version, seen_before, kept = self._kept.get(number, (-1, [], None))
        if kept is None or version != catalog.version or seen != seen_before:
            kept = self._read_anew(catalog, entry, read)
            self._kept[number] = catalog.version, seen, kept
        waiters = max([keeper.host().polls.waiting(number) for keeper in read])
        blocked_groups = sum(blocked.get((keeper.number, number), 0) for keeper in read) if blocked else 0
        rates = self._sampler.rates(number)
        if waiters or blocked_groups or rates != NO_RATES:
            return kept._replace(waiters=waiters, blocked_groups=blocked_groups, rates=rates)
        return kept

    def _read_anew(self, catalog: Catalog, entry: QueueEntry, read: Sequence[ShardKeeper]) -> QueueReading:
        """The reading of a queue, but for what can change without the queue: long polls, rates, blocked groups."""
        number, policy = entry.number, entry.policy
        parts = [keeper.host().shard.counters(number) for keeper in read]
        sources = catalog.dead_letter_sources(number)
        target = entry.dead_letter_target
        return QueueReading(
            account=entry.account,
            name=entry.name,
            fifo=entry.fifo,
            shard=entry.shard,
            sla_seconds=policy.sla_seconds,
            dead_letters=bool(sources),
            waiters=0,
            counters=parts[0] if len(parts) == 1 else summed(parts),
            number=number,
            shards=len(read),
            retention_seconds=policy.retention_ms // 1000,
            dead_letter_queue=target.name if target is not None else "",
            sources=tuple(source.name for source in sources),
            max_receives=policy.max_receives,
            severity=policy.alarm_severity,
            created_ms=entry.created_ms,
            alarm_depth=int(entry.attributes.get(ALARM_DEPTH, 0)),
            expiry_to_dead_letter=policy.expiry_to_dead_letter,
            paused=policy.paused,
            deliveries_per_s=policy.deliveries_per_s,
            only_group=policy.only_group,
            priority_min=policy.priority_min,
        )

    async def _blocked_groups(self) -> dict[tuple[int, int], int]:
        """Number of blocked FIFO groups, by shard and queue."""
        blocked: dict[tuple[int, int], int] = {}
        for keeper in self._shards:
            start: int | None = 0
            while start is not None and keeper.serving:
                shard = keeper.host().shard
                numbers, start = shard.blocked_groups(start, LINES_AT_ONCE)
                for number in numbers:
                    blocked[keeper.number, number] = blocked.get((keeper.number, number), 0) + 1
                if start is not None:
                    await asyncio.sleep(0)
        return blocked


def _advance(keeper: ShardKeeper) -> bool:
    """Record what is due, so that the counters are exact; False if the shard cannot be read now."""
    try:
        host = keeper.host()
        host.run(host.shard.advance, host.admit())
    except BatonError:
        return False
    return True


def read_shard(keeper: ShardKeeper, node: str) -> ShardReading:
    host = keeper.host() if keeper.serving else None
    return ShardReading(
        number=keeper.number,
        state=keeper.state.value,
        why=keeper.why,
        epoch=host.shard.epoch if host else 0,
        log_bytes=host.log.bytes_retained() if host else 0,
        room=host.log.room().value if host else "",
        failures=keeper.failures,
        commits=keeper.statistics,
        owner=node if host else "",
    )


def joined(parts: Sequence[Part], catalog: Catalog | None, shards: int) -> Overview:
    """One overview of all nodes or processes. `shards` is the number of shards that the server has; `catalog` says
    which queues there are, None if that is not known now.
    """
    queues = catalog.queues if catalog is not None else {}
    found = [part.value for part in parts if isinstance(part.value, Overview)]
    whole = Overview(max((part.at_ms for part in found), default=0))
    readings: dict[int, list[QueueReading]] = {}
    for part in found:
        for queue in part.queues:
            readings.setdefault(queue.number, []).append(queue)
    for number, same in readings.items():
        whole.queues.append(same[0] if len(same) == 1 else joined_queue(same))
        entry = queues.get(number)
        if entry is not None and whole.queues[-1].shards < len(entry.shards):
            whole.missing += 1
    whole.queues.sort(key=lambda queue: (queue.account, queue.name))
    whole.missing += sum(number not in readings for number in queues)
    told: dict[int, ShardReading] = {}
    for part in found:
        for shard in part.shards:
            if shard.owner or (shard.state not in SERVED_ELSEWHERE and shard.number not in told):
                told[shard.number] = shard
    whole.shards = [told.get(number) or away(number) for number in range(shards)]
    whole.alarms = merged(alarm for part in found for alarm in part.alarms)
    whole.alarms_raised = sum(part.alarms_raised for part in found)
    if found:
        whole.history = HistoryReading(*map(sum, zip(*(part.history for part in found), strict=True)))
    whole.archive = sorted(one for part in found for one in part.archive)
    for told_by in parts:
        nodes = told_by.value.nodes if isinstance(told_by.value, Overview) else []
        whole.nodes += nodes or [NodeReading(told_by.node, told_by.problem)]
    return whole


def joined_queue(same: Sequence[QueueReading]) -> QueueReading:
    """A queue whose shards were read by several nodes."""
    rates = NO_RATES
    for reading in same:
        rates = rates.plus(reading.rates)
    return same[0]._replace(
        waiters=max(reading.waiters for reading in same),
        counters=summed([reading.counters for reading in same]),
        shards=sum(reading.shards for reading in same),
        blocked_groups=sum(reading.blocked_groups for reading in same),
        rates=rates,
    )


def unread_queue(entry: QueueEntry) -> QueueReading:
    """A queue of which nothing could be read, because its shards are not served."""
    policy, target = entry.policy, entry.dead_letter_target
    return QueueReading(
        account=entry.account,
        name=entry.name,
        fifo=entry.fifo,
        shard=entry.shard,
        sla_seconds=policy.sla_seconds,
        dead_letters=False,
        waiters=0,
        counters=NO_COUNTERS,
        number=entry.number,
        shards=0,
        retention_seconds=policy.retention_ms // 1000,
        dead_letter_queue=target.name if target is not None else "",
        max_receives=policy.max_receives,
        severity=policy.alarm_severity,
        created_ms=entry.created_ms,
    )


def away(number: int) -> ShardReading:
    """A shard that nobody serves, as far as is known here."""
    return ShardReading(number, KeeperState.STOPPED.value, AWAY, 0, 0, "", 0, CommitStatistics())
