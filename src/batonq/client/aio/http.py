"""HTTP over asyncio: a pool of persistent connections with one request at a time on each.

Long polls have their own pool, so they never delay a send or an ack.
"""

from __future__ import annotations

import asyncio
import ssl as tls
from typing import cast

from batonq.client.http1 import Address, Reader, Writer, unreachable
from batonq.client.transport import Answer, Headers, NotSent, Stale
from batonq.errors import Unavailable

CONNECT_TIMEOUT_S = 10.0


class _Connection(asyncio.Protocol):
    """One connection; `ask` sends a request and waits for its response."""

    __slots__ = ("_answer", "_reader", "_transport", "loop", "open", "used")

    def __init__(self) -> None:
        self._reader = Reader()
        self._answer: asyncio.Future[Answer] | None = None
        self._transport: asyncio.Transport
        # a connection belongs to one loop; programs may run several loops one after another
        self.loop = asyncio.get_running_loop()
        self.open = True
        self.used = False

    async def ask(self, data: bytes, timeout: float) -> Answer:
        answer: asyncio.Future[Answer] = self.loop.create_future()
        self._answer = answer
        timer = self.loop.call_later(timeout, self._late, timeout)
        self._transport.write(data)
        try:
            return await answer
        except asyncio.CancelledError:
            self.close()  # the server notices it and ends a long poll
            raise
        finally:
            timer.cancel()
            self._answer = None
            self.used = True

    def close(self) -> None:
        self.open = False
        self._transport.abort()

    def _late(self, timeout: float) -> None:
        self._fail(Unavailable(f"No response within {timeout:g} seconds, so the outcome is unknown."))
        self.close()

    def _fail(self, problem: Unavailable) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(problem)

    # --- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            answer = self._reader.feed(data)
        except Unavailable as problem:
            self._fail(problem)
            self.close()
            return
        if answer is not None:
            self._finish(answer)

    def connection_lost(self, problem: Exception | None) -> None:
        self.open = False
        answer = self._reader.end()
        if answer is not None:
            self._finish(answer)
        elif self.used and not self._reader.started:
            self._fail(Stale("The connection was closed."))
        else:
            self._fail(Unavailable("The connection was closed before the response arrived, so the outcome is unknown."))

    def _finish(self, answer: Answer) -> None:
        if not self._reader.keep_alive:
            self.open = False
            self._transport.close()
        if self._answer is None:
            self.close()  # an unexpected response
        elif not self._answer.done():
            self._answer.set_result(answer)


class _Pool:
    """Up to `limit` connections to one address. If all are in use, callers wait in order."""

    def __init__(self, address: Address, context: tls.SSLContext | None, limit: int) -> None:
        self._address = address
        self._context = context
        self._limit = limit
        self._free = asyncio.Semaphore(limit)
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._closed = False

    async def request(self, data: bytes, timeout: float) -> Answer:
        if self._free.locked():
            await self._wait(timeout)
        else:
            await self._free.acquire()
        try:
            connection = self._kept() or await self._connect(min(timeout, CONNECT_TIMEOUT_S))
            self._busy.add(connection)
            try:
                return await connection.ask(data, timeout)
            finally:
                self._busy.discard(connection)
                if self._closed:
                    connection.close()
                elif connection.open:
                    self._idle.append(connection)
        finally:
            self._free.release()

    def close(self) -> None:
        self._closed = True
        for connection in (*self._idle, *self._busy):
            connection.close()
        self._idle.clear()

    async def _wait(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._free.acquire()
        except TimeoutError:
            raise NotSent(
                f"All {self._limit} connections are in use, and none became free within {timeout:g} s. Increase "
                "connections or polls of the Baton client."
            ) from None

    def _kept(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.open and connection.loop is asyncio.get_running_loop():
                return connection
        return None

    async def _connect(self, timeout: float) -> _Connection:
        address = self._address
        loop = asyncio.get_running_loop()
        name = address.name if self._context is not None else None
        try:
            async with asyncio.timeout(timeout):
                _, connection = await loop.create_connection(
                    _Connection, address.name, address.port, ssl=self._context, server_hostname=name
                )
        except OSError as problem:
            raise unreachable(address, problem) from None
        return connection


class HttpTransport:
    """Requests to one server (see transport.AsyncTransport)."""

    def __init__(
        self, url: str, *, connections: int, polls: int, ssl: tls.SSLContext | None = None, consumer: str = ""
    ) -> None:
        address = Address.parse(url)
        context = address.context(ssl)
        self._writer = Writer(address, consumer)
        self._host = address.host
        self._requests = _Pool(address, context, connections)
        self._polls = _Pool(address, context, polls)

    @property
    def host(self) -> str:
        return self._host

    async def request(
        self, method: str, path: str, body: bytes, headers: Headers, timeout: float, *, polls: bool = False
    ) -> Answer:
        data = self._writer.write(method, path, body, headers)
        return await (self._polls if polls else self._requests).request(data, timeout)

    async def close(self) -> None:
        self._requests.close()
        self._polls.close()
