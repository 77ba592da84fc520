"""Every operation: its address and method, what it takes and answers, and what runs it.

The application finds its way by this table, and the OpenAPI document is made from it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from batonq.api.rest import history, jobs, jobshapes, leases, peeking, queues, queueshapes, receiving, sending, shapes
from batonq.api.rest.service import Answer, Call, Finish

Run = Callable[[Call], Awaitable[Answer]]
Start = Callable[[Call, Finish], None]


@dataclass(slots=True, frozen=True, kw_only=True)
class Operation:
    name: str  # operationId, and the label of its metrics
    method: str
    path: str
    summary: str
    run: Run | None = None
    start: Start | None = None  # of operations on messages: they answer when what they did is committed
    takes: Any = None  # the type of the body
    body_needed: bool = True
    answers: dict[int, Any] = field(default_factory=dict)  # status → the type of the body, None for none
    errors: tuple[int, ...] = ()  # beside those that every operation has
    parameters: tuple[tuple[str, Any, str], ...] = ()  # of the address: name, type, meaning
    headers: tuple[tuple[str, Any, str], ...] = ()
    content: str = ""  # the content type of the answer, when it is neither JSON nor MessagePack
    answer_headers: tuple[tuple[str, str], ...] = ()  # of that answer: name, meaning


_IDEMPOTENCY = (
    "Idempotency-Key",
    shapes.IdempotencyKey,
    "Names the request: the same again within 24 hours is answered as the first time, and sends nothing.",
)
QUEUES = "/v1/queues"
QUEUE = "/v1/queues/{queue}"
MESSAGES = "/v1/queues/{queue}/messages"
JOB = "/v1/jobs/{job}"
LEASE = "/v1/queues/{queue}/messages/{receipt}"

OPERATIONS = (
    Operation(
        name="createQueue",
        method="POST",
        path=QUEUES,
        summary="Make a queue; the same again finds it.",
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
            ("prefix", str, "Only names that start with this."),
            ("limit", queueshapes.PageSize, "How many at most; 100 when absent."),
            ("cursor", str, "nextCursor of the page before."),
        ),
    ),
    Operation(
        name="getQueue",
        method="GET",
        path=QUEUE,
        summary="A queue's settings.",
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
        summary="Delete all messages that the queue has now.",
        run=queues.purge_queue,
        answers={204: None},
        errors=(404, 409),
    ),
    Operation(
        name="queueStats",
        method="GET",
        path=QUEUE + "/stats",
        summary="How a queue stands.",
        run=queues.queue_stats,
        answers={200: queueshapes.Stats},
        errors=(404,),
    ),
    Operation(
        name="queueStatsByVerb",
        method="GET",
        path=QUEUE + ":stats",
        summary="The same.",
        run=queues.queue_stats,
        answers={200: queueshapes.Stats},
        errors=(404,),
    ),
    Operation(
        name="sendMessage",
        method="POST",
        path=MESSAGES,
        summary="Send a message. The answer comes when it is durable.",
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
        summary="Send up to 1,000 messages: 202 when all were taken, 200 when some were not; a result for each.",
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
        summary="Lease messages, waiting for the first if there is none.",
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
        summary="Lease messages of several queues by one request, fair among them. Every name must be a queue.",
        run=receiving.receive_any,
        takes=shapes.ReceiveAny,
        answers={200: shapes.ReceivedMessages},
        errors=(404,),
    ),
    Operation(
        name="peek",
        method="GET",
        path=MESSAGES,
        summary="Look at messages, whatever their state, without leasing them.",
        run=peeking.peek,
        answers={200: shapes.PeekedMessages},
        errors=(404,),
        parameters=(
            ("after", shapes.Sequence, "Start behind this sequence: nextAfter of the page before."),
            ("limit", shapes.PeekSize, "How many at most; 10 when absent."),
            ("state", shapes.MessageState, "Only messages in this state."),
        ),
    ),
    Operation(
        name="ack",
        method="POST",
        path=LEASE + ":ack",
        summary="The message is done: delete it.",
        start=leases.ack,
        answers={204: None},
        errors=(404, 409),
    ),
    Operation(
        name="nack",
        method="POST",
        path=LEASE + ":nack",
        summary="The message failed: give it back, and say why.",
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
        summary="Keep the message longer, or give it back. 200 with the deadline in MessagePack, or when asked for.",
        start=leases.change_visibility,
        takes=shapes.ChangeVisibility,
        headers=(("Prefer", str, "`return=representation` asks for the deadline in the answer."),),
        answers={204: None, 200: shapes.Deadline},
        errors=(404, 409),
    ),
    Operation(
        name="ackBatch",
        method="POST",
        path=MESSAGES + ":ack",
        summary="Ack up to 1,000 messages; a result for each.",
        start=leases.ack_batch,
        takes=shapes.AckBatch,
        answers={200: shapes.LeaseResults},
        errors=(404,),
    ),
    Operation(
        name="nackBatch",
        method="POST",
        path=MESSAGES + ":nack",
        summary="Nack up to 1,000 messages; a result for each.",
        start=leases.nack_batch,
        takes=shapes.NackBatch,
        answers={200: shapes.LeaseResults},
        errors=(404,),
    ),
    Operation(
        name="changeVisibilityBatch",
        method="POST",
        path=MESSAGES + ":change-visibility",
        summary="Change the visibility of up to 1,000 messages; a result for each, with the new deadline.",
        start=leases.change_visibility_batch,
        takes=shapes.ChangeVisibilityBatch,
        answers={200: shapes.LeaseResults},
        errors=(404,),
    ),
    Operation(
        name="redrive",
        method="POST",
        path=QUEUE + ":redrive",
        summary="Move dead letters on, as a job: 202 with the job, or 200 with what a dry run found.",
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
        summary="The jobs of a queue, the newest first.",
        run=jobs.list_jobs,
        answers={200: jobshapes.Jobs},
        errors=(404,),
    ),
    Operation(
        name="getJob",
        method="GET",
        path=JOB,
        summary="How a job stands.",
        run=jobs.get_job,
        answers={200: jobshapes.Job},
        errors=(404,),
    ),
    Operation(
        name="cancelJob",
        method="POST",
        path=JOB + ":cancel",
        summary="End a job: what it has moved stays moved.",
        run=jobs.cancel_job,
        answers={200: jobshapes.Job},
        errors=(404, 409),
    ),
    Operation(
        name="pauseJob",
        method="POST",
        path=JOB + ":pause",
        summary="Let a job wait.",
        run=jobs.pause_job,
        answers={200: jobshapes.Job},
        errors=(404, 409),
    ),
    Operation(
        name="resumeJob",
        method="POST",
        path=JOB + ":resume",
        summary="Let a paused job go on.",
        run=jobs.resume_job,
        answers={200: jobshapes.Job},
        errors=(404, 409),
    ),
    Operation(
        name="listHistory",
        method="GET",
        path="/v1/history",
        summary="Which frames of its log every shard has. For keys of the server's own account.",
        run=history.list_history,
        answers={200: history.Histories},
        parameters=(("names", bool, "Also the queues that every shard knows now; false when absent."),),
    ),
    Operation(
        name="readHistory",
        method="GET",
        path="/v1/history/{shard}",
        summary="Committed frames of a shard's log, as they are stored. For keys of the server's own account.",
        run=history.read_history,
        content=history.CONTENT_TYPE,
        answer_headers=history.HEADERS,
        answers={200: None},
        errors=(404, 410),
        parameters=(
            ("from", history.FrameNumber, "The first frame that is wanted; 1 when absent."),
            ("to", history.FrameNumber, "The first frame that is not wanted any more; without it all that there are."),
            ("max_bytes", history.PieceBytes, "About how much at most, but at least one frame; 4 MiB when absent."),
            ("wait", history.WaitSeconds, "How many seconds to wait for a frame that is not there yet."),
        ),
    ),
)
