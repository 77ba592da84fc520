"""A thousand queues with one long poll each, and nothing to deliver."""

from __future__ import annotations

import resource
import threading
import time

from bench.clients import BenchError, Flow, drive
from bench.context import Context
from bench.flows import Work
from bench.machine import CpuTimes
from bench.report import Sample

_QUEUES = 1_000
_SPARE_FILES = 100
_WAIT_S = 20
_LEAD_S = 3.0


def idle(context: Context) -> None:
    """Each poll waits 20 s and is sent again; the server's share of one core, from /proc."""
    allow_files(_QUEUES * 2 + _SPARE_FILES)
    server = context.servers.baton()
    works = [server.work() for _ in range(_QUEUES)]
    seconds = float(context.size(60, 20))
    finish = time.perf_counter() + _LEAD_S + seconds
    flows = [_poll_until(work, finish) for work in works]
    polls = threading.Thread(target=_poll, args=(works[0], flows))
    polls.start()
    time.sleep(_LEAD_S)  # setting up the connections and first polls does not count as idle
    times = CpuTimes.now()
    before = server.cpu_us()
    time.sleep(seconds)
    percent = (server.cpu_us() - before) / (seconds * 1e6) * 100
    sample: Sample = {"percent of a core": percent, "steal %": CpuTimes.now().steal_percent_since(times)}
    server.discard()
    polls.join()
    report = context.report
    report.table("idle", f"{_QUEUES:,} queues with a long poll each", {"Baton": [sample]}, "percent of a core")
    report.bar("idle", f"percent of a core for {_QUEUES:,} waiting long polls", percent, 3, at_least=False)


def _poll(work: Work, flows: list[Flow]) -> None:
    try:
        drive(work.port, work.complete, flows)
    except (BenchError, OSError):
        pass  # the server is killed while it still holds polls


def _poll_until(work: Work, finish: float) -> Flow:
    while time.perf_counter() < finish:
        work.receipts((yield work.receive(1, wait_s=_WAIT_S)))


def allow_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))
