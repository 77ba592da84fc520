"""What every command prints with --json: the answer of an operation of the REST API, or a shape of the command's own.

The shapes are stable: fields can be added, but are neither removed nor changed. The reference pages are made from this
table, and the tests check the output of every command against it.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from batonq.api.rest import (
    explain_shapes,
    job_shapes,
    message_shapes,
    queue_shapes,
    reader_shapes,
    shapes,
    topic_shapes,
)

Level = Literal["ok", "warning", "critical"]


class Printed(Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Base class of the shapes that only the command line has."""


class QueueShown(Printed):
    """A queue: its settings and its statistics."""

    queue: queue_shapes.Queue
    stats: queue_shapes.Stats


class QueueDeleted(Printed):
    """`messages` were in the queue."""

    queue: str
    deleted: bool
    messages: int


class QueuePurged(Printed):
    """`messages` were in the queue."""

    queue: str
    purged: bool
    messages: int


class QueueDrained(Printed):
    """What is left in a queue that takes no new messages."""

    queue: str
    left: int
    visible: int
    in_flight: int
    delayed: int


class Explained(Printed):
    """Why the messages of a queue wait, and the message that was named, with its history."""

    queue: explain_shapes.QueueExplained
    message: message_shapes.MessageDetail | None = None


class ScheduleDeleted(Printed):
    schedule_id: str
    deleted: bool


class SentMessages(Printed):
    """One entry per message, in order. The entry of a message that was refused has an `error`."""

    queue: str
    sent: int
    failed: int
    messages: list[shapes.SendResult]


class TopicShown(Printed):
    """A topic and its subscriptions."""

    topic: topic_shapes.Topic
    subscriptions: list[topic_shapes.Subscription]


class TopicDeleted(Printed):
    """The topic had this many `subscriptions`."""

    topic: str
    deleted: bool
    subscriptions: int


class Unsubscribed(Printed):
    topic: str
    queue: str
    unsubscribed: bool


class PublishedMessages(Printed):
    """One entry per message, in order. The entry of a message that was refused has an `error`."""

    topic: str
    sent: int
    failed: int
    messages: list[shapes.SendResult]


class LeasesChanged(Printed):
    """One result per receipt, in order. The result of a receipt that was refused has an `error`."""

    queue: str
    done: int
    failed: int
    results: list[shapes.LeaseResult]


class MessageDeleted(Printed):
    queue: str
    message_id: str
    deleted: bool


class TopShown(Printed):
    """`status` is null if the credentials may not read the status of the server."""

    status: dict[str, Any] | None
    total: int
    at_ms: int
    queues: list[dict[str, Any]]


class DoctorFinding(Printed):
    """One result of a check. `remedy` is empty if there is nothing to do."""

    level: Level
    check: str
    subject: str
    text: str
    remedy: str


class DoctorReport(Printed):
    """`level` is the worst level of all findings."""

    level: Level
    findings: list[DoctorFinding]


class ContextShown(Printed):
    """A context, without its secrets."""

    name: str
    url: str
    current: bool
    credentials: Literal["key", "token", "none"]
    access_key_id: str = ""
    account: str = ""
    ca_file: str = ""


class ContextsShown(Printed):
    """`current` is the name of the context in use, or empty."""

    current: str
    contexts: list[ContextShown]


class CurrentContext(Printed):
    """`current` is the name of the context in use, or empty."""

    current: str


class ClockShown(Printed):
    now_ms: int


class BackupRestored(Printed):
    """What a backup contains. `data` is the new data directory; null after `--check`."""

    data: str | None
    at_ms: int
    queues: int
    messages: int
    in_flight: int
    keys: int
    shards: int


class BackupWritten(Printed):
    """`atMs` is the point in time of the backup."""

    path: str
    at_ms: int
    bytes: int
    shards: int


