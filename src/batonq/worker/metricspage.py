"""The /metrics page of a worker; a separate module, because few workers need a web server."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable
from typing import Any


class MetricsPage:
    """GET /metrics on its own thread, so that it answers while a handler blocks the event loop."""

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
