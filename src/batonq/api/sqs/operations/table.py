"""The table of operations: for each name, its function, input, output and decoder."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, get_type_hints

from msgspec import Struct

from batonq.api.sqs import protocol_json
from batonq.api.sqs.operations import leases, moves, queues, receiving, sending
from batonq.api.sqs.service import Call, Finish, Service
from batonq.api.sqs.shapes import (
    BatchOutput,
    Output,
    ReceiveMessageOutput,
    SendMessageBatchOutput,
    SendMessageOutput,
)

Run = Callable[[Service, Call, Any], Awaitable[Struct]]
Start = Callable[[Service, Call, Any, Finish], None]

# Operations on messages. They are started without a task, and answer once their records are committed.
_STARTS: dict[str, Start] = {
    "SendMessage": sending.send_message,
    "SendMessageBatch": sending.send_message_batch,
    "ReceiveMessage": receiving.receive_message,
    "DeleteMessage": leases.delete_message,
    "DeleteMessageBatch": leases.delete_message_batch,
    "ChangeMessageVisibility": leases.change_message_visibility,
    "ChangeMessageVisibilityBatch": leases.change_message_visibility_batch,
}
_RUNS: dict[str, Run] = {
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


# Operations that change nothing, which a key with the role `read` may use. All others, receives too, change something.
READS = frozenset(
    {
        "GetQueueUrl",
        "ListQueues",
        "ListDeadLetterSourceQueues",
        "GetQueueAttributes",
        "ListQueueTags",
        "ListMessageMoveTasks",
    }
)


class Operation(NamedTuple):
    name: str
    changes: bool  # whether it changes anything
    start: Start | None
    run: Run | None
    input: type[Struct]
    output: type[Struct]
    decode: Callable[[bytes], Struct]  # decodes a body of the JSON protocol


_OUTPUTS: dict[str, type[Struct]] = {
    "SendMessage": SendMessageOutput,
    "SendMessageBatch": SendMessageBatchOutput,
    "ReceiveMessage": ReceiveMessageOutput,
    "DeleteMessage": Output,
    "DeleteMessageBatch": BatchOutput,
    "ChangeMessageVisibility": Output,
    "ChangeMessageVisibilityBatch": BatchOutput,
}


def _operation(name: str) -> Operation:
    start, run = _STARTS.get(name), _RUNS.get(name)
    hints = get_type_hints(start or run)
    output = _OUTPUTS[name] if start is not None else hints["return"]
    return Operation(name, name not in READS, start, run, hints["given"], output, protocol_json.decoder(hints["given"]))


OPERATIONS = {name: _operation(name) for name in (*_STARTS, *_RUNS)}
