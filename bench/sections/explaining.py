"""How long it takes to look into a deep queue: explain it, explain one message, and peek at its messages.

The requests go to a server that is otherwise idle, one at a time, and no counter of the queue may change.
"""

from __future__ import annotations

import http.client
import json
import time
from typing import Any

from bench.clients import BenchError
from bench.context import Context
from bench.report import Sample
from bench.sections.backlog import Filled, deep_queues, fill

LIMIT_MS = 50.0
_REQUESTS = 20
_STATISTICS = ("visible", "inFlight", "delayed", "sent", "received", "deleted", "returned")


class _Look:
    """One connection to a server with a deep queue."""

    def __init__(self, filled: Filled) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", filled.server.port, timeout=60)
        self.queue = str(getattr(filled.work, "url", "")).rpartition("/")[2]

    def get(self, path: str) -> Any:
        self._connection.request("GET", f"/v1/queues/{self.queue}{path}")
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise BenchError(f"{path}: {answer.status} {body[:200]!r}")
        return json.loads(body)

    def slowest_ms(self, path: str) -> Sample:
        times = []
        for _ in range(_REQUESTS):
            started = time.perf_counter()
            self.get(path)
            times.append((time.perf_counter() - started) * 1000)
        return {"median ms": sorted(times)[_REQUESTS // 2], "slowest ms": max(times)}

    def counters(self) -> list[int]:
        stats = self.get("/stats")
        return [stats[name] for name in _STATISTICS]

    def close(self) -> None:
        self._connection.close()


def explaining(context: Context) -> None:
    """A standard queue with 2,000,000 messages, and a FIFO queue with 200,000 in 10,000 groups."""
    deep = deep_queues(context)["Baton"]
    _measure(context, deep, f"{deep.waiting:,} waiting")
    context.release_deep()
    fifo = fill(context, "Baton", context.size(200_000, 40_000), context.size(10_000, 2_000))
    _measure(context, fifo, f"FIFO, {fifo.waiting:,} waiting in {fifo.groups:,} groups")
    fifo.server.discard()


def _measure(context: Context, filled: Filled, what: str) -> None:
    look = _Look(filled)
    before = look.counters()
    first = look.get("/messages?limit=1")["messages"][0]
    middle = look.get(f"/messages?limit=1&after={first['sequence'] + filled.waiting // 2}")["messages"][0]
    last = first["sequence"] + filled.waiting - 20
    paths = {
        "explain the queue": ":explain",
        "explain a message": f"/messages/{middle['messageId']}",
        "peek at the front": "/messages?limit=10",
        "peek at the end": f"/messages?limit=10&after={last}",
    }
    samples = {name: [look.slowest_ms(path)] for name, path in paths.items()}
    changed = look.counters() != before
    look.close()
    context.report.table("explain", f"looking into a queue, {what}", samples, "slowest ms")
    for name, (sample,) in samples.items():
        context.report.bar("explain", f"{name}, slowest ms, {what}", sample["slowest ms"], LIMIT_MS, at_least=False)
    context.report.bar("explain", f"counters that changed, {what}", float(changed), 0, at_least=False)
