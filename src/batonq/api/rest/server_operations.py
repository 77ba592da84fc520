"""Rows of the table of operations: what concerns the whole server."""

from __future__ import annotations

from batonq.api.rest import (
    alarm_shapes,
    alarms,
    backups,
    configuration,
    definitions,
    history,
    key_shapes,
    keys,
    reports,
    status,
    status_shapes,
)
from batonq.api.rest.operation import Operation
from batonq.node.alarms.document import Alarm

HISTORY_OPERATIONS = (
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

ACCESS_OPERATIONS = (
    Operation(
        name="whoAmI",
        method="GET",
        path="/v1/caller",
        summary="Get the account, the key and the role that this request has.",
        run=keys.who_am_i,
        answers={200: key_shapes.CallerInfo},
    ),
    Operation(
        name="listKeys",
        method="GET",
        path="/v1/keys",
        summary="List the access keys of all accounts, oldest first, without their secrets. For the whole server.",
        run=keys.list_keys,
        answers={200: key_shapes.Keys},
    ),
    Operation(
        name="createKey",
        method="POST",
        path="/v1/keys",
        summary="Create an access key. Its secret is in this response only. For the whole server.",
        run=keys.create_key,
        takes=key_shapes.KeySpec,
        body_needed=False,
        answers={201: key_shapes.NewKey},
    ),
    Operation(
        name="disableKey",
        method="POST",
        path="/v1/keys/{key}:disable",
        summary="Disable an access key: requests signed with it are refused. For the whole server.",
        run=keys.disable_key,
        answers={200: key_shapes.Key},
        errors=(404,),
    ),
    Operation(
        name="enableKey",
        method="POST",
        path="/v1/keys/{key}:enable",
        summary="Enable an access key again. For the whole server.",
        run=keys.enable_key,
        answers={200: key_shapes.Key},
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

DEFINITION_OPERATIONS = (
    Operation(
        name="exportDefinitions",
        method="GET",
        path="/v1/definitions",
        summary="Export the definitions of an account's queues, reader groups, topics, subscriptions and schedules, "
        "without messages. For the whole server.",
        run=definitions.export_definitions,
        answers={200: definitions.ExportedDefinitions},
        parameters=(definitions.ACCOUNT_PARAMETER,),
    ),
    Operation(
        name="importDefinitions",
        method="PUT",
        path="/v1/definitions",
        summary="Create and change queues, reader groups, topics, subscriptions and schedules as definitions say. If "
        "there are problems, nothing is changed. Nothing is deleted. For the whole server.",
        run=definitions.import_definitions,
        takes=definitions.Definitions,
        answers={200: definitions.Imported},
        parameters=(
            definitions.ACCOUNT_PARAMETER,
            ("dryRun", bool, "Whether to only report what would change; default false."),
        ),
    ),
)

ALARM_OPERATIONS = (
    Operation(
        name="getStatus",
        method="GET",
        path="/v1/status",
        summary="Get the status of the whole server, with a verdict in one sentence. For the whole server.",
        run=status.get_status,
        answers={200: status_shapes.Status},
    ),
    Operation(
        name="getCluster",
        method="GET",
        path="/v1/cluster",
        summary="Get the nodes of the server, and the owners and followers of its shards. For the whole server.",
        run=status.get_cluster,
        answers={200: status_shapes.Cluster},
    ),
    Operation(
        name="listAlarms",
        method="GET",
        path="/v1/alarms",
        summary="List the active alarms, the most severe first. For the whole server.",
        run=alarms.list_alarms,
        answers={200: alarm_shapes.Alarms},
        parameters=(("history", bool, "Whether to include the alarms that have ended; default false."),),
    ),
    Operation(
        name="acknowledgeAlarm",
        method="POST",
        path="/v1/alarms/{alarm}:acknowledge",
        summary="Acknowledge an active alarm: somebody looks after it. For the whole server.",
        run=alarms.acknowledge_alarm,
        takes=alarm_shapes.Acknowledge,
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
        answers={200: alarm_shapes.WebhookResults},
    ),
)

REPORT_OPERATIONS = (
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

BACKUP_OPERATIONS = (
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
