"""OpenTelemetry for the client and the worker: spans and metrics by the semantic conventions for messaging.

`batonq.telemetry.enable()` turns it on for the whole program. It needs `pip install 'batonq[otel]'`. Until then nothing
of OpenTelemetry is imported, and each operation costs one comparison more.

A message carries the context of the span that sent it, so that the spans of its consumers belong to the same trace,
also after a dead-letter queue and a redrive. The sampled flag decides: a message whose trace is not sampled gets no
spans, only metrics.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from batonq import __version__
from batonq.client import tracing
from batonq.client.tracing import TraceContext
from batonq.errors import BatonError, InvalidInput

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, TracerProvider

    from batonq.client.models import MessageFields, Sent

SYSTEM = "baton"
SCHEMA_URL = "https://opentelemetry.io/schemas/1.37.0"
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)  # of the conventions
LINKS_MAX = 128  # the default limit of the SDK
PROCESSED_MAX = 100_000  # messages whose processing has ended and whose answer is not sent yet
_TYPES = {"send": "send", "receive": "receive", "ack": "settle", "nack": "settle", "extend": "settle"}


class Off:
    """Stands for an operation while telemetry is off."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        """Nothing was measured."""

    def context(self) -> TraceContext | None:
        return tracing.outgoing()

    def sent(self, results: Sequence[Sent | BatonError]) -> None:
        """Nothing is counted."""

    def received(self, messages: Sequence[MessageFields]) -> None:
        """Nothing is counted."""


_OFF = Off()
active: Telemetry | None = None


def enable(*, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None) -> None:
    """Turn telemetry on, with the program's own providers or the global ones. Call it before a worker is started."""
    global active
    active = Telemetry(tracer_provider, meter_provider)


def disable() -> None:
    """Turn telemetry off."""
    global active
    active = None


def operation(
    name: str, queue: str, url: str, count: int = 1, messages: Sequence[MessageFields] = ()
) -> Operation | Off:
    """One operation of a client on a queue, for a `with` block around the request about these messages."""
    return _OFF if active is None else Operation(active, name, queue, url, count, messages)


