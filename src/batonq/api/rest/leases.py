"""Operations on leases: ack, nack and change visibility, one at a time or in a batch.

A receipt is valid only while its lease is the current one, whatever the queue's setting for SQS clients is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from batonq.api.rest.codec import MSGPACK
from batonq.api.rest.content import legible
from batonq.api.rest.problems import item_error
from batonq.api.rest.service import NO_CONTENT, Answer, Call, Finish, Nothing, milliseconds
from batonq.api.rest.shapes import (
    AckBatch,
    ChangeVisibility,
    ChangeVisibilityBatch,
    Deadline,
    LeaseResult,
    LeaseResults,
    Nack,
    NackBatch,
)
from batonq.core.commands import Failing
from batonq.errors import BatonError

_DONE = LeaseResult()


def ack(call: Call, finish: Finish) -> None:
    queue = call.queue()
    call.read(Nothing)
    call.settles(acked=1)
    call.broker.delete(queue, [call.token], _settle(finish), strict=True)


def nack(call: Call, finish: Finish) -> None:
    queue = call.queue()
    failing = _failing(call.read(Nack))
    call.settles(failed=not failing.untried)
    call.broker.nack(queue, [call.token], [failing], _settle(finish))


def change_visibility(call: Call, finish: Finish) -> None:
    queue = call.queue()
    visibility_ms = milliseconds(call.read(ChangeVisibility).visibility_timeout_seconds)
    shows_deadline = call.wanted is MSGPACK or b"return=representation" in call.request.headers.get(b"prefer", b"")

    def done(outcome: Sequence[int | BatonError] | BatonError) -> None:
        result = outcome if isinstance(outcome, BatonError) else outcome[0]
        if isinstance(result, BatonError):
            finish(result)
        else:
            finish(Answer(200, Deadline(deadline_ms=result)) if shows_deadline else NO_CONTENT)

    call.settles(extended=visibility_ms > 0)
    call.broker.change_visibility(queue, [call.token], [visibility_ms], done, strict=True)


Problems = Sequence[BatonError | None]


def _settle(finish: Finish) -> Callable[[Problems | BatonError], None]:
    def done(outcome: Problems | BatonError) -> None:
        problem = outcome if isinstance(outcome, BatonError) else outcome[0]
        finish(NO_CONTENT if problem is None else problem)

    return done


def _failing(given: Nack) -> Failing:
    return Failing(
        None if given.delay_seconds is None else milliseconds(given.delay_seconds),
        legible(given.reason or ""),
        legible(given.error_class or ""),
        given.dead_letter,
        given.untried,
    )


# --- batches ----------------------------------------------------------------------------------


def ack_batch(call: Call, finish: Finish) -> None:
    queue = call.queue()
    receipts = call.read(AckBatch).receipt_handles
    call.settles(acked=len(receipts))
    call.broker.delete(queue, receipts, _settle_all(finish), strict=True)


def nack_batch(call: Call, finish: Finish) -> None:
    queue = call.queue()
    entries = call.read(NackBatch).messages
    receipts = [entry.receipt_handle for entry in entries]
    call.settles(failed=sum(not entry.untried for entry in entries))
    call.broker.nack(queue, receipts, [_failing(entry) for entry in entries], _settle_all(finish))


def change_visibility_batch(call: Call, finish: Finish) -> None:
    queue = call.queue()
    entries = call.read(ChangeVisibilityBatch).messages

    def done(outcomes: Sequence[int | BatonError] | BatonError) -> None:
        if isinstance(outcomes, BatonError):
            finish(outcomes)
            return
        results = [
            LeaseResult(error=item_error(outcome))
            if isinstance(outcome, BatonError)
            else LeaseResult(deadline_ms=outcome)
            for outcome in outcomes
        ]
        finish(Answer(200, LeaseResults(results=results)))

    receipts = [entry.receipt_handle for entry in entries]
    visibilities_ms = [milliseconds(entry.visibility_timeout_seconds) for entry in entries]
    call.settles(extended=any(visibilities_ms))
    call.broker.change_visibility(queue, receipts, visibilities_ms, done, strict=True)


def _settle_all(finish: Finish) -> Callable[[Problems | BatonError], None]:
    def done(outcome: Problems | BatonError) -> None:
        finish(outcome if isinstance(outcome, BatonError) else _results(outcome))

    return done


def _results(problems: Sequence[BatonError | None]) -> Answer:
    results = [_DONE] * len(problems)
    if any(problems):
        results = [_DONE if problem is None else LeaseResult(error=item_error(problem)) for problem in problems]
    return Answer(200, LeaseResults(results=results))
