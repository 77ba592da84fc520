"""Operations on schedules: create, list, read, change, delete, preview, fire now."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import Any, Protocol

from msgspec import UNSET

from batonq.api.rest import schedule_shapes as shapes
from batonq.api.rest.codec import MSGPACK
from batonq.api.rest.content import attributes_from, attributes_of, body_from_value, bytes_of
from batonq.api.rest.queues import query
from batonq.api.rest.receiving import put_body
from batonq.api.rest.sending import priority_of
from batonq.api.rest.service import NO_CONTENT, SECOND_MS, Answer, Call, Nothing, find_queue, milliseconds
from batonq.api.sqs.message_attributes import attributes_size
from batonq.core.commands import Command, Sent
from batonq.core.ids import message_id
from batonq.core.payload import Content, referred_key
from batonq.core.schedule import SCHEDULE_BYTES_MAX, Schedule
from batonq.errors import BatonError, InvalidInput, QueueDoesNotExist, ScheduleNotFound, TooLarge
from batonq.node.broker import Queue
from batonq.node.routing.submission import Done, submitted
from batonq.node.schedules.schedule_control import Found
from batonq.node.schedules.scheduled_message import ScheduledMessage, parse_message, shown_time
from batonq.node.schedules.timing import Timing, cron_timing, find_zone, parse_timing, rate_timing
from batonq.priorities import NORMAL_PRIORITY

REQUEST_BYTES_MAX = 4 * SCHEDULE_BYTES_MAX  # before it is decoded; escapes and base64 are longer than what they mean


class Target(Protocol):
    """What a schedule depends on of its queue."""

    @property
    def number(self) -> int: ...
    @property
    def fifo(self) -> bool: ...
    @property
    def message_bytes_max(self) -> int: ...


async def create_schedule(call: Call) -> Answer:
    _check_request(call)
    given = call.read(shapes.ScheduleSpec)
    queue = _target(call, given.queue)
    schedule = schedule_of(given, queue, call.caller.sender)
    found, is_new = await call.broker.schedules.create(queue, schedule)
    shown = show(found, binary=call.wanted is MSGPACK)
    return Answer(201 if is_new else 200, shown, (("Location", f"/v1/schedules/{shown.schedule_id}"),))


async def list_schedules(call: Call) -> Answer:
    name = query(call, ("queue",)).get("queue")
    if name is not None:
        found, complete = await call.broker.schedules.of_queue(find_queue(call, name)), True
    else:
        found, complete = await call.broker.schedules.of_account(call.caller.account)
    return Answer(200, shapes.Schedules([show(one, binary=False) for one in found], complete))


async def get_schedule(call: Call) -> Answer:
    return Answer(200, show(await _find(call), binary=call.wanted is MSGPACK))


async def change_schedule(call: Call) -> Answer:
    _check_request(call)
    given = call.read(shapes.ScheduleChanges)
    found = await _find(call)
    queue, old = found.queue, found.schedule
    changes: dict[str, Any] = {}
    timing = _changed_timing(given, parse_timing(old.timing))
    if timing.text() != old.timing:
        changes["timing"] = timing.text()
    if given.message is not UNSET:
        message = _message(given.message, queue, call.caller.sender)
        changes |= {"message": message.text(), "group": message.group}
    if given.missed is not UNSET:
        changes["missed"] = given.missed
    if given.enabled is not UNSET:
        changes["paused"] = not given.enabled
    if changes:
        found = await call.broker.schedules.change(queue, old.name, changes)
    return Answer(200, show(found, binary=call.wanted is MSGPACK))


async def delete_schedule(call: Call) -> Answer:
    name, queue = _names(call)
    await call.broker.schedules.delete(queue, name)
    return NO_CONTENT


async def fire_schedule(call: Call) -> Answer:
    call.read(Nothing)
    found = await _find(call)
    schedule = found.schedule
    command = parse_message(schedule.message).command(found.queue.number, schedule.name, call.broker.now_ms())

    def send(_: Command, done: Done) -> None:
        call.broker.send(found.queue, command, done)

    sent: Sent = await submitted(send, command)
    result = sent[0]
    if isinstance(result, BatonError):
        raise result
    return Answer(202, shapes.FiredNow(result.message_id, result.sequence))


async def preview_schedule(call: Call) -> Answer:
    given = call.read(shapes.SchedulePreview)
    now_ms = call.broker.now_ms()
    timing = _timing(given)
    if timing.rate_ms and not timing.start_ms:
        timing = rate_timing(timing.rate_ms, now_ms + timing.rate_ms, timing.end_ms)
    after_ms = now_ms if given.after is None else _time_ms(given.after)
    zone = find_zone(timing.zone)
    times = [
        datetime.fromtimestamp(due_ms / 1000, zone).isoformat(timespec="milliseconds" if due_ms % 1000 else "seconds")
        for due_ms in islice(timing.times(after_ms), given.count)
    ]
    return Answer(200, shapes.ScheduleTimes([text.replace("+00:00", "Z") for text in times]))


# --- finding ----------------------------------------------------------------------------------------


def _names(call: Call) -> tuple[str, Queue]:
    """The name and the queue in a schedule's id, such as `nightly@reports`."""
    name, at, queue = call.name.rpartition("@")
    if not at or not name:
        raise ScheduleNotFound(
            f"{call.name[:200]!r} is not the id of a schedule. An id is NAME@QUEUE, such as nightly@reports."
        )
    try:
        return name, find_queue(call, queue)
    except QueueDoesNotExist:
        raise ScheduleNotFound(
            f"Schedule {call.name[:200]} does not exist: there is no queue {queue[:80]!r}."
        ) from None


