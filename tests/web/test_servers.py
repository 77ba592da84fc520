"""The middleware behind real web servers: uvicorn for ASGI, wsgiref for WSGI."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.validate import validator

import pytest
import uvicorn

from batonq.errors import Unavailable
from batonq.web import AsyncDepth, Depth, Rule, ShedLoadASGI, ShedLoadWSGI

WAIT_S = 120.0
RULES = [Rule(100, "/free/*", at=0.5, drain_rate=10), Rule(100, "/paid/*")]


class Queue:
    """A depth that a test sets."""

    def __init__(self) -> None:
        self.depth = 0
        self.down = False

    def read(self) -> int:
        if self.down:
            raise Unavailable("down")
        return self.depth

    async def aread(self) -> int:
        return self.read()


class Answer:
    def __init__(self, port: int, method: str, path: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        try:
            connection.request(method, path, b"{}" if method == "POST" else None)
            response = connection.getresponse()
            self.status = response.status
            self.headers = {name.lower(): value for name, value in response.getheaders()}
            self.body = response.read()
        finally:
            connection.close()


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    await send({"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"8")]})
    await send({"type": "http.response.body", "body": b"accepted"})


def wsgi_app(environ: Any, start_response: Any) -> Any:
    start_response("202 Accepted", [("Content-Type", "text/plain"), ("Content-Length", "8")])
    return [b"accepted"]


class Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        pass


class Uvicorn(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, app: Any) -> None:
        super().__init__(uvicorn.Config(app, port=0, log_level="error", lifespan="on", ws="none"))
        self.listening = threading.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.listening.set()


@contextmanager
def serve_asgi(app: Any) -> Iterator[int]:
    server = Uvicorn(app)
    thread = threading.Thread(target=server.run)
    thread.start()
    assert server.listening.wait(WAIT_S)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(WAIT_S)
        assert not thread.is_alive()


@contextmanager
def serve_wsgi(app: Any) -> Iterator[int]:
    server: WSGIServer = make_server("127.0.0.1", 0, validator(app), handler_class=Quiet)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join(WAIT_S)
        server.server_close()


@contextmanager
def serving(kind: str, queue: Queue, **settings: Any) -> Iterator[tuple[int, Any]]:
    if kind == "asgi":
        asgi = ShedLoadASGI(asgi_app, AsyncDepth(queue.aread, refresh=0.01, stale=3_600), RULES, **settings)
        with serve_asgi(asgi) as port:
            yield port, asgi
    else:
        depth = Depth(queue.read, refresh=0.01, stale=3_600)
        wsgi = ShedLoadWSGI(wsgi_app, depth, RULES, **settings)
        with serve_wsgi(wsgi) as port:
            yield port, wsgi
        depth.close()


def until(port: int, path: str, status: int) -> Answer:
    """Ask until the depth in the cache is the new one."""
    ends = time.monotonic() + WAIT_S
    while time.monotonic() < ends:
        answer = Answer(port, "POST", path)
        if answer.status == status:
            return answer
    raise AssertionError(f"still {answer.status}, not {status}")


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_a_deep_queue_is_429_with_retry_after(kind: str) -> None:
    queue = Queue()
    with serving(kind, queue) as (port, middleware):
        answer = Answer(port, "POST", "/free/upload")
        assert (answer.status, answer.body) == (202, b"accepted")
        queue.depth = 90
        refused = until(port, "/free/upload", 429)
        assert refused.headers["retry-after"] == "4"  # 40 too many, 10 a second
        assert refused.headers["content-type"] == "application/problem+json"
        problem = json.loads(refused.body)
        assert (problem["status"], problem["code"], problem["retryable"]) == (429, "over_limit", True)
        assert Answer(port, "POST", "/paid/upload").status == 202
        assert Answer(port, "GET", "/free/upload").status == 202
        queue.depth = 101
        assert until(port, "/paid/upload", 429).headers["retry-after"] == "5"
        queue.depth = 0
        until(port, "/free/upload", 202)
        assert middleware.shedder.refused >= 2


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
@pytest.mark.parametrize(("opens", "status"), [(True, 202), (False, 503)])
def test_without_a_depth_it_is_as_was_chosen(kind: str, opens: bool, status: int) -> None:
    queue = Queue()
    queue.down = True
    with serving(kind, queue, open_when_unknown=opens) as (port, middleware):
        answer = Answer(port, "POST", "/paid/upload")
        assert answer.status == status
        assert ("retry-after" in answer.headers) == (not opens)
        assert middleware.shedder.unknown == 1


def test_what_is_not_http_passes() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    async def nothing(*_: Any) -> Any:
        return {}

    queue = Queue()
    queue.depth = 10**6
    middleware = ShedLoadASGI(app, AsyncDepth(queue.aread), [Rule(1)])
    asyncio.run(middleware({"type": "websocket", "path": "/free/a"}, nothing, nothing))
    assert seen == ["websocket"]
