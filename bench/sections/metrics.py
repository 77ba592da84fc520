"""What metrics and time series cost: a server with them beside one without, on the same work in one run.

Server CPU per message, for batches of ten over SQS, for single messages, and for batches of 500 over REST. The server
with metrics is scraped every 15 s, as Prometheus does by default.
"""

from __future__ import annotations

import http.client
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from bench import bodies
from bench.context import Context
from bench.flows import Work
from bench.report import Sample
from bench.sections.throughput import life_of
from bench.servers import Server, Servers, answers_readyz

WITH, WITHOUT = "with metrics", "without"
CPU = "server µs/message"
RATIO_MAX = 1.05
SCRAPE_S = 15.0


def contestants_of(servers: Servers) -> list[Server]:
    def command(port: int, directory: Path) -> list[str]:
        serve = [sys.executable, "-m", "bench.unmeasured", "serve", "--port", str(port)]
        return [*serve, "--data", str(directory / "data")]

    measured = servers.baton()
    measured.name = WITH
    return [measured, servers.start(WITHOUT, command, answers_readyz)]


def scraped(server: Server) -> int:
    """Read /metrics once. Returns the number of lines."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read()
    connection.close()
    return text.count(b"\n")


class Scraper:
    """Scrapes a server every SCRAPE_S, on a thread, while it is measured."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scraper", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(SCRAPE_S):
            scraped(self._server)


def measure(server: Server, work: Work, messages: int, connections: int, batch: int) -> Sample:
    return life_of(server, work, bodies.documents(max(batch, 200)), messages, connections, batch)


def metrics(context: Context) -> None:
    """All three kinds of work."""
    contestants = contestants_of(context.servers)
    with Scraper(contestants[0]):
        _measure_all(context, contestants)


def _measure_all(context: Context, contestants: list[Server]) -> None:
    sqs: Callable[[Server], Work] = Server.work
    for what, make, full, quick, connections, batch in (
        ("SQS by 10 × 1 KiB, 16 connections", sqs, 40_000, 10_000, 16, 10),
        ("SQS one by one, 16 connections", sqs, 10_000, 2_000, 16, 1),
        ("REST by 500 × 1 KiB, 1 connection", Server.rest, 100_000, 20_000, 1, 500),
    ):
        messages = context.size(full, quick)
        samples = context.interleave(
            contestants,
            lambda server, m=make, n=messages, c=connections, b=batch: measure(server, m(server), n, c, b),  # type: ignore[misc]
        )
        table = context.report.table("metrics", f"send, receive, delete, {what}", samples, CPU)
        ratio = table.ratio(WITH, WITHOUT, CPU)
        context.report.bar(
            "metrics", f"server CPU per message, {what}, with ÷ without", ratio, RATIO_MAX, at_least=False
        )
