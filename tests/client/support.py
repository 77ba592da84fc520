"""What the client's tests share: both forms of the client under one test body, a scripted server, and a proxy."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from batonq import sync
from batonq.client import Baton

T = TypeVar("T")
WAIT_S = 120.0  # for what takes a moment, on a machine that has much else to do
THREADS = 256  # blocking calls of one test at a time


# --- one body, both forms ---------------------------------------------------------------------------


class Blocking:
    """The client for threads under the async one's names, so that one test body serves both.

    Each call runs on a thread of its own, as it would in a program with threads.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not inspect.ismethod(found):
            return _wrapped(found)
        if name in ("queue", "topic", "now", "reader", "rewind"):
            return lambda *args, **named: _wrapped(found(*args, **named))
        if inspect.isgeneratorfunction(found.__func__):
            return lambda *args, **named: _iterate(found(*args, **named))

        async def call(*args: Any, **named: Any) -> Any:
            return _wrapped(await asyncio.to_thread(found, *args, **named))

        return call

    def __aiter__(self) -> AsyncIterator[Any]:
        return _iterate(iter(self.inner))

    async def __aenter__(self) -> Blocking:
        return self

    async def __aexit__(self, *problem: object) -> None:
        await asyncio.to_thread(self.inner.close)


async def _iterate(items: Iterator[Any]) -> AsyncIterator[Any]:
    over = object()
    while (found := await asyncio.to_thread(next, items, over)) is not over:
        yield _wrapped(found)


def _wrapped(value: Any) -> Any:
    if isinstance(value, list):
        return [_wrapped(item) for item in value]
    ours = (sync.Baton, sync.Queue, sync.Message, sync.Job, sync.Reader, sync.Topic)
    parts = ("Clock", "AllSchedules", "QueueSchedules")
    return Blocking(value) if isinstance(value, ours) or type(value).__name__ in parts else value


def connected(form: str, url: str, **options: Any) -> Any:
    """A client of this form: `async` or `sync`."""
    return Baton(url, **options) if form == "async" else Blocking(sync.Baton(url, **options))


# --- a server on a thread that says what it is told to -------------------------------------------------


class Asked:
    """A request as the scripted server read it."""

    def __init__(self, method: str, path: str, headers: dict[str, str], body: bytes, connection: int) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body
        self.connection = connection

    @property
    def value(self) -> Any:
        return msgspec.msgpack.decode(self.body)


Script = Callable[[Asked], Awaitable[bytes | None]]


def answer(status: int = 200, value: Any = None, *, headers: dict[str, str] | None = None, body: bytes = b"") -> bytes:
    body = msgspec.msgpack.encode(value) if value is not None else body
    lines = "".join(f"{name}: {text}\r\n" for name, text in (headers or {}).items())
    kind = "application/problem+msgpack" if status >= 400 else "application/msgpack"
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def problem(status: int, code: str, *, retryable: bool = False, headers: dict[str, str] | None = None) -> bytes:
    value = {"code": code, "detail": f"told {code}", "status": status, "retryable": retryable}
    return answer(status, value, headers=headers)


def sent(asked: Asked, **more: Any) -> bytes:
    """The answer of a server that takes every message of a batch."""
    first = asked.value["producer"]["sequence"]
    results = [{"messageId": f"m{first + at}", "sequence": first + at} for at in range(len(asked.value["messages"]))]
    return answer(202, {"results": results, **more})


class OnThread:
    """Runs a server on a loop of its own, so that blocking clients can be tested against it."""

    def __enter__(self) -> Any:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._ready.wait(WAIT_S)
        return self

    def __exit__(self, *problem: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        server = await self.listen()
        self.port: int = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self.serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
            if writer.get_extra_info("sslcontext") is not None:
                writer.transport.abort()  # the loop may end before TLS has taken leave

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class ScriptedServer(OnThread):
    """Answers each request with what `script` returns for it; None closes the connection without an answer."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[Asked] = []
        self.connections = 0
        self.gone = threading.Event()  # a client has closed a connection
        self._heard = threading.Condition()

    def wait_asked(self, count: int) -> None:
        """Wait until so many requests have come."""
        with self._heard:
            assert self._heard.wait_for(lambda: len(self.asked) >= count, WAIT_S)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        while True:
            try:
                asked = await read_request(reader, number)
            except asyncio.IncompleteReadError:
                self.gone.set()
                return
            with self._heard:
                self.asked.append(asked)
                self._heard.notify_all()
            said = asyncio.ensure_future(self.script(asked))
            left = asyncio.ensure_future(reader.read(1))
            await asyncio.wait((said, left), return_when=asyncio.FIRST_COMPLETED)
            if not said.done():
                said.cancel()
                self.gone.set()
                return
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
            data = said.result()
            if data is None:
                return
            writer.write(data)
            await writer.drain()


async def read_request(reader: asyncio.StreamReader, connection: int = 0) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    method, path, _ = first.split(" ")
    return Asked(method, path, headers, body, connection)


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
    )
    return head + await reader.readexactly(length)


class LossyProxy(OnThread):
    """Passes requests on, and loses what `fate` says: "request", "answer", or "" for nothing."""

    def __init__(self, target: int, fate: Callable[[Asked], str]) -> None:
        self._target = target
        self._fate = fate
        self.lost = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            while True:
                asked = await read_request(reader)
                fate = self._fate(asked)
                if fate == "request":
                    self.lost += 1
                    return
                lines = "".join(f"{name}: {value}\r\n" for name, value in asked.headers.items())
                back.write(f"{asked.method} {asked.path} HTTP/1.1\r\n{lines}\r\n".encode() + asked.body)
                said = await read_answer(there)
                if fate == "answer":
                    self.lost += 1
                    return
                writer.write(said)
                await writer.drain()
        finally:
            back.close()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a test's body; nothing here takes longer than this."""

    async def bounded() -> T:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
        async with asyncio.timeout(WAIT_S * 4):
            return await work

    return asyncio.run(bounded())
