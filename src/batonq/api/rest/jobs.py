"""Jobs: operations to redrive or delete messages, and to list, pause, resume and cancel the jobs that do it."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
from msgspec import UNSET

from batonq.api.rest.codec import MSGPACK
from batonq.api.rest.content import attributes_from, attributes_of, body_from_value
from batonq.api.rest.job_shapes import (
    DeleteSpec,
    Job,
    Jobs,
    JobStates,
    RedriveEdit,
    RedriveFilter,
    RedriveSpec,
    SampledMessage,
)
from batonq.api.rest.queues import query
from batonq.api.rest.receiving import put_body
from batonq.api.rest.service import Answer, Call, Nothing, find_queue
from batonq.errors import InvalidInput, QueueDoesNotExist
from batonq.node.broker import Queue
from batonq.node.jobs.job_control import JobStatus, Redrive
from batonq.node.jobs.redrive_filter import SELECTION_BYTES_MAX, SelectionTooLong
from batonq.node.jobs.redrive_scan import Sample

ID_BYTES_MAX = 64  # of a message id in a request, with its quotes and separators


async def redrive(call: Call) -> Answer:
    queue = call.queue()
    given = call.read(RedriveSpec)
    check_size(call, given.filter)
    status = await call.broker.start_job(
        queue,
        Redrive(
            target=target_of(call, given.target_queue) if given.target_queue else None,
            rate_per_s=given.max_messages_per_second,
            ramp_s=given.ramp_seconds,
            filter=filter_of(given.filter),
            edit=_edit(given.edit),
            dry_run=given.dry_run,
            max_messages=given.max_messages or 0,
            pause_when_dying_share=given.pause_when_dying_share,
        ),
    )
    headers = () if given.dry_run else (("Location", f"/v1/jobs/{status.id}"),)
    return Answer(200 if given.dry_run else 202, shown_job(call, status), headers)


async def delete_messages(call: Call) -> Answer:
    queue = call.queue()
    if not call.request.body:
        raise InvalidInput("The request has no body. Say which messages to delete: a filter, or {} for all of them.")
    given = call.read(DeleteSpec)
    check_size(call, given.filter)
    status = await call.broker.start_job(
        queue,
        Redrive(
            deletes=True,
            rate_per_s=given.max_messages_per_second,
            ramp_s=0.0,
            filter=filter_of(given.filter),
            dry_run=given.dry_run,
            max_messages=given.max_messages or 0,
            pause_when_dying_share=1.0,
        ),
    )
    headers = () if given.dry_run else (("Location", f"/v1/jobs/{status.id}"),)
    return Answer(200 if given.dry_run else 202, shown_job(call, status), headers)


def check_size(call: Call, chosen: RedriveFilter | None) -> None:
    """Refuse a selection that is much too long before it is examined. White space and message ids are allowed for."""
    ids = len(chosen.message_ids or ()) if chosen is not None else 0
    if len(call.request.body) > 2 * SELECTION_BYTES_MAX + ids * ID_BYTES_MAX:
        raise SelectionTooLong


def target_of(call: Call, name: str) -> Queue:
    """The target queue. If it is missing, the request is invalid: a 404 would mean that the source is missing."""
    try:
        return find_queue(call, name)
    except QueueDoesNotExist as problem:
        raise InvalidInput(f"targetQueue: {problem.message}") from None


def filter_of(given: RedriveFilter | None) -> dict[str, Any]:
    return {} if given is None else _said(given)


def _edit(given: RedriveEdit | None) -> dict[str, Any]:
    if given is None:
        return {}
    if given.set_attributes:
        attributes_from(given.set_attributes)  # checks the same rules as for a sent message
    if given.replace_body is not UNSET:
        body_from_value(given.replace_body)
    return _said(given)


def _said(given: RedriveFilter | RedriveEdit) -> dict[str, Any]:
    """The fields that the request set, with their names and values on the wire, as the job engine expects."""
    values: dict[str, Any] = msgspec.to_builtins(given, builtin_types=(bytes,))
    return {name: value for name, value in values.items() if value is not None or name == "replaceBody"}


async def list_jobs(call: Call) -> Answer:
    return Answer(200, Jobs([shown_job(call, status) for status in await call.broker.jobs(call.queue())]))


async def list_all_jobs(call: Call) -> Answer:
    state = query(call, ("state",)).get("state", "all")
    if state not in get_args(JobStates):
        raise InvalidInput(f"state must be one of {', '.join(get_args(JobStates))}.")
    found, complete = await call.broker.all_jobs(call.caller.account, only_active=state == "active")
    return Answer(200, Jobs([shown_job(call, status) for status in found], complete))


async def get_job(call: Call) -> Answer:
    return Answer(200, shown_job(call, await call.broker.job(call.caller.account, call.name)))


async def cancel_job(call: Call) -> Answer:
    call.read(Nothing)
    return Answer(200, shown_job(call, await call.broker.cancel_job(call.caller.account, call.name)))


async def pause_job(call: Call) -> Answer:
    call.read(Nothing)
    return Answer(200, shown_job(call, await call.broker.pause_job(call.caller.account, call.name)))


async def resume_job(call: Call) -> Answer:
    call.read(Nothing)
    return Answer(200, shown_job(call, await call.broker.resume_job(call.caller.account, call.name)))


def shown_job(call: Call, status: JobStatus) -> Job:
    binary = call.wanted is MSGPACK
    return Job(
        job_id=status.id,
        kind=status.kind,  # type: ignore[arg-type]
        source_queue=status.source,
        target_queue=status.target or UNSET,
        state=status.state,  # type: ignore[arg-type]
        why=status.why,
        max_messages_per_second=status.rate_per_s,
        current_rate=status.current_rate,
        started_at_ms=status.started_ms,
        ended_at_ms=status.ended_ms or UNSET,
        examined=status.examined,
        matched=status.matched,
        moved=status.moved,
        remaining=status.remaining,
        died_again=status.died_again,
        not_found=status.not_found,
        dry_run=status.dry_run,
        sample=[_sampled(sample, binary=binary) for sample in status.sample] if status.dry_run else UNSET,
    )


def _sampled(sample: Sample, *, binary: bool) -> SampledMessage:
    message = SampledMessage(
        message_id=sample.message_id,
        current_id=sample.current_id,
        sequence=sample.sequence,
        error_class=sample.error_class,
        reason=sample.reason,
        sent_at_ms=sample.sent_ms,
    )
    put_body(message, sample.body, sample.content, binary=binary)
    if sample.attributes:
        message.attributes = attributes_of(sample.attributes, binary=binary)
    return message
