"""Parses requests from the bytes of one connection. httptools parses; limits are checked after every part.

Everything takes linear time, and everything is held in about twice its bytes at most: a body that arrives in many
pieces is one growing buffer. Trailers, the headers after a chunked body, do not become part of the request, since a
proxy that checked the headers has not seen them.
"""

from __future__ import annotations

from typing import Protocol

import httptools

from batonq.api.http.gate import NO_HOST, Gate
from batonq.api.http.limits import HttpLimits
from batonq.api.http.messages import Request

# The number of bytes, or of chunks, to parse before pending responses are sent and other connections get their turn.
# Hundreds of connections may have sent this much at the same time.
PART_BYTES = 4 * 1024
PART_CHUNKS = 256
# Memory of a request with a short head, in addition to its body: the request, its headers, and their dict.
REQUEST_BYTES = 1_024
HEADER_BYTES = 170  # memory of a header in addition to its name and value
SMALL_HEAD_BYTES = 4_096  # larger heads are measured
_HEAD_END = b"\r\n\r\n"
_HOP_BY_HOP = (b"connection", b"upgrade", b"http2-settings")


class Reading(Protocol):
    """The connection that a reader works for."""

    def take(self, request: Request) -> None:
        """Called with a complete request."""

    def take_last(self, request: Request) -> None:
        """Called with a request whose body is not read. Nothing is read after it."""

    def refuse(self, status: int, text: str) -> None:
        """Called when the bytes are not an acceptable request. Nothing is read after it."""

    def expected(self, expectation: bytes) -> None:
        """Called when the client waits for permission (`Expect`) before it sends the body."""