class Percentiles(Printed):
    """In milliseconds."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


class BenchLatency(Printed):
    """Per request for `send`, `receive` and `ack`; per message for `endToEnd`, from send to receive."""

    send: Percentiles
    receive: Percentiles | None = None
    ack: Percentiles | None = None
    end_to_end: Percentiles | None = None


class BenchReport(Printed):
    """`complete` is false if the time was over before all messages were processed."""

    messages: int
    body_bytes: int
    batch: int
    senders: int
    receivers: int
    complete: bool
    sent: int
    sent_per_second: float
    latency: BenchLatency
    acked: int = 0
    acked_per_second: float = 0.0


class ReaderDeleted(Printed):
    """The reader group of this queue was deleted."""

    queue: str
    group: str
    deleted: bool


class MessagesRead(Printed):
    """Retained messages."""

    messages: list[reader_shapes.RetainedMessage]


# By command. A text is the name of an operation of the REST API, whose answer is printed.
OUTPUTS: dict[str, str | type[Struct]] = {
    "ack": LeasesChanged,
    "alarms ack": "acknowledgeAlarm",
    "alarms list": "listAlarms",
    "alarms test": "testAlarms",
    "backup": BackupWritten,
    "bench": BenchReport,
    "clock advance": ClockShown,
    "cluster status": "getCluster",
    "config show": "getConfig",
    "context add": ContextShown,
    "context list": ContextsShown,
    "context remove": CurrentContext,
    "context show": ContextShown,
    "context use": CurrentContext,
    "dlq delete": job_shapes.Job,
    "dlq list": "listQueueStats",
    "dlq show": "listDeadLetters",
    "doctor": DoctorReport,
    "explain": Explained,
    "export": "exportDefinitions",
    "extend": LeasesChanged,
    "import": "importDefinitions",
    "jobs cancel": "cancelJob",
    "jobs list": "listAllJobs",
    "jobs pause": "pauseJob",
    "jobs resume": "resumeJob",
    "jobs show": "getJob",
    "keys create": "createKey",
    "keys disable": "disableKey",
    "keys enable": "enableKey",
    "keys list": "listKeys",
    "message delete": MessageDeleted,
    "message edit": "editMessage",
    "message retry": "retryMessage",
    "message show": "getMessage",
    "nack": LeasesChanged,
    "peek": "peek",
    "queue consumers": "listConsumers",
    "queue counters": "queueCounters",
    "queue create": "getQueue",
    "queue delete": QueueDeleted,
    "queue drain": QueueDrained,
    "queue list": "listQueueStats",
    "queue pace": "updateQueue",
    "queue pause": "updateQueue",
    "queue purge": QueuePurged,
    "queue resume": "updateQueue",
    "queue series": "queueSeries",
    "queue set": "updateQueue",
    "queue show": QueueShown,
    "reader create": "createReader",
    "reader delete": ReaderDeleted,
    "reader list": "listReaders",
    "reader read": MessagesRead,
    "reader seek": "seekReader",
    "reader show": "getReader",
    "receive": "receive",
    "redrive": "redrive",
    "replay": "replay",
    "restore": BackupRestored,
    "schedule create": "createSchedule",
    "schedule delete": ScheduleDeleted,
    "schedule fire": "fireSchedule",
    "schedule list": "listSchedules",
    "schedule preview": "previewSchedule",
    "schedule set": "updateSchedule",
    "schedule show": "getSchedule",
    "send": SentMessages,
    "status": "getStatus",
    "tail": shapes.Peeked,
    "top": TopShown,
    "topic create": "createTopic",
    "topic delete": TopicDeleted,
    "topic list": "listTopics",
    "topic match": "matchTopic",
    "topic publish": PublishedMessages,
    "topic set": "updateTopic",
    "topic show": TopicShown,
    "topic subscribe": "createSubscription",
    "topic unsubscribe": Unsubscribed,
    "topic waiting": "peekTopic",
    "whoami": "whoAmI",
    "worker list": "listWorkers",
}


def shape_of(command: str) -> Any:
    """The type that a command prints."""
    found = OUTPUTS[command]
    if not isinstance(found, str):
        return found
    from batonq.api.rest.operations import OPERATIONS

    operation = next(each for each in OPERATIONS if each.name == found)
    return next(kind for status, kind in sorted(operation.answers.items()) if kind is not None)
