"""Queues inside the caller's own process: durable, with the client's whole API, and without a server.

`batonq.open(path)` is for programs with threads: the node runs in its own thread and event loop. `await
open_async(path)` runs it on the caller's loop. Only one process at a time can open a path.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError as FutureCancelled
from typing import Any, TypeVar

from batonq import sync
from batonq.client.aio.baton import Baton
from batonq.client.transport import Answer, Headers
from batonq.errors import InvalidInput, OwnershipHeld, Unavailable

try:
    from batonq.api.http import Request
    from batonq.api.rest import RestApp
    from batonq.node.node import Node
    from batonq.node.settings import MIB, Settings, documented
except ImportError as missing:
    raise ImportError(
        f"Embedded queues need the server's packages: pip install 'batonq[server]' ({missing})"
    ) from missing

T = TypeVar("T")
HOST = "localhost"
STOP_S = 60.0  # longer than a node needs to give up on a disk that hangs
# Settings that only a server uses.
NOT_HERE = {
    *(
        "host",
        "port",
        "data",
        "public_url",
        "allowed_hosts",
        "secure",
        "read_only",
        "log_level",
        "log_format",
        "otlp_endpoint",
    ),
    *("connections_max", "requests_bytes_max", "address_share", "body_rate_min_bytes"),
}
_FORKED = "The queues were opened before this process was forked and belong to the parent. Open them after the fork."
SEGMENT_BYTES = 8 * MIB  # the server's default is for more load, and allocates its disk space at once


def open(path: str | os.PathLike[str], **settings: Any) -> sync.Baton:
    """Open the queues in the directory `path`, which is created if needed: `with batonq.open("queues") as baton: ...`.

    `settings` are those of docs/reference/settings.md that are not about listening. Closing saves the state; a process
    that is killed loses nothing that was acknowledged. Raises OwnershipHeld if another process has opened it.
    """
    return sync.Baton(f"file:{os.fspath(path)}", transport=NodeThread(lambda: _node(path, settings)))


async def open_async(path: str | os.PathLike[str], **settings: Any) -> Baton:
    """The same on the caller's event loop: `async with await batonq.open_async("queues") as baton: ...`."""
    transport = NodeTransport(_node(path, settings))
    await transport.start()
    return Baton(f"file:{os.fspath(path)}", transport=transport)


def _node(path: str | os.PathLike[str], settings: dict[str, Any]) -> Node:
    known = {entry.name for entry, _ in documented()} - NOT_HERE
    for name in settings:
        if name not in known:
            raise InvalidInput(
                f"{name!r} is not a setting of embedded queues; the settings are {', '.join(sorted(known))}."
            )
    values = {"segment_bytes": SEGMENT_BYTES, **settings}
    return Node(Settings(data=os.fspath(path), secure=False, **values))


class NodeTransport:
    """Calls the REST application of a node on the same event loop (see client.transport.AsyncTransport)."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._app: RestApp
        self._working: set[asyncio.Task[Any]] = set()
        self._process = os.getpid()
        _open_here.add(self)

    @property
    def host(self) -> str:
        return HOST

    async def start(self) -> None:
        try:
            await self.node.start()
        except OwnershipHeld as held:
            raise OwnershipHeld(
                f"{held.message.partition('. ')[0]}. Only one process at a time can open a path. Close it "
                "there, or run `baton serve` on it and connect every program to that server."
            ) from None
        self._app = RestApp(self.node.broker, wall=self.node.world.wall)

    async def request(
        self, method: str, path: str, body: bytes, headers: Headers, timeout: float, *, polls: bool = False
    ) -> Answer:
        if self.node.stopping:
            raise InvalidInput("The queues are closed. Open them again.")
        if self._process != os.getpid():
            raise InvalidInput(_FORKED)
        bare, _, query = path.partition("?")
        named = {name.lower().encode(): value.encode() for name, value in headers}
        request = Request(method, bare, query, named, body)
        task = asyncio.get_running_loop().create_task(self._app.handle(request))
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        try:
            await asyncio.wait((task,), timeout=timeout)
        except asyncio.CancelledError:
            if request.cancellable:  # a long poll: no caller waits for it any more
                task.cancel()
            raise
        if not task.done():
            raise Unavailable(f"No response within {timeout:g} seconds, so the outcome is unknown.")
        response = task.result()
        given = {name.lower(): value for name, value in response.headers}
        return Answer(response.status, {"content-type": response.content_type, **given}, response.body)

    async def close(self) -> None:
        """Finish the requests in progress, save the state, and release the directory."""
        if self.node.stopping:
            return
        self.node.stop_waiting()
        if self._working:
            await asyncio.wait(self._working, timeout=self.node.settings.drain_s)
        await self.node.stop()


class NodeThread:
    """A node in its own thread, for blocking callers (see client.transport.BlockingTransport)."""

    def __init__(self, make: Callable[[], Node]) -> None:
        self._make = make
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._closing = threading.Lock()
        self._process = os.getpid()
        self.inner: NodeTransport
        self._thread = threading.Thread(target=self._run, name="batonq node", daemon=True)
        self._thread.start()
        self._ready.wait()
        self._raise_failure()
        atexit.register(_close_at_exit, weakref.ref(self))

    @property
    def host(self) -> str:
        return HOST

    def request(
        self, method: str, path: str, body: bytes, headers: Headers, timeout: float, *, polls: bool = False
    ) -> Answer:
        return self.run(self.inner.request(method, path, body, headers, timeout, polls=polls))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the node's loop and wait for it."""
        if self._process != os.getpid() or not self._thread.is_alive():
            work.close()
            raise InvalidInput("The queues are closed. Open them again." if self._process == os.getpid() else _FORKED)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except FutureCancelled:
            raise Unavailable(
                "The queues were closed before the response arrived, so the outcome is unknown."
            ) from None
        except BaseException:
            future.cancel()  # cancels the request of an interrupted caller; does nothing if it is done
            raise

    def close(self) -> None:
        if self._process != os.getpid():
            return  # it belongs to the parent
        with self._closing:
            if not self._thread.is_alive():
                return
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(STOP_S)
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(self._serve())
        except BaseException as failure:
            self._failure = failure
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.inner = NodeTransport(self._make())
        await self.inner.start()
        self._ready.set()
        await self._stop.wait()
        await self.inner.close()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # uvloop is faster, but not available everywhere
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _close_at_exit(reference: weakref.ref[NodeThread]) -> None:
    thread = reference()
    if thread is not None:
        thread.close()


# --- forks --------------------------------------------------------------------------------------

_open_here: weakref.WeakSet[NodeTransport] = weakref.WeakSet()


def _forked() -> None:
    """A forked child does not use the node, and must not keep its parent's directory locked."""
    for transport in list(_open_here):
        transport.node.ownership.close()
    _open_here.clear()


os.register_at_fork(after_in_child=_forked)
