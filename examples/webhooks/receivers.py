"""Receivers for the demonstration: one works, one fails for a while, one always fails."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from examples.webhooks.signing import ID_HEADER, SIGNATURE_HEADER, problem


class Receiver:
    """A correct receiver: it checks the signature and ignores events that it has already handled."""

    def __init__(self, secret: bytes, is_up: Callable[[], bool]) -> None:
        self._secret = secret
        self._is_up = is_up
        self._lock = threading.Lock()
        self.handled: Counter[str] = Counter()  # by event ID: how often the event took effect
        self.tries: Counter[str] = Counter()
        self.handled_at_s: dict[str, float] = {}
        self.absorbed = 0
        self.refused = 0

    def take(self, event_id: str, body: bytes, header: str) -> int:
        """The status of the response."""
        if problem(self._secret, event_id, body, header, time.time()):
            self.refused += 1
            return 401
        with self._lock:
            self.tries[event_id] += 1
            is_up = self._is_up()
            # While failing, some events are handled and only the response is lost, so the retry is a duplicate.
            if not is_up and (self.tries[event_id] > 1 or len(self.tries) % 3):
                return 503
            self._handle(event_id)
        return 204 if is_up else 500

    def _handle(self, event_id: str) -> None:
        if event_id in self.handled:
            self.absorbed += 1
            return
        self.handled[event_id] += 1
        self.handled_at_s[event_id] = time.time()


class Silent(Receiver):
    """This receiver is gone, and only its proxy responds."""

    def take(self, event_id: str, body: bytes, header: str) -> int:
        with self._lock:
            self.tries[event_id] += 1
        return 502


@contextmanager
def serving(receivers: dict[str, Receiver]) -> Iterator[str]:
    """Serve all receivers on one free port, by path; yields the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver = receivers[self.path.strip("/")]
            status = receiver.take(self.headers[ID_HEADER], body, self.headers[SIGNATURE_HEADER])
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """The story prints what matters."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="receivers")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
