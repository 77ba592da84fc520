"""DeleteMessage, ChangeMessageVisibility and their batch forms: the operations that take a receipt."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from batonq.api.sqs.errors import SqsError, invalid, missing, translated
from batonq.api.sqs.extensions import (
    DEAD_LETTER_HEADER,
    ERROR_CLASS_HEADER,
    ERROR_CLASS_LENGTH_MAX,
    REASON_HEADER,
    REASON_LENGTH_MAX,
    SECOND_MS,
)
from batonq.api.sqs.operations.batches import outcome_of
from batonq.api.sqs.operations.receiving import VISIBILITY_MAX_S
from batonq.api.sqs.service import Call, Finish, Service
from batonq.api.sqs.shapes import (
    ChangeMessageVisibilityBatchInput,
    ChangeMessageVisibilityInput,
    DeleteMessageBatchInput,
    DeleteMessageInput,
    Output,
)
from batonq.api.sqs.validate import check_batch
from batonq.core.commands import Failing
from batonq.errors import BatonError, LeaseLost, MessageGone, VisibilityTooLong
from batonq.node.broker import Queue

DONE = Output()
EXPIRED = "The receipt handle has expired."
NOT_AVAILABLE = "Message does not exist or is not available for visibility timeout change."
TOO_LONG = f"Total VisibilityTimeout for the message is beyond the limit [{VISIBILITY_MAX_S} seconds]."
_NACK_HEADERS = (REASON_HEADER, ERROR_CLASS_HEADER, DEAD_LETTER_HEADER)


def delete_message(service: Service, call: Call, given: DeleteMessageInput, finish: Finish) -> None:
    queue = service.queue(call, given.QueueUrl)
    receipt = given.ReceiptHandle
    if not receipt:
        raise missing("ReceiptHandle")
    service.settles(call, acked=1)
    service.broker.delete(queue, [receipt], _one(receipt, finish))


def delete_message_batch(service: Service, call: Call, given: DeleteMessageBatchInput, finish: Finish) -> None:
    queue = service.queue(call, given.QueueUrl)
    ids = check_batch(given.Entries, "DeleteMessageBatch")
    receipts = [entry.ReceiptHandle or "" for entry in given.Entries or ()]
    errors: dict[int, SqsError] = {}
    if not all(receipts):
        for at, receipt in enumerate(receipts):
            if not receipt:
                errors[at] = missing(f"DeleteMessageBatchRequestEntry.{at + 1}.ReceiptHandle")
        receipts = [receipt for receipt in receipts if receipt]
    done = _batch(ids, errors, receipts, finish)
    if receipts:
        service.settles(call, acked=len(receipts))
        service.broker.delete(queue, receipts, done)
    else:
        done([])


def change_message_visibility(
    service: Service, call: Call, given: ChangeMessageVisibilityInput, finish: Finish
) -> None:
    queue = service.queue(call, given.QueueUrl)
    receipt = given.ReceiptHandle
    if not receipt:
        raise missing("ReceiptHandle")
    if given.VisibilityTimeout is None:
        raise missing("VisibilityTimeout")
    headers = call.request.headers
    if any(name in headers for name in _NACK_HEADERS):
        failing = _failing(call, queue, given.VisibilityTimeout)
        service.settles(call, failed=1)
        service.broker.nack(queue, [receipt], [failing], _one(receipt, finish))
        return
    _check_visibility(given.VisibilityTimeout)
    visibility_ms = given.VisibilityTimeout * SECOND_MS
    service.settles(call, extended=visibility_ms > 0)
    service.broker.change_visibility(queue, [receipt], [visibility_ms], _one(receipt, finish, visibility_ms))


def change_message_visibility_batch(
    service: Service, call: Call, given: ChangeMessageVisibilityBatchInput, finish: Finish
) -> None:
    queue = service.queue(call, given.QueueUrl)
    ids = check_batch(given.Entries, "ChangeMessageVisibilityBatch")
    errors: dict[int, SqsError] = {}
    receipts: list[str] = []
    visibilities_ms: list[int] = []
    for at, entry in enumerate(given.Entries or ()):
        try:
            if not entry.ReceiptHandle:
                raise missing(f"ChangeMessageVisibilityBatchRequestEntry.{at + 1}.ReceiptHandle")
            if entry.VisibilityTimeout is None:
                raise missing(f"ChangeMessageVisibilityBatchRequestEntry.{at + 1}.VisibilityTimeout")
            _check_visibility(entry.VisibilityTimeout)
        except SqsError as error:
            errors[at] = error.with_traceback(None)  # a traceback would keep the request in memory
            continue
        receipts.append(entry.ReceiptHandle)
        visibilities_ms.append(entry.VisibilityTimeout * SECOND_MS)
    done = _batch(ids, errors, receipts, finish, visibilities_ms)
    if receipts:
        service.settles(call, extended=any(visibilities_ms))
        service.broker.change_visibility(queue, receipts, visibilities_ms, done)
    else:
        done([])


Results = Sequence[int | BatonError | None]


def _one(receipt: str, finish: Finish, visibility_ms: int = 0) -> Callable[[Results | BatonError], None]:
    def done(outcome: Results | BatonError) -> None:
        result = outcome if isinstance(outcome, BatonError) else outcome[0]
        finish(told(result, receipt, visibility_ms) if isinstance(result, BatonError) else DONE)

    return done


def _batch(
    ids: Sequence[str],
    errors: dict[int, SqsError],
    receipts: Sequence[str],
    finish: Finish,
    visibilities_ms: Sequence[int] = (),
) -> Callable[[Results | BatonError], None]:
    """Answers a batch. `errors` holds the errors of entries that were not submitted, by their place; `results` covers
    the remaining entries, in order, which have these receipts and, if they change the visibility timeout, these new
    timeouts.
    """

    def done(results: Results | BatonError) -> None:
        if isinstance(results, BatonError):
            finish(translated(results))
            return
        if results.count(None) != len(results):
            places = [at for at in range(len(ids)) if at not in errors]
            timeouts_ms = visibilities_ms or [0] * len(receipts)
            for at, result, receipt, visibility_ms in zip(places, results, receipts, timeouts_ms, strict=True):
                if isinstance(result, BatonError):
                    errors[at] = told(result, receipt, visibility_ms)
        finish(outcome_of(ids, errors))

    return done


def _check_visibility(timeout_s: int) -> None:
    if not 0 <= timeout_s <= VISIBILITY_MAX_S:
        reason = f"VisibilityTimeout must be an integer between 0 and {VISIBILITY_MAX_S}."
        raise invalid(timeout_s, "VisibilityTimeout", reason)


def _failing(call: Call, queue: Queue, delay_s: int) -> Failing:
    """Return the message to the queue and record why it failed. VisibilityTimeout is the delay here, which may be as
    long as the queue's retention.
    """
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
    return Failing(delay_s * SECOND_MS, reason, error_class, dead_letter)


def told(problem: BatonError, receipt: str, visibility_ms: int) -> SqsError:
    """Translate an error about a receipt, in the words that clients match on."""
    if isinstance(problem, LeaseLost):
        return invalid(receipt, "ReceiptHandle", EXPIRED)
    if isinstance(problem, MessageGone):
        return invalid(receipt, "ReceiptHandle", NOT_AVAILABLE)
    if isinstance(problem, VisibilityTooLong):
        return invalid(visibility_ms // SECOND_MS, "VisibilityTimeout", TOO_LONG)
    return translated(problem)
