"""The counters of a worker, and their Prometheus format."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping

DOCS: Mapping[str, str] = {
    "received": "Number of messages received.",
    "acked": "Number of messages handled and acknowledged.",
    "retried": "Number of messages whose handler failed and that were nacked for a retry.",
    "dead_lettered": "Number of messages that failed for good: as poison, or at their last attempt.",
    "refused": "Number of late acks that the broker refused because the lease was lost.",
    "leases_lost": "Number of leases lost while the handler was running.",
    "deadlines": "Number of handlers that were still running at their message's deadline.",
    "crashes": "Number of handler processes that died while processing a message.",
    "extended": "Number of leases extended by the heartbeat.",
    "released": (
        "Number of messages released untried: the worker stopped, a rate limit was reached, or another consumer "
        "had the key."
    ),
    "misrouted": "Number of messages that arrived in a lane of another tier.",
    "polls": "Number of completed receives.",
    "handler_seconds": "Total time that slots were busy, in seconds.",
}


# Upper bounds in seconds.
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
DURATIONS = "baton_worker_handler_duration_seconds"
DURATIONS_DOC = "Time that handlers took, done or failed; for batch handlers per batch."


class Histogram:
    """Durations, counted by bucket."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)  # not cumulative
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def lines(self, name: str, label: str) -> list[str]:
        """In the Prometheus text format."""
        lines, total = [], 0
        for bound, count in zip((*BUCKETS_S, float("inf")), self.counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{{label},le="{"+Inf" if bound == float("inf") else f"{bound:g}"}"}} {total}')
        return [*lines, f"{name}_sum{{{label}}} {self.sum_s:.10g}", f"{name}_count{{{label}}} {total}"]


class Counters:
    """The counters of one task. Plain attributes, because every message updates them."""

    __slots__ = (*DOCS, "_running", "handler_durations", "task")

    def __init__(self, task: str, running: Callable[[], int]) -> None:
        self.task = task
        self._running = running
        self.received = self.acked = self.retried = self.dead_lettered = self.refused = 0
        self.leases_lost = self.deadlines = self.crashes = self.extended = self.released = 0
        self.misrouted = self.polls = 0
        self.handler_seconds = 0.0
        self.handler_durations = Histogram()

    @property
    def running(self) -> int:
        """Number of slots that are busy now."""
        return self._running()


def exposition(counters: Iterable[Counters]) -> str:
    """The counters in the Prometheus text format, version 0.0.4."""
    tasks = list(counters)
    lines = []
    for name, doc in DOCS.items():
        full = f"baton_worker_{name}_total"
        lines += [f"# HELP {full} {doc}", f"# TYPE {full} counter"]
        lines += [f'{full}{{task="{_escaped(each.task)}"}} {getattr(each, name):.10g}' for each in tasks]
    lines += ["# HELP baton_worker_running Number of busy slots.", "# TYPE baton_worker_running gauge"]
    lines += [f'baton_worker_running{{task="{_escaped(each.task)}"}} {each.running}' for each in tasks]
    lines += [f"# HELP {DURATIONS} {DURATIONS_DOC}", f"# TYPE {DURATIONS} histogram"]
    for each in tasks:
        lines += each.handler_durations.lines(DURATIONS, f'task="{_escaped(each.task)}"')
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
