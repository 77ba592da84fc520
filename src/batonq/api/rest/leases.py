"""What the holder of a lease does with it: ack, nack, change its visibility, one or a batch.

A receipt counts only while its lease is the current one, whatever the queue's setting for SQS clients is.
"""

from __future__ import annotations

from collections.abc import Sequence

from batonq.api.rest.codec import MSGPACK
from batonq.api.rest.content import legible
from batonq.api.rest.problems import item_error
from batonq.api.rest.service import NO_CONTENT, Answer, Call, Nothing, milliseconds
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
from batonq.errors import BatonError
from batonq.node.broker import NackRequest
from batonq.node.host import committed

_DONE = LeaseResult()


async def ack(call: Call) -> Answer:
    queue = call.queue()
    call.read(Nothing)
    _settle(await call.broker.delete(queue, [call.token], strict=True))
    return NO_CONTENT


async def nack(call: Call) -> Answer:
    queue = call.queue()
    _settle(await call.broker.nack_many(queue, [_nack(call.token, call.read(Nack))]))
    return NO_CONTENT


async def change_visibility(call: Call) -> Answer:
    queue = call.queue()
    given = call.read(ChangeVisibility)
    changes = [(call.token, milliseconds(given.visibility_timeout_seconds))]
    (outcome,) = await call.broker.change_visibility_until(queue, changes, strict=True)
    if isinstance(outcome, BatonError):
        raise outcome
    if call.wanted is MSGPACK or b"return=representation" in call.request.headers.get(b"prefer", b""):
        return Answer(200, Deadline(deadline_ms=outcome))
    return NO_CONTENT


def _settle(problems: Sequence[BatonError | None]) -> None:
    (problem,) = problems
    if problem is not None:
        raise problem


def _nack(receipt: str, given: Nack) -> NackRequest:
    return (
        receipt,
        None if given.delay_seconds is None else milliseconds(given.delay_seconds),
        legible(given.reason or ""),
        legible(given.error_class or ""),
        given.dead_letter,
        given.untried,
    )


# --- batches ----------------------------------------------------------------------------------


async def ack_batch(call: Call) -> Answer:
    queue = call.queue()
    receipts = call.read(AckBatch).receipt_handles
    found = call.broker.delete_plain(queue, receipts, strict=True)
    if found is None:
        return _results(await call.broker.delete(queue, receipts, strict=True))
    host, problems = found
    await committed(host)
    return _results(problems)


async def nack_batch(call: Call) -> Answer:
    queue = call.queue()
    entries = call.read(NackBatch).messages
    return _results(await call.broker.nack_many(queue, [_nack(entry.receipt_handle, entry) for entry in entries]))


async def change_visibility_batch(call: Call) -> Answer:
    queue = call.queue()
    entries = call.read(ChangeVisibilityBatch).messages
    changes = [(entry.receipt_handle, milliseconds(entry.visibility_timeout_seconds)) for entry in entries]
    outcomes = await call.broker.change_visibility_until(queue, changes, strict=True)
    results = [
        LeaseResult(error=item_error(outcome)) if isinstance(outcome, BatonError) else LeaseResult(deadline_ms=outcome)
        for outcome in outcomes
    ]
    return Answer(200, LeaseResults(results=results))


def _results(problems: Sequence[BatonError | None]) -> Answer:
    results = [_DONE if problem is None else LeaseResult(error=item_error(problem)) for problem in problems]
    return Answer(200, LeaseResults(results=results))
