"""The reference of scaling, buffers and web middleware, from signatures, docstrings and field comments."""

from __future__ import annotations

import inspect

from batonq import scaling, web
from batonq.client import breaker, buffer, buffering
from batonq.scaling import simulator, sizing
from tools.client_docs import block, doc, fields, members

POLICIES = (
    scaling.Steps,
    scaling.PerWorker,
    scaling.Drain,
    scaling.KeepUp,
    scaling.Sla,
    scaling.Largest,
)
VALUES = (scaling.Reading, scaling.Pace, scaling.Decision, scaling.Autoscale, simulator.World, simulator.Outcome)
FUNCTIONS = (
    (scaling.run_autoscaled, "await run_autoscaled"),
    (scaling.stats_readings, "stats_readings"),
    (scaling.sqs_readings, "sqs_readings"),
    (simulator.simulate, "simulate"),
    (sizing.size, "size"),
)


def scaling_part() -> str:
    parts = ["### Policies\n"]
    parts += [_value(kind) for kind in POLICIES]
    parts.append("### Scaler\n")
    parts += _class(scaling.Scaler)
    parts.append("### Values\n")
    parts += [_value(kind) for kind in VALUES]
    parts.append("### Functions\n")
    for function, call in FUNCTIONS:
        parts.append(f"#### {call.removeprefix('await ')}\n\n{block(function, call)}\n{doc(function)}\n")
    return "\n".join(parts)


def outage_part() -> str:
    parts = [f"### {buffer.SendBuffer.__name__}\n", *_class(buffer.SendBuffer)]
    counted = doc(buffering.Buffering.counters)
    parts.append(f"#### buffer.counters\n\n{counted}\n")
    parts.append(f"### BlockingSendBuffer\n\nThe same without `await`. {doc(buffer.BlockingSendBuffer)}\n")
    parts += [_value(buffering.BufferSettings), _value(buffer.Counters)]
    parts += [f"### {breaker.Breaker.__name__}\n", *_class(breaker.Breaker)]
    return "\n".join(parts)


def web_part() -> str:
    parts = []
    for kind in (web.ShedLoadASGI, web.ShedLoadWSGI, web.AsyncDepth, web.Depth):
        parts.append(f"#### {kind.__name__}\n\n{block(kind, kind.__name__)}\n{doc(kind)}\n")
    parts.append(_value(web.Rule))
    return "\n".join(parts)


def _value(kind: type) -> str:
    return f"#### {kind.__name__}\n\n{doc(kind)}\n\n{fields(kind)}"


def _class(kind: type) -> list[str]:
    parts = [f"{block(kind, kind.__name__)}\n{doc(kind)}\n"]
    noun = {"SendBuffer": "buffer"}.get(kind.__name__, kind.__name__.lower())
    for name, member in members(kind):
        if isinstance(member, property):
            parts.append(f"#### {noun}.{name}\n\n{doc(member)}\n")
        else:
            call = f"{'await ' if inspect.iscoroutinefunction(member) else ''}{noun}.{name}"
            parts.append(f"#### {noun}.{name}\n\n{block(member, call)}\n{doc(member)}\n")
    return parts
