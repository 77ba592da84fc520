"""A whole server in this process, on a thread of its own: what the tests with real clients talk to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from batonq.api.http import HttpLimits, HttpServer, Request, Response, Router, express_under
from batonq.api.http.messages import plain
from batonq.api.rest import ExpressRest, RestApp
from batonq.api.sqs import ExpressSqs, SqsApp, SqsSettings
from batonq.cli.serve import gate_of, limits_of
from batonq.node.broker import Broker
from batonq.node.node import Node
from batonq.node.settings import Settings

T = TypeVar("T")
START_TIMEOUT_S = 30
ACCOUNT = "000000000000"
OTHER_HOST = "queues.example"  # clients may use this name, too


class TestServer:
    """`with TestServer(directory) as server:`. The clock is the node's own, and `advance` moves it."""

    __test__ = False

    def __init__(self, data: str, *, limits: HttpLimits | None = None, public_url: str = "", **settings: Any) -> None:
        self.settings = Settings(data=data, account=ACCOUNT, port=0, allowed_hosts=OTHER_HOST, **settings)
        self.node = Node(self.settings)
        self._limits = limits
        self._public_url = public_url
        self._thread = threading.Thread(target=self._run, name="test server", daemon=True)
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self.http: HttpServer
        self.app: SqsApp
        self.rest: RestApp

    def __enter__(self) -> TestServer:
        self._thread.start()
        assert self._ready.wait(START_TIMEOUT_S), "the server did not start"
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_TIMEOUT_S)
        assert not self._thread.is_alive(), "the server did not stop"
        if self._failure is not None:
            raise self._failure

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.port}"

    @property
    def broker(self) -> Broker:
        return self.node.broker

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run something on the server's own loop."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(START_TIMEOUT_S)

    def advance(self, seconds: float) -> None:
        """Move the server's clock forward; all that was due by then has happened when this returns."""
        self.run(lambda: self.broker.advance_clock(int(seconds * 1000)))

    def _run(self) -> None:
        try:
            uvloop.run(self._serve())
        except BaseException as failure:
            self._failure = failure
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        await self.node.start()
        self.app = SqsApp(self.node.broker, SqsSettings(account=ACCOUNT, public_url=self._public_url))
        self.rest = RestApp(self.node.broker)
        router = Router(self.app.handle)
        router.mount_under("/v1", self.rest.handle)
        router.mount_under("/problems", self.rest.handle)
        router.mount("/livez", _alive)
        express = express_under("/v1", ExpressRest(self.rest), ExpressSqs(self.app))
        limits = self._limits or limits_of(self.settings)
        self.http = HttpServer(router.resolve, limits, express, gate_of(self.settings, limits))
        self.http.refusal = lambda target, status, text: (
            self.rest.refusal(target, status, text) or plain(status, text, close=True)
        )
        await self.http.start("127.0.0.1", 0)
        self._ready.set()
        await self._stop.wait()
        self.http.stop_accepting()
        self.node.stop_waiting()
        await self.http.stop(5)
        await self.node.stop()


async def _alive(request: Request) -> Response:
    return Response(200, b"ok\n")
