"""Shows messages in any state, without leasing them: those of a queue, or one with its history."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar, get_args

from msgspec import UNSET

from batonq.api.rest.codec import MSGPACK
from batonq.api.rest.content import attributes_of, trace_of
from batonq.api.rest.message_shapes import MessageDetail, MessageEvent
from batonq.api.rest.queues import query, whole
from batonq.api.rest.receiving import TURN_BYTES, dead_letter, put_body
from batonq.api.rest.service import Answer, Call
from batonq.api.rest.shapes import PEEK_MAX, LastFailure, MessageState, Peeked, PeekedMessages
from batonq.api.rest.topics import find_topic
from batonq.core.ids import parse_message_id
from batonq.core.records import State
from batonq.errors import InvalidInput
from batonq.node import broker as node
from batonq.node.catalog.topic_control import Topic as TopicEntry
from batonq.node.clock import clock_time
from batonq.node.messages.message_history import Event, MessageFound
from batonq.node.messages.peek import EXAMINED_MAX, PeekFilter, Situation, why
from batonq.node.messages.received import ANSWER_BYTES_MAX
from batonq.quantities import plural

LIMIT_DEFAULT = 10
PLACE_MAX = (1 << 53) - 1
TEXT_MAX = 1_024
STATES = {name: State[name] for name in get_args(MessageState)}
P = TypeVar("P", bound=Peeked)


async def peek(call: Call) -> Answer:
    values = query(call, ("after", "limit", "state", "text", "group", "errorClass", "holder"))
    return await _look(call, call.queue(), values)


async def peek_topic(call: Call) -> Answer:
    """The copies that wait in a topic."""
    values = query(call, ("after", "limit"))
    return await _look(call, find_topic(call, call.name), values)


async def _look(call: Call, queue: node.Queue | TopicEntry, values: dict[str, str]) -> Answer:
    after = whole(values.get("after"), "after", 0, PLACE_MAX, 0)
    limit = whole(values.get("limit"), "limit", 1, PEEK_MAX, LIMIT_DEFAULT)
    wanted = _filter(values)
    binary = call.wanted is MSGPACK
    situation = await call.broker.situation(queue)
    found: list[Peeked] = []
    size = examined = 0
    complete = False
    while not complete and len(found) < limit and examined < EXAMINED_MAX and size <= ANSWER_BYTES_MAX:
        page = await call.broker.peek(queue, after, limit - len(found), wanted, EXAMINED_MAX - examined)
        after, complete = page.after, page.complete
        examined += page.examined
        for message in page.messages:
            found.append(shown(Peeked, message, situation, binary=binary))
            size += len(message.body)
            if binary and size // TURN_BYTES > (size - len(message.body)) // TURN_BYTES:
                await asyncio.sleep(0)
    return Answer(200, PeekedMessages(found, examined, complete, UNSET if complete else after))


def _filter(values: dict[str, str]) -> PeekFilter:
    state = values.get("state")
    if state is not None and state not in STATES:
        raise InvalidInput(f"state must be one of {', '.join(STATES)}.")
    for name in ("text", "group", "errorClass", "holder"):
        if len(values.get(name, "")) > TEXT_MAX:
            raise InvalidInput(f"{name} must have at most {TEXT_MAX} characters.")
    return PeekFilter(
        STATES[state] if state is not None else 0,
        values.get("text", ""),
        values.get("group", ""),
        values.get("errorClass", ""),
        values.get("holder", ""),
    )


async def get_message(call: Call) -> Answer:
    queue = call.queue()
    query(call, ())
    return Answer(200, await detail_of(call, queue, await call.broker.messages.find(queue, call.token)))


async def detail_of(call: Call, queue: node.Queue, found: MessageFound) -> MessageDetail:
    situation = await call.broker.situation(queue)
    current = parse_message_id(found.peeked.current_id)
    detail = shown(
        MessageDetail,
        found.peeked,
        situation,
        binary=call.wanted is MSGPACK,
        queue=queue.name,
        shard=current[0] if current is not None else 0,
        where="",
        history=[_event(event, situation) for event in found.events],
        history_complete=found.complete,
        history_note=found.note,
        moved_to=_moved_to(found, situation) or UNSET,
        moved_as=found.moved_as or UNSET,
    )
    detail.where = _where(detail, found, situation)
    if found.peeked.view.state == State.DELETED:
        detail.why = detail.where
    elif found.peeked.view.state == State.VISIBLE and found.higher:
        more = "" if found.higher_complete else "at least "
        whose = "The queue" if len(queue.shards) == 1 else "Its shard of the queue"
        detail.why += f" {whose} has {more}{plural(found.higher, 'message')} of higher priority."
    return detail


def _event(event: Event, situation: Situation) -> MessageEvent:
    return MessageEvent(
        at_ms=event.at_ms,
        event=event.event,  # type: ignore[arg-type]
        queue=situation.name_of(event.queue),
        holder=event.holder,
        reason=event.reason,
        error_class=event.error_class,
        receive_count=event.receive_count,
        until_ms=event.until_ms,
        to_queue=situation.name_of(event.to_queue) if event.to_queue else "",
    )


_ENDS = {
    "acknowledged": "It was acknowledged by its consumer at {at} and deleted.",
    "acknowledgedLate": "It was acknowledged by its consumer at {at}, after the lease had expired, and deleted.",
    "deleted": "It was deleted by an operator at {at}.",
    "expired": "It was deleted at {at}, when its retention period ended.",
    "purged": "It was deleted at {at} by a purge of the queue.",
}


def _moved_to(found: MessageFound, situation: Situation) -> str:
    """The name of the queue that the message was moved to; empty if it was not moved, or the queue was deleted."""
    if found.peeked.view.state != State.DELETED or found.events[-1].event != "moved":
        return ""
    moves = [event for event in found.events if event.event == "moving"]
    return situation.name_of(moves[-1].to_queue) if moves else ""


def _where(detail: MessageDetail, found: MessageFound, situation: Situation) -> str:
    """One sentence: where the message is, or where it went."""
    if detail.state != "DELETED":
        return f"In queue {detail.queue}, on shard {detail.shard}."
    last = found.events[-1]
    at = clock_time(last.at_ms, situation.now_ms)
    if last.event != "moved":
        text = _ENDS.get(last.event, "It is no longer in the queue; the log was not read to its end.")
        return text.format(at=at)
    name = _moved_to(found, situation)
    text = f"It was moved to {f'queue {name}' if name else 'a deleted queue'} at {at}{_moved_because(found)}"
    return f"{text}, and is message {found.moved_as} there." if found.moved_as else f"{text}."


def _moved_because(found: MessageFound) -> str:
    """Why a message was moved, as the end of a sentence."""
    move = next(event for event in reversed(found.events) if event.event in ("moving", "moved"))
    reason = next((event.reason for event in reversed(found.events) if event.event == "moving"), "")
    if reason == "redrive":
        return " by a redrive"
    if reason == "expired":
        return " because it had expired"
    receives = max((event.receive_count for event in found.events if event.queue == move.queue), default=0)
    failures = [event for event in found.events if event.error_class or event.event == "nacked"]
    error = f"; its last failure was {failures[-1].error_class or failures[-1].reason}" if failures else ""
    return f" as a dead letter, after {plural(receives, 'receive')}{error}" if reason else ""


def shown(shape: type[P], peeked: node.Peeked, situation: Situation, *, binary: bool, **more: Any) -> P:
    view = peeked.view
    timed = view.state in (State.DELAYED, State.IN_FLIGHT)
    message = shape(
        message_id=peeked.message_id,
        current_id=peeked.current_id,
        sequence=view.sequence,
        state=State(view.state).name,  # type: ignore[arg-type]
        why=why(view, situation, peeked.group),
        until_ms=view.until_ms if timed else 0,
        holder=view.holder,
        receive_count=view.receive_count,
        body_bytes=len(peeked.body) + peeked.cut_bytes,
        body_cut=peeked.cut_bytes > 0,
        message_group_id=peeked.group,
        deduplication_key=peeked.dedup_id,
        priority=view.priority,
        sent_at_ms=view.sent_ms,
        first_received_at_ms=view.first_received_ms,
        expires_at_ms=view.expires_ms,
        problem=peeked.problem,
        **more,
    )
    if not peeked.problem:
        put_body(message, peeked.body, peeked.content, binary=binary)
    if peeked.attributes:
        message.attributes = attributes_of(peeked.attributes, binary=binary)
    if peeked.trace:
        message.traceparent, message.tracestate = trace_of(peeked.trace)
    if peeked.lineage is not None:
        message.dead_letter = dead_letter(peeked.lineage)
        message.replay_of = peeked.lineage.first_id if peeked.lineage.moved == "replay" else UNSET
    if view.first_failure_ms:
        message.last_failure = LastFailure(view.reason, view.error_class, view.first_failure_ms, view.last_failure_ms)
    return message
