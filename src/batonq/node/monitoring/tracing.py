"""Spans of the broker, exported to an OpenTelemetry collector (OTLP over HTTP).

Only messages whose trace is sampled get spans: one when they are stored, and one for the time that they waited in the
queue when they are delivered. Both are children of the span that sent the message. The export runs on a thread of its
own with a bounded queue; spans that do not fit are dropped and counted.
"""

from __future__ import annotations

import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from batonq import __version__
from batonq.core.commands import Accepted, Failure, Send, Sent
from batonq.errors import BatonError, InvalidInput
from batonq.node import events
from batonq.node.messages.received import Delivery, Received
from batonq.node.routing.submission import Done

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import SpanContext, Tracer

SPANS_WAITING_MAX = 4096
SPANS_PER_EXPORT_MAX = 512
SPANS_PER_REQUEST_MAX = 100
EXPORT_TIMEOUT_S = 5.0
PAUSE_S = 0.5  # for spans to gather between two exports
MS_NS = 1_000_000
_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?: (.*))?", re.DOTALL)


class Trace(NamedTuple):
    """A sampled message of a request: its place among the messages, and its context."""

    at: int
    context: SpanContext


class Export:
    """Sends ended spans to a collector on a thread of its own (the SDK's `SpanProcessor`)."""

    def __init__(self, exporter: SpanExporter) -> None:
        self.dropped = 0  # spans that did not fit
        self.failed = 0  # spans that the collector did not accept
        self.exported = 0
        self._exporter = exporter
        self._waiting: queue.Queue[ReadableSpan | None] = queue.Queue(SPANS_WAITING_MAX)
        self._stopping = threading.Event()
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="baton-traces", daemon=True)
        self._thread.start()

    def add(self, span: ReadableSpan) -> None:
        try:
            self._waiting.put_nowait(span)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Export what is waiting, for a few seconds at most."""
        self._stopping.set()
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            pass  # then the thread has something to wake up for
        self._thread.join(EXPORT_TIMEOUT_S + 1)

    def _run(self) -> None:
        while True:
            batch = self._next()
            if batch:
                self._export(batch)
            elif self._stopping.is_set():
                self._exporter.shutdown()
                return
            self._stopping.wait(PAUSE_S)

    def _next(self) -> list[ReadableSpan]:
        """Spans to export; empty if the thread is to end."""
        first = self._waiting.get() if not self._stopping.is_set() else None
        batch = [] if first is None else [first]
        while len(batch) < SPANS_PER_EXPORT_MAX:
            try:
                span = self._waiting.get_nowait()
            except queue.Empty:
                break
            if span is not None:
                batch.append(span)
        return batch

    def _export(self, batch: list[ReadableSpan]) -> None:
        try:
            succeeded = self._exporter.export(batch).name == "SUCCESS"
        except Exception as problem:
            events.warning("traces_failed", f"The export of spans failed: {problem!r}")
            succeeded = False
        if succeeded:
            self.exported += len(batch)
        else:
            self.failed += len(batch)
            if not self._is_failing:
                events.warning("traces_failed", "The OpenTelemetry collector does not accept spans; they are lost")
        self._is_failing = not succeeded


class BrokerTracing:
    """Called by the broker for every send and receive; requests without a sampled message cost one look."""

    def __init__(self, export: Export, node: str, now_ms: Callable[[], int]) -> None:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        class Processor(SpanProcessor):
            def on_end(self, span: ReadableSpan) -> None:
                export.add(span)

        self.export = export
        self._otel = trace
        self._now_ms = now_ms
        resource = Resource.create({"service.name": "baton", "service.instance.id": node})
        provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(Processor())
        self._tracer: Tracer = provider.get_tracer("batonq.broker", __version__)

    def close(self) -> None:
        self.export.close()

    def sending(self, name: str, command: Send, done: Done) -> Done:
        """`done` of a send, preceded by a span for the messages that are sampled."""
        traces = self._sampled(command.traces)
        if not traces:
            return done
        began_ms, began_ns = self._now_ms(), time.perf_counter_ns()

        def traced(outcome: Sent | BatonError) -> None:
            try:
                took_ns = time.perf_counter_ns() - began_ns
                self._sent(name, len(command.bodies), traces, began_ms, took_ns, outcome)
            finally:
                done(outcome)

        return traced

    def received(self, name: str, received: Received) -> None:
        """Spans for the time that delivered messages waited in their queue."""
        if received.rows:
            self.delivered(name, received.rows)
        elif received.traces and any(received.traces):
            self.delivered(name, received.deliveries())

    def delivered(self, name: str, deliveries: Sequence[Delivery]) -> None:
        now_ms = self._now_ms()
        for at, context in self._sampled([delivery.trace for delivery in deliveries]):
            delivery = deliveries[at]
            attributes: dict[str, Any] = {
                **_common("receive", "receive", name),
                "messaging.message.id": delivery.message_id,
                "baton.message.receive_count": delivery.receive_count,
            }
            lineage = delivery.lineage
            if lineage is not None and lineage.source_arn:
                attributes["baton.dead_letter.queue"] = lineage.source_arn.rpartition(":")[2]
                attributes["baton.moved"] = lineage.moved
            began_ms = min(_waiting_since(delivery, delivery.failure), now_ms)
            attributes["baton.queue.wait_seconds"] = (now_ms - began_ms) / 1000
            span = self._tracer.start_span(
                f"wait {name}",
                self._inside(context),
                self._otel.SpanKind.SERVER,
                attributes,
                start_time=began_ms * MS_NS,
            )
            span.end(now_ms * MS_NS)

    # ---

    def _sent(
        self, name: str, count: int, traces: Sequence[Trace], began_ms: int, took_ns: int, outcome: Sent | BatonError
    ) -> None:
        attributes = _common("send", "send", name)
        result = outcome.results()[0] if count == 1 and isinstance(outcome, Sent) else outcome
        if count > 1:
            attributes["messaging.batch.message_count"] = count
        elif isinstance(result, Accepted):
            attributes["messaging.message.id"] = result.message_id
        (_, parent), *others = traces
        links = [self._otel.Link(context) for _, context in others if context != parent]
        span = self._tracer.start_span(
            f"send {name}",
            self._inside(parent),
            self._otel.SpanKind.SERVER,
            attributes,
            links,
            began_ms * MS_NS,
        )
        if isinstance(result, BatonError):
            span.set_attribute("error.type", result.code)
            span.set_status(self._otel.StatusCode.ERROR, result.message[:500])
        span.end(began_ms * MS_NS + took_ns)

    def _sampled(self, traces: Sequence[str]) -> list[Trace]:
        found: list[Trace] = []
        for at, trace in enumerate(traces):
            if trace and (context := self._parsed(trace)) is not None:
                found.append(Trace(at, context))
                if len(found) == SPANS_PER_REQUEST_MAX:
                    break
        return found

    def _parsed(self, trace: str) -> SpanContext | None:
        """The context of a message if it is sampled; None for others, and for X-Ray headers."""
        parts = _PARENT.fullmatch(trace)
        if parts is None or not int(parts[3], 16) & 1:
            return None
        state = self._otel.TraceState.from_header([parts[4]]) if parts[4] else None
        flags = self._otel.TraceFlags(int(parts[3], 16))
        context = self._otel.SpanContext(int(parts[1], 16), int(parts[2], 16), True, flags, state)
        return context if context.is_valid else None

    def _inside(self, parent: SpanContext) -> Any:
        return self._otel.set_span_in_context(self._otel.NonRecordingSpan(parent))


def _common(name: str, kind: str, queue_name: str) -> dict[str, Any]:
    return {
        "messaging.system": "baton",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue_name,
    }


def _waiting_since(delivery: Delivery, failure: Failure | None) -> int:
    """When the wait that has ended with this delivery began."""
    if failure is not None and failure.last_ms:
        return failure.last_ms
    if delivery.receive_count > 1 and delivery.first_received_ms:
        return delivery.first_received_ms
    if delivery.lineage is not None and delivery.lineage.moved_ms:
        return delivery.lineage.moved_ms
    return delivery.sent_ms


def export_to(endpoint: str) -> Export:
    """An export to the collector at this URL, as in `http://127.0.0.1:4318`."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as missing:
        raise InvalidInput(f"--otlp-endpoint needs OpenTelemetry: pip install 'batonq[otel]' ({missing})") from None
    for name in ("opentelemetry.exporter", "opentelemetry.sdk"):
        logging.getLogger(name).addHandler(logging.NullHandler())  # this module reports failures itself
        logging.getLogger(name).propagate = False
    url = endpoint.rstrip("/")
    url = url if url.endswith("/v1/traces") else f"{url}/v1/traces"
    return Export(OTLPSpanExporter(endpoint=url, timeout=EXPORT_TIMEOUT_S))