async def _find(call: Call) -> Found:
    name, queue = _names(call)
    return await call.broker.schedules.find(queue, name)


def _target(call: Call, name: str) -> Queue:
    try:
        return find_queue(call, name)
    except QueueDoesNotExist as problem:
        raise InvalidInput(f"queue: {problem.message}") from None


def _check_request(call: Call) -> None:
    if len(call.request.body) > REQUEST_BYTES_MAX:
        raise TooLarge(f"A schedule with its message can have at most {SCHEDULE_BYTES_MAX} bytes.")


# --- reading ----------------------------------------------------------------------------------------


def schedule_of(given: shapes.ScheduleSpec, queue: Target, sender: str) -> Schedule:
    """The schedule that a request defines. Raises InvalidInput, TooLarge."""
    message = _message(given.message, queue, sender)
    return Schedule(
        queue=queue.number,
        name=given.name,
        timing=_timing(given).text(),
        group=message.group,
        message=message.text(),
        missed=given.missed,
        paused=not given.enabled,
    )


def _timing(given: shapes.ScheduleSpec | shapes.SchedulePreview) -> Timing:
    start_ms = 0 if given.start_at is None else _time_ms(given.start_at)
    end_ms = 0 if given.end_at is None else _time_ms(given.end_at)
    return _made(given.cron, given.time_zone, given.rate_seconds, start_ms, end_ms)


def _made(cron: str | None, zone: str | None, rate_s: float | None, start_ms: int, end_ms: int) -> Timing:
    if (cron is None) == (rate_s is None):
        raise InvalidInput("Set either cron or rateSeconds.")
    if end_ms and end_ms <= start_ms:
        raise InvalidInput("endAt must be after startAt.")
    if cron is not None:
        return cron_timing(cron, zone or "UTC", start_ms, end_ms)
    assert rate_s is not None
    if zone is not None:
        raise InvalidInput("timeZone is for cron: a rate is the same in every time zone.")
    return rate_timing(milliseconds(rate_s), start_ms, end_ms)


def _changed_timing(given: shapes.ScheduleChanges, old: Timing) -> Timing:
    start_ms, end_ms = old.start_ms, old.end_ms
    if given.start_at is not UNSET:
        start_ms = 0 if given.start_at is None else _time_ms(given.start_at)
    if given.end_at is not UNSET:
        end_ms = 0 if given.end_at is None else _time_ms(given.end_at)
    if given.rate_seconds is not UNSET and given.cron is UNSET:
        zone = None if given.time_zone is UNSET else given.time_zone
        return _made(None, zone, given.rate_seconds, start_ms, end_ms)
    cron = (old.cron or None) if given.cron is UNSET else given.cron
    rate_s = None if given.rate_seconds is UNSET else given.rate_seconds
    if cron is None:
        return _made(None, None if given.time_zone is UNSET else given.time_zone, old.rate_ms / 1000, start_ms, end_ms)
    return _made(cron, old.zone if given.time_zone is UNSET else given.time_zone, rate_s, start_ms, end_ms)


