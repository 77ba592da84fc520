"""ReceiveMessage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat, starmap
from typing import Any

from batonq.api.consumer_names import CONSUMER_LENGTH_MAX, agent_of, consumer_named
from batonq.api.sqs import contents
from batonq.api.sqs.digests import hex_digest
from batonq.api.sqs.errors import INVALID_ATTRIBUTE_NAME, OVER_LIMIT, SqsError, invalid, shortened
from batonq.api.sqs.extensions import (
    ALL_OF_OURS,
    SECOND_MS,
    SYSTEM_ATTRIBUTES,
    consumer_of,
)
from batonq.api.sqs.message_attributes import AttributeSelection
from batonq.api.sqs.operations.sending import WRONG_QUEUE_TYPE
from batonq.api.sqs.service import Call, Finish, Service
from batonq.api.sqs.shapes import Message, ReceiveMessageInput, ReceiveMessageOutput
from batonq.api.sqs.validate import check_identifier
from batonq.core.commands import Receive
from batonq.core.payload import Lineage
from batonq.errors import BatonError, OverLimit
from batonq.node.broker import Delivery, Queue, Received
from batonq.queue_attributes import ATTRIBUTES

MESSAGES_MAX = 10
VISIBILITY_MAX_S = 43_200
WAIT_MAX_S = 20
NOTHING = ReceiveMessageOutput()


def receive_message(service: Service, call: Call, given: ReceiveMessageInput, finish: Finish) -> None:
    queue = service.queue(call, given.QueueUrl)
    count, visibility_ms, wait_ms = numbers(queue, given)
    attempt = given.ReceiveRequestAttemptId or ""
    if given.ReceiveRequestAttemptId is not None:
        if not queue.fifo:
            raise invalid(attempt, "ReceiveRequestAttemptId", WRONG_QUEUE_TYPE)
        check_identifier(attempt, "ReceiveRequestAttemptId")
    system_names = _system_names(given)
    consumer, names = consumer_of(given.MessageAttributeNames) if given.MessageAttributeNames else ("", [])

    def received(outcome: Received | BatonError) -> None:
        poll.ended(outcome)
        if isinstance(outcome, OverLimit):
            finish(SqsError(OVER_LIMIT, outcome.message))
        elif isinstance(outcome, BatonError):
            finish(outcome)
        elif not outcome:
            finish(NOTHING)
        else:
            try:
                output = _output(service, queue, outcome, system_names, names, call.as_json)
            except Exception as problem:
                outcome.give_back()
                finish(service.fault(problem, "ReceiveMessage"))
            else:
                finish(output, outcome.give_back)

    command = Receive(queue.number, count, visibility_ms, holder(call, consumer), attempt, wait_ms, bool(system_names))
    poll = service.broker.consumers.polls(
        call.caller.account, queue.number, command.holder, call.request.peer, agent_of(call.request)
    )
    waiting = service.broker.receive(queue, command, received)
    # A client that disconnects before the answer must not hold a lease on any message.
    call.request.cancellable = True
    call.request.brief = wait_ms <= 0
    call.request.abandon = None if waiting is None else partial(poll.abandon, waiting.abandon)


def _output(
    service: Service, queue: Queue, received: Received, system_names: Sequence[str], names: list[str], as_json: bool
) -> ReceiveMessageOutput:
    rows = received.rows
    columns: list[Iterable[Any]]
    texts: Iterable[Any]
    digests: Iterable[str]
    attributes: Sequence[bytes]
    if rows:
        shown = starmap(contents.shown, [(row.body, row.body_md5, row.content, row.attributes) for row in rows])
        texts, digests, attributes = zip(*shown, strict=True)
        columns = [[row.message_id for row in rows], [row.receipt for row in rows], digests, texts]
    else:
        texts, digests, attributes = contents.shown_all(received, as_json)
        columns = [received.message_ids(), received.receipts, digests, texts]
    if system_names:
        columns.append([_system_values(service, queue, one, system_names) for one in received.deliveries()])
    if names and any(attributes):
        if not system_names:
            columns.append(repeat(None))
        chosen = [*map(AttributeSelection(names).choose, attributes)]
        columns.append([hex_digest(encoded) if encoded else None for _, encoded in chosen])
        columns.append([values or None for values, _ in chosen])
    return ReceiveMessageOutput([*map(Message, *columns)])


def numbers(queue: Queue, given: ReceiveMessageInput) -> tuple[int, int | None, int]:
    """The maximum number of messages, the visibility timeout and the wait time, both in milliseconds."""
    count = given.MaxNumberOfMessages
    if count is None:
        count = 1
    elif not 1 <= count <= MESSAGES_MAX:
        raise invalid(count, "MaxNumberOfMessages", f"Must be between 1 and {MESSAGES_MAX}, if provided.")
    visibility_ms = None
    if given.VisibilityTimeout is not None:
        if not 0 <= given.VisibilityTimeout <= VISIBILITY_MAX_S:
            reason = f"Must be >= 0 and <= {VISIBILITY_MAX_S}, if provided."
            raise invalid(given.VisibilityTimeout, "VisibilityTimeout", reason)
        visibility_ms = given.VisibilityTimeout * SECOND_MS
    wait_ms = queue.wait_ms
    if given.WaitTimeSeconds is not None:
        if not 0 <= given.WaitTimeSeconds <= WAIT_MAX_S:
            reason = f"Must be >= 0 and <= {WAIT_MAX_S}, if provided."
            raise invalid(given.WaitTimeSeconds, "WaitTimeSeconds", reason)
        wait_ms = given.WaitTimeSeconds * SECOND_MS
    return count, visibility_ms, wait_ms


def holder(call: Call, consumer: str) -> str:
    """The holder of the lease: the name that the consumer gives itself, else its access key and address."""
    named = consumer_named(call.request) or consumer[:CONSUMER_LENGTH_MAX]
    return named or f"{call.caller.key or 'anonymous'}@{call.request.peer}"


# --- system attributes ------------------------------------------------------------------------


def _source_arn(service: Service, queue: Queue, delivery: Delivery) -> str:
    """The ARN of the queue that a dead letter came from, even if that queue no longer exists. Empty for a redriven
    or replayed message, which is not a dead letter.
    """
    lineage = delivery.lineage
    if lineage is None or lineage.moved in ("redrive", "replay"):
        return ""
    source = service.broker.queue_by_number(lineage.source_queue) if lineage.source_queue else None
    return service.arn(source) if source is not None else lineage.source_arn


def _past(delivery: Delivery) -> Lineage:
    """The lineage that the message arrived with, extended by its failures in this queue."""
    past = delivery.lineage or _NO_PAST
    failure = delivery.failure
    if failure is None:
        return past
    known = bool(failure.error_class or failure.reason)
    return replace(
        past,
        first_failure_ms=past.first_failure_ms or failure.first_ms,
        last_failure_ms=failure.last_ms,
        error_class=failure.error_class if known else past.error_class,
        reason=failure.reason if known else past.reason,
    )


_NO_PAST = Lineage()

# Name → function that returns the value. An empty value is left out of the answer.
_SYSTEM: dict[str, Callable[[Service, Queue, Delivery], str]] = {
    "SenderId": lambda service, queue, delivery: delivery.sender,
    "SentTimestamp": lambda service, queue, delivery: str(delivery.sent_ms),
    "ApproximateReceiveCount": lambda service, queue, delivery: str(delivery.receive_count),
    "ApproximateFirstReceiveTimestamp": lambda service, queue, delivery: str(delivery.first_received_ms),
    "SequenceNumber": lambda service, queue, delivery: f"{delivery.sequence:020d}" if queue.fifo else "",
    "MessageDeduplicationId": lambda service, queue, delivery: delivery.dedup_id if queue.fifo else "",
    "MessageGroupId": lambda service, queue, delivery: delivery.group,
    "AWSTraceHeader": lambda service, queue, delivery: delivery.trace,
    "DeadLetterQueueSourceArn": _source_arn,
    # Baton's own, see extensions.SYSTEM_ATTRIBUTES.
    "Baton.FirstQueue": lambda service, queue, delivery: _past(delivery).first_arn,
    "Baton.FirstMessageId": lambda service, queue, delivery: _past(delivery).first_id,
    "Baton.FirstFailureTimestamp": lambda service, queue, delivery: str(_past(delivery).first_failure_ms or ""),
    "Baton.LastFailureTimestamp": lambda service, queue, delivery: str(_past(delivery).last_failure_ms or ""),
    "Baton.ErrorClass": lambda service, queue, delivery: _past(delivery).error_class,
    "Baton.Reason": lambda service, queue, delivery: _past(delivery).reason,
    "Baton.Attempts": lambda service, queue, delivery: str(_past(delivery).attempts or ""),
    "Baton.TraceId": lambda service, queue, delivery: delivery.trace,
    "Baton.Priority": lambda service, queue, delivery: str(delivery.priority),
    "Baton.LeaseDeadline": lambda service, queue, delivery: str(delivery.deadline_ms),
}
_ALL_SYSTEM = tuple(name for name in _SYSTEM if name not in SYSTEM_ATTRIBUTES)


# In the SQS model, the older list of names is typed as names of queue attributes. Messages have no such attributes, but
# asking for one is not an error.
_NO_ERROR = {*ATTRIBUTES, ALL_OF_OURS}


def _system_names(given: ReceiveMessageInput) -> Sequence[str]:
    names = given.MessageSystemAttributeNames or ()
    if given.AttributeNames:
        names = [*names, *given.AttributeNames]
    if not names:
        return ()
    wanted = set(names)
    if "All" in wanted:
        if len(wanted) == 1:
            return _ALL_SYSTEM
        wanted.update(_ALL_SYSTEM)
    elif unknown := [name for name in names if name not in _SYSTEM and name not in _NO_ERROR]:
        raise SqsError(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {shortened(unknown[0], 256)}.")
    if ALL_OF_OURS in wanted:
        wanted.update(SYSTEM_ATTRIBUTES)
    return [name for name in _SYSTEM if name in wanted]


def _system_values(service: Service, queue: Queue, delivery: Delivery, names: Sequence[str]) -> dict[str, str] | None:
    values = {}
    for name in names:
        value = _SYSTEM[name](service, queue, delivery)
        if value:
            values[name] = value
    return values or None
