"""W3C trace context: a message carries its sender's trace, and its handler may go on with it."""

from __future__ import annotations

import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from batonq.client import Outgoing, TraceContext, tracing
from batonq.testing import memory, memory_async
from tests.client.support import Blocking, run

PARENT = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1")


def test_a_message_carries_the_trace_of_its_sender(form: str) -> None:
    async def body() -> None:
        client: Any = await memory_async() if form == "async" else Blocking(memory())
        async with client as baton:
            queue = await baton.create_queue("traced")
            await queue.send("none")
            with tracing.within(PARENT) as here:
                assert here is not None
                await queue.send("alone")
                await queue.send_many(["many", Outgoing("own", traceparent=PARENT.traceparent)])
            await queue.send("none again")
            traces = {message.body: message.trace for message in await queue.receive(wait=0)}
            assert traces["none"] is traces["none again"] is None
            assert traces["own"] == TraceContext(PARENT.traceparent)
            for name in ("alone", "many"):
                trace = traces[name]
                assert trace.trace_id == PARENT.trace_id and trace.tracestate == "vendor=1"
                assert trace.span_id not in (PARENT.span_id, here.span_id)
            assert traces["alone"].span_id != traces["many"].span_id

    run(body())


def test_children_have_span_ids_of_their_own() -> None:
    start = tracing.start()
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", start.traceparent)
    assert tracing.start(sampled=False).traceparent.endswith("-00")
    child = start.child()
    assert (child.trace_id, child.traceparent[-2:]) == (start.trace_id, "01")
    assert child.span_id != start.span_id
    assert tracing.outgoing() is None
    with tracing.within(start) as inside:
        assert tracing.current.get() is inside
        with tracing.within(None):
            assert tracing.outgoing() is None
    assert tracing.current.get() is None


def test_opentelemetry_goes_before(monkeypatch: pytest.MonkeyPatch) -> None:
    state = SimpleNamespace(to_header=lambda: "a=b")
    span = SimpleNamespace(is_valid=True, trace_id=0xABC, span_id=0xDEF, trace_flags=1, trace_state=state)
    trace = ModuleType("opentelemetry.trace")
    trace.get_current_span = lambda: SimpleNamespace(get_span_context=lambda: span)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", trace)
    with tracing.within(PARENT):
        assert tracing.outgoing() == TraceContext(f"00-{0xABC:032x}-{0xDEF:016x}-01", "a=b")
        span.is_valid = False  # it is loaded, and nobody traces
        found = tracing.outgoing()
        assert found is not None and found.trace_id == PARENT.trace_id
