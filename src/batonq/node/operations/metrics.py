"""The metrics, in the Prometheus text format."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from batonq import __version__
from batonq.core.commands import Counters
from batonq.node.operations.overview import Overview, QueueReading, ShardReading

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metric(NamedTuple):
    name: str
    kind: str  # gauge or counter
    doc: str


MESSAGES = Metric("baton_queue_messages", "gauge", "Number of messages in a queue, by delivery state.")
BYTES = Metric("baton_queue_bytes", "gauge", "Total size of the messages in a queue.")
OLDEST = Metric("baton_queue_oldest_seconds", "gauge", "Age of the oldest message in a queue; 0 if the queue is empty.")
WAITERS = Metric("baton_queue_waiters", "gauge", "Number of long polls waiting on a queue.")
SHARD_UP = Metric("baton_shard_up", "gauge", "1 if the shard is being served, otherwise 0.")
SHARD_EPOCH = Metric("baton_shard_epoch", "gauge", "Ownership epoch of the shard.")
SHARD_LOG_BYTES = Metric("baton_shard_log_bytes", "gauge", "Size of the shard's retained log.")
SHARD_ROOM = Metric("baton_shard_room", "gauge", "1 if the shard accepts sends, 0 if its disk is full.")
SHARD_FAILURES = Metric(
    "baton_shard_failures_total", "counter", "Number of times the shard stopped because its log failed."
)
COMMITS = Metric("baton_commits_total", "counter", "Number of frames committed.")
COMMIT_ROWS = Metric("baton_commit_records_total", "counter", "Number of records committed.")
COMMIT_BYTES = Metric("baton_commit_bytes_total", "counter", "Number of bytes committed.")
COMMIT_SECONDS = Metric("baton_commit_seconds_total", "counter", "Total time spent waiting for commits.")
ALARMS = Metric("baton_alarms", "gauge", "Number of active alarms.")
ALARMS_RAISED = Metric("baton_alarms_raised_total", "counter", "Number of alarms raised since the node started.")
MISSING = Metric("baton_queues_unavailable", "gauge", "Number of queues whose shard is not being served.")
HISTORY_BYTES = Metric("baton_history_bytes_total", "counter", "Number of bytes of history served.")
HISTORY_READERS = Metric(
    "baton_history_readers", "gauge", "Number of history reads in progress or waiting for new frames."
)
HISTORY_LIMITED = Metric(
    "baton_history_limited_total",
    "counter",
    "Number of history reads refused because of the rate limit (--history-rate-bytes).",
)
ARCHIVE_SEGMENTS = Metric(
    "baton_archive_segments_total", "counter", "Number of the shard's segments copied to the archive or found there."
)
ARCHIVE_FAILURES = Metric(
    "baton_archive_failures_total", "counter", "Number of failed attempts to copy the shard's log to the archive."
)
ARCHIVE_BEHIND = Metric(
    "baton_archive_behind_bytes", "gauge", "Size of the shard's sealed log that is not in the archive yet."
)
HTTP_CONNECTIONS = Metric("baton_http_connections", "gauge", "Number of open client connections.")
HTTP_REQUESTS = Metric("baton_http_requests_total", "counter", "Number of HTTP requests received.")
HTTP_REFUSED = Metric(
    "baton_http_refused_total",
    "counter",
    "Number of requests rejected before they were read in full: not valid HTTP, too large, or too slow.",
)
HTTP_FAILURES = Metric(
    "baton_http_failures_total", "counter", "Number of requests that failed because of an internal error."
)
SQS_CALLS = Metric("baton_sqs_calls_total", "counter", "Number of SQS operations called.")
REST_CALLS = Metric("baton_rest_calls_total", "counter", "Number of REST operations called.")
REST_ERRORS = Metric("baton_rest_errors_total", "counter", "Number of REST operations that failed, by error code.")
SQS_ERRORS = Metric("baton_sqs_errors_total", "counter", "Number of SQS operations that failed, by error code.")
INFO = Metric("baton_info", "gauge", "Always 1; the label contains the release.")

# The counters of a queue that only increase, and the metric of each.
TOTALS: tuple[tuple[str, Metric], ...] = tuple(
    (name, Metric(f"baton_queue_{name}_total", "counter", doc))
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

ALL: tuple[Metric, ...] = (
    INFO,
    MESSAGES,
    BYTES,
    OLDEST,
    WAITERS,
    *(metric for _, metric in TOTALS),
    SHARD_UP,
    SHARD_EPOCH,
    SHARD_LOG_BYTES,
    SHARD_ROOM,
    SHARD_FAILURES,
    COMMITS,
    COMMIT_ROWS,
    COMMIT_BYTES,
    COMMIT_SECONDS,
    ALARMS,
    ALARMS_RAISED,
    MISSING,
    HISTORY_BYTES,
    HISTORY_READERS,
    HISTORY_LIMITED,
    ARCHIVE_SEGMENTS,
    ARCHIVE_FAILURES,
    ARCHIVE_BEHIND,
    HTTP_CONNECTIONS,
    HTTP_REQUESTS,
    HTTP_REFUSED,
    HTTP_FAILURES,
    SQS_CALLS,
    SQS_ERRORS,
    REST_CALLS,
    REST_ERRORS,
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
        block(lines, metric, [(labels, _total(queue.counters, field)) for queue, labels in names])
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


def render_front(front: Front) -> bytes:
    lines: list[str] = []
    for metric, samples in front:
        block(lines, metric, samples)
    lines.append("")
    return "\n".join(lines).encode()


def _total(counters: Counters, field: str) -> int:
    value: int = getattr(counters, field)
    return value


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
