"""Operations on queues: create, list, read, change, delete, purge and statistics."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

from msgspec import UNSET

from batonq.api.rest import policies
from batonq.api.rest.queue_shapes import (
    PAGE_MAX,
    GivenFields,
    QueueChanges,
    QueueCreated,
    Queues,
    QueueSpec,
    SpecFields,
    Stats,
)
from batonq.api.rest.service import NO_CONTENT, SECOND_MS, Answer, Call, Nothing, no_such_queue
from batonq.api.sqs import percent
from batonq.attribute_formats.topic_arns import topic_arn
from batonq.core.catalog.attributes import first_difference, is_fifo, validate
from batonq.core.catalog.names import check_queue_name
from batonq.errors import DeadLetterQueueRefused, InvalidInput, QueueDoesNotExist, QueueExists
from batonq.node.broker import Queue
from batonq.queue_attributes import NOT_PAUSED, RETENTION_MAX_S

PAGE_DEFAULT = 100
PARAMETERS_MAX = 100  # of a query string
TOPICS_SHOWN_MAX = 100  # of the topics that a queue is subscribed to


async def create_queue(call: Call) -> Answer:
    given: SpecFields = call.read(QueueSpec)
    fifo = given.mode == "FIFO"
    passed = policies.attributes_of(given)
    if fifo:
        passed["FifoQueue"] = "true"
    else:
        passed = policies.without_fifo_only(passed)
    existing = _find(call, given.name)
    if existing is not None:
        _check_same(existing, given, passed, fifo)
        return _created(200, existing)
    check_queue_name(given.name, fifo=fifo, any_name=True)
    passed = {**policies.REST_DEFAULTS, **passed}
    target = given.dead_letter_queue or ""
    receives = given.max_receive_count or 0
    if target:
        validate(passed, fifo=fifo, creating=True)  # before a dead-letter queue is created in vain
        await _dead_letter_queue(call, given.name, target, fifo)
        passed["RedrivePolicy"] = policies.redrive_policy(
            call.caller.account, target, receives or policies.RECEIVES_DEFAULT
        )
    elif receives:
        passed["Baton.MaxReceives"] = str(receives)
    queue = await call.broker.create_queue(call.caller.account, given.name, passed, given.tags or {}, rest=True)
    return _created(201, queue)


def _created(status: int, queue: Queue) -> Answer:
    value = QueueCreated(queue_id=policies.queue_id(queue), name=queue.name)
    return Answer(status, value, (("Location", f"/v1/queues/{queue.name}"),))


def _find(call: Call, name: str) -> Queue | None:
    try:
        return call.broker.queue(call.caller.account, name)
    except QueueDoesNotExist:
        return None


def _check_same(existing: Queue, given: SpecFields, passed: dict[str, str], fifo: bool) -> None:
    """Raise a conflict if a field of the request differs from the existing queue. Fields that the request omits are
    ignored.
    """
    if existing.fifo != fifo:
        raise _exists(existing, "mode")
    difference = first_difference(passed, existing.attributes)
    if difference is not None:
        raise _exists(existing, policies.field_of(difference))
    target, receives = policies.redrive_of(existing)
    if given.dead_letter_queue and given.dead_letter_queue != target:
        raise _exists(existing, "deadLetterQueue")
    if given.max_receive_count and given.max_receive_count != receives:
        raise _exists(existing, "maxReceiveCount")


def _exists(queue: Queue, field: str) -> QueueExists:
    return QueueExists(
        f"Queue {queue.name} already exists with a different {field}. Update the existing queue, or choose another "
        "name."
    )


# --- dead-letter queues -----------------------------------------------------------------------


async def _dead_letter_queue(call: Call, source: str, target: str, fifo: bool) -> None:
    """Create the dead-letter queue if it is missing. The catalog checks that a dead-letter queue has none itself."""
    if target == source:
        raise DeadLetterQueueRefused("A queue cannot be its own dead-letter queue.")
    existing = _find(call, target)
    if existing is not None:
        if existing.fifo != fifo:
            raise DeadLetterQueueRefused(
                f"Queue {target} cannot be the dead-letter queue: it has a different mode (STANDARD or FIFO) than the "
                "source queue."
            )
        return
    queue = _find(call, source)
    if queue is not None and call.broker.dead_letter_sources(queue):
        return  # the change will be refused, so no queue is created in vain
    attributes = {**policies.REST_DEFAULTS, "MessageRetentionPeriod": str(RETENTION_MAX_S)}
    if fifo:
        attributes["FifoQueue"] = "true"
    await call.broker.create_queue(call.caller.account, target, attributes, {}, rest=True)


# --- one queue --------------------------------------------------------------------------------


def _shown(call: Call, queue: Queue) -> Any:
    return policies.show(queue, call.broker.warnings(queue))


async def get_queue(call: Call) -> Answer:
    queue = call.queue()
    answer = _shown(call, queue)
    found = call.broker.subscriptions_of_queue(queue.key)
    if found:
        answer.subscriptions = len(found)
        topics = [entry.topic_name for entry in found[:TOPICS_SHOWN_MAX]]
        answer.subscribed_topics = [
            topic.name if topic.account == queue.account else topic_arn(*topic) for topic in topics
        ]
    return Answer(200, answer)


async def update_queue(call: Call) -> Answer:
    queue = call.queue()
    given: GivenFields = call.read(QueueChanges)
    changes = policies.attributes_of(given)
    if not queue.fifo:
        changes = policies.without_fifo_only(changes)
    if given.dead_letter_queue is not UNSET or given.max_receive_count is not UNSET:
        changes.update(await _redrive_changes(call, queue, given, changes))
    if changes:
        await call.broker.set_attributes(queue, changes, rest=True)
    if given.tags is not UNSET:
        tags = given.tags or {}
        await call.broker.set_tags(queue, tags, [name for name in queue.tags if name not in tags])
    current = call.broker.queue_by_number(queue.number)
    if current is None:
        raise no_such_queue(queue.name)
    return Answer(200, _shown(call, current))


async def _redrive_changes(call: Call, queue: Queue, given: GivenFields, changes: dict[str, str]) -> dict[str, str]:
    """The attributes for the dead-letter queue and the maximum number of receives. With a dead-letter queue both are in
    RedrivePolicy, else the maximum is in Baton.MaxReceives.
    """
    now, receives = policies.redrive_of(queue)
    target = now if given.dead_letter_queue is UNSET else given.dead_letter_queue
    if given.max_receive_count is not UNSET:
        receives = given.max_receive_count or 0
    if not target:
        return {"RedrivePolicy": "", "Baton.MaxReceives": str(receives) if receives else ""}
    if target != now:
        validate(changes, fifo=queue.fifo, creating=False, current=queue.attributes)
        await _dead_letter_queue(call, queue.name, str(target), is_fifo(queue.attributes))
    policy = policies.redrive_policy(queue.account, str(target), receives or policies.RECEIVES_DEFAULT)
    return {"RedrivePolicy": policy, "Baton.MaxReceives": ""}


async def delete_queue(call: Call) -> Answer:
    await call.broker.delete_queue(call.queue())
    return NO_CONTENT


async def purge_queue(call: Call) -> Answer:
    queue = call.queue()
    call.read(Nothing)
    await call.broker.purge_queue(queue)
    return NO_CONTENT


async def queue_stats(call: Call) -> Answer:
    queue = call.queue()
    counters = await call.broker.counters(queue)
    now_ms = call.broker.now_ms()
    value = Stats(
        queue=queue.name,
        visible=counters.visible,
        in_flight=counters.in_flight,
        delayed=counters.delayed,
        owed=counters.owed,
        dead=counters.dead,
        bytes=counters.bytes,
        oldest_age_seconds=_age_seconds(counters.oldest_sent_ms, now_ms),
        oldest_visible_age_seconds=_age_seconds(counters.oldest_visible_ms, now_ms),
        sent=counters.sent,
        received=counters.received,
        deleted=counters.deleted,
        returned=counters.returned,
        expired_leases=counters.expired_leases,
        expired=counters.expired_messages,
        dead_lettered=counters.dead_lettered,
        arrived=counters.arrived,
        duplicates=counters.duplicates,
        stale_acks=counters.stale_deletes,
        late_acks=counters.late_deletes,
        waiting_receives=await call.broker.waiting(queue),
        at_ms=now_ms,
        is_dead_letter_queue=bool(call.broker.dead_letter_sources(queue)),
        paused=queue.policy.paused or NOT_PAUSED,
    )
    rates = call.rates.look(queue.number, counters, now_ms)
    if rates is not None:
        value.sent_per_second = rates.sent
        value.received_per_second = rates.received
        value.deleted_per_second = rates.deleted
    return Answer(200, value)


def _age_seconds(sent_ms: int, now_ms: int) -> float:
    return max(0, now_ms - sent_ms) / SECOND_MS if sent_ms else 0.0


# --- lists ------------------------------------------------------------------------------------


async def list_queues(call: Call) -> Answer:
    values = query(call, ("prefix", "limit", "cursor"))
    limit = whole(values.get("limit"), "limit", 1, PAGE_MAX, PAGE_DEFAULT)
    queues = call.broker.queues(call.caller.account, values.get("prefix", ""))
    if "cursor" in values:
        after = read_cursor(values["cursor"])
        queues = [queue for queue in queues if queue.name > after]
    page = queues[:limit]
    more = len(queues) > limit
    cursor = urlsafe_b64encode(page[-1].name.encode()).decode() if more else UNSET
    return Answer(200, Queues(queues=[_shown(call, queue) for queue in page], next_cursor=cursor))


def read_cursor(cursor: str) -> str:
    try:
        return urlsafe_b64decode(cursor.encode("ascii")).decode("ascii")
    except (binascii.Error, ValueError):
        raise InvalidInput("The cursor is not valid. Leave it out to start from the first page.") from None


def query(call: Call, names: tuple[str, ...]) -> dict[str, str]:
    """The parameters of the query string. An unknown or repeated parameter is an error that names it."""
    result: dict[str, str] = {}
    parts = call.request.query.replace("+", " ").split("&", PARAMETERS_MAX)
    try:
        if len(parts) > PARAMETERS_MAX:
            raise ValueError("too many")
        pairs = [tuple(map(percent.decode, part.partition("=")[::2])) for part in parts if part]
    except ValueError:
        raise InvalidInput("The query parameters are not valid: there are too many, or they are not UTF-8.") from None
    for name, value in pairs:
        if name.startswith("X-Amz-"):  # of a presigned URL
            continue
        if name not in names:
            known = f"known parameters: {', '.join(names)}" if names else "this endpoint has no parameters"
            raise InvalidInput(f"Unknown query parameter {name[:100]!r}; {known}.")
        if name in result:
            raise InvalidInput(f"The query parameter {name} is given twice.")
        result[name] = value
    return result


def whole(text: str | None, name: str, low: int, high: int, default: int) -> int:
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and low <= int(text) <= high):
        raise InvalidInput(f"{name} must be an integer from {low} to {high}.")
    return int(text)
