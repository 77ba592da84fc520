"""GET /v1/queues/{queue}:explain: why the messages of a queue wait."""

from __future__ import annotations

from msgspec import UNSET

from batonq.api.rest import explain_shapes as shapes
from batonq.api.rest.queues import query
from batonq.api.rest.service import SECOND_MS, Answer, Call
from batonq.node.messages import queue_diagnosis
from batonq.node.monitoring.queue_explainer import Explained, explain
from batonq.queue_attributes import NOT_PAUSED


async def explain_queue(call: Call) -> Answer:
    query(call, ())
    return Answer(200, shown(await explain(call.broker, call.queue())))


def shown(explained: Explained) -> shapes.QueueExplained:
    figures, counters = explained.figures, explained.figures.counters
    return shapes.QueueExplained(
        queue=figures.queue,
        at_ms=figures.now_ms,
        text=explained.diagnosis.text,
        findings=[
            shapes.Finding(
                cause=found.cause,
                kind=found.kind,  # type: ignore[arg-type]
                text=found.text,
                action=found.action,
                figures=found.figures,
            )
            for found in explained.diagnosis.findings
        ],
        paused=figures.paused or NOT_PAUSED,
        visible=counters.visible,
        in_flight=counters.in_flight,
        delayed=counters.delayed,
        oldest_age_seconds=_age(figures.now_ms, counters.oldest_sent_ms),
        oldest_visible_age_seconds=_age(figures.now_ms, counters.oldest_visible_ms),
        waiting_receives=figures.waiting_receives,
        consumers=figures.consumers,
        now=_flow(figures.now),
        before=_flow(figures.before) if figures.before is not None else UNSET,
        groups=[
            shapes.BusyGroup(message_group_id=group.name, share=round(group.share, 4), waiting=group.waiting)
            for group in figures.groups
        ],
    )


def _age(now_ms: int, sent_ms: int) -> float:
    return max(0, now_ms - sent_ms) / SECOND_MS if sent_ms else 0.0


def _flow(flow: queue_diagnosis.Flow) -> shapes.Flow:
    return shapes.Flow(
        sent_per_second=round(flow.sent, 3),
        received_per_second=round(flow.received, 3),
        acked_per_second=round(flow.acked, 3),
        retried_per_second=round(flow.retried, 3),
        handling_p50_ms=round(flow.handling_ms, 1) if flow.handling_ms is not None else UNSET,
    )
