"""The effect of history readers on the queue: single messages, alone and with readers at their limit."""

from __future__ import annotations

import http.client
import itertools
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench import bodies
from bench.context import Context, run_flows, send_all, supply
from bench.flows import Tally, life_of_one_flow
from bench.machine import CpuTimes
from bench.report import Sample
from bench.sections.latency import quantiles

_CONNECTIONS = 4
_READERS = 4
_BODIES = 64
_LEAD_S = 3.0
_PIECE_BYTES = 8 << 20
_SERVED = re.compile(rb"^baton_history_bytes_total (\d+)$", re.MULTILINE)


@dataclass(slots=True, frozen=True)
class _Company:
    name: str
    readers: int


def readers(context: Context) -> None:
    """Send, receive and delete single messages on 4 connections, while four processes read all history repeatedly."""
    server = context.servers.baton()
    filled = server.work()
    send_all(filled, supply(filled, bodies.documents(200), context.size(200_000, 40_000)), 16)
    count = context.size(16_000, 4_000)

    def measure(company: _Company) -> Sample:
        work = server.work()
        prepared = [work.prepare_one(text) for text in bodies.documents(_BODIES)]
        singles = itertools.islice(itertools.cycle(prepared), count)
        tally = Tally()
        with _reading(server.port, company.readers):
            times, served, started = CpuTimes.now(), _served(server.port), time.perf_counter()
            run_flows(work, lambda: life_of_one_flow(work, singles, tally), _CONNECTIONS)
            seconds = time.perf_counter() - started
            sample: Sample = {"history MB/s": (_served(server.port) - served) / 1e6 / seconds}
        for what in ("send", "receive", "delete"):
            sample |= quantiles(what, tally.latencies_s[what])
        return sample | {"steal %": CpuTimes.now().steal_percent_since(times)}

    samples = context.interleave([_Company("alone", 0), _Company("with readers", _READERS)], measure)
    server.discard()
    title = f"one message at a time, {_CONNECTIONS} connections, alone and beside {_READERS} readers of history"
    table = context.report.table("readers", title, samples, "send p99 µs")
    for what in ("send", "receive"):
        ratio = table.ratio("with readers", "alone", f"{what} p99 µs")
        context.report.bar("readers", f"p99 of a single {what}, with readers ÷ alone", ratio, 2.0, at_least=False)


@contextmanager
def _reading(port: int, count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-m", "bench.sections.readers", str(port)]) for _ in range(count)]
    if processes:
        time.sleep(_LEAD_S)  # the initial burst that they may read is used up then
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _served(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics")
    found = _SERVED.search(connection.getresponse().read())
    connection.close()
    return int(found[1]) if found else 0


def read_in_circles(port: int) -> None:
    """Read the node's whole history repeatedly, as fast as it is served; the data is discarded."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    frame = 1
    while True:
        connection.request("GET", f"/v1/history/0?from={frame}&max_bytes={_PIECE_BYTES}")
        answer = connection.getresponse()
        answer.read()
        if answer.status == 429:
            time.sleep(float(answer.headers["Retry-After"]))
            continue
        following = int(answer.headers["Baton-Next-Frame"])
        frame = following if following > frame else 1


if __name__ == "__main__":
    read_in_circles(int(sys.argv[1]))
