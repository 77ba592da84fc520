"""DeleteMessage, ChangeMessageVisibility and their batches: what the holder of a lease does with it."""

from __future__ import annotations

from batonq.api.sqs.errors import SqsError, invalid, missing, translated
from batonq.api.sqs.extensions import (
    DEAD_LETTER_HEADER,
    ERROR_CLASS_HEADER,
    ERROR_CLASS_LENGTH_MAX,
    REASON_HEADER,
    REASON_LENGTH_MAX,
    SECOND_MS,
)
from batonq.api.sqs.operations.batches import outcome
from batonq.api.sqs.operations.receiving import VISIBILITY_MAX_S
from batonq.api.sqs.service import Call, Service
from batonq.api.sqs.shapes import (
    BatchOutput,
    ChangeMessageVisibilityBatchInput,
    ChangeMessageVisibilityInput,
    DeleteMessageBatchInput,
    DeleteMessageInput,
    Output,
)
from batonq.api.sqs.validate import check_batch
from batonq.errors import BatonError, LeaseLost, MessageGone
from batonq.node.broker import Queue

DONE = Output()
EXPIRED = "The receipt handle has expired."
NOT_AVAILABLE = "Message does not exist or is not available for visibility timeout change."
_NACK_HEADERS = (REASON_HEADER, ERROR_CLASS_HEADER, DEAD_LETTER_HEADER)


async def delete_message(service: Service, call: Call, given: DeleteMessageInput) -> Output:
    queue = service.queue(call, given.QueueUrl)
    if not given.ReceiptHandle:
        raise missing("ReceiptHandle")
    problem = (await service.broker.delete(queue, [given.ReceiptHandle]))[0]
    if problem is not None:
        raise told(problem, given.ReceiptHandle)
    return DONE


async def delete_message_batch(service: Service, call: Call, given: DeleteMessageBatchInput) -> BatchOutput:
    queue = service.queue(call, given.QueueUrl)
    ids = check_batch(given.Entries, "DeleteMessageBatch")
    receipts = [entry.ReceiptHandle for entry in given.Entries or ()]
    present = [receipt for receipt in receipts if receipt]
    problems = iter(await service.broker.delete(queue, present) if present else ())
    errors: list[SqsError | None] = []
    for number, receipt in enumerate(receipts, start=1):
        if receipt:
            problem = next(problems)
            errors.append(None if problem is None else told(problem, receipt))
        else:
            errors.append(missing(f"DeleteMessageBatchRequestEntry.{number}.ReceiptHandle"))
    return outcome(ids, errors)


async def change_message_visibility(service: Service, call: Call, given: ChangeMessageVisibilityInput) -> Output:
    queue = service.queue(call, given.QueueUrl)
    receipt = given.ReceiptHandle
    if not receipt:
        raise missing("ReceiptHandle")
    if given.VisibilityTimeout is None:
        raise missing("VisibilityTimeout")
    headers = call.request.headers
    if any(name in headers for name in _NACK_HEADERS):
        return await _nack(service, call, queue, receipt, given.VisibilityTimeout)
    _check_visibility(given.VisibilityTimeout)
    problem = (await service.broker.change_visibility(queue, [(receipt, given.VisibilityTimeout * SECOND_MS)]))[0]
    if problem is not None:
        raise told(problem, receipt)
    return DONE


async def change_message_visibility_batch(
    service: Service, call: Call, given: ChangeMessageVisibilityBatchInput
) -> BatchOutput:
    queue = service.queue(call, given.QueueUrl)
    ids = check_batch(given.Entries, "ChangeMessageVisibilityBatch")
    errors: list[SqsError | None] = [None] * len(ids)
    changes: list[tuple[str, int]] = []
    places: list[int] = []
    for at, entry in enumerate(given.Entries or ()):
        try:
            if not entry.ReceiptHandle:
                raise missing(f"ChangeMessageVisibilityBatchRequestEntry.{at + 1}.ReceiptHandle")
            if entry.VisibilityTimeout is None:
                raise missing(f"ChangeMessageVisibilityBatchRequestEntry.{at + 1}.VisibilityTimeout")
            _check_visibility(entry.VisibilityTimeout)
        except SqsError as error:
            errors[at] = error
            continue
        changes.append((entry.ReceiptHandle, entry.VisibilityTimeout * SECOND_MS))
        places.append(at)
    problems = await service.broker.change_visibility(queue, changes) if changes else []
    for at, (receipt, _), problem in zip(places, changes, problems, strict=True):
        errors[at] = None if problem is None else told(problem, receipt)
    return outcome(ids, errors)


def _check_visibility(timeout_s: int) -> None:
    if not 0 <= timeout_s <= VISIBILITY_MAX_S:
        reason = f"VisibilityTimeout must be an integer between 0 and {VISIBILITY_MAX_S}."
        raise invalid(timeout_s, "VisibilityTimeout", reason)


async def _nack(service: Service, call: Call, queue: Queue, receipt: str, delay_s: int) -> Output:
    """Give the message back and say why; here VisibilityTimeout is the delay, which may be up to the retention."""
    retention_s = queue.policy.retention_ms // SECOND_MS
    if not 0 <= delay_s <= retention_s:
        raise invalid(delay_s, "VisibilityTimeout", f"The delay of a nack must be between 0 and {retention_s}.")
    headers = call.request.headers
    reason = headers.get(REASON_HEADER, b"").decode("utf-8", "replace")
    error_class = headers.get(ERROR_CLASS_HEADER, b"").decode("utf-8", "replace")
    if len(reason) > REASON_LENGTH_MAX:
        raise invalid(reason, "Baton-Reason", f"It can have at most {REASON_LENGTH_MAX} characters.")
    if len(error_class) > ERROR_CLASS_LENGTH_MAX:
        raise invalid(error_class, "Baton-Error-Class", f"It can have at most {ERROR_CLASS_LENGTH_MAX} characters.")
    dead_letter = headers.get(DEAD_LETTER_HEADER, b"").lower() == b"true"
    try:
        await service.broker.nack(queue, receipt, delay_s * SECOND_MS, reason, error_class, dead_letter)
    except BatonError as problem:
        raise told(problem, receipt) from None
    return DONE


def told(problem: BatonError, receipt: str) -> SqsError:
    """An error about a receipt, in the words that clients match on."""
    if isinstance(problem, LeaseLost):
        return invalid(receipt, "ReceiptHandle", EXPIRED)
    if isinstance(problem, MessageGone):
        return invalid(receipt, "ReceiptHandle", NOT_AVAILABLE)
    return translated(problem)
