"""Message move tasks: redrive a dead-letter queue, or the dead messages of another queue, to the source or another
queue.
"""

from __future__ import annotations

import binascii
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode

from batonq.api.sqs.errors import QUEUE_DOES_NOT_EXIST, RESOURCE_NOT_FOUND, SqsError, invalid_value, missing
from batonq.api.sqs.service import Call, Service
from batonq.api.sqs.shapes import (
    CancelMessageMoveTaskInput,
    CancelMessageMoveTaskOutput,
    ListMessageMoveTasksInput,
    ListMessageMoveTasksOutput,
    MoveTask,
    StartMessageMoveTaskInput,
    StartMessageMoveTaskOutput,
)
from batonq.attribute_formats.arns import parse_queue_arn
from batonq.core.commands import Job
from batonq.errors import JobConflict, JobNotFound, QueueDoesNotExist
from batonq.node.broker import Queue

RATE_MAX_PER_S = 500
TASKS_MAX = 10
BAD_HANDLE = "Value for parameter TaskHandle is invalid."
FAILURES = {QueueDoesNotExist.code: QUEUE_DOES_NOT_EXIST.code}  # logs of earlier releases have the SQS code itself


async def start_message_move_task(
    service: Service, call: Call, given: StartMessageMoveTaskInput
) -> StartMessageMoveTaskOutput:
    source = _queue(service, call, given.SourceArn, "SourceArn")
    rate = given.MaxNumberOfMessagesPerSecond
    if rate is not None and not 1 <= rate <= RATE_MAX_PER_S:
        raise invalid_value(
            "Value for parameter MaxNumberOfMessagesPerSecond is invalid. "
            f"Reason: You must enter a number that's between 1 and {RATE_MAX_PER_S}."
        )
    destination = None
    if not await service.broker.can_move_from(source):
        raise invalid_value("Source queue must be configured as a Dead Letter Queue.")
    if given.DestinationArn is not None:
        destination = _queue(service, call, given.DestinationArn, "DestinationArn")
        if destination.number == source.number:
            raise invalid_value("Source queue arn and destination queue arn cannot be the same.")
        if destination.fifo != source.fifo:
            raise invalid_value("The source queue and destination queue must be of the same queue type.")
    try:
        job = await service.broker.start_move(source, destination, rate)
    except JobConflict:
        raise invalid_value(
            "There is already a task running. Only one active task is allowed for a source queue arn at a given time."
        ) from None
    return StartMessageMoveTaskOutput(_handle(service, source, job))


async def cancel_message_move_task(
    service: Service, call: Call, given: CancelMessageMoveTaskInput
) -> CancelMessageMoveTaskOutput:
    if not given.TaskHandle:
        raise missing("TaskHandle")
    task_id, source_arn = _read_handle(given.TaskHandle)
    source = _queue(service, call, source_arn, "SourceArn")
    try:
        job = await service.broker.cancel_move(source, task_id)
    except JobNotFound:
        raise SqsError(RESOURCE_NOT_FOUND, "Task does not exist.") from None
    return CancelMessageMoveTaskOutput(job.moved)


async def list_message_move_tasks(
    service: Service, call: Call, given: ListMessageMoveTasksInput
) -> ListMessageMoveTasksOutput:
    source = _queue(service, call, given.SourceArn, "SourceArn")
    count = 1 if given.MaxResults is None else given.MaxResults
    if not 1 <= count <= TASKS_MAX:
        raise invalid_value(
            "Value for parameter MaxResults is invalid. "
            f"Reason: You must enter a number that's between 1 and {TASKS_MAX}."
        )
    jobs = await service.broker.moves(source)
    return ListMessageMoveTasksOutput([_task(service, source, job) for job in jobs[:count]] or None)


def _task(service: Service, source: Queue, job: Job) -> MoveTask:
    return MoveTask(
        job.state,
        service.arn(source),
        _handle(service, source, job) if job.state == "RUNNING" else None,
        job.destination_arn or None,
        None if job.default_rate else job.rate_per_s,
        job.moved,
        job.to_move,
        FAILURES.get(job.failure, job.failure) or None,
        job.started_ms,
    )


def _queue(service: Service, call: Call, arn: str | None, parameter: str) -> Queue:
    if arn is None:
        raise missing(parameter)
    name = parse_queue_arn(arn)
    if name is None or "/" in arn:
        raise invalid_value(
            f"You must use this format to specify the {parameter}: "
            "arn:<partition>:<service>:<region>:<account-id>:<resource-id>"
        )
    try:
        return service.queue(call, f"/{name.account}/{name.name}")
    except QueueDoesNotExist:
        raise SqsError(
            RESOURCE_NOT_FOUND, f"The resource that you specified for the {parameter} parameter doesn't exist."
        ) from None


def _handle(service: Service, source: Queue, job: Job) -> str:
    text = json.dumps({"taskId": job.id, "sourceArn": service.arn(source)}, separators=(",", ":"))
    return urlsafe_b64encode(text.encode()).decode()


def _read_handle(handle: str) -> tuple[str, str]:
    """The task's id and the ARN of its source queue."""
    try:
        content = json.loads(urlsafe_b64decode(handle.encode("ascii")))
        task_id, source_arn = content["taskId"], content["sourceArn"]
    except (binascii.Error, ValueError, KeyError, TypeError, RecursionError):
        raise invalid_value(BAD_HANDLE) from None
    if not isinstance(task_id, str) or not isinstance(source_arn, str) or parse_queue_arn(source_arn) is None:
        raise invalid_value(BAD_HANDLE)
    return task_id, source_arn
