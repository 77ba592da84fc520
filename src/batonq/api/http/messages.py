"""A request, a response, and how a response's head is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from email.utils import formatdate
from http import HTTPStatus
from time import time

SERVER_NAME = "Baton"
TEXT = "text/plain; charset=utf-8"
HEADS_MAX = 256  # different (status, content type) heads kept for one second


class Request:
    """One request, whole. Header names are lower-case bytes; path and query are as sent, not decoded."""

    bytes_held: int  # what it takes in memory; only a server counts this

    __slots__ = (
        "abandon",
        "body",
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
        # A handler that only waits (a long poll) sets this: its task is then cancelled when the client goes away.
        self.cancellable = False
        self.abandon: Callable[[], None] | None = None  # called when the client of such a request goes away

    def header(self, name: bytes, default: str = "") -> str:
        value = self.headers.get(name)
        return default if value is None else value.decode("latin-1")


class Response:
    """An answer. Its head is written by the server, with Date, Server and Content-Length."""

    __slots__ = ("body", "close", "content_type", "headers", "status")

    def __init__(
        self,
        status: int = 200,
        body: bytes = b"",
        content_type: str = TEXT,
        headers: Sequence[tuple[str, str]] = (),
        *,
        close: bool = False,
    ) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = headers
        self.close = close


Handler = Callable[[Request], Awaitable[Response]]
# Writes a whole answer; False when the client has gone.
Reply = Callable[[bytes], bool]
# A handler that needs no task: it calls `reply` once, now or later. False: the request is not for it, but for the one
# that `resolve` finds.
Direct = Callable[[Request, Reply], bool]


# Makes the last answer of a connection: of the target as far as it came, a status and a text.
Refusal = Callable[[bytes, int, str], Response]


def plain(status: int, text: str, *, close: bool = False) -> Response:
    return Response(status, text.encode() + b"\n", close=close)


class Heads:
    """Writes heads. What does not change within a second is kept for that second."""

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
        if response.status == 204:  # it has no body, and does not say how long that is
            return f"{start.rpartition('Content-Type')[0]}{lines}{closing}\r\n".encode("latin-1", "replace")
        return f"{start}{lines}{closing}Content-Length: {len(response.body)}\r\n\r\n".encode("latin-1", "replace")

    def _start(self, key: tuple[int, str]) -> str:
        status, content_type = key
        start = (
            f"HTTP/1.1 {status} {phrase(status)}\r\nServer: {SERVER_NAME}\r\n"
            f"Date: {formatdate(self._second, usegmt=True)}\r\n"
        )
        if content_type.startswith("text/"):  # which browsers would otherwise take for what it looks like
            start += "X-Content-Type-Options: nosniff\r\n"
        start += f"Content-Type: {content_type}\r\n"
        if len(self._kept) < HEADS_MAX:
            self._kept[key] = start
        return start


def _one_line(value: str) -> str:
    """A header value that brings line ends would be read as more headers."""
    return value.replace("\r", " ").replace("\n", " ")


def phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
