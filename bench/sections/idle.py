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
_PERCENT = "percent of a core"


def idle(context: Context) -> None:
    """Each poll waits 20 s and is sent again; the server's share of one core, over periods of 20 s.

    With another revision, both servers are measured at the same time.
    """
    builds = context.servers.builds
    allow_files(_QUEUES * 2 * len(builds) + _SPARE_FILES)
    servers = {build: context.servers.baton(build=build) for build in builds}
    works = {build: [server.work() for _ in range(_QUEUES)] for build, server in servers.items()}
    periods = context.size(3, 1)
    finish = time.perf_counter() + _LEAD_S + periods * _WAIT_S
    threads = []
    for each in works.values():
        flows = [_poll_until(work, finish) for work in each]
        threads.append(threading.Thread(target=_poll, args=(each[0], flows)))
        threads[-1].start()
    time.sleep(_LEAD_S)  # setting up the connections and first polls does not count as idle
    samples: dict[str, list[Sample]] = {build: [] for build in builds}
    for _ in range(periods):
        times = CpuTimes.now()
        before_us = {build: server.cpu_us() for build, server in servers.items()}
        time.sleep(_WAIT_S)
        steal = CpuTimes.now().steal_percent_since(times)
        for build, server in servers.items():
            percent = (server.cpu_us() - before_us[build]) / (_WAIT_S * 1e6) * 100
            samples[build].append({_PERCENT: percent, "steal %": steal})
    for server in servers.values():
        server.discard()
    for thread in threads:
        thread.join()
    report = context.report
    table = report.table("idle", f"{_QUEUES:,} queues with a long poll each", samples, _PERCENT)
    text = f"{_PERCENT} for {_QUEUES:,} waiting long polls"
    report.bar("idle", text, table.median("Baton", _PERCENT), 3, at_least=False)
    if len(builds) > 1:
        report.no_worse("idle", text, table.ratio("Baton", "before", _PERCENT))


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
