"""The metrics of the front doors: HTTP, SQS, SNS and REST."""

from __future__ import annotations

from collections.abc import Mapping

from batonq.api.http import HttpServer
from batonq.api.rest import RestApp
from batonq.api.sns import SnsApp
from batonq.api.sqs import SqsApp
from batonq.node.monitoring import metrics
from batonq.node.monitoring.exposition import Families, HistogramSample, histograms, label, many, one
from batonq.node.monitoring.histogram import Histogram


def front_metrics(server: HttpServer, sqs: SqsApp, sns: SnsApp, rest: RestApp) -> Families:
    counters = server.counters
    limits = server.limits
    responses = {
        f"{label('method', method)},{label('status', status.decode('latin-1'))}": count
        for (method, status), count in sorted(counters.responses.items())
    }
    return [
        one(metrics.HTTP_CONNECTIONS, server.connections_open),
        one(metrics.HTTP_REQUESTS, counters.requests),
        many(metrics.HTTP_RESPONSES, responses.items()),
        one(metrics.HTTP_RECEIVED, counters.received_bytes),
        one(metrics.HTTP_SENT, counters.sent_bytes),
        one(metrics.HTTP_REFUSED, counters.refused_requests),
        one(metrics.HTTP_REFUSED_CONNECTIONS, counters.refused_connections),
        one(metrics.HTTP_FAILURES, counters.failures),
        many(metrics.SQS_CALLS, _by("operation", sqs.calls)),
        many(metrics.SQS_ERRORS, _by("code", dict(sorted(sqs.errors.items())))),
        histograms(metrics.SQS_SECONDS, _timed(sqs.timers)),
        many(metrics.SNS_CALLS, _by("operation", sns.calls)),
        many(metrics.SNS_ERRORS, _by("code", dict(sorted(sns.errors.items())))),
        histograms(metrics.SNS_SECONDS, _timed(sns.timers)),
        many(metrics.REST_CALLS, _by("operation", rest.calls)),
        many(metrics.REST_ERRORS, _by("code", dict(sorted(rest.errors.items())))),
        histograms(metrics.REST_SECONDS, _timed(rest.timers)),
        many(
            metrics.LIMIT,
            [(_LIMIT_CONNECTIONS, limits.connections_max), (_LIMIT_REQUEST_BYTES, limits.requests_bytes_max)],
        ),
        many(
            metrics.LIMIT_USED,
            [(_LIMIT_CONNECTIONS, server.connections_open), (_LIMIT_REQUEST_BYTES, server.usage.bytes_held)],
        ),
    ]


_LIMIT_CONNECTIONS = 'limit="connections"'
_LIMIT_REQUEST_BYTES = 'limit="request_bytes"'


def _by(name: str, counted: Mapping[str, int]) -> list[tuple[str, float]]:
    return [(label(name, value), count) for value, count in counted.items()]


def _timed(timers: Mapping[str, Histogram]) -> list[HistogramSample]:
    """The histograms of the operations that were called."""
    return [
        HistogramSample(label("operation", name), timer.counts, timer.seconds)
        for name, timer in timers.items()
        if any(timer.counts)
    ]
