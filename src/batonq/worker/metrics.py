"""The counters of a worker, and their Prometheus format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

DOCS: Mapping[str, str] = {
    "received": "Number of messages received.",
    "acked": "Number of messages handled and acknowledged.",
    "retried": "Number of messages whose handler failed and that were nacked for a retry.",
    "poisoned": "Number of messages dead-lettered as poison.",
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


class Counters:
    """The counters of one task. Plain attributes, because every message updates them."""

    __slots__ = (*DOCS, "_running", "task")

    def __init__(self, task: str, running: Callable[[], int]) -> None:
        self.task = task
        self._running = running
        self.received = self.acked = self.retried = self.poisoned = self.refused = 0
        self.leases_lost = self.deadlines = self.crashes = self.extended = self.released = 0
        self.misrouted = self.polls = 0
        self.handler_seconds = 0.0

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
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
