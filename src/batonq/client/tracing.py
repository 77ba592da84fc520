"""W3C trace context: a message carries its sender's trace, and its consumer can continue it.

The current context is OpenTelemetry's if the program has imported it, otherwise the value of `current`. Nothing is
imported for this, and a program without tracing sends no trace.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

_SPAN_BITS = 64
_TRACE_BITS = 128


class TraceContext(NamedTuple):
    """`traceparent` and `tracestate` as on the wire."""

    traceparent: str
    tracestate: str = ""

    @property
    def trace_id(self) -> str:
        return self.traceparent[3:35]

    @property
    def span_id(self) -> str:
        return self.traceparent[36:52]

    def child(self) -> TraceContext:
        """The same trace with a new span id."""
        return TraceContext(f"{self.traceparent[:36]}{_new_id(_SPAN_BITS)}{self.traceparent[52:]}", self.tracestate)


# The current trace, for programs without OpenTelemetry.
current: ContextVar[TraceContext | None] = ContextVar("batonq_trace", default=None)


def start(*, sampled: bool = True) -> TraceContext:
    """A new trace. Put it into `current`, or use it with `within`."""
    return TraceContext(f"00-{_new_id(_TRACE_BITS)}-{_new_id(_SPAN_BITS)}-{'01' if sampled else '00'}")


@contextmanager
def within(context: TraceContext | None) -> Iterator[TraceContext | None]:
    """Run a block in a child span of `context`: `with within(message.trace): ...`."""
    child = None if context is None else context.child()
    token = current.set(child)
    try:
        yield child
    finally:
        current.reset(token)


def outgoing() -> TraceContext | None:
    """The context for a message that is sent now."""
    if "opentelemetry.trace" in sys.modules:
        found = _from_opentelemetry()
        if found is not None:
            return found
    context = current.get()
    return None if context is None else context.child()


def _from_opentelemetry() -> TraceContext | None:
    span = sys.modules["opentelemetry.trace"].get_current_span().get_span_context()
    return of_span(span) if span.is_valid else None


def of_span(span: Any) -> TraceContext:
    """The context of an OpenTelemetry span, from its `SpanContext`."""
    state = span.trace_state.to_header() if span.trace_state else ""
    return TraceContext(f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}", state)


def _new_id(bits: int) -> str:
    return os.urandom(bits // 8).hex()
