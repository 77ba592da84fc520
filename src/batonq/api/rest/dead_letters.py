"""Dead letters in groups, so that an operator sees what failed and why."""

from __future__ import annotations

from batonq.api.rest.codec import MSGPACK
from batonq.api.rest.message_shapes import DeadLetterGroup, DeadLetters
from batonq.api.rest.peeking import shown
from batonq.api.rest.queues import query
from batonq.api.rest.service import Answer, Call
from batonq.api.rest.shapes import Peeked
from batonq.node.messages.dead_letter_groups import Group
from batonq.node.messages.peek import Situation


async def list_dead_letters(call: Call) -> Answer:
    queue = call.queue()
    query(call, ())
    sources = call.broker.dead_letter_sources(queue)
    found = await call.broker.messages.dead_letters(queue, only_dead=not sources)
    situation = await call.broker.situation(queue)
    counters = situation.counters
    total = counters.visible + counters.in_flight + counters.delayed + counters.owed + counters.dead
    return Answer(
        200,
        DeadLetters(
            queue=queue.name,
            total=total if sources else counters.dead,
            examined=found.examined,
            complete=found.complete,
            sources=sorted(source.name for source in sources),
            groups=[_group(group, queue.name, situation, binary=call.wanted is MSGPACK) for group in found.groups],
            groups_omitted=found.omitted,
        ),
    )


def _group(group: Group, queue: str, situation: Situation, *, binary: bool) -> DeadLetterGroup:
    return DeadLetterGroup(
        group=group.key,
        error_class=group.traits.error_class,
        reason=group.reason,
        shape=group.traits.shape,
        source_queue=group.traits.source or queue,
        count=group.count,
        first_at_ms=group.first_ms,
        last_at_ms=group.last_ms,
        examples=[shown(Peeked, example, situation, binary=binary) for example in group.examples],
    )
