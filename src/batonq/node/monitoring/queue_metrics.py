"""The metrics of queues and shards, from an overview; and the choice of queues that have metrics of their own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from batonq import __version__
from batonq.core.catalog.entries import QueueEntry
from batonq.core.shard.state.latencies import RECEIVES_MAX, QueueLatencies
from batonq.node.messages.group_reading import view_of
from batonq.node.monitoring import metrics
from batonq.node.monitoring.exposition import (
    Families,
    Family,
    HistogramSample,
    histograms,
    joined,
    label,
    many,
    one,
)
from batonq.node.monitoring.histogram import BUCKETS
from batonq.node.monitoring.metrics import ALARM_SERIES_MAX, Metric
from batonq.node.monitoring.overview import Overview, QueueReading, ShardReading
from batonq.node.monitoring.schedule_metrics import ScheduleReading, read_schedules, schedule_families
from batonq.node.monitoring.schedule_metrics import added as added_schedules
from batonq.node.shard_host.host import ShardHost
from batonq.node.shard_host.keeper import ShardKeeper


class JobReading(NamedTuple):
    state: str
    to_move: int
    examined: int
    moved: int
    died_again: int


class ReaderReading(NamedTuple):
    group: str
    lag_messages: int
    lag_ms: int


class QueueDetail(NamedTuple):
    """What metrics show of a queue beside its reading. It is only read for queues with metrics of their own."""

    number: int
    waited: list[int]
    handled: list[int]
    lived: list[int]
    receives: list[int]
    waited_ms: int = 0
    handled_ms: int = 0
    lived_ms: int = 0
    receives_sum: int = 0
    retries: int = 0
    empty_receives: int = 0
    jobs: tuple[JobReading, ...] = ()
    retained: int | None = None  # messages of the retained history; None: nothing is retained
    readers: tuple[ReaderReading, ...] = ()
    schedules: ScheduleReading = ScheduleReading()


DETAILS = msgspec.msgpack.Decoder(list[QueueDetail])


def read_details(
    numbers: Iterable[int], shards: Sequence[ShardKeeper], empty_receives: Mapping[int, int]
) -> list[QueueDetail]:
    """The details of queues on the shards that this node serves; queues of which nothing is known are left out."""
    hosts = [keeper.host() for keeper in shards if keeper.serving]
    jobs: dict[int, list[JobReading]] = {}
    for host in hosts:
        for job_id in host.shard.jobs.active:
            job = host.shard.jobs[job_id]
            reading = JobReading(job.state, job.to_move, job.examined, job.moved, job.died_again)
            jobs.setdefault(job.source, []).append(reading)
    schedules = read_schedules(host.shard for host in hosts)
    found: list[QueueDetail] = []
    for number in numbers:
        latencies = [one for host in hosts if (one := host.shard.latencies_of(number)) is not None]
        empty = empty_receives.get(number, 0)
        parts = [part for host in hosts if (part := _history(host, number)) is not None]
        if latencies or empty or number in jobs or parts or number in schedules:
            detail = _detail(number, latencies, empty, tuple(jobs.get(number, ())))
            if parts:
                detail = detail._replace(retained=sum(part[0] for part in parts))
                detail = detail._replace(readers=_readers([reader for _, readers in parts for reader in readers]))
            found.append(detail._replace(schedules=schedules.get(number, ScheduleReading())))
    return found


def _history(host: ShardHost, number: int) -> tuple[int, list[ReaderReading]] | None:
    """How much of a queue is retained on a shard, and the lags of its reader groups; None if nothing is retained."""
    state = host.shard.queues.get(number)
    if state is None or state.retained is None:
        return None
    views = [view_of(host, number, reader) for reader in (state.readers or {}).values()]
    return len(state.retained), [ReaderReading(view.reader.group, view.lag_messages, view.lag_ms) for view in views]


def _readers(readings: Iterable[ReaderReading]) -> tuple[ReaderReading, ...]:
    """The lag of each group over all shards."""
    found: dict[str, ReaderReading] = {}
    for reading in readings:
        before = found.get(reading.group, ReaderReading(reading.group, 0, 0))
        lag_messages = before.lag_messages + reading.lag_messages
        found[reading.group] = ReaderReading(reading.group, lag_messages, max(before.lag_ms, reading.lag_ms))
    return tuple(found[group] for group in sorted(found))


def _detail(number: int, latencies: Sequence[QueueLatencies], empty: int, jobs: tuple[JobReading, ...]) -> QueueDetail:
    return QueueDetail(
        number,
        added([one.waited for one in latencies], BUCKETS),
        added([one.handled for one in latencies], BUCKETS),
        added([one.lived for one in latencies], BUCKETS),
        added([one.receives for one in latencies], RECEIVES_MAX + 1),
        sum(one.waited_ms for one in latencies),
        sum(one.handled_ms for one in latencies),
        sum(one.lived_ms for one in latencies),
        sum(one.receives_sum for one in latencies),
        sum(one.retried for one in latencies),
        empty,
        jobs,
    )


def added(counts: Sequence[list[int]], length: int) -> list[int]:
    if not counts:
        return [0] * length
    return counts[0] if len(counts) == 1 else [*map(sum, zip(*counts, strict=True))]


def joined_details(parts: Iterable[Sequence[QueueDetail]]) -> dict[int, QueueDetail]:
    """The details of all nodes, by queue."""
    found: dict[int, QueueDetail] = {}
    for part in parts:
        for detail in part:
            before = found.get(detail.number)
            found[detail.number] = detail if before is None else _sum(before, detail)
    return found


def _sum(first: QueueDetail, second: QueueDetail) -> QueueDetail:
    return QueueDetail(
        first.number,
        added([first.waited, second.waited], BUCKETS),
        added([first.handled, second.handled], BUCKETS),
        added([first.lived, second.lived], BUCKETS),
        added([first.receives, second.receives], RECEIVES_MAX + 1),
        first.waited_ms + second.waited_ms,
        first.handled_ms + second.handled_ms,
        first.lived_ms + second.lived_ms,
        first.receives_sum + second.receives_sum,
        first.retries + second.retries,
        first.empty_receives + second.empty_receives,
        first.jobs + second.jobs,
        first.retained if second.retained is None else second.retained + (first.retained or 0),
        _readers(first.readers + second.readers),
        added_schedules(first.schedules, second.schedules),
    )


# --- which queues have metrics of their own -----------------------------------------------------


def listed(overview: Overview, limit: int, before: Collection[int] = ()) -> list[QueueReading]:
    """The queues that have metrics of their own, at most `limit`: half of them by their activity, half by their
    troubles. A queue that had them `before` keeps them while it is anywhere near the limit, so that series do not come
    and go.
    """
    queues = overview.queues
    if len(queues) <= limit:
        return queues
    known = {*before}
    margin = limit // 8

    def most(key: Callable[[QueueReading], tuple[float, ...]], count: int) -> list[QueueReading]:
        ranked = sorted(queues, key=key, reverse=True)
        near = ranked[max(0, count - margin) : count + margin]
        near.sort(key=lambda queue: queue.number not in known)  # stable: the others stay in order
        return (ranked[: max(0, count - margin)] + near)[:count]

    half = limit // 2
    chosen = {queue.number: queue for queue in most(_activity, limit - half)}
    for queue in most(lambda queue: _trouble(overview, queue), limit):
        if len(chosen) >= limit:
            break
        chosen.setdefault(queue.number, queue)
    return [queue for queue in queues if queue.number in chosen]


def _activity(queue: QueueReading) -> tuple[float, ...]:
    counters = queue.counters
    return sum(queue.rates), counters.in_flight, counters.visible, counters.sent + counters.received


def _trouble(overview: Overview, queue: QueueReading) -> tuple[float, ...]:
    counters = queue.counters
    dead = counters.dead + (counters.visible if queue.dead_letters else 0)
    return dead > 0, overview.visible_age_ms(queue), counters.visible, counters.in_flight


# --- families -----------------------------------------------------------------------------------


def queue_families(
    overview: Overview,
    queues: Sequence[QueueReading],
    details: Mapping[int, QueueDetail],
    entries: Mapping[int, QueueEntry],
) -> Families:
    named = [(queue, queue_labels(queue)) for queue in queues]
    detailed = [(details[queue.number], labels) for queue, labels in named if queue.number in details]
    families = [
        one(metrics.INFO, 1, label("version", __version__)),
        many(
            metrics.MESSAGES,
            [
                (f'{labels},state="{state}"', getattr(queue.counters, state))
                for queue, labels in named
                for state in metrics.STATES
            ],
        ),
        many(metrics.BYTES, [(labels, queue.counters.bytes) for queue, labels in named]),
        many(metrics.OLDEST, [(labels, overview.age_ms(queue) / 1000) for queue, labels in named]),
        many(metrics.OLDEST_VISIBLE, [(labels, overview.visible_age_ms(queue) / 1000) for queue, labels in named]),
        many(metrics.WAITERS, [(labels, queue.waiters) for queue, labels in named]),
        many(metrics.BLOCKED_GROUPS, [(labels, queue.blocked_groups) for queue, labels in named if queue.fifo]),
        many(metrics.DRAIN, [(labels, queue.rates.acked) for queue, labels in named]),
        many(metrics.RETENTION, [(labels, queue.retention_seconds) for queue, labels in named]),
        many(metrics.SLA, [(labels, queue.sla_seconds) for queue, labels in named if queue.sla_seconds]),
        many(
            metrics.PAUSED,
            [
                (f'{labels},what="{what}"', 1)
                for queue, labels in named
                for what in ("delivery", "sends")
                if queue.paused in (what, "both")
            ],
        ),
        many(metrics.IS_DEAD_LETTER_QUEUE, [(labels, queue.dead_letters) for queue, labels in named]),
        many(
            metrics.QUEUE_LIMIT,
            [
                (f'{labels},limit="{name}"', value)
                for queue, labels in named
                if queue.number in entries
                for name, value in _limits(entries[queue.number])
                if value
            ],
        ),
    ]
    for field, metric in metrics.TOTALS:
        families.append(many(metric, [(labels, getattr(queue.counters, field)) for queue, labels in named]))
    families += [
        many(metrics.RETRIES, [(labels, detail.retries) for detail, labels in detailed]),
        many(metrics.EMPTY_RECEIVES, [(labels, detail.empty_receives) for detail, labels in detailed]),
        _histograms(metrics.QUEUE_WAIT, detailed, lambda one: (one.waited, one.waited_ms / 1000)),
        _histograms(metrics.QUEUE_HANDLING, detailed, lambda one: (one.handled, one.handled_ms / 1000)),
        _histograms(metrics.QUEUE_END_TO_END, detailed, lambda one: (one.lived, one.lived_ms / 1000)),
        _histograms(metrics.QUEUE_RECEIVE_COUNT, detailed, lambda one: (one.receives, one.receives_sum)),
        *_job_families(detailed),
        *_reader_families(detailed),
        *schedule_families([(detail.schedules, labels) for detail, labels in detailed]),
    ]
    return families


def queue_labels(queue: QueueReading) -> str:
    # Account ids are digits and queue names are plain words, so neither needs escaping.
    return f'account="{queue.account}",queue="{queue.name}"'


def _limits(entry: QueueEntry) -> tuple[tuple[str, int], ...]:
    policy = entry.policy
    return (
        ("in_flight", policy.in_flight_max),
        ("messages", policy.messages_max),
        ("bytes", policy.bytes_max),
        ("deliveries_per_second", policy.deliveries_per_s),
    )


def _histograms(
    metric: Metric,
    detailed: Sequence[tuple[QueueDetail, str]],
    read: Callable[[QueueDetail], tuple[list[int], float]],
) -> Family:
    """The histograms of queues that have any values: the others would only be zeros."""
    samples = ((labels, *read(detail)) for detail, labels in detailed)
    return histograms(metric, [HistogramSample(*sample) for sample in samples if any(sample[1])])


def _job_families(detailed: Sequence[tuple[QueueDetail, str]]) -> Families:
    states: list[tuple[str, float]] = []
    progress: list[tuple[str, float]] = []
    for detail, labels in detailed:
        for state in sorted({job.state for job in detail.jobs}):
            count = sum(job.state == state for job in detail.jobs)
            states.append((f'{labels},state="{state.lower()}"', count))
        if detail.jobs:
            for name in ("to_move", "examined", "moved", "died_again"):
                value = sum(getattr(job, name) for job in detail.jobs)
                progress.append((f'{labels},progress="{name}"', value))
    return [many(metrics.JOBS, states), many(metrics.JOB_MESSAGES, progress)]


def _reader_families(detailed: Sequence[tuple[QueueDetail, str]]) -> Families:
    # Names of groups are plain words, which need no escaping.
    readers = [
        (f'{labels},group="{reader.group}"', reader) for detail, labels in detailed for reader in detail.readers
    ][: metrics.READER_SERIES_MAX]
    retained = [(labels, detail.retained) for detail, labels in detailed if detail.retained is not None]
    return [
        many(metrics.RETAINED, retained),
        many(metrics.READER_LAG, [(labels, reader.lag_messages) for labels, reader in readers]),
        many(metrics.READER_LAG_SECONDS, [(labels, reader.lag_ms / 1000) for labels, reader in readers]),
    ]


_SHARD_METRICS: tuple[tuple[Metric, Callable[[ShardReading], float]], ...] = (
    (metrics.SHARD_UP, lambda shard: shard.state == "serving"),
    (metrics.SHARD_EPOCH, lambda shard: shard.epoch),
    (metrics.SHARD_LOG_BYTES, lambda shard: shard.log_bytes),
    (metrics.SHARD_ROOM, lambda shard: shard.room == "plenty"),
    (metrics.SHARD_FAILURES, lambda shard: shard.failures),
    (metrics.COMMITS, lambda shard: shard.commits.frames),
    (metrics.COMMIT_ROWS, lambda shard: shard.commits.rows),
    (metrics.COMMIT_BYTES, lambda shard: shard.commits.bytes),
    (metrics.COMMIT_SECONDS, lambda shard: shard.commits.seconds),
)


def server_families(overview: Overview, queue_count: int, listed_count: int) -> Families:
    """Shards, alarms, history, and totals over all queues."""
    queues = overview.queues
    shards = [(shard, f'shard="{shard.number}"') for shard in overview.shards]
    families = [
        many(metric, [(labels, float(read(shard))) for shard, labels in shards]) for metric, read in _SHARD_METRICS
    ]
    families += [
        histograms(
            metrics.COMMIT_DURATION,
            [HistogramSample(labels, shard.commits.durations, shard.commits.seconds) for shard, labels in shards],
        ),
        one(metrics.QUEUES, queue_count),
        one(metrics.QUEUES_LISTED, listed_count),
        one(metrics.MISSING, overview.missing),
        many(
            metrics.MESSAGES_ALL,
            [(f'state="{state}"', sum(getattr(queue.counters, state) for queue in queues)) for state in metrics.STATES],
        ),
        one(metrics.BYTES_ALL, sum(queue.counters.bytes for queue in queues)),
        one(metrics.OLDEST_ALL, max((overview.visible_age_ms(queue) for queue in queues), default=0) / 1000),
        one(metrics.ALARMS, len(overview.alarms)),
        many(metrics.ALARM_ACTIVE, _alarm_samples(overview)),
        one(metrics.ALARMS_RAISED, overview.alarms_raised),
        one(metrics.HISTORY_BYTES, overview.history.bytes_served),
        one(metrics.HISTORY_READERS, overview.history.readers),
        one(metrics.HISTORY_LIMITED, overview.history.limited),
        many(metrics.ARCHIVE_SEGMENTS, [(f'shard="{one.shard}"', one.segments) for one in overview.archive]),
        many(metrics.ARCHIVE_FAILURES, [(f'shard="{one.shard}"', one.failures) for one in overview.archive]),
        many(metrics.ARCHIVE_BEHIND, [(f'shard="{one.shard}"', one.behind_bytes) for one in overview.archive]),
    ]
    return families


def _alarm_samples(overview: Overview) -> list[tuple[str, float]]:
    """The most severe alarms come first, so those keep the names of their queues."""
    counted: dict[str, int] = {}
    for alarm in overview.alarms:
        queue = alarm.queue if len(counted) < ALARM_SERIES_MAX else ""
        labels = joined(label("kind", alarm.kind), label("severity", alarm.severity), label("queue", queue))
        counted[labels] = counted.get(labels, 0) + 1
    return [*counted.items()]
