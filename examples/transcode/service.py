"""Serves the upload service on a free port with the standard library's server. Any WSGI server works."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from batonq import sync
from batonq.web import Depth, Rule, ShedLoadWSGI
from examples.transcode.database import Database
from examples.transcode.links import Links
from examples.transcode.objects import ObjectStore
from examples.transcode.plan import LANES, THUMBNAIL_SLO_S
from examples.transcode.uploads import Uploads

DRAIN_RATE = 15.0  # images per second that the workers of one small machine can process
HIGH_WATER = int(DRAIN_RATE * THUMBNAIL_SLO_S)  # more images cannot be processed in time, so they are refused


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """The story prints what matters."""


@contextmanager
def serving(baton_url: str, database: Database, objects: ObjectStore) -> Iterator[str]:
    """Yields the URL. New uploads get 429 while the lanes are too deep; uploads in progress may finish."""
    with sync.Baton(baton_url) as baton:
        depth = Depth(lambda: sum(baton.queue(lane).stats().depth for lane in LANES), refresh=1.0)
        uploads = Uploads(database, objects, Links(secrets.token_bytes(32)))
        application = ShedLoadWSGI(uploads, depth, [Rule(HIGH_WATER, "/uploads", drain_rate=DRAIN_RATE)])
        with make_server("127.0.0.1", 0, application, _Server, _Quiet) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="uploads")
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}"
            finally:
                server.shutdown()
                thread.join()
                depth.close()
