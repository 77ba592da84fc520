"""GET /v1/queues/{queue}/messages: shows a queue's messages in any state, without leasing them."""

from __future__ import annotations

import asyncio
from typing import get_args

from msgspec import UNSET

from batonq.api.rest.codec import MSGPACK
from batonq.api.rest.content import attributes_of, trace_of
from batonq.api.rest.queues import query, whole
from batonq.api.rest.receiving import TURN_BYTES, dead_letter, put_body
from batonq.api.rest.service import Answer, Call
from batonq.api.rest.shapes import PEEK_MAX, LastFailure, MessageState, Peeked, PeekedMessages
from batonq.core.records import State
from batonq.errors import InvalidInput
from batonq.node import broker as node
from batonq.node.messages.received import ANSWER_BYTES_MAX

LIMIT_DEFAULT = 10
STEP = 10  # messages read at a time, so that large ones cannot fill the memory
LOOKED_AT_MAX = 1_000  # messages examined per request, to find those in the requested state
PLACE_MAX = (1 << 53) - 1
STATES = {name: State[name] for name in get_args(MessageState)}


async def peek(call: Call) -> Answer:
    queue = call.queue()
    values = query(call, ("after", "limit", "state"))
    after = whole(values.get("after"), "after", 0, PLACE_MAX, 0)
    limit = whole(values.get("limit"), "limit", 1, PEEK_MAX, LIMIT_DEFAULT)
    wanted = values.get("state")
    if wanted is not None and wanted not in STATES:
        raise InvalidInput(f"state must be one of {', '.join(STATES)}.")
    binary = call.wanted is MSGPACK
    found: list[Peeked] = []
    size = 0
    for _ in range(0, LOOKED_AT_MAX, STEP):
        page = await call.broker.peek(queue, after, min(STEP, limit - len(found)) if wanted is None else STEP)
        for message in page:
            after = message.view.sequence
            if wanted is None or message.view.state == STATES[wanted]:
                found.append(_shown(message, binary=binary))
                size += len(message.body)
                if len(found) == limit or size > ANSWER_BYTES_MAX:
                    return Answer(200, PeekedMessages(found, after))
                if binary and size // TURN_BYTES > (size - len(message.body)) // TURN_BYTES:
                    await asyncio.sleep(0)
        if len(page) < STEP and len(found) < limit:
            return Answer(200, PeekedMessages(found, UNSET))
    return Answer(200, PeekedMessages(found, after))


def _shown(peeked: node.Peeked, *, binary: bool) -> Peeked:
    view = peeked.view
    timed = view.state in (State.DELAYED, State.IN_FLIGHT)
    message = Peeked(
        message_id=peeked.message_id,
        current_id=peeked.current_id,
        sequence=view.sequence,
        state=State(view.state).name,  # type: ignore[arg-type]
        until_ms=view.until_ms if timed else 0,
        holder=view.holder,
        receive_count=view.receive_count,
        body_bytes=len(peeked.body),
        message_group_id=peeked.group,
        deduplication_key=peeked.dedup_id,
        priority=view.priority,
        sent_at_ms=view.sent_ms,
        first_received_at_ms=view.first_received_ms,
        expires_at_ms=view.expires_ms,
        problem=peeked.problem,
    )
    if not peeked.problem:
        put_body(message, peeked.body, peeked.content, binary=binary)
    if peeked.attributes:
        message.attributes = attributes_of(peeked.attributes, binary=binary)
    if peeked.trace:
        message.traceparent, message.tracestate = trace_of(peeked.trace)
    if peeked.lineage is not None:
        message.dead_letter = dead_letter(peeked.lineage)
    if view.first_failure_ms:
        message.last_failure = LastFailure(view.reason, view.error_class, view.first_failure_ms, view.last_failure_ms)
    return message
