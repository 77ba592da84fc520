"""What a worker counts, and how Prometheus reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

DOCS: Mapping[str, str] = {
    "received": "Messages received.",
    "acked": "Messages handled and acknowledged.",
    "retried": "Messages whose handler failed, given back for another try.",
    "poisoned": "Messages sent to the dead-letter queue as poison.",
    "refused": "Late acknowledgements that the broker refused, because the lease was not ours any more.",
    "leases_lost": "Leases lost while the handler was still at work.",
    "deadlines": "Handlers that were still at work at their message's deadline.",
    "crashes": "Handler processes that died under a message.",
    "extended": "Leases extended by the heartbeat.",
    "released": "Messages given back untried: the worker stopped, a rate left no room, or another holder had the key.",
    "misrouted": "Messages that came by another lane than their tier's.",
    "polls": "Receives that were answered.",
    "handler_seconds": "Seconds that slots were at work.",
}


class Counters:
    """One task's counts; plain attributes, since every message passes here."""

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
        """Slots that are at work now."""
        return self._running()


def exposition(counters: Iterable[Counters]) -> str:
    """Prometheus text, version 0.0.4."""
    tasks = list(counters)
    lines = []
    for name, doc in DOCS.items():
        full = f"baton_worker_{name}_total"
        lines += [f"# HELP {full} {doc}", f"# TYPE {full} counter"]
        lines += [f'{full}{{task="{_escaped(each.task)}"}} {getattr(each, name):.10g}' for each in tasks]
    lines += ["# HELP baton_worker_running Slots that are at work now.", "# TYPE baton_worker_running gauge"]
    lines += [f'baton_worker_running{{task="{_escaped(each.task)}"}} {each.running}' for each in tasks]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
