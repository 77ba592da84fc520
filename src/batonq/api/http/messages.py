"""Requests, responses, and the encoding of a response's head."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from email.utils import formatdate
from http import HTTPStatus
from time import time

SERVER_NAME = "Baton"
TEXT = "text/plain; charset=utf-8"
HEADS_MAX = 256  # different (status, content type) heads cached for one second


class Request:
    """One complete request. Header names are lower-case bytes. Path and query are as sent, not decoded."""

    bytes_held: int  # memory held by the request; only the server sets this

    __slots__ = (
        "abandon",
        "body",
        "brief",
        "bytes_held",
        "cancellable",
        "headers",
        "keep_alive",
        "method",
        "path",
        "peer",
        "query",
        "scheme",
    )

    def __init__(
        self,
        method: str,
        path: str,
        query: str = "",
        headers: dict[bytes, bytes] | None = None,
        body: bytes = b"",
        peer: str = "",
        *,
        scheme: str = "http",
        keep_alive: bool = True,
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = {} if headers is None else headers
        self.body = body
        self.peer = peer
        self.scheme = scheme
        self.keep_alive = keep_alive
        # A handler that only waits (a long poll) sets this. Its task is then cancelled when the client disconnects.
        self.cancellable = False
        self.brief = False  # cancellable, but answered soon: a client that only closes its own side gets the answer
        self.abandon: Callable[[], None] | None = None  # called when the client of such a request disconnects

    def header(self, name: bytes, default: str = "") -> str:
        value = self.headers.get(name)
        return default if value is None else value.decode("latin-1")


class Response:
    """A response. The server writes its head, with Date, Server and Content-Length.

    A response with a `stream` has no body and no length. The server sends the stream's pieces as they come, waits for a
    slow client, and closes the connection at the end. It cancels the stream when the client disconnects or the server
    stops. Only a handler that runs in a task may return such a response.
    """

    __slots__ = ("body", "close", "content_type", "headers", "status", "stream")

    def __init__(
        self,
        status: int = 200,
        body: bytes = b"",
        content_type: str = TEXT,
        headers: Sequence[tuple[str, str]] = (),
        *,
        close: bool = False,
        stream: AsyncGenerator[bytes, None] | None = None,
    ) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = headers
        self.close = close or stream is not None
        self.stream = stream


Handler = Callable[[Request], Awaitable[Response]]
# Writes a whole response. Returns False when the client has disconnected.
Reply = Callable[[bytes], bool]
# A handler that needs no task. It calls `reply` once, now or later. It returns False for a request that it does not
# handle; that request goes to the handler that `resolve` finds.
Direct = Callable[[Request, Reply], bool]


# Makes the last response of a connection, from the target as far as it was received, a status and a text.
Refusal = Callable[[bytes, int, str], Response]


def plain(status: int, text: str, *, close: bool = False) -> Response:
    return Response(status, text.encode() + b"\n", close=close)


class Heads:
    """Encodes response heads. The parts that do not change within a second are cached for that second."""

    __slots__ = ("_clock", "_kept", "_second")

    def __init__(self, clock: Callable[[], float] = time) -> None:
        self._clock = clock
        self._second = -1
        self._kept: dict[tuple[int, str], str] = {}

    def head(self, response: Response, *, close: bool) -> bytes:
        second = int(self._clock())
        if second != self._second:
            self._second = second
            self._kept.clear()
        key = (response.status, response.content_type)
        start = self._kept.get(key) or self._start(key)
        lines = "".join([f"{name}: {value}\r\n" for name, value in response.headers])
        if len(lines) != 0 and lines.count("\n") != len(response.headers):
            lines = "".join([f"{name}: {_one_line(value)}\r\n" for name, value in response.headers])
        closing = "Connection: close\r\n" if close else ""
        if response.status == 204:  # has neither a body nor Content-Length
            return f"{start.rpartition('Content-Type')[0]}{lines}{closing}\r\n".encode("latin-1", "replace")
        if response.stream is not None:  # ends when the connection does
            return f"{start}{lines}{closing}\r\n".encode("latin-1", "replace")
        return f"{start}{lines}{closing}Content-Length: {len(response.body)}\r\n\r\n".encode("latin-1", "replace")

    def _start(self, key: tuple[int, str]) -> str:
        status, content_type = key
        start = (
            f"HTTP/1.1 {status} {phrase(status)}\r\nServer: {SERVER_NAME}\r\n"
            f"Date: {formatdate(self._second, usegmt=True)}\r\n"
        )
        if content_type.startswith("text/"):  # otherwise browsers would guess the type
            start += "X-Content-Type-Options: nosniff\r\n"
        start += f"Content-Type: {content_type}\r\n"
        if len(self._kept) < HEADS_MAX:
            self._kept[key] = start
        return start


def _one_line(value: str) -> str:
    """Replace line ends in a header value, which would start further headers."""
    return value.replace("\r", " ").replace("\n", " ")


def phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