class Telemetry:
    """The tracer and the instruments."""

    def __init__(self, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None) -> None:
        try:
            from opentelemetry import context, metrics, trace
        except ImportError as missing:
            raise InvalidInput(
                f"Telemetry needs the OpenTelemetry API: pip install 'batonq[otel]' ({missing})"
            ) from None
        self.otel = trace
        self.contexts = context
        self.tracer = trace.get_tracer("batonq", __version__, tracer_provider, SCHEMA_URL)
        meter = metrics.get_meter("batonq", __version__, meter_provider, SCHEMA_URL)
        self.operation_duration = meter.create_histogram(
            "messaging.client.operation.duration",
            unit="s",
            description="Duration of messaging operation initiated by a producer or consumer client.",
            explicit_bucket_boundaries_advisory=BUCKETS_S,
        )
        self.process_duration = meter.create_histogram(
            "messaging.process.duration",
            unit="s",
            description="Duration of processing operation.",
            explicit_bucket_boundaries_advisory=BUCKETS_S,
        )
        self.sent_messages = meter.create_counter(
            "messaging.client.sent.messages",
            unit="{message}",
            description="Number of messages producer attempted to send to the broker.",
        )
        self.consumed_messages = meter.create_counter(
            "messaging.client.consumed.messages",
            unit="{message}",
            description="Number of messages that were delivered to the application.",
        )
        self._processed: dict[str, SpanContext] = {}  # by receipt

    # --- contexts

    def ambient(self) -> SpanContext | None:
        """The context that the program is in: OpenTelemetry's, or the one of `batonq.client.tracing`."""
        found = self.otel.get_current_span().get_span_context()
        if found.is_valid:
            return found
        own = tracing.current.get()
        return None if own is None else self.parsed(own)

    def parsed(self, trace: TraceContext) -> SpanContext | None:
        """The context of a message; None if it is not a W3C trace context."""
        parts = trace.traceparent.split("-")
        try:
            _, trace_id, span_id, flags = parts
            found = self.otel.SpanContext(
                int(trace_id, 16),
                int(span_id, 16),
                is_remote=True,
                trace_flags=self.otel.TraceFlags(int(flags, 16)),
                trace_state=self.otel.TraceState.from_header([trace.tracestate]) if trace.tracestate else None,
            )
        except ValueError:
            return None
        return found if found.is_valid else None

    def inside(self, parent: SpanContext) -> Context:
        """The context of a child of `parent`."""
        return self.otel.set_span_in_context(self.otel.NonRecordingSpan(parent))

    def sampled(self, messages: Iterable[MessageFields]) -> list[SpanContext]:
        """The contexts of the messages that are sampled."""
        found = []
        for message in messages:
            if is_sampled(message.traceparent) and message.trace is not None:
                context = self.parsed(message.trace)
                if context is not None:
                    found.append(context)
        return found

    def links(self, contexts: Iterable[SpanContext]) -> list[Link]:
        return [self.otel.Link(context) for context in list(contexts)[:LINKS_MAX]]

    # --- the worker

    def around(self, call: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        """A handler that runs in a span of its own, a child of the span that sent the message."""

        async def process(given: Any) -> Any:
            messages: list[MessageFields] = given if isinstance(given, list) else [given]
            with Processing(self, messages):
                return await call(given)

        return process

    def processed(self, message: MessageFields, span: SpanContext) -> None:
        """Remember the span that processed a message until the message is settled."""
        if len(self._processed) < PROCESSED_MAX:
            self._processed[message.receipt] = span

    def settled(
        self,
        name: str,
        queue: str,
        messages: Sequence[MessageFields],
        outcomes: Sequence[BatonError | None],
        began_ns: int,
    ) -> None:
        """Spans of answers that a worker has sent in one request: one for each message that is sampled."""
        if not self._processed:
            return
        ended_ns = time.time_ns()
        for message, outcome in zip(messages, outcomes, strict=True):
            parent = self._processed.pop(message.receipt, None)
            if parent is None:
                continue
            attributes = {**_common(name, queue), "messaging.message.id": message.id}
            span = self.tracer.start_span(
                f"{name} {queue}", self.inside(parent), self.otel.SpanKind.CLIENT, attributes, start_time=began_ns
            )
            if outcome is not None:
                self.fail(span, outcome)
            span.end(ended_ns)

    def fail(self, span: Span, error: BaseException) -> None:
        span.set_attribute("error.type", error_type(error))
        span.set_status(self.otel.StatusCode.ERROR, str(error)[:500])


class Operation:
    """An operation that is measured. See `operation`."""

    __slots__ = (
        "_ambient",
        "_attributes",
        "_began_ns",
        "_count",
        "_messages",
        "_name",
        "_queue",
        "_span",
        "_started",
        "_telemetry",
    )

    def __init__(
        self, telemetry: Telemetry, name: str, queue: str, url: str, count: int, messages: Sequence[MessageFields]
    ) -> None:
        self._telemetry = telemetry
        self._name = name
        self._queue = queue
        self._count = count
        self._messages = messages
        self._attributes = {**_common(name, queue), **_server(url)}
        self._span: Span | None = None
        self._ambient = telemetry.ambient()
        self._began_ns = self._started = 0

    def __enter__(self) -> Self:
        self._began_ns, self._started = time.time_ns(), time.perf_counter_ns()
        if self._name == "send" and (self._ambient is None or self._ambient.trace_flags.sampled):
            self._span = self._start(self._ambient, self._telemetry.otel.SpanKind.PRODUCER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        telemetry = self._telemetry
        attributes = self._attributes if error is None else {**self._attributes, "error.type": error_type(error)}
        telemetry.operation_duration.record((time.perf_counter_ns() - self._started) / 1e9, attributes)
        if self._name == "send":
            telemetry.sent_messages.add(self._count, attributes)
        span = self._span if self._name == "send" else self._late_span(error)
        if span is not None:
            if error is not None:
                telemetry.fail(span, error)
            span.end()

    def context(self) -> TraceContext | None:
        """The context for the messages that this operation sends."""
        context = self._ambient if self._span is None else self._span.get_span_context()
        if context is None or not context.is_valid:
            return tracing.outgoing()
        return tracing.of_span(context)

    def sent(self, results: Sequence[Sent | BatonError]) -> None:
        """The server's answer to a send."""
        if self._span is not None and len(results) == 1 and not isinstance(results[0], BatonError):
            self._span.set_attribute("messaging.message.id", results[0].id)

    def received(self, messages: Sequence[MessageFields]) -> None:
        """The server's answer to a receive."""
        self._messages = messages
        self._count = len(messages)
        if messages:
            self._telemetry.consumed_messages.add(len(messages), self._attributes)

    def _late_span(self, error: BaseException | None) -> Span | None:
        """The span of a receive or an answer. An empty receive has none, nor has one whose messages are not sampled,
        unless the program is in a sampled span itself.
        """
        telemetry = self._telemetry
        contexts = telemetry.sampled(self._messages)
        parent = self._ambient if self._ambient is not None and self._ambient.trace_flags.sampled else None
        if parent is None:
            if not contexts:
                return None
            parent = contexts[0] if len(self._messages) == 1 else None
        elif self._name == "receive" and not self._messages and error is None:
            return None
        links = contexts if self._name == "receive" else [one for one in contexts if one != parent]
        return self._start(parent, telemetry.otel.SpanKind.CLIENT, links)

    def _start(self, parent: SpanContext | None, kind: SpanKind, links: Sequence[SpanContext] = ()) -> Span:
        telemetry = self._telemetry
        attributes = dict(self._attributes)
        if self._count > 1:
            attributes["messaging.batch.message_count"] = self._count
        elif len(self._messages) == 1:
            attributes["messaging.message.id"] = self._messages[0].id
        return telemetry.tracer.start_span(
            f"{self._name} {self._queue}",
            telemetry.inside(parent) if parent is not None else telemetry.contexts.Context(),
            kind,
            attributes,
            telemetry.links(links),
            self._began_ns,
        )


class Processing:
    """A handler's run, for one message or a batch."""

    __slots__ = ("_attributes", "_messages", "_span", "_started", "_telemetry", "_token")

    def __init__(self, telemetry: Telemetry, messages: Sequence[MessageFields]) -> None:
        self._telemetry = telemetry
        self._messages = messages
        self._attributes = _common("process", messages[0].queue)
        self._span: Span | None = None
        self._token: Any = None
        self._started = 0

    def __enter__(self) -> None:
        telemetry = self._telemetry
        messages = self._messages
        self._started = time.perf_counter_ns()
        contexts = telemetry.sampled(messages)
        trace = messages[0].trace if len(messages) == 1 else None
        parent = telemetry.parsed(trace) if trace is not None else None
        if parent is not None and not parent.trace_flags.sampled:
            self._token = telemetry.contexts.attach(telemetry.inside(parent))
            return
        if len(messages) > 1 and not contexts:
            return
        attributes: dict[str, Any] = dict(self._attributes)
        if len(messages) > 1:
            attributes["messaging.batch.message_count"] = len(messages)
        else:
            attributes["messaging.message.id"] = messages[0].id
            attributes["baton.message.receive_count"] = messages[0].receive_count
            if messages[0].dead_letter is not None:
                attributes["baton.dead_letter.queue"] = messages[0].dead_letter.queue
        self._span = span = telemetry.tracer.start_span(
            f"process {messages[0].queue}",
            telemetry.inside(parent) if parent is not None else telemetry.contexts.Context(),
            telemetry.otel.SpanKind.CONSUMER,
            attributes,
            telemetry.links(contexts if len(messages) > 1 else ()),
        )
        if span.is_recording():
            for message in messages:
                telemetry.processed(message, span.get_span_context())
        self._token = telemetry.contexts.attach(telemetry.otel.set_span_in_context(span))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        telemetry = self._telemetry
        attributes = self._attributes if error is None else {**self._attributes, "error.type": error_type(error)}
        telemetry.process_duration.record((time.perf_counter_ns() - self._started) / 1e9, attributes)
        if self._token is not None:
            telemetry.contexts.detach(self._token)
        if self._span is not None:
            if error is not None:
                self._span.record_exception(error)
                telemetry.fail(self._span, error)
            self._span.end()


def _common(name: str, queue: str) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": _TYPES.get(name, name),
        "messaging.destination.name": queue,
    }


@lru_cache(maxsize=64)
def _server(url: str) -> Mapping[str, Any]:
    """The server's address; none for queues in the same process."""
    parts = urlsplit(url)
    if not parts.hostname:
        return {}
    return {"server.address": parts.hostname, "server.port": parts.port or (443 if parts.scheme == "https" else 80)}


def is_sampled(traceparent: str | None) -> bool:
    """The sampled flag of a W3C `traceparent`."""
    return bool(traceparent) and str(traceparent)[-1] in "13579bdf"


def error_type(error: BaseException) -> str:
    """A value of `error.type` with few different values: a code of Baton, or the class."""
    return error.code if isinstance(error, BatonError) else type(error).__qualname__
