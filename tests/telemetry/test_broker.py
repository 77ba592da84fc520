"""Spans of the broker: only for sampled messages, exported on a thread, bounded, and counted."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from batonq.client import Outgoing, TraceContext
from batonq.errors import InvalidInput
from batonq.node.monitoring import tracing
from batonq.node.settings import Settings
from batonq.sync import Baton
from batonq.testing import memory
from tests.system.process import ServerProcess
from tests.telemetry.support import TracedBroker, attributes, parent_of, trace_of

SAMPLED = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1")
UNSAMPLED = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
XRAY = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"


def test_only_sampled_messages_get_spans() -> None:
    with memory() as baton:
        broker = TracedBroker(baton._node_thread.inner.node)
        jobs = baton.create_queue("jobs")
        wide = baton.create_queue("wide", spread=1)
        jobs.send_many([Outgoing("quiet"), Outgoing("unsampled", traceparent=UNSAMPLED.traceparent)])
        assert len(jobs.receive(wait=0)) == 2
        jobs.send_many(
            [
                Outgoing("quiet"),
                Outgoing("sampled", traceparent=SAMPLED.traceparent, tracestate=SAMPLED.tracestate),
                Outgoing("too", traceparent=SAMPLED.traceparent),
            ]
        )
        baton.clock.advance(7)
        assert len(jobs.receive(wait=0)) == 3
        wide.send_many([Outgoing("by pattern", traceparent=SAMPLED.traceparent)])
        assert [message.body for message in baton.receive(["wi*"], wait=0)] == ["by pattern"]
        send, wait, too = [span for span in broker.spans() if "jobs" in span.name]
        assert (send.name, attributes(send)["messaging.batch.message_count"]) == ("send jobs", 3)
        assert {span.name for span in (wait, too)} == {"wait jobs"}
        for span in (send, wait, too):
            assert (trace_of(span), parent_of(span)) == (SAMPLED.trace_id, SAMPLED.span_id)
        assert attributes(wait)["baton.queue.wait_seconds"] == pytest.approx(7, abs=1)
        assert wait.start_time is not None and wait.end_time is not None
        assert (wait.end_time - wait.start_time) / 1e9 == pytest.approx(7, abs=1)
        found = [span.name for span in broker.exporter.get_finished_spans() if "wide" in span.name]
        assert sorted(found) == ["send wide", "wait wide"]


def test_a_refused_send_is_an_error() -> None:
    with memory() as baton:
        broker = TracedBroker(baton._node_thread.inner.node)
        jobs = baton.create_queue("jobs")
        jobs.send("first", dedup_key="k")
        (refused,) = jobs.send_many([Outgoing("second", dedup_key="k", traceparent=SAMPLED.traceparent)])
        assert isinstance(refused, Exception)
        (span,) = broker.spans()
        assert attributes(span)["error.type"] == "deduplication_conflict" and not span.status.is_ok


def test_other_contexts_are_not_understood_and_do_no_harm() -> None:
    with memory() as baton:
        node = baton._node_thread.inner.node
        broker = TracedBroker(node)
        assert node.broker.tracing is not None
        for trace in (XRAY, "", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"):
            assert node.broker.tracing._parsed(trace) is None
        assert broker.spans() == []


# --- the export


class Collector(SpanExporter):
    """Accepts what it is told to, when it is told to."""

    def __init__(self, result: SpanExportResult | Exception = SpanExportResult.SUCCESS) -> None:
        self.result = result
        self.go_on = threading.Event()
        self.batches: list[int] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        assert self.go_on.wait(60)
        self.batches.append(len(spans))
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def span() -> ReadableSpan:
    return ReadableSpan("wait jobs")


def test_spans_that_do_not_fit_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "SPANS_WAITING_MAX", 10)
    collector = Collector()
    export = tracing.Export(collector)
    for _ in range(50):
        export.add(span())
    collector.go_on.set()
    export.close()
    # The thread may have taken up to ten before it waited for the collector.
    assert export.exported + export.dropped == 50 and 10 <= export.exported <= 20 and export.failed == 0


@pytest.mark.parametrize("result", [SpanExportResult.FAILURE, RuntimeError("away")])
def test_a_collector_that_fails_is_counted_and_logged_once(
    result: SpanExportResult | Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr("batonq.node.events.warning", lambda kind, text, **fields: told.append(text))
    monkeypatch.setattr(tracing, "PAUSE_S", 0.0)
    monkeypatch.setattr(tracing, "SPANS_PER_EXPORT_MAX", 1)
    collector = Collector(result)
    export = tracing.Export(collector)
    for _ in range(3):
        export.add(span())
    collector.go_on.set()
    export.close()
    assert export.failed == 3 and collector.batches == [1, 1, 1]
    assert sum("does not accept spans" in text for text in told) == 1


# --- a real server and a real collector


class Receiver(http.server.BaseHTTPRequestHandler):
    requests: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        self.requests.append((self.path, body))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


def test_a_server_exports_over_otlp(tmp_path: Path) -> None:
    Receiver.requests = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{collector.server_address[1]}"
        with ServerProcess(tmp_path, "--otlp-endpoint", endpoint) as server, Baton(server.url) as baton:
            jobs = baton.create_queue("jobs")
            jobs.send_many([Outgoing("x", traceparent=SAMPLED.traceparent)])
            jobs.receive(wait=0)
            ends = time.monotonic() + 60
            spans: list[Any] = []
            while len(spans) < 2 and time.monotonic() < ends:
                time.sleep(0.05)
                spans = [
                    span
                    for _, body in list(Receiver.requests)
                    for resource in ExportTraceServiceRequest.FromString(body).resource_spans
                    for scope in resource.scope_spans
                    for span in scope.spans
                ]
            assert {path for path, _ in Receiver.requests} == {"/v1/traces"}
            assert sorted(span.name for span in spans) == ["send jobs", "wait jobs"]
            assert {span.trace_id.hex() for span in spans} == {SAMPLED.trace_id}
            assert {span.parent_span_id.hex() for span in spans} == {SAMPLED.span_id}
        collector.shutdown()


def test_the_endpoint_must_be_a_url() -> None:
    with pytest.raises(InvalidInput, match="--otlp-endpoint must be an http or https URL, not 'collector:4318'"):
        Settings(otlp_endpoint="collector:4318").check()
