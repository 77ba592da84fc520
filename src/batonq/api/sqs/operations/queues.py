"""The operations on queues: create, find, list, describe, change, tag, purge and delete, and grant permissions."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from batonq.api.sqs import permissions
from batonq.api.sqs.errors import (
    INVALID_ATTRIBUTE_NAME,
    PURGE_IN_PROGRESS,
    SqsError,
    invalid_value,
    missing,
    shortened,
)
from batonq.api.sqs.extensions import ALL_OF_OURS, SECOND_MS
from batonq.api.sqs.service import Call, Service
from batonq.api.sqs.shapes import (
    AddPermissionInput,
    CreateQueueInput,
    GetQueueAttributesInput,
    GetQueueAttributesOutput,
    GetQueueUrlInput,
    ListDeadLetterSourceQueuesInput,
    ListDeadLetterSourceQueuesOutput,
    ListQueuesInput,
    ListQueuesOutput,
    ListQueueTagsOutput,
    Output,
    QueueInput,
    QueueUrlOutput,
    RemovePermissionInput,
    SetQueueAttributesInput,
    TagQueueInput,
    UntagQueueInput,
)
from batonq.core.catalog.attributes import effective, readings
from batonq.errors import DeadLetterQueueRefused, PurgeInProgress
from batonq.node.broker import Queue
from batonq.queue_attributes import ATTRIBUTES, DEAD_LETTER_POLICY, PREFIX, WARNINGS, in_words_of_sqs

DONE = Output()
PAGE_MAX = 1_000
NO_NAME = "Value for parameter QueueName is invalid. Reason: Must specify a queue name."


async def create_queue(service: Service, call: Call, given: CreateQueueInput) -> QueueUrlOutput:
    if not given.QueueName:
        raise invalid_value(NO_NAME)
    attributes = given.Attributes or {}
    with _dead_letter_words(attributes):
        queue = await service.broker.create_queue(call.caller.account, given.QueueName, attributes, given.tags or {})
    return QueueUrlOutput(service.url(call, queue))


async def get_queue_url(service: Service, call: Call, given: GetQueueUrlInput) -> QueueUrlOutput:
    if not given.QueueName:
        raise invalid_value(NO_NAME)
    account = given.QueueOwnerAWSAccountId or call.caller.account
    if "/" in account + given.QueueName:
        raise invalid_value("Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length")
    return QueueUrlOutput(service.url(call, service.queue(call, f"/{account}/{given.QueueName}")))


async def delete_queue(service: Service, call: Call, given: QueueInput) -> Output:
    await service.broker.delete_queue(service.queue(call, given.QueueUrl))
    return DONE


async def purge_queue(service: Service, call: Call, given: QueueInput) -> Output:
    queue = service.queue(call, given.QueueUrl)
    try:
        await service.broker.purge_queue(queue)
    except PurgeInProgress:
        wait_s = service.broker.purge_wait_ms // SECOND_MS
        text = f"Only one PurgeQueue operation on {queue.name} is allowed every {wait_s} seconds."
        raise SqsError(PURGE_IN_PROGRESS, text) from None
    return DONE


@contextmanager
def _dead_letter_words(attributes: Mapping[str, str]) -> Iterator[None]:
    """Report a refused dead-letter queue as an invalid RedrivePolicy."""
    try:
        yield
    except DeadLetterQueueRefused as refusal:
        policy, reason = attributes[DEAD_LETTER_POLICY], in_words_of_sqs(refusal.message)
        raise invalid_value(f"Value {policy} for parameter RedrivePolicy is invalid. Reason: {reason}") from None


# --- lists ------------------------------------------------------------------------------------


async def list_queues(service: Service, call: Call, given: ListQueuesInput) -> ListQueuesOutput:
    queues = service.broker.queues(call.caller.account, given.QueueNamePrefix or "")
    page, token = _page(queues, given.MaxResults, given.NextToken)
    return ListQueuesOutput([service.url(call, queue) for queue in page] or None, token)


async def list_dead_letter_source_queues(
    service: Service, call: Call, given: ListDeadLetterSourceQueuesInput
) -> ListDeadLetterSourceQueuesOutput:
    sources = service.broker.dead_letter_sources(service.queue(call, given.QueueUrl))
    page, token = _page(sources, given.MaxResults, given.NextToken)
    return ListDeadLetterSourceQueuesOutput([service.url(call, queue) for queue in page] or None, token)


def _page(queues: Sequence[Queue], count: int | None, token: str | None) -> tuple[Sequence[Queue], str | None]:
    """One page of queues that are sorted by name, and the token for the next page. The token is made from the name of
    this page's last queue.
    """
    if count is not None and not 1 <= count <= PAGE_MAX:
        raise invalid_value(
            "Value for parameter MaxResults is invalid. "
            f"Reason: MaxResults must be an integer between 1 and {PAGE_MAX}."
        )
    if token:
        after = _read_token(token)
        queues = [queue for queue in queues if queue.name > after]
    size = count or PAGE_MAX
    page = queues[:size]
    if len(queues) <= size:
        return page, None
    return page, urlsafe_b64encode(page[-1].name.encode()).decode()


def _read_token(token: str) -> str:
    try:
        return urlsafe_b64decode(token.encode("ascii")).decode("ascii")
    except (binascii.Error, ValueError):
        raise invalid_value("Invalid or expired next token.") from None


# --- attributes -------------------------------------------------------------------------------


async def get_queue_attributes(
    service: Service, call: Call, given: GetQueueAttributesInput
) -> GetQueueAttributesOutput:
    queue = service.queue(call, given.QueueUrl)
    names = given.AttributeNames
    if not names:
        return GetQueueAttributesOutput()
    for name in names:
        if name not in ATTRIBUTES and name not in ("All", ALL_OF_OURS):
            raise SqsError(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {shortened(name, 256)}.")
    values = {
        **effective(queue.attributes),
        **readings(await service.broker.counters(queue), service.broker.now_ms()),
        "CreatedTimestamp": str(queue.created_ms // SECOND_MS),
        "LastModifiedTimestamp": str(queue.modified_ms // SECOND_MS),
        "QueueArn": service.arn(queue),
        WARNINGS: " ".join(service.broker.warnings(queue)),
    }
    wanted = set(names)
    if "All" in wanted:
        wanted.update(name for name in values if not name.startswith(PREFIX))
    if ALL_OF_OURS in wanted:
        wanted.update(name for name in values if name.startswith(PREFIX))
    return GetQueueAttributesOutput({name: value for name, value in values.items() if name in wanted} or None)


async def set_queue_attributes(service: Service, call: Call, given: SetQueueAttributesInput) -> Output:
    queue = service.queue(call, given.QueueUrl)
    if not given.Attributes:
        raise missing("Attribute.Name")
    with _dead_letter_words(given.Attributes):
        await service.broker.set_attributes(queue, given.Attributes)
    return DONE


# --- tags -------------------------------------------------------------------------------------


async def list_queue_tags(service: Service, call: Call, given: QueueInput) -> ListQueueTagsOutput:
    return ListQueueTagsOutput(dict(service.queue(call, given.QueueUrl).tags) or None)


async def tag_queue(service: Service, call: Call, given: TagQueueInput) -> Output:
    queue = service.queue(call, given.QueueUrl)
    if not given.Tags:
        raise missing("Tags")
    await service.broker.set_tags(queue, given.Tags, [])
    return DONE


async def untag_queue(service: Service, call: Call, given: UntagQueueInput) -> Output:
    queue = service.queue(call, given.QueueUrl)
    if not given.TagKeys:
        raise missing("TagKeys")
    await service.broker.set_tags(queue, {}, given.TagKeys)
    return DONE


# --- permissions ------------------------------------------------------------------------------


async def add_permission(service: Service, call: Call, given: AddPermissionInput) -> Output:
    queue = service.queue(call, given.QueueUrl)
    if not given.Label:
        raise missing("Label")
    if not given.AWSAccountIds:
        raise missing("AWSAccountIds")
    if not given.Actions:
        raise missing("Actions")
    statement = permissions.statement(given.Label, given.AWSAccountIds, given.Actions, service.arn(queue))
    await service.broker.set_permission(queue, given.Label, statement)
    return DONE


async def remove_permission(service: Service, call: Call, given: RemovePermissionInput) -> Output:
    queue = service.queue(call, given.QueueUrl)
    if not given.Label:
        raise missing("Label")
    await service.broker.set_permission(queue, given.Label, None)
    return DONE
