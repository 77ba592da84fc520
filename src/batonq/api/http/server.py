"""The listening side: accepts connections, limits their number and memory, and stops cleanly."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl as tls
from collections.abc import Callable, Sequence
from typing import Any

from batonq.api.http.connection import Connection
from batonq.api.http.gate import Gate
from batonq.api.http.limits import HttpLimits
from batonq.api.http.memory_limits import AddressUsage, Usage
from batonq.api.http.messages import Direct, Handler, Heads, Refusal, Request, plain

TICK_S = 1.0
HANDSHAKE_S = 10.0  # for a client that does not complete the TLS handshake

logger = logging.getLogger("batonq.http")


class HttpCounters:
    """Counts since the start, for metrics."""

    __slots__ = (
        "failures",
        "received_bytes",
        "refused_connections",
        "refused_requests",
        "requests",
        "responses",
        "sent_bytes",
    )

    def __init__(self) -> None:
        self.refused_connections = 0
        self.requests = 0  # passed to a handler
        self.refused_requests = 0  # not HTTP, too large, too slow, or refused by the gate
        self.failures = 0  # a handler raised an exception
        self.responses: dict[tuple[str, bytes], int] = {}  # by method, and status as it was written
        self.received_bytes = 0
        self.sent_bytes = 0

    def sent(self, method: str, response: bytes) -> None:
        """Count a response that is written: the whole, or its head alone."""
        key = method, response[9:12]
        self.responses[key] = self.responses.get(key, 0) + 1
        self.sent_bytes += len(response)


class HttpServer:
    """Serves requests with the handlers that `resolve(request)` returns. Each connection has one task and at most one
    request in progress.
    """

    def __init__(
        self,
        resolve: Callable[[Request], Handler],
        limits: HttpLimits | None = None,
        direct: Direct | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.resolve = resolve
        self.direct = direct
        self.gate = gate
        # Makes the response to a refused request that no handler sees, from its target as far as it was received, a
        # status and a text.
        self.refusal: Refusal = lambda target, status, text: plain(status, text, close=True)
        # Starts what can be done in the background once the server listens, so that later requests do not wait for it.
        self.prepare: Callable[[], object] = lambda: None
        self.limits = limits or HttpLimits()
        self.counters = HttpCounters()
        self.usage = Usage(self.limits)
        self.heads = Heads()
        self.scheme = "http"
        self.stopping = False
        self.tick = 0  # seconds since the start, counted by the sweep: cheaper than a clock call per request
        self.port = 0  # the port that the server listens on
        self.loop: asyncio.AbstractEventLoop
        self._connections: set[Connection] = set()
        self._servers: list[asyncio.Server] = []
        self._sweep: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event

    async def start(
        self,
        host: str,
        port: int,
        *,
        ssl: tls.SSLContext | None = None,
        backlog: int = 1024,
        reuse_port: bool = False,
    ) -> None:
        """With `reuse_port`, other processes listen on the same address, and the operating system balances the
        connections.
        """
        self._begin()
        self.scheme = "https" if ssl is not None else "http"
        self._servers = [
            await self.loop.create_server(  # by the loop: a simulator has its own network
                self._connection, host, port, backlog=backlog, reuse_port=reuse_port or None, **_secured(ssl)
            ),
        ]
        self.port = self._servers[0].sockets[0].getsockname()[1]

    async def start_on(
        self, listening: Sequence[socket.socket], *, ssl: tls.SSLContext | None = None, backlog: int = 1024
    ) -> None:
        """Serve on sockets that are already bound."""
        self._begin()
        self.scheme = "https" if ssl is not None else "http"
        self._servers = [
            await self.loop.create_server(self._connection, sock=each, backlog=backlog, **_secured(ssl))
            for each in listening
        ]
        self.port = listening[0].getsockname()[1]

    async def start_here(self, listening: socket.socket, *, backlog: int = 1024) -> None:
        """Serve on a Unix socket that is already bound."""
        self._begin()
        self._servers = [await self.loop.create_unix_server(self._connection, sock=listening, backlog=backlog)]

    def _begin(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._emptied = asyncio.Event()
        self._sweep = self.loop.call_later(TICK_S, self._tick)

    def _connection(self) -> Connection:
        return Connection(self)

    async def renew(self, ssl: tls.SSLContext, *, backlog: int = 1024) -> None:
        """Use another certificate for new connections. Open connections keep theirs. No connection is refused
        meanwhile, since the listening socket stays the same.
        """
        assert self.scheme == "https" and not self.stopping
        before = self._servers
        listeners = [os.dup(each.fileno()) for server in before for each in server.sockets]
        self._servers = [
            await self.loop.create_server(
                self._connection, sock=socket.socket(fileno=listener), backlog=backlog, **_secured(ssl)
            )
            for listener in listeners
        ]
        for server in before:
            server.close()

    @property
    def connections_open(self) -> int:
        return len(self._connections)

    def stop_accepting(self) -> None:
        """Accept no new connections and no new requests. Requests in progress continue; idle connections are closed."""
        self.stopping = True
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.finish()

    async def stop(self, grace_s: float = 10.0) -> None:
        """Stop accepting, wait at most `grace_s` for the requests in progress, then close all connections."""
        self.stop_accepting()
        if self._connections:
            try:
                await asyncio.wait_for(self._emptied.wait(), grace_s)
            except TimeoutError:
                logger.warning("closing %d connections that did not finish in time", len(self._connections))
        for connection in list(self._connections):
            connection.abort()
        if self._sweep is not None:
            self._sweep.cancel()
        tasks = [connection.task for connection in self._connections if connection.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        for server in self._servers:
            await server.wait_closed()

    def opened(self, connection: Connection, address: str) -> AddressUsage | None:
        """The usage of the connection's address; None when the limits allow no further connection."""
        full = self.stopping or len(self._connections) >= self.limits.connections_max
        usage = None if full else self.usage.enter(address)
        if usage is None:
            self.counters.refused_connections += 1
            return None
        self._connections.add(connection)
        return usage

    def closed(self, connection: Connection, address: str) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self.usage.leave(address)
        if self.stopping and not self._connections:
            self._emptied.set()

    def _tick(self) -> None:
        self.tick += 1
        self._sweep = self.loop.call_later(TICK_S, self._tick)
        for connection in list(self._connections):
            connection.check(self.tick)


def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets for every address of a host, such as 127.0.0.1 and ::1 for localhost. With port 0 all get the same free
    port. They refuse connections until a server listens on them. Raises OSError.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    try:
        for family, _, protocol, _, where in dict.fromkeys(found):
            each = socket.socket(family, socket.SOCK_STREAM, protocol)
            bound.append(each)
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            each.bind((where[0], port or bound[0].getsockname()[1], *where[2:]))
    except BaseException:
        for each in bound:
            each.close()
        raise
    return bound


def _secured(context: tls.SSLContext | None) -> dict[str, Any]:
    return {"ssl": context, "ssl_handshake_timeout": HANDSHAKE_S} if context is not None else {}
