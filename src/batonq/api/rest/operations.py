"""The table of operations: path, method, request and answer types, and the function that runs each.

The application routes requests by this table, and the OpenAPI document is generated from it. The rows of each area are
in a module of their own.
"""

from __future__ import annotations

from batonq.api.rest import (
    explain_operations,
    job_operations,
    message_operations,
    queue_operations,
    reader_operations,
    replay_operations,
    schedule_operations,
    server_operations,
    topic_operations,
)
from batonq.api.rest.operation import Operation

OPERATIONS: tuple[Operation, ...] = (
    *queue_operations.QUEUE_OPERATIONS,
    *message_operations.MESSAGE_OPERATIONS,
    *message_operations.SINGLE_MESSAGE_OPERATIONS,
    *queue_operations.CONSUMER_OPERATIONS,
    *topic_operations.TOPIC_OPERATIONS,
    *explain_operations.EXPLAIN_OPERATIONS,
    *job_operations.JOB_OPERATIONS,
    *reader_operations.READER_OPERATIONS,
    *replay_operations.REPLAY_OPERATIONS,
    *schedule_operations.SCHEDULE_OPERATIONS,
    *server_operations.HISTORY_OPERATIONS,
    *server_operations.ACCESS_OPERATIONS,
    *server_operations.DEFINITION_OPERATIONS,
    *server_operations.ALARM_OPERATIONS,
    *queue_operations.SERIES_OPERATIONS,
    *server_operations.REPORT_OPERATIONS,
    *server_operations.BACKUP_OPERATIONS,
)
