"""The benchmark of the metrics: both servers do the same work, and only one of them measures it."""

from __future__ import annotations

from pathlib import Path

from batonq.api.http.server import HttpCounters
from batonq.node.monitoring.histogram import Histogram
from bench import unmeasured
from bench.sections import metrics
from bench.servers import Servers

MESSAGES = 100


def test_both_servers_do_the_work(tmp_path: Path) -> None:
    with Servers(tmp_path) as servers:
        measured, unmeasured = metrics.contestants_of(servers)
        for server in (measured, unmeasured):
            sample = metrics.measure(server, server.work(), MESSAGES, connections=2, batch=10)
            assert sample[metrics.CPU] > 0
        assert metrics.scraped(measured) > metrics.scraped(unmeasured), "the other one has counted no message"


def test_counting_is_switched_off_and_on_again() -> None:
    histogram, counters = Histogram(), HttpCounters()
    try:
        for on, count in ((False, 0), (True, 1)):
            unmeasured.count(on)
            histogram.observe(1.0)
            counters.sent("GET", b"HTTP/1.1 200 OK")
            assert (histogram.count, len(counters.responses)) == (count, count)
    finally:
        unmeasured.count(True)
