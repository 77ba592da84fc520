"""The names, kinds and meanings of all metrics, in the order of the reference. `exposition.py` writes them."""

from __future__ import annotations

from typing import NamedTuple

from batonq.node.monitoring.histogram import (
    COMMIT_BUCKETS,
    COUNT_BUCKETS,
    LAG_BUCKETS,
    MESSAGE_BUCKETS,
    QUEUE_BUCKETS,
    REQUEST_BUCKETS,
    Buckets,
)

ALARM_SERIES_MAX = 200
READER_SERIES_MAX = 1_000


class Metric(NamedTuple):
    name: str
    kind: str  # gauge, counter or histogram
    doc: str
    buckets: Buckets | None = None  # of a histogram


ALL: list[Metric] = []  # in the order of the reference
BY_NAME: dict[str, Metric] = {}


def gauge(name: str, doc: str) -> Metric:
    """Define a metric that can go up and down."""
    return _defined(Metric(name, "gauge", doc))


def counter(name: str, doc: str) -> Metric:
    """Define a metric that only increases while the node runs."""
    return _defined(Metric(name, "counter", doc))


def histogram(name: str, doc: str, buckets: Buckets) -> Metric:
    return _defined(Metric(name, "histogram", doc, buckets))


def _defined(metric: Metric) -> Metric:
    assert metric.name not in BY_NAME, f"{metric.name} is defined twice"
    ALL.append(metric)
    BY_NAME[metric.name] = metric
    return metric


# --- queues -------------------------------------------------------------------------------------

INFO = gauge("baton_info", "Always 1; the label contains the release.")
MESSAGES = gauge("baton_queue_messages", "Number of messages in a queue, by delivery state.")
BYTES = gauge("baton_queue_bytes", "Total size of the messages in a queue.")
OLDEST = gauge("baton_queue_oldest_seconds", "Age of the oldest message in a queue; 0 if the queue is empty.")
OLDEST_VISIBLE = gauge(
    "baton_queue_oldest_visible_seconds",
    "Age of the oldest message in a queue that can be received now; 0 if there is none.",
)
WAITERS = gauge("baton_queue_waiters", "Number of long polls waiting on a queue.")
BLOCKED_GROUPS = gauge(
    "baton_queue_blocked_groups",
    "Number of message groups of a FIFO queue whose messages wait because the first one is in flight or delayed.",
)
DRAIN = gauge("baton_queue_drain_per_second", "Messages deleted from a queue per second, over the last 30 seconds.")
RETENTION = gauge("baton_queue_retention_seconds", "Retention period of a queue.")
SLA = gauge("baton_queue_sla_seconds", "Longest time that messages should wait in a queue; only queues that have one.")
QUEUE_LIMIT = gauge(
    "baton_queue_limit",
    "Limits of a queue, by the label limit: in_flight; messages, bytes and deliveries_per_second if they are set.",
)
PAUSED = gauge(
    "baton_queue_paused", "1 for each thing that is paused, by the label what: delivery, sends; only paused queues."
)
IS_DEAD_LETTER_QUEUE = gauge(
    "baton_queue_is_dead_letter_queue", "1 if another queue has the queue as its dead-letter queue, otherwise 0."
)