class RequestReader:
    __slots__ = (
        "_body",
        "_body_bytes_max",
        "_body_declared",
        "_connection",
        "_gate",
        "_head",
        "_head_bytes",
        "_headers",
        "_limits",
        "_parser",
        "_peer",
        "_pieces",
        "_repeated",
        "_scheme",
        "_unmetered_bytes",
        "_window_bytes",
        "_window_tick",
        "_with_request",
        "closed",
        "reading",
        "target",
    )

    def __init__(self, connection: Reading, limits: HttpLimits, gate: Gate | None, peer: str, scheme: str) -> None:
        self._connection = connection
        self._limits = limits
        self._gate = gate
        self._peer = peer
        self._scheme = scheme
        self._parser = httptools.HttpRequestParser(self)
        self.reading = False  # a request has begun and is not complete
        self.closed = False  # nothing more is read
        self._with_request = False  # the last part completed a request
        self.target = b""
        self._head: dict[bytes, bytes] | None = None  # set once the head is complete
        self._head_bytes = 0  # memory held by the head; 0 if it is small
        self._headers: dict[bytes, bytes] = {}  # of the head being read, later the trailers
        self._repeated: list[tuple[bytes, bytes]] = []  # headers whose names occurred before
        self._body: bytes | bytearray = b""
        self._body_declared = 0
        self._body_bytes_max = 0
        self._pieces = 0  # of a body that arrived in several
        self._unmetered_bytes = 0  # since the head began, or since the last bytes of the body
        self._window_tick = 0
        self._window_bytes = 0

    # --- for the connection

    def feed(self, data: bytes | memoryview, *, whole: bool = False) -> bytes | memoryview:
        """Parse more bytes. Returns the bytes that are not parsed yet; they can wait until the earlier requests are
        answered.
        """
        if len(data) > PART_BYTES and not whole:
            return self._feed_parts(data)
        self.reading = True
        self._unmetered_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrades(memoryview(data)[upgrade.args[0] :])
        except (httptools.HttpParserError, ValueError):
            self._refuse_garbage()
        if self.reading:
            self._check_part()
        return b""

    def bytes_held(self) -> int:
        """Memory held by the request being read."""
        if self._head is None:
            return REQUEST_BYTES + self._unmetered_bytes + HEADER_BYTES * (len(self._headers) + len(self._repeated))
        body = self._body
        return REQUEST_BYTES + self._head_bytes + (len(body) if isinstance(body, bytes) else body.__alloc__())

    def begin_window(self, tick: int) -> None:
        """Start a window for measuring the rate of a body. `tick` counts seconds."""
        self._window_tick = tick
        self._window_bytes = len(self._body)

    def is_slow(self, tick: int) -> bool:
        """Whether a body arrives more slowly than the minimum rate. Called every second."""
        passed_s = tick - self._window_tick
        if self._head is None or passed_s < self._limits.body_window_s:
            return False
        if len(self._body) - self._window_bytes < passed_s * self._limits.body_rate_bytes_min:
            return True
        self.begin_window(tick)
        return False

    def close(self) -> None:
        """Read no further, and free everything that was read."""
        self.closed = True
        self._reset()

    def release(self) -> None:
        """The connection has ended: break the reference cycle between this reader and its parser."""
        self.close()
        self._parser = httptools.HttpRequestParser(None)

    # --- parts

    def _feed_parts(self, data: bytes | memoryview) -> bytes | memoryview:
        rest = memoryview(data)
        self._with_request = False
        pieces_max = self._pieces + PART_CHUNKS
        while rest and not self._with_request and not self.closed and self._pieces < pieces_max:
            if self._head is not None and len(rest) <= self._body_declared - len(self._body):
                return self.feed(rest, whole=True)  # only a piece of the body
            part = rest[:PART_BYTES]
            if self._head is None:  # feed the head alone, so that a body that has arrived whole stays in one piece
                end = bytes(part).find(_HEAD_END)
                part = part[: end + len(_HEAD_END)] if end >= 0 else part
            self.feed(part)
            rest = rest[len(part) :]
        # An empty view, too, would keep all of `data` in memory.
        return rest if rest and not self.closed else b""

    def _check_part(self) -> None:
        """Check the limits for a request that is not complete yet."""
        if self.closed:
            self._reset()
            return
        limits = self._limits
        headers = len(self._headers) + len(self._repeated)
        if self._head is None:
            if self._unmetered_bytes > limits.head_bytes_max or headers > limits.headers_max:
                self._refuse_head()
            return
        body_bytes = len(self._body)
        if body_bytes > self._body_bytes_max:
            self._refuse_body()
        elif self._unmetered_bytes > limits.trailer_bytes_max or headers > limits.headers_max:
            self._connection.refuse(431, "The trailer after the request's body is too large.")
        elif self._pieces > limits.chunks_max + body_bytes // limits.chunk_bytes_min:
            self._connection.refuse(400, "The request's body arrives in too many small chunks. Send larger chunks.")

    def _decline_upgrades(self, rest: memoryview) -> None:
        """Ignore a request to upgrade to another protocol: none is supported. httptools stops parsing at an upgrade, so
        a new parser gets the head again without the upgrade headers, then the bytes that follow, which may contain the
        next upgrade.
        """
        while not self.closed:
            if self._parser.get_method() == b"CONNECT":
                self._connection.refuse(405, "This server is not a proxy.")
                return
            head = self._head_without_upgrade()
            unmetered_bytes = self._unmetered_bytes
            self._parser = httptools.HttpRequestParser(self)
            self._reset()
            self.reading = True
            self._unmetered_bytes = unmetered_bytes
            try:
                self._parser.feed_data(head)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade, ValueError):
                self._refuse_garbage()
                return
            try:
                self._parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                rest = rest[upgrade.args[0] :]
            except (httptools.HttpParserError, ValueError):
                self._refuse_garbage()
                return

    def _head_without_upgrade(self) -> bytes:
        parser = self._parser
        self._join_repeated()
        lines = [parser.get_method() + b" " + self.target + b" HTTP/" + parser.get_http_version().encode()]
        lines += [name + b": " + value for name, value in self._headers.items() if name not in _HOP_BY_HOP]
        if not parser.should_keep_alive():
            lines.append(b"connection: close")
        return b"\r\n".join(lines) + b"\r\n\r\n"

    # --- from the parser

    def on_url(self, url: bytes) -> None:
        self.reading = True
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in self._headers:
            self._repeated.append((name, value))
        else:
            self._headers[name] = value

    def on_headers_complete(self) -> None:
        if self.closed or self._parser.should_upgrade():
            return  # the head is parsed again without the upgrade, see _decline_upgrades
        headers = self._headers
        limits = self._limits
        if self._repeated or len(headers) > limits.headers_max:
            if len(headers) + len(self._repeated) > limits.headers_max:
                self._refuse_head()
                return
            self._join_repeated()
        length = headers.get(b"content-length")
        declared = 0 if length is None else int(length)
        if self._unmetered_bytes > SMALL_HEAD_BYTES and self._measure_head(declared) > limits.head_bytes_max:
            self._refuse_head()
            return
        allowed = limits.body_bytes_max if self._gate is None else self._gate(headers, self.target)
        if not isinstance(allowed, int):
            if allowed is not NO_HOST or self._parser.get_http_version() != "1.0":
                self._connection.refuse(*allowed)
                return
            allowed = limits.body_bytes_max
        self._head = headers
        self._headers = {}
        self._unmetered_bytes = 0
        self._body_declared = declared
        self._body_bytes_max = allowed
        if declared > allowed:
            self._refuse_body()
        elif b"expect" in headers:
            self._connection.expected(headers[b"expect"])

    def on_body(self, body: bytes) -> None:
        if self.closed:
            return
        self._unmetered_bytes = 0
        kept = self._body
        if not kept:
            self._body = body
            return
        self._pieces += 1
        if isinstance(kept, bytes):
            self._body = kept = bytearray(kept)
        kept += body

    def on_message_complete(self) -> None:
        if self._head is None:  # refused, or parsed again
            return
        if len(self._body) > self._body_bytes_max:
            self._refuse_body()
            return
        self._with_request = True
        request = self._request(bytes(self._body), keep_alive=self._parser.should_keep_alive())
        self._reset()
        self._connection.take(request)

    # --- small things

    def _request(self, body: bytes, *, keep_alive: bool) -> Request:
        target = self.target
        if not target.startswith(b"/"):  # in the form used for proxies, or OPTIONS *
            scheme, _, rest = target.partition(b"://")
            target = b"/" + rest.partition(b"/")[2] if rest and scheme in (b"http", b"https") else b"/"
        path, _, query = target.decode("latin-1").partition("?")
        request = Request(
            self._parser.get_method().decode("ascii"),
            path,
            query,
            self._head,
            body,
            self._peer,
            scheme=self._scheme,
            keep_alive=keep_alive,
        )
        request.bytes_held = REQUEST_BYTES + self._head_bytes + len(body)
        return request

    def _measure_head(self, body_declared: int) -> int:
        """The length of a head that arrived complete; 0 if it is small and the bytes after it are its body."""
        if self._unmetered_bytes - min(body_declared, PART_BYTES) <= SMALL_HEAD_BYTES:
            return 0
        headers = self._headers
        text_bytes = len(self.target) + sum(map(len, headers)) + sum(map(len, headers.values())) + 4 * len(headers)
        self._head_bytes = text_bytes + HEADER_BYTES * len(headers)
        return text_bytes

    def _join_repeated(self) -> None:
        values: dict[bytes, list[bytes]] = {}
        for name, value in self._repeated:
            values.setdefault(name, [self._headers[name]]).append(value)
        for name, several in values.items():
            self._headers[name] = b",".join(several)
        self._repeated = []

    def _reset(self) -> None:
        self.reading = False
        self.target = b""
        self._head = None
        self._head_bytes = 0
        if self._headers or self._repeated:
            self._headers = {}
            self._repeated = []
        self._body = b""
        self._pieces = 0
        self._unmetered_bytes = 0

    def _refuse_garbage(self) -> None:
        self._connection.refuse(400, "This is not a valid HTTP/1.1 request.")

    def _refuse_head(self) -> None:
        self._connection.refuse(431, "The request's header section is too large.")

    def _refuse_body(self) -> None:
        """Refuse a body that is too large. A request that would be refused anyway gets that answer instead."""
        if self._body_bytes_max < self._limits.body_bytes_max:
            self._connection.take_last(self._request(b"", keep_alive=False))
        else:
            self._connection.refuse(413, f"The request is larger than {self._limits.body_bytes_max} bytes.")
