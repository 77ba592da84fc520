"""A whole server in this process, on a thread of its own: what the tests with real clients talk to."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import uvloop

from batonq.api.http import HttpLimits, HttpServer, Request, Response, Router, direct_under
from batonq.api.http.messages import plain
from batonq.api.rest import RestApp
from batonq.api.sns import SnsApp
from batonq.api.sqs import SqsApp, SqsSettings
from batonq.cli.serve import gate_of, limits_of
from batonq.node.broker import Broker
from batonq.node.node import Node, World
from batonq.node.settings import Settings

T = TypeVar("T")
START_TIMEOUT_S = 120
ACCOUNT = "000000000000"
OTHER_HOST = "queues.example"  # clients may use this name, too
_WALL_AHEAD_S = time.time() - time.monotonic()


class HeldClock:
    """The time of the machine, which can be held: for leases and delays no time passes then, however long the machine
    takes for a test's next step. Long polls and all else that waits on the event loop goes on.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # so that no thread sees it go back when it is held
        self._behind_s = 0.0  # for how long it was held so far
        self._held_s: float | None = None  # what the machine's clock showed then

    def monotonic(self) -> float:
        with self._lock:
            return (time.monotonic() if self._held_s is None else self._held_s) - self._behind_s

    def wall(self) -> float:
        return self.monotonic() + _WALL_AHEAD_S

    def world(self, random_bytes: Callable[[int], bytes] = secrets.token_bytes) -> World:
        return World(monotonic=self.monotonic, wall=self.wall, random_bytes=random_bytes)

    @contextmanager
    def held(self) -> Iterator[None]:
        with self._lock:
            self._held_s = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._behind_s += time.monotonic() - self._held_s
                self._held_s = None


class TestServer:
    """`with TestServer(directory) as server:`. The clock is the node's own; `advance` moves it, and within
    `clock.held()` nothing else does.
    """

    __test__ = False

    def __init__(self, data: str, *, limits: HttpLimits | None = None, public_url: str = "", **settings: Any) -> None:
        self.settings = Settings(data=data, account=ACCOUNT, port=0, allowed_hosts=OTHER_HOST, **settings)
        self.clock = HeldClock()
        self.node = Node(self.settings, self.clock.world())
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
        router = Router(SnsApp(self.node.broker, self.app.access).before(self.app.handle))
        router.mount_under("/v1", self.rest.handle)
        router.mount_under("/problems", self.rest.handle)
        router.mount("/livez", _alive)
        direct = direct_under("/v1", self.rest.begin, self.app.begin)
        limits = self._limits or limits_of(self.settings)
        self.http = HttpServer(router.resolve, limits, direct, gate_of(self.settings, limits))
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
