"""Spans and metrics in memory, for client and worker, and for the broker of an embedded node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler

from batonq import telemetry
from batonq.node.monitoring.tracing import BrokerTracing, Export
from batonq.node.node import Node

BODY = {"order": 7}


class Collected:
    """What a program has told OpenTelemetry."""

    def __init__(self, sampler: Sampler) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)

    @property
    def spans(self) -> list[ReadableSpan]:
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def points(self, metric: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        if data is None:
            return []
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for found in scope.metrics
            if found.name == metric
            for point in found.data.data_points
        ]


@pytest.fixture
def collected(request: pytest.FixtureRequest) -> Iterator[Collected]:
    """Telemetry for the whole program; everything is sampled unless the test asks for another sampler."""
    made = Collected(getattr(request, "param", ParentBased(ALWAYS_ON)))
    telemetry.enable(tracer_provider=made.tracers, meter_provider=made.meters)
    try:
        yield made
    finally:
        telemetry.disable()
        made.tracers.shutdown()
        made.meters.shutdown()


class TracedBroker:
    """Adds spans to a running node; `spans()` ends the export and returns them."""

    def __init__(self, node: Node) -> None:
        self.exporter = InMemorySpanExporter()
        self.export = Export(self.exporter)
        self._node = node
        node.broker.tracing = BrokerTracing(self.export, "here", node.clock.now_ms)

    def spans(self) -> list[ReadableSpan]:
        self._node.broker.tracing = None
        finished = self.exporter
        self.export.close()
        return sorted(finished.get_finished_spans(), key=lambda span: span.start_time or 0)


def parent_of(span: ReadableSpan) -> str:
    assert span.parent is not None
    return f"{span.parent.span_id:016x}"


def id_of(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    return f"{context.span_id:016x}"


def trace_of(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    return f"{context.trace_id:032x}"


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})
