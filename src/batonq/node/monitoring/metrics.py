"""The metrics, in the Prometheus text format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from batonq import __version__
from batonq.node.monitoring.overview import Overview, QueueReading, ShardReading

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ALARM_SERIES_MAX = 200


class Metric(NamedTuple):
    name: str
    kind: str  # gauge or counter
    doc: str


ALL: list[Metric] = []  # in the order of the reference


def _gauge(name: str, doc: str) -> Metric:
    ALL.append(Metric(name, "gauge", doc))
    return ALL[-1]


def _counter(name: str, doc: str) -> Metric:
    ALL.append(Metric(name, "counter", doc))
    return ALL[-1]


INFO = _gauge("baton_info", "Always 1; the label contains the release.")
MESSAGES = _gauge("baton_queue_messages", "Number of messages in a queue, by delivery state.")
BYTES = _gauge("baton_queue_bytes", "Total size of the messages in a queue.")
OLDEST = _gauge("baton_queue_oldest_seconds", "Age of the oldest message in a queue; 0 if the queue is empty.")
WAITERS = _gauge("baton_queue_waiters", "Number of long polls waiting on a queue.")

# The counters of a queue that only increase, and the metric of each.
TOTALS: tuple[tuple[str, Metric], ...] = tuple(
    (name, _counter(f"baton_queue_{name}_total", doc))
    for name, doc in (
        ("sent", "Number of messages sent."),
        ("received", "Number of messages received: every lease counts."),
        ("deleted", "Number of messages deleted."),
        ("returned", "Number of leases that ended without a delete."),
        ("expired_leases", "Number of leases that expired."),
        ("expired_messages", "Number of messages that expired."),
        ("dead_lettered", "Number of messages that were dead-lettered."),
        ("arrived", "Number of messages that arrived from another queue."),
        ("stale_deletes", "Number of deletes with a receipt that a newer lease had replaced."),
        ("late_deletes", "Number of deletes by the last holder after its lease expired."),
        ("duplicates", "Number of duplicate sends."),
    )
)
STATES = ("visible", "in_flight", "delayed", "owed", "dead")

SHARD_UP = _gauge("baton_shard_up", "1 if the shard is being served, otherwise 0.")
SHARD_EPOCH = _gauge("baton_shard_epoch", "Ownership epoch of the shard.")
SHARD_LOG_BYTES = _gauge("baton_shard_log_bytes", "Size of the shard's retained log.")
SHARD_ROOM = _gauge("baton_shard_room", "1 if the shard accepts sends, 0 if its disk is full.")
SHARD_FAILURES = _counter("baton_shard_failures_total", "Number of times the shard stopped because its log failed.")
COMMITS = _counter("baton_commits_total", "Number of frames committed.")
COMMIT_ROWS = _counter("baton_commit_records_total", "Number of records committed.")
COMMIT_BYTES = _counter("baton_commit_bytes_total", "Number of bytes committed.")
COMMIT_SECONDS = _counter("baton_commit_seconds_total", "Total time spent waiting for commits.")
ALARMS = _gauge("baton_alarms", "Number of active alarms.")
ALARM_ACTIVE = _gauge(
    "baton_alarm_active",
    f"Number of active alarms, by kind, severity and queue. Beyond {ALARM_SERIES_MAX} series the queue is left out.",
)
ALARMS_RAISED = _counter("baton_alarms_raised_total", "Number of alarms raised since the node started.")
MISSING = _gauge("baton_queues_unavailable", "Number of queues whose shard is not being served.")
HISTORY_BYTES = _counter("baton_history_bytes_total", "Number of bytes of history served.")
HISTORY_READERS = _gauge("baton_history_readers", "Number of history reads in progress or waiting for new frames.")
HISTORY_LIMITED = _counter(
    "baton_history_limited_total", "Number of history reads refused because of the rate limit (--history-rate-bytes)."
)
ARCHIVE_SEGMENTS = _counter(
    "baton_archive_segments_total", "Number of the shard's segments copied to the archive or found there."
)
ARCHIVE_FAILURES = _counter(
    "baton_archive_failures_total", "Number of failed attempts to copy the shard's log to the archive."
)
ARCHIVE_BEHIND = _gauge("baton_archive_behind_bytes", "Size of the shard's sealed log that is not in the archive yet.")
HTTP_CONNECTIONS = _gauge("baton_http_connections", "Number of open client connections.")
HTTP_REQUESTS = _counter("baton_http_requests_total", "Number of HTTP requests received.")
HTTP_REFUSED = _counter(
    "baton_http_refused_total",
    "Number of requests rejected before they were read in full: not valid HTTP, too large, or too slow.",
)
HTTP_FAILURES = _counter("baton_http_failures_total", "Number of requests that failed because of an internal error.")
SQS_CALLS = _counter("baton_sqs_calls_total", "Number of SQS operations called.")
SQS_ERRORS = _counter("baton_sqs_errors_total", "Number of SQS operations that failed, by error code.")
REST_CALLS = _counter("baton_rest_calls_total", "Number of REST operations called.")
REST_ERRORS = _counter("baton_rest_errors_total", "Number of REST operations that failed, by error code.")
TRACE_SPANS = _counter(
    "baton_trace_spans_total",
    "Number of spans for the OpenTelemetry collector: exported, dropped because too many were waiting, or failed.",
)

Samples = Iterable[tuple[str, float]]
Front = list[tuple[Metric, list[tuple[str, float]]]]  # metrics that an API counts


def render(overview: Overview) -> bytes:
    lines: list[str] = []
    block(lines, INFO, [(f'version="{__version__}"', 1)])
    names = [(queue, _queue_labels(queue)) for queue in overview.queues]
    states = [
        (f'{labels},state="{state}"', getattr(queue.counters, state)) for queue, labels in names for state in STATES
    ]
    block(lines, MESSAGES, states)
    block(lines, BYTES, [(labels, queue.counters.bytes) for queue, labels in names])
    block(lines, OLDEST, [(labels, overview.age_ms(queue) / 1000) for queue, labels in names])
    block(lines, WAITERS, [(labels, queue.waiters) for queue, labels in names])
    for field, metric in TOTALS:
        block(lines, metric, [(labels, getattr(queue.counters, field)) for queue, labels in names])
    shard_metrics: tuple[tuple[Metric, Callable[[ShardReading], float]], ...] = (
        (SHARD_UP, lambda shard: shard.state == "serving"),
        (SHARD_EPOCH, lambda shard: shard.epoch),
        (SHARD_LOG_BYTES, lambda shard: shard.log_bytes),
        (SHARD_ROOM, lambda shard: shard.room == "plenty"),
        (SHARD_FAILURES, lambda shard: shard.failures),
        (COMMITS, lambda shard: shard.commits.frames),
        (COMMIT_ROWS, lambda shard: shard.commits.rows),
        (COMMIT_BYTES, lambda shard: shard.commits.bytes),
        (COMMIT_SECONDS, lambda shard: shard.commits.seconds),
    )
    for metric, read in shard_metrics:
        block(lines, metric, [(f'shard="{shard.number}"', float(read(shard))) for shard in overview.shards])
    block(lines, ALARMS, [("", len(overview.alarms))])
    block(lines, ALARM_ACTIVE, _alarm_samples(overview))
    block(lines, ALARMS_RAISED, [("", overview.alarms_raised)])
    block(lines, MISSING, [("", overview.missing)])
    block(lines, HISTORY_BYTES, [("", overview.history.bytes_served)])
    block(lines, HISTORY_READERS, [("", overview.history.readers)])
    block(lines, HISTORY_LIMITED, [("", overview.history.limited)])
    block(lines, ARCHIVE_SEGMENTS, [(f'shard="{one.shard}"', one.segments) for one in overview.archive])
    block(lines, ARCHIVE_FAILURES, [(f'shard="{one.shard}"', one.failures) for one in overview.archive])
    block(lines, ARCHIVE_BEHIND, [(f'shard="{one.shard}"', one.behind_bytes) for one in overview.archive])
    lines.append("")
    return "\n".join(lines).encode()


FRONT_DECODER = msgspec.msgpack.Decoder(Front)


def render_front(front: Front) -> bytes:
    lines: list[str] = []
    for metric, samples in front:
        block(lines, metric, samples)
    lines.append("")
    return "\n".join(lines).encode()


def labelled(fronts: Mapping[str, Front]) -> Front:
    """Label the metrics per process. Each process counts from zero at its start, so their numbers are not summed."""
    whole: Front = []
    for at, (metric, _) in enumerate(next(iter(fronts.values()))):
        samples = []
        for name, front in fronts.items():
            for labels, value in front[at][1]:
                samples.append((f'{labels},process="{name}"' if labels else f'process="{name}"', value))
        whole.append((metric, samples))
    return whole


def _alarm_samples(overview: Overview) -> list[tuple[str, float]]:
    """The most severe alarms come first, so those keep the names of their queues."""
    counted: dict[str, int] = {}
    for alarm in overview.alarms:
        queue = alarm.queue if len(counted) < ALARM_SERIES_MAX else ""
        labels = f'kind="{alarm.kind}",severity="{alarm.severity}",queue="{queue}"'
        counted[labels] = counted.get(labels, 0) + 1
    return [*counted.items()]


def _queue_labels(queue: QueueReading) -> str:
    # Account ids are digits and queue names are plain words, so neither needs escaping.
    return f'account="{queue.account}",queue="{queue.name}"'


def block(lines: list[str], metric: Metric, samples: Samples) -> None:
    """Append one metric with all its samples: (labels, value)."""
    lines.append(f"# HELP {metric.name} {metric.doc}")
    lines.append(f"# TYPE {metric.name} {metric.kind}")
    for labels, value in samples:
        number = str(int(value)) if value == int(value) else f"{value:.6f}"
        lines.append(f"{metric.name}{{{labels}}} {number}" if labels else f"{metric.name} {number}")