# The counters of a queue that only increase, and the metric of each.
TOTALS: tuple[tuple[str, Metric], ...] = tuple(
    (name, counter(f"baton_queue_{name}_total", doc))
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
RETRIES = counter(
    "baton_queue_retries_total", "Number of receives of messages that had been received before, since the shard opened."
)
EMPTY_RECEIVES = counter(
    "baton_queue_empty_receives_total", "Number of receive requests that got no message, since the node started."
)
QUEUE_WAIT = histogram(
    "baton_queue_wait_seconds",
    "Time from the send of a message to its first receive, including a delay.",
    QUEUE_BUCKETS,
)
QUEUE_HANDLING = histogram(
    "baton_queue_handling_seconds", "Time from the last receive of a message to its delete.", QUEUE_BUCKETS
)
QUEUE_END_TO_END = histogram(
    "baton_queue_end_to_end_seconds", "Time from the send of a message to its delete.", QUEUE_BUCKETS
)
QUEUE_RECEIVE_COUNT = histogram(
    "baton_queue_receive_count", "Number of times that deleted messages had been received.", COUNT_BUCKETS
)
RETAINED = gauge(
    "baton_queue_retained_messages", "Number of messages in the retained history of a queue; only queues that retain."
)
READER_LAG = gauge(
    "baton_reader_lag_messages",
    "Number of retained messages that a reader group has not committed, by queue and group.",
)
READER_LAG_SECONDS = gauge(
    "baton_reader_lag_seconds",
    "Age of the oldest message that a reader group has not committed, by queue and group; 0 if there is none.",
)
JOBS = gauge(
    "baton_jobs", "Number of jobs (redrives, deletes, replays) that have not ended, by source queue and state."
)
JOB_MESSAGES = gauge(
    "baton_job_messages",
    "Progress of the job on a queue that has not ended: messages to move, examined, moved, and dead-lettered again.",
)
SCHEDULES = gauge("baton_schedules", "Number of schedules of a queue, by state: active, waiting, paused, ended.")
SCHEDULE_FIRINGS = counter(
    "baton_schedule_firings_total", "Number of messages that schedules sent to a queue, since the shard opened."
)
SCHEDULE_LATE = counter(
    "baton_schedule_late_firings_total",
    "Number of those messages that were sent over 5 seconds after their due time, since the shard opened.",
)
SCHEDULE_NEXT = gauge(
    "baton_schedule_next_firing_timestamp_seconds",
    "Next due time of a queue's schedules. It is in the past while a firing waits, for example for a full queue.",
)

# --- totals -------------------------------------------------------------------------------------

QUEUES = gauge("baton_queues", "Number of queues.")
QUEUES_LISTED = gauge(
    "baton_queues_listed", "Number of queues that have metrics of their own (see --metrics-queues-max)."
)
MISSING = gauge("baton_queues_unavailable", "Number of queues with a shard that is not being served.")
MESSAGES_ALL = gauge("baton_messages", "Number of messages in all queues, by delivery state.")
BYTES_ALL = gauge("baton_messages_bytes", "Total size of the messages in all queues.")
OLDEST_ALL = gauge("baton_oldest_visible_seconds", "Age of the oldest message in any queue that can be received now.")
EVENTS = counter(
    "baton_messages_total",
    "Number of messages in all queues since the node started, by event: sent, received, acked, retried (the lease "
    "ended without a delete), dead_lettered, expired. Updated every 5 seconds.",
)
WAIT = histogram(
    "baton_message_wait_seconds",
    "Time from the send of a message to its first receive, in all queues. Updated every 5 seconds.",
    MESSAGE_BUCKETS,
)
HANDLING = histogram(
    "baton_message_handling_seconds",
    "Time from the last receive of a message to its delete, in all queues. Updated every 5 seconds.",
    MESSAGE_BUCKETS,
)
END_TO_END = histogram(
    "baton_message_end_to_end_seconds",
    "Time from the send of a message to its delete, in all queues. Updated every 5 seconds.",
    MESSAGE_BUCKETS,
)

# --- shards and the log -------------------------------------------------------------------------

SHARD_UP = gauge("baton_shard_up", "1 if the shard is being served, otherwise 0.")
SHARD_EPOCH = gauge("baton_shard_epoch", "Ownership epoch of the shard.")
SHARD_LOG_BYTES = gauge("baton_shard_log_bytes", "Size of the shard's retained log.")
SHARD_ROOM = gauge("baton_shard_room", "1 if the shard accepts sends, 0 if its disk is full.")
SHARD_FAILURES = counter("baton_shard_failures_total", "Number of times the shard stopped because its log failed.")
COMMITS = counter("baton_commits_total", "Number of frames committed.")
COMMIT_ROWS = counter("baton_commit_records_total", "Number of records committed.")
COMMIT_BYTES = counter("baton_commit_bytes_total", "Number of bytes committed.")
COMMIT_SECONDS = counter("baton_commit_seconds_total", "Total time spent waiting for commits.")
COMMIT_DURATION = histogram(
    "baton_commit_duration_seconds",
    "Time to commit one frame: written and synced to the disk, or acknowledged by the replicated log.",
    COMMIT_BUCKETS,
)
OWNERSHIP_CHANGES = counter(
    "baton_ownership_changes_total", "Number of times that a shard of a cluster got another owner, as this node saw it."
)
FOLLOWER_LAG_FRAMES = gauge(
    "baton_follower_lag_frames", "Number of committed frames of a shard that this node, which follows it, has not read."
)
FOLLOWER_LAG_SECONDS = gauge(
    "baton_follower_lag_seconds", "Time since a follower that is behind last read a frame of the shard; 0 if it is not."
)
REPLICA_LAG = gauge(
    "baton_replica_lag_frames",
    "Number of frames of a shard that a replica of its log in NATS JetStream is behind the leader, as the shard's "
    "owner last saw it.",
)
TOPIC_PUBLISHED = counter("baton_topic_published_total", "Number of messages published to a topic.")
TOPIC_COPIES = counter("baton_topic_copies_total", "Number of copies of published messages for matching subscriptions.")
TOPIC_REFUSED = counter(
    "baton_topic_refused_total",
    "Number of refusals of copies by a subscribed queue: full, paused or deleted.",
)
TOPIC_DROPPED = counter(
    "baton_topic_dropped_total", "Number of copies without a destination: no queue and no dead-letter queue."
)
TOPIC_WAITING = gauge(
    "baton_topic_waiting_copies", "Number of copies in a topic that their queue has not accepted yet."
)
CLUSTER_NODES = gauge("baton_cluster_nodes", "Number of live nodes of the cluster, as this node sees them.")
HISTORY_BYTES = counter("baton_history_bytes_total", "Number of bytes of history served.")
HISTORY_READERS = gauge("baton_history_readers", "Number of history reads in progress or waiting for new frames.")
HISTORY_LIMITED = counter(
    "baton_history_limited_total", "Number of history reads refused because of the rate limit (--history-rate-bytes)."
)
ARCHIVE_SEGMENTS = counter(
    "baton_archive_segments_total", "Number of the shard's segments copied to the archive or found there."
)
ARCHIVE_FAILURES = counter(
    "baton_archive_failures_total", "Number of failed attempts to copy the shard's log to the archive."
)
ARCHIVE_BEHIND = gauge("baton_archive_behind_bytes", "Size of the shard's sealed log that is not in the archive yet.")
ALARMS = gauge("baton_alarms", "Number of active alarms.")
ALARM_ACTIVE = gauge(
    "baton_alarm_active",
    f"Number of active alarms, by kind, severity and queue. Beyond {ALARM_SERIES_MAX} series the queue is left out.",
)
ALARMS_RAISED = counter("baton_alarms_raised_total", "Number of alarms raised since the node started.")

# --- requests -----------------------------------------------------------------------------------

HTTP_CONNECTIONS = gauge("baton_http_connections", "Number of open client connections.")
HTTP_REQUESTS = counter("baton_http_requests_total", "Number of HTTP requests received.")
HTTP_RESPONSES = counter("baton_http_responses_total", "Number of HTTP responses sent, by method and status.")
HTTP_RECEIVED = counter("baton_http_received_bytes_total", "Number of bytes received from clients.")
HTTP_SENT = counter("baton_http_sent_bytes_total", "Number of bytes sent to clients.")
HTTP_REFUSED = counter(
    "baton_http_refused_total",
    "Number of requests rejected before they were read in full: not valid HTTP, too large, or too slow.",
)
HTTP_REFUSED_CONNECTIONS = counter(
    "baton_http_refused_connections_total", "Number of connections rejected because of a limit on connections."
)
HTTP_FAILURES = counter("baton_http_failures_total", "Number of requests that failed because of an internal error.")
SQS_CALLS = counter("baton_sqs_calls_total", "Number of SQS operations called.")
SQS_ERRORS = counter("baton_sqs_errors_total", "Number of SQS operations that failed, by error code.")
SQS_SECONDS = histogram(
    "baton_sqs_request_seconds",
    "Time from an SQS request to its response, by operation. Receives include the time that they wait for messages.",
    REQUEST_BUCKETS,
)
SNS_CALLS = counter("baton_sns_calls_total", "Number of SNS operations called.")
SNS_ERRORS = counter("baton_sns_errors_total", "Number of SNS operations that failed, by error code.")
SNS_SECONDS = histogram(
    "baton_sns_request_seconds", "Time from an SNS request to its response, by operation.", REQUEST_BUCKETS
)
REST_CALLS = counter("baton_rest_calls_total", "Number of REST operations called.")
REST_ERRORS = counter("baton_rest_errors_total", "Number of REST operations that failed, by error code.")
REST_SECONDS = histogram(
    "baton_rest_request_seconds",
    "Time from a REST request to its response, by operation. Receives include the time that they wait for messages.",
    REQUEST_BUCKETS,
)
PAYLOADS = counter(
    "baton_payload_store_objects_total",
    "Number of objects of the payload store that the server has written, read or deleted, and of attempts that failed, "
    "by operation. Objects that clients have written are counted when they are deleted.",
)
TRACE_SPANS = counter(
    "baton_trace_spans_total",
    "Number of spans for the OpenTelemetry collector: exported, dropped because too many were waiting, or failed.",
)

# --- the process --------------------------------------------------------------------------------

LIMIT = gauge("baton_limit", "Limits of the node, by the label limit.")
LIMIT_USED = gauge("baton_limit_used", "How much of each limit of the node is used now.")
DISK_FREE = gauge("baton_disk_free_bytes", "Free space of the disk that has the data directory.")
DISK_SIZE = gauge("baton_disk_size_bytes", "Size of the disk that has the data directory.")
CERTIFICATE_EXPIRY = gauge(
    "baton_certificate_expiry_timestamp_seconds",
    "When the server's TLS certificate expires, in seconds since 1970; only with --tls-cert.",
)
LOOP_LAG = histogram(
    "baton_event_loop_lag_seconds",
    "How late the event loop ran a timer: requests wait at least this long. Measured four times per second.",
    LAG_BUCKETS,
)
GC_COLLECTIONS = counter("python_gc_collections_total", "Number of garbage collections, by generation.")
GC_COLLECTED = counter("python_gc_objects_collected_total", "Number of objects freed by garbage collections.")
GC_SECONDS = counter("baton_gc_seconds_total", "Total time that garbage collections stopped the process.")
CPU_SECONDS = counter("process_cpu_seconds_total", "Processor time used by the process, in user and system mode.")
RESIDENT = gauge("process_resident_memory_bytes", "Memory of the process that is in RAM.")
VIRTUAL = gauge("process_virtual_memory_bytes", "Virtual memory of the process.")
OPEN_FILES = gauge("process_open_fds", "Number of open file descriptors.")
OPEN_FILES_MAX = gauge("process_max_fds", "Maximum number of open file descriptors.")
START_TIME = gauge("process_start_time_seconds", "When the node started, in seconds since 1970.")
