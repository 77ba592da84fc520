"""HTTP on blocking sockets: a pool of persistent connections, each used by one thread at a time.

See batonq.client.aio.http. After a fork the connections belong to the parent process.
"""

from __future__ import annotations

import os
import select
import socket
import ssl as tls
import threading
import time

from batonq.client.http1 import Address, Reader, Writer, unreachable
from batonq.client.transport import Answer, Headers, NotSent, Stale
from batonq.errors import Unavailable

CONNECT_TIMEOUT_S = 10.0
RECEIVE_BYTES = 1 << 16


class _Connection:
    """One connection; `ask` sends a request and waits for its response."""

    __slots__ = ("_reader", "_socket", "open", "used")

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._reader = Reader()
        self.open = True
        self.used = False

    def ask(self, data: bytes, timeout: float) -> Answer:
        ends = time.monotonic() + timeout
        try:
            self._socket.settimeout(timeout)
            try:
                self._socket.sendall(data)
            except TimeoutError:
                raise
            except OSError:
                if self.used:
                    raise Stale("The connection was closed.") from None
                raise
            answer = self._receive(ends)
        except TimeoutError:
            self.close()
            raise Unavailable(f"No response within {timeout:g} seconds, so the outcome is unknown.") from None
        except OSError as problem:
            self.close()
            raise Unavailable(
                f"The connection failed before the response arrived, so the outcome is unknown: {problem}."
            ) from None
        except BaseException:
            self.close()  # interrupted: the server notices it and ends a long poll
            raise
        self.used = True
        if not self._reader.keep_alive:
            self.close()
        return answer

    def _receive(self, ends: float) -> Answer:
        reader = self._reader
        while True:
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except ConnectionError:
                data = b""
            answer = reader.feed(data) if data else reader.end()
            if answer is not None:
                return answer
            if not data:
                if self.used and not reader.started:
                    raise Stale("The connection was closed.")
                raise Unavailable("The connection was closed before the response arrived, so the outcome is unknown.")
            left = ends - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)

    def is_closed_by_peer(self) -> bool:
        """On an idle connection, the only thing to read is its end."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        self.open = False
        self._socket.close()

    def shut_down(self) -> None:
        """Called from another thread: a thread that waits on the connection gets an error."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


class _Pool:
    """Up to `limit` connections to one address. If all are in use, callers wait."""

    def __init__(self, address: Address, context: tls.SSLContext | None, limit: int) -> None:
        self._address = address
        self._context = context
        self._limit = limit
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._free = threading.Semaphore(self._limit)
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()

    def request(self, data: bytes, timeout: float) -> Answer:
        if self._process != os.getpid():
            self._leave_to_parent()
        if not self._free.acquire(timeout=timeout):
            raise NotSent(
                f"All {self._limit} connections are in use, and none became free within {timeout:g} s. Increase "
                "connections or polls of the Baton client."
            )
        try:
            connection = self._take(min(timeout, CONNECT_TIMEOUT_S))
            try:
                return connection.ask(data, timeout)
            finally:
                self._give_back(connection)
        finally:
            self._free.release()

    def _leave_to_parent(self) -> None:
        """After a fork the connections belong to the parent; closing the copies here does not affect them."""
        for connection in (*self._idle, *self._busy):
            connection.close()
        self._begin()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for connection in self._idle:
                connection.close()
            self._idle.clear()
            for connection in self._busy:
                connection.shut_down()

    def _take(self, timeout: float) -> _Connection:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                connection = self._connect(timeout)
            elif connection.is_closed_by_peer():
                connection.close()
                continue
            with self._lock:
                self._busy.add(connection)
                if self._closed:  # `close` was called since it was opened, and has not seen it
                    connection.shut_down()
            return connection

    def _connect(self, timeout: float) -> _Connection:
        address = self._address
        try:
            connected = socket.create_connection((address.name, address.port), timeout)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is not None:
                connected = self._context.wrap_socket(connected, server_hostname=address.name)
        except OSError as problem:
            raise unreachable(address, problem) from None
        return _Connection(connected)

    def _give_back(self, connection: _Connection) -> None:
        with self._lock:
            self._busy.discard(connection)
            if self._closed:
                connection.close()
            elif connection.open:
                self._idle.append(connection)


class HttpTransport:
    """Requests to one server (see transport.BlockingTransport)."""

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

    def request(
        self, method: str, path: str, body: bytes, headers: Headers, timeout: float, *, polls: bool = False
    ) -> Answer:
        data = self._writer.write(method, path, body, headers)
        return (self._polls if polls else self._requests).request(data, timeout)

    def close(self) -> None:
        self._requests.close()
        self._polls.close()
