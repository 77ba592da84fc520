"""/v1/alarms: list, acknowledge, and test the webhooks."""

from __future__ import annotations

from msgspec import UNSET

from batonq.api.rest import alarm_shapes as shapes
from batonq.api.rest.queues import query
from batonq.api.rest.service import Answer, Call
from batonq.errors import InvalidInput
from batonq.node.alarms.document import shown


async def list_alarms(call: Call) -> Answer:
    call.require_operator(False)
    history = query(call, ("history",)).get("history", "false")
    if history not in ("true", "false"):
        raise InvalidInput("history must be true or false.")
    listed = await call.broker.monitor.alarms.listed(history == "true")
    answer = shapes.Alarms(at_ms=call.broker.now_ms(), alarms=[*map(shown, listed.active)])
    if history == "true":
        answer.history = [*map(shown, listed.history)]
    return Answer(200, answer)


async def acknowledge_alarm(call: Call) -> Answer:
    call.require_operator(True)
    note = call.read(shapes.Acknowledge).note
    return Answer(200, shown(await call.broker.monitor.alarms.acknowledge(call.name, _who(call), note)))


def _who(call: Call) -> str:
    """Who acknowledges, for others to ask."""
    if call.caller.key:
        return call.caller.key
    return call.request.peer.rpartition(":")[0] if call.broker.dev else "the admin token"


async def test_alarms(call: Call) -> Answer:
    call.require_operator(True)
    tried = await call.broker.monitor.alarms.test()
    results = [
        shapes.WebhookResult(
            webhook=each.webhook,
            delivered=each.delivered,
            answer_status=each.status or UNSET,
            problem=each.problem or UNSET,
        )
        for each in tried
    ]
    return Answer(200, shapes.WebhookResults(results=results))
