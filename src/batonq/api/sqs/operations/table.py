"""Every operation by its name: what runs it, and what it takes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, get_type_hints

from msgspec import Struct

from batonq.api.sqs import protocol_json
from batonq.api.sqs.operations import leases, moves, queues, receiving, sending
from batonq.api.sqs.service import Call, Service

Run = Callable[[Service, Call, Any], Awaitable[Struct]]

_RUNS: dict[str, Run] = {
    # --- messages
    "SendMessage": sending.send_message,
    "SendMessageBatch": sending.send_message_batch,
    "ReceiveMessage": receiving.receive_message,
    "DeleteMessage": leases.delete_message,
    "DeleteMessageBatch": leases.delete_message_batch,
    "ChangeMessageVisibility": leases.change_message_visibility,
    "ChangeMessageVisibilityBatch": leases.change_message_visibility_batch,
    # --- queues
    "CreateQueue": queues.create_queue,
    "GetQueueUrl": queues.get_queue_url,
    "DeleteQueue": queues.delete_queue,
    "PurgeQueue": queues.purge_queue,
    "ListQueues": queues.list_queues,
    "ListDeadLetterSourceQueues": queues.list_dead_letter_source_queues,
    "GetQueueAttributes": queues.get_queue_attributes,
    "SetQueueAttributes": queues.set_queue_attributes,
    "ListQueueTags": queues.list_queue_tags,
    "TagQueue": queues.tag_queue,
    "UntagQueue": queues.untag_queue,
    "AddPermission": queues.add_permission,
    "RemovePermission": queues.remove_permission,
    # --- move tasks
    "StartMessageMoveTask": moves.start_message_move_task,
    "CancelMessageMoveTask": moves.cancel_message_move_task,
    "ListMessageMoveTasks": moves.list_message_move_tasks,
}


class Operation(NamedTuple):
    name: str
    run: Run
    input: type[Struct]
    output: type[Struct]
    decode: Callable[[bytes], Struct]  # of the JSON protocol


def _operation(name: str, run: Run) -> Operation:
    hints = get_type_hints(run)
    return Operation(name, run, hints["given"], hints["return"], protocol_json.decoder(hints["given"]))


OPERATIONS = {name: _operation(name, run) for name, run in _RUNS.items()}