def _time_ms(time: datetime) -> int:
    return max(1, milliseconds(time.timestamp()))


def _message(given: shapes.ScheduledMessage, queue: Target, sender: str) -> ScheduledMessage:
    """Checks the same rules as for a sent message."""
    if given.body_base64 is not None:
        if given.body is not UNSET:
            raise InvalidInput("body and bodyBase64 are both set. Set only one of them.")
        body, content = bytes_of(given.body_base64, "bodyBase64"), int(Content.BYTES)
    elif given.body is UNSET:
        raise InvalidInput("The message has no body. Set body (any JSON value) or bodyBase64.")
    else:
        body, content = body_from_value(given.body)
    attributes = attributes_from(given.attributes) if given.attributes else b""
    size = len(body) + (attributes_size(attributes, len(given.attributes)) if given.attributes else 0)
    if size > queue.message_bytes_max:
        raise TooLarge(
            f"The message has {size} bytes, including its attributes; this queue accepts at most "
            f"{queue.message_bytes_max}."
        )
    if queue.fifo and given.message_group_id is None:
        raise InvalidInput("A message for a FIFO queue needs a messageGroupId.")
    if referred_key(body):
        raise InvalidInput(
            "The body is a pointer into a payload store, whose object is kept only for messages that are sent. A "
            "schedule needs the body itself."
        )
    return ScheduledMessage(
        body,
        content,
        attributes,
        given.message_group_id or "",
        priority_of(given.priority),
        None if given.ttl_seconds is None else max(1, milliseconds(given.ttl_seconds)),
        given.max_receive_count or 0,
        sender,
    )


# --- showing ----------------------------------------------------------------------------------------


def show(found: Found, *, binary: bool) -> shapes.ScheduleShown:
    schedule = found.schedule
    timing = parse_timing(schedule.timing)
    shown = shapes.ScheduleShown(
        schedule_id=f"{schedule.name}@{found.queue.name}",
        name=schedule.name,
        queue=found.queue.name,
        missed=schedule.missed,  # type: ignore[arg-type]
        enabled=not schedule.paused,
        state=schedule.state,  # type: ignore[arg-type]
        why=schedule.why,
        next_at_ms=schedule.next_ms or UNSET,
        last_due_at_ms=schedule.last_due_ms or UNSET,
        last_fired_at_ms=schedule.last_fired_ms or UNSET,
        last_message_id=message_id(found.shard, schedule.last_sequence) if schedule.last_sequence else UNSET,
        firings=schedule.fired,
        late_firings=schedule.late,
        skipped_firings=schedule.skipped,
        created_at_ms=schedule.created_ms,
        modified_at_ms=schedule.changed_ms,
        start_at=shown_time(timing.start_ms) if timing.start_ms else UNSET,
        end_at=shown_time(timing.end_ms) if timing.end_ms else UNSET,
    )
    if timing.rate_ms:
        shown.rate_seconds = timing.rate_ms / SECOND_MS
    else:
        shown.cron, shown.time_zone = timing.cron, timing.zone
    if schedule.message:
        shown.message = show_message(parse_message(schedule.message), binary=binary)
    return shown


def show_message(message: ScheduledMessage, *, binary: bool) -> shapes.ShownMessage:
    shown = shapes.ShownMessage()
    put_body(shown, message.body, message.content, binary=binary)
    if message.attributes:
        shown.attributes = attributes_of(message.attributes, binary=binary)
    if message.group:
        shown.message_group_id = message.group
    if message.ttl_ms is not None:
        shown.ttl_seconds = message.ttl_ms / SECOND_MS
    if message.max_receives:
        shown.max_receive_count = message.max_receives
    if message.priority != NORMAL_PRIORITY:
        shown.priority = message.priority
    return shown
