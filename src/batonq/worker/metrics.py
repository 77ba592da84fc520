"""What a worker counts, and the page that shows it to Prometheus."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

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
    "released": "Messages given back unhandled, because the worker stopped or a rate left no room.",
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

    def values(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in DOCS}


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


class MetricsPage:
    """GET /metrics on a thread of its own, so that it answers while a handler blocks the event loop."""

    def __init__(self, text: Callable[[], str], host: str, port: int) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.path.partition("?")[0] in ("/", "/metrics")
                body = text().encode() if known else b"The metrics are at /metrics.\n"
                self.send_response(200 if known else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Scrapes are not news."""

        self._server = http.server.ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="baton-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
