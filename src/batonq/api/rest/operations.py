"""The table of operations: path, method, request and answer types, and the function that runs each.

The application routes requests by this table, and the OpenAPI document is generated from it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from batonq.api.rest import alarm_shapes as alarmshapes
from batonq.api.rest import (
    alarms,
    backups,
    configuration,
    consumers,
    dead_letters,
    definitions,
    history,
    jobs,
    keys,
    leases,
    message_actions,
    peeking,
    queues,
    receiving,
    reports,
    sending,
    series,
    shapes,
    status,
)
from batonq.api.rest import consumer_shapes as consumershapes
from batonq.api.rest import job_shapes as jobshapes
from batonq.api.rest import key_shapes as keyshapes
from batonq.api.rest import message_shapes as messageshapes
from batonq.api.rest import queue_shapes as queueshapes
from batonq.api.rest import series_shapes as seriesshapes
from batonq.api.rest import status_shapes as statusshapes
from batonq.api.rest.service import Answer, Call, Finish
from batonq.node.alarms.document import Alarm

Run = Callable[[Call], Awaitable[Answer]]
Start = Callable[[Call, Finish], None]


@dataclass(slots=True, frozen=True, kw_only=True)
class Operation:
    name: str  # operationId, and the label in metrics
    method: str
    path: str
    summary: str
    run: Run | None = None
    start: Start | None = None  # for operations on messages, which answer once their records are committed
    takes: Any = None  # the type of the body
    body_needed: bool = True
    answers: dict[int, Any] = field(default_factory=dict)  # status → the type of the body, None for no body
    errors: tuple[int, ...] = ()  # in addition to those that every operation has
    parameters: tuple[tuple[str, Any, str], ...] = ()  # of the query string: name, type, meaning
    headers: tuple[tuple[str, Any, str], ...] = ()
    content: str = ""  # the answer's content type, when it is neither JSON nor MessagePack
    answer_headers: tuple[tuple[str, str], ...] = ()  # of that answer: name, meaning

    @property
    def changes(self) -> bool:
        """Whether the operation changes anything: a key with the role `read` cannot use it then. A GET never does."""
        return self.method != "GET"


_IDEMPOTENCY = (
    "Idempotency-Key",
    shapes.IdempotencyKey,
    "If the same request is repeated with this key within 24 hours, the first response is returned again.",
)
QUEUES = "/v1/queues"
QUEUE = "/v1/queues/{queue}"
MESSAGES = "/v1/queues/{queue}/messages"
JOB = "/v1/jobs/{job}"
MESSAGE = "/v1/queues/{queue}/messages/{message}"
LEASE = "/v1/queues/{queue}/messages/{receipt}"

_QUEUES = (
    Operation(
        name="createQueue",
        method="POST",
        path=QUEUES,
        summary="Create a queue. Repeating the request returns the existing queue.",
        run=queues.create_queue,
        takes=queueshapes.QueueSpec,
        answers={201: queueshapes.QueueCreated, 200: queueshapes.QueueCreated},
        errors=(409,),
    ),
    Operation(
        name="listQueues",
        method="GET",
        path=QUEUES,
        summary="List queues by name.",
        run=queues.list_queues,
        answers={200: queueshapes.Queues},
        parameters=(
            ("prefix", str, "Only queues whose name starts with this."),
            ("limit", queueshapes.PageSize, "Maximum number of queues; default 100."),
            ("cursor", str, "`nextCursor` of the previous page."),
        ),
    ),
    Operation(
        name="getQueue",
        method="GET",
        path=QUEUE,
        summary="Get a queue's settings.",
        run=queues.get_queue,
        answers={200: queueshapes.Queue},
        errors=(404,),
    ),
    Operation(
        name="updateQueue",
        method="PATCH",
        path=QUEUE,
        summary="Change some of a queue's settings.",
        run=queues.update_queue,
        takes=queueshapes.QueueChanges,
        body_needed=False,
        answers={200: queueshapes.Queue},
        errors=(404, 409),
    ),
    Operation(
        name="deleteQueue",
        method="DELETE",
        path=QUEUE,
        summary="Delete a queue with all its messages.",
        run=queues.delete_queue,
        answers={204: None},
        errors=(404,),
    ),
    Operation(
        name="purgeQueue",
        method="POST",
        path=QUEUE + ":purge",
        summary="Purge a queue: delete all its current messages.",
        run=queues.purge_queue,
        answers={204: None},
        errors=(404, 409),
    ),
    Operation(
        name="queueStats",
        method="GET",
        path=QUEUE + "/stats",
        summary="Get a queue's statistics.",
        run=queues.queue_stats,
        answers={200: queueshapes.Stats},
        errors=(404,),
    ),
    Operation(
        name="queueStatsByVerb",
        method="GET",
        path=QUEUE + ":stats",
        summary="Get a queue's statistics (same as above).",
        run=queues.queue_stats,
        answers={200: queueshapes.Stats},
        errors=(404,),
    ),
)

_MESSAGES = (
    Operation(
        name="sendMessage",
        method="POST",
        path=MESSAGES,
        summary="Send a message. The response is sent when the message is durable.",
        start=sending.send_message,
        takes=shapes.Message,
        answers={202: shapes.Sent},
        errors=(404, 409),
        headers=(_IDEMPOTENCY,),
    ),
    Operation(
        name="sendBatch",
        method="POST",
        path=MESSAGES + ":batch",
        summary="Send up to 1,000 messages, with one result per message: 202 if all were accepted, otherwise 200.",
        start=sending.send_batch,
        takes=shapes.SendBatch,
        answers={202: shapes.SendResults, 200: shapes.SendResults},
        errors=(404, 409),
        headers=(_IDEMPOTENCY,),
    ),
    Operation(
        name="receive",
        method="POST",
        path=MESSAGES + ":receive",
        summary="Receive messages, with a long poll if there are none.",
        start=receiving.receive,
        takes=shapes.Receive,
        body_needed=False,
        answers={200: shapes.ReceivedMessages},
        errors=(404,),
    ),
    Operation(
        name="receiveAny",
        method="POST",
        path="/v1/messages:receive",
        summary="Receive messages from several queues, with a fair share for each. Every name must exist.",
        run=receiving.receive_any,
        takes=shapes.ReceiveAny,
        answers={200: shapes.ReceivedMessages},
        errors=(404,),
    ),
    Operation(
        name="peek",
        method="GET",
        path=MESSAGES,
        summary="Peek at messages in any state without receiving them.",
        run=peeking.peek,
        answers={200: shapes.PeekedMessages},
        errors=(404,),
        parameters=(
            ("after", shapes.Sequence, "Start after this sequence number: `nextAfter` of the previous page."),
            ("limit", shapes.PeekSize, "Maximum number of messages; default 10."),
            ("state", shapes.MessageState, "Only messages in this state."),
            ("text", shapes.PeekText, "Only messages with this text in their body or attributes."),
            ("group", shapes.PeekText, "Only messages of this message group."),
            ("errorClass", shapes.PeekText, "Only messages whose last failure had this error class."),
            ("holder", shapes.PeekText, "Only messages that this consumer holds."),
        ),
    ),
    Operation(
        name="ack",
        method="POST",
        path=LEASE + ":ack",
        summary="Ack a message: it is processed and is deleted.",
        start=leases.ack,
        answers={204: None},
        errors=(404, 409),
    ),
    Operation(
        name="nack",
        method="POST",
        path=LEASE + ":nack",
        summary="Nack a message: it failed and becomes visible again, with a reason.",
        start=leases.nack,
        takes=shapes.Nack,
        body_needed=False,
        answers={204: None},
        errors=(404, 409),
    ),
    Operation(
        name="changeVisibility",
        method="POST",
        path=LEASE + ":change-visibility",
        summary="Extend or end a lease: 200 with the deadline in MessagePack, or if the Prefer header asks for it.",
        start=leases.change_visibility,
        takes=shapes.ChangeVisibility,
        headers=(("Prefer", str, "`return=representation` includes the deadline in the response."),),
        answers={204: None, 200: shapes.Deadline},
        errors=(404, 409),
    ),
    Operation(
        name="ackBatch",
        method="POST",
        path=MESSAGES + ":ack",
        summary="Ack up to 1,000 messages, with one result per message.",
        start=leases.ack_batch,
        takes=shapes.AckBatch,
        answers={200: shapes.LeaseResults},
        errors=(404,),
    ),
    Operation(
        name="nackBatch",
        method="POST",
        path=MESSAGES + ":nack",
        summary="Nack up to 1,000 messages, with one result per message.",
        start=leases.nack_batch,
        takes=shapes.NackBatch,
        answers={200: shapes.LeaseResults},
        errors=(404,),
    ),
    Operation(
        name="changeVisibilityBatch",
        method="POST",
        path=MESSAGES + ":change-visibility",
        summary="Change the visibility of up to 1,000 messages, with one result and new deadline per message.",
        start=leases.change_visibility_batch,
        takes=shapes.ChangeVisibilityBatch,
        answers={200: shapes.LeaseResults},
        errors=(404,),
    ),
)

_SINGLE_MESSAGES = (
    Operation(
        name="getMessage",
        method="GET",
        path=MESSAGE,
        summary="Get one message: where it is, why it is not delivered, and its history.",
        run=peeking.get_message,
        answers={200: messageshapes.MessageDetail},
        errors=(404,),
    ),
    Operation(
        name="deleteMessage",
        method="DELETE",
        path=MESSAGE,
        summary="Delete a message that no consumer holds.",
        run=message_actions.delete_message,
        answers={204: None},
        errors=(404, 409),
    ),
    Operation(
        name="editMessage",
        method="PATCH",
        path=MESSAGE,
        summary="Change the body or attributes of a message that no consumer holds.",
        run=message_actions.edit_message,
        takes=messageshapes.MessageEdit,
        answers={200: messageshapes.MessageDetail},
        errors=(404, 409),
    ),
    Operation(
        name="retryMessage",
        method="POST",
        path=MESSAGE + ":retry",
        summary="Let a delayed message be delivered now, or return a dead letter to its source queue.",
        run=message_actions.retry_message,
        answers={200: messageshapes.MessageDetail},
        errors=(404, 409),
    ),
    Operation(
        name="listDeadLetters",
        method="GET",
        path=QUEUE + "/dead-letters",
        summary="List the newest dead letters of a queue in groups: by error, source queue and shape of the body.",
        run=dead_letters.list_dead_letters,
        answers={200: messageshapes.DeadLetters},
        errors=(404,),
    ),
    Operation(
        name="deleteMessages",
        method="POST",
        path=QUEUE + ":delete-messages",
        summary="Start a job that deletes messages. The status is 202 with the job, or 200 for a dry run.",
        run=jobs.delete_messages,
        takes=jobshapes.DeleteSpec,
        body_needed=True,
        answers={202: jobshapes.Job, 200: jobshapes.Job},
        errors=(404, 409),
    ),
    Operation(
        name="listAllJobs",
        method="GET",
        path="/v1/jobs",
        summary="List the jobs of all queues: active jobs first, then the newest.",
        run=jobs.list_all_jobs,
        answers={200: jobshapes.Jobs},
        parameters=(("state", jobshapes.JobStates, "`active`: only jobs that have not ended; default `all`."),),
    ),
)

_JOBS = (
    Operation(
        name="redrive",
        method="POST",
        path=QUEUE + ":redrive",
        summary="Start a redrive job. The status is 202 with the job, or 200 with the result of a dry run.",
        run=jobs.redrive,
        takes=jobshapes.RedriveSpec,
        body_needed=False,
        answers={202: jobshapes.Job, 200: jobshapes.Job},
        errors=(404, 409),
    ),
    Operation(
        name="listJobs",
        method="GET",
        path=QUEUE + "/jobs",
        summary="List the jobs of a queue, newest first.",
        run=jobs.list_jobs,
        answers={200: jobshapes.Jobs},
        errors=(404,),
    ),
    Operation(
        name="getJob",
        method="GET",
        path=JOB,
        summary="Get a job's progress.",
        run=jobs.get_job,
        answers={200: jobshapes.Job},
        errors=(404,),
    ),
    Operation(
        name="cancelJob",
        method="POST",
        path=JOB + ":cancel",
        summary="Cancel a job. Messages that it has moved stay moved.",
        run=jobs.cancel_job,
        answers={200: jobshapes.Job},
        errors=(404, 409),
    ),
    Operation(
        name="pauseJob",
        method="POST",
        path=JOB + ":pause",
        summary="Pause a job.",
        run=jobs.pause_job,
        answers={200: jobshapes.Job},
        errors=(404, 409),
    ),
    Operation(
        name="resumeJob",
        method="POST",
        path=JOB + ":resume",
        summary="Resume a paused job.",
        run=jobs.resume_job,
        answers={200: jobshapes.Job},
        errors=(404, 409),
    ),
)

_HISTORY = (
    Operation(
        name="listHistory",
        method="GET",
        path="/v1/history",
        summary="List the retained frames of every shard. Requires a key of the server's own account.",
        run=history.list_history,
        answers={200: history.Histories},
        parameters=(("names", bool, "Whether to include the current queues of every shard; default false."),),
    ),
    Operation(
        name="readHistory",
        method="GET",
        path="/v1/history/{shard}",
        summary="Read committed frames of a shard's log, as stored. Requires a key of the server's own account.",
        run=history.read_history,
        content=history.CONTENT_TYPE,
        answer_headers=history.HEADERS,
        answers={200: None},
        errors=(404, 410),
        parameters=(
            ("from", history.FrameNumber, "First frame to return; default 1."),
            ("to", history.FrameNumber, "Frame before which to stop; default: the end of the log."),
            (
                "max_bytes",
                history.PieceBytes,
                "Approximate maximum size of the response; at least one frame is returned. Default 4 MiB.",
            ),
            ("wait", history.WaitSeconds, "Seconds to wait for a frame that does not exist yet."),
        ),
    ),
)

_ACCESS = (
    Operation(
        name="whoAmI",
        method="GET",
        path="/v1/caller",
        summary="Get the account, the key and the role that this request has.",
        run=keys.who_am_i,
        answers={200: keyshapes.CallerInfo},
    ),
    Operation(
        name="listKeys",
        method="GET",
        path="/v1/keys",
        summary="List the access keys of all accounts, oldest first, without their secrets. For the whole server.",
        run=keys.list_keys,
        answers={200: keyshapes.Keys},
    ),
    Operation(
        name="createKey",
        method="POST",
        path="/v1/keys",
        summary="Create an access key. Its secret is in this response only. For the whole server.",
        run=keys.create_key,
        takes=keyshapes.KeySpec,
        body_needed=False,
        answers={201: keyshapes.NewKey},
    ),
    Operation(
        name="disableKey",
        method="POST",
        path="/v1/keys/{key}:disable",
        summary="Disable an access key: requests signed with it are refused. For the whole server.",
        run=keys.disable_key,
        answers={200: keyshapes.Key},
        errors=(404,),
    ),
    Operation(
        name="enableKey",
        method="POST",
        path="/v1/keys/{key}:enable",
        summary="Enable an access key again. For the whole server.",
        run=keys.enable_key,
        answers={200: keyshapes.Key},
        errors=(404,),
    ),
    Operation(
        name="getConfig",
        method="GET",
        path="/v1/config",
        summary="List the settings of the node that answers, each with its origin. For the whole server.",
        run=configuration.get_config,
        answers={200: configuration.Config},
    ),
)

_DEFINITIONS = (
    Operation(
        name="exportDefinitions",
        method="GET",
        path="/v1/definitions",
        summary="Export the definitions of an account's queues, without messages. For the whole server.",
        run=definitions.export_definitions,
        answers={200: definitions.ExportedDefinitions},
        parameters=(definitions.ACCOUNT_PARAMETER,),
    ),
    Operation(
        name="importDefinitions",
        method="PUT",
        path="/v1/definitions",
        summary="Create and change queues as definitions say. If there are problems, nothing is changed. No queue is "
        "deleted. For the whole server.",
        run=definitions.import_definitions,
        takes=definitions.Definitions,
        answers={200: definitions.Imported},
        parameters=(
            definitions.ACCOUNT_PARAMETER,
            ("dryRun", bool, "Whether to only report what would change; default false."),
        ),
    ),
)

_ALARMS = (
    Operation(
        name="getStatus",
        method="GET",
        path="/v1/status",
        summary="Get the status of the whole server, with a verdict in one sentence. For the whole server.",
        run=status.get_status,
        answers={200: statusshapes.Status},
    ),
    Operation(
        name="getCluster",
        method="GET",
        path="/v1/cluster",
        summary="Get the nodes of the server, and the owners and followers of its shards. For the whole server.",
        run=status.get_cluster,
        answers={200: statusshapes.Cluster},
    ),
    Operation(
        name="listAlarms",
        method="GET",
        path="/v1/alarms",
        summary="List the active alarms, the most severe first. For the whole server.",
        run=alarms.list_alarms,
        answers={200: alarmshapes.Alarms},
        parameters=(("history", bool, "Whether to include the alarms that have ended; default false."),),
    ),
    Operation(
        name="acknowledgeAlarm",
        method="POST",
        path="/v1/alarms/{alarm}:acknowledge",
        summary="Acknowledge an active alarm: somebody looks after it. For the whole server.",
        run=alarms.acknowledge_alarm,
        takes=alarmshapes.Acknowledge,
        body_needed=False,
        answers={200: Alarm},
        errors=(404,),
    ),
    Operation(
        name="testAlarms",
        method="POST",
        path="/v1/alarms:test",
        summary="Send a test event to the alarm webhooks, and report how each answers. For the whole server.",
        run=alarms.test_alarms,
        answers={200: alarmshapes.WebhookResults},
    ),
)

_REPORTS = (
    Operation(
        name="listReports",
        method="GET",
        path="/v1/reports",
        summary="List the reports of the data pipeline. Requires a key of the server's own account.",
        run=reports.list_reports,
        answers={200: reports.Reports},
        errors=(404,),
    ),
    Operation(
        name="readReport",
        method="GET",
        path="/v1/reports/{report}",
        summary="Get a report as HTML. Requires a key of the server's own account.",
        run=reports.read_report,
        content="text/html",
        answers={200: None},
        errors=(404,),
    ),
)

_BACKUPS = (
    Operation(
        name="createBackup",
        method="POST",
        path="/v1/backups",
        summary="Choose the point of a backup. The frames of the shards up to that point are then read with "
        "`readHistory`, and those of the catalog with `readBackupCatalog`. For the whole server.",
        run=backups.create_backup,
        answers={201: backups.BackupPoint},
    ),
    Operation(
        name="readBackupCatalog",
        method="GET",
        path="/v1/backups/{backup}/catalog",
        summary="Read frames of the catalog's log, as stored. They contain the secrets of access keys, so the role "
        "`admin` is required. For the whole server.",
        run=backups.read_catalog,
        content=history.CONTENT_TYPE,
        answer_headers=history.HEADERS,
        answers={200: None},
        errors=(404, 410),
        parameters=(
            ("from", history.FrameNumber, "First frame to return; default 1."),
            ("to", history.FrameNumber, "Frame before which to stop; default: the end of the log."),
        ),
    ),
    Operation(
        name="finishBackup",
        method="POST",
        path="/v1/backups/{backup}:finish",
        summary="Finish a backup: its frames need not be kept any longer. For the whole server.",
        run=backups.finish_backup,
        answers={204: None},
        errors=(404,),
    ),
)

_CONSUMERS = (
    Operation(
        name="listConsumers",
        method="GET",
        path=QUEUE + "/consumers",
        summary="List the consumers of a queue: who polls it, and who holds its messages.",
        run=consumers.list_consumers,
        answers={200: consumershapes.Consumers},
        errors=(404,),
    ),
    Operation(
        name="listWorkers",
        method="GET",
        path="/v1/workers",
        summary="List the consumers of all queues. Requires a key of the server's own account, or the admin token.",
        run=consumers.list_workers,
        answers={200: consumershapes.Workers},
    ),
)

_RANGE = (
    "range",
    Literal["15m", "1h", "6h", "24h", "72h"],
    "How far back: 15m in steps of 5 s, 1h of 15 s, 6h of 1 min, 24h of 5 min, 72h of 15 min. Default: 15m.",
)
_SERIES = (
    Operation(
        name="listQueueStats",
        method="GET",
        path="/v1/queues:stats",
        summary="List queues with their figures: searched, sorted, and in pages.",
        run=series.list_queue_stats,
        answers={200: seriesshapes.QueueStats},
        parameters=(
            ("search", str, "Only queues whose name contains this text."),
            (
                "sort",
                seriesshapes.Sort,
                "What to sort by. sent, received, acked: by the rate, then the total. dead: dead letters count too.",
            ),
            ("order", Literal["asc", "desc"], "The order. By default names are ascending, figures descending."),
            ("offset", int, "Number of queues to skip."),
            ("limit", int, "Maximum number of queues: 1 to 1,000 (default 100)."),
        ),
    ),
    Operation(
        name="queueSeries",
        method="GET",
        path="/v1/queues/{queue}/series",
        summary="Get a queue's rates, depths, ages and latencies over time.",
        run=series.queue_series,
        answers={200: seriesshapes.Series},
        errors=(404,),
        parameters=(_RANGE,),
    ),
    Operation(
        name="serverSeries",
        method="GET",
        path="/v1/series",
        summary="Get the rates, depths, ages and latencies of all queues together over time. For the whole server.",
        run=series.server_series,
        answers={200: seriesshapes.Series},
        parameters=(_RANGE,),
    ),
)

OPERATIONS: tuple[Operation, ...] = (
    *_QUEUES,
    *_MESSAGES,
    *_SINGLE_MESSAGES,
    *_CONSUMERS,
    *_JOBS,
    *_HISTORY,
    *_ACCESS,
    *_DEFINITIONS,
    *_ALARMS,
    *_SERIES,
    *_REPORTS,
    *_BACKUPS,
)
