"""HTTP/1.1 as bytes: an address, a request's head, an answer as it arrives. Reads and writes nothing itself."""

from __future__ import annotations

import ssl as tls
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httptools

from batonq import __version__
from batonq.client.transport import Answer, Headers
from batonq.errors import InvalidInput, Unavailable

ANSWER_BYTES_MAX = 256 << 20  # a thousand messages of the largest size do not reach it
_PORTS = {"http": 80, "https": 443}


class Address(NamedTuple):
    """Where a server is: `http://host:port/prefix`."""

    secure: bool
    name: str
    port: int
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Address:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as problem:
            raise InvalidInput(f"{url!r} is not an address: {problem}.") from None
        if parts.scheme not in _PORTS or not parts.hostname:
            raise InvalidInput(f"The address must be like http://127.0.0.1:9324, not {url!r}.")
        if parts.query or parts.fragment or parts.username is not None:
            raise InvalidInput("The address takes no query, and keys are given as access_key and secret_key.")
        secure = parts.scheme == "https"
        return cls(secure, parts.hostname, port or _PORTS[parts.scheme], parts.path.rstrip("/"))

    @property
    def host(self) -> str:
        """As the Host header has it."""
        name = f"[{self.name}]" if ":" in self.name else self.name
        return name if self.port == (443 if self.secure else 80) else f"{name}:{self.port}"

    def context(self, given: tls.SSLContext | None) -> tls.SSLContext | None:
        """What TLS needs: the caller's, or the system's certificates."""
        if not self.secure:
            return None
        if given is not None:
            return given
        context = tls.create_default_context()
        context.minimum_version = tls.TLSVersion.TLSv1_2  # whatever the system's default is
        return context


class Writer:
    """Writes requests to one address."""

    def __init__(self, address: Address) -> None:
        self._prefix = address.prefix
        self._fixed = f" HTTP/1.1\r\nHost: {address.host}\r\nUser-Agent: batonq/{__version__}\r\n"

    def write(self, method: str, path: str, body: bytes, headers: Headers) -> bytes:
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
        head = f"{method} {self._prefix}{path}{self._fixed}{lines}Content-Length: {len(body)}\r\n\r\n"
        return head.encode("latin-1") + body


class Reader:
    """Reads the answers of one connection, one after another.

    `feed` returns the answer once it is whole. `started` says that some of one has come.
    """

    __slots__ = ("_body", "_done", "_headers", "_parser", "_size", "_whole_head", "keep_alive", "started")

    def __init__(self) -> None:
        self._parser: Any = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0
        self._done: Answer | None = None
        self._whole_head = False
        self.started = False
        self.keep_alive = True

    def feed(self, data: bytes) -> Answer | None:
        """Raises Unavailable when this is not HTTP."""
        self.started = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as problem:
            raise Unavailable(f"The answer is not HTTP/1.1 ({type(problem).__name__}): is this a Baton?") from None
        answer = self._done
        if answer is not None:
            self._done = None
            self.started = False
        return answer

    def end(self) -> Answer | None:
        """The connection has ended: an answer that says nothing about its length is whole now."""
        if self._whole_head and not {"content-length", "transfer-encoding"} & self._headers.keys():
            self.keep_alive = False
            self.on_message_complete()
        answer, self._done = self._done, None
        return answer

    # --- called by the parser

    def on_message_begin(self) -> None:
        self._headers = {}
        self._body = []
        self._size = 0
        self._whole_head = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._whole_head = True

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > ANSWER_BYTES_MAX:
            raise Unavailable(f"The answer is larger than {ANSWER_BYTES_MAX} bytes.")
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._whole_head = False  # what ends from here on is not this answer
        status = self._parser.get_status_code()
        if status < 200:
            return  # "continue", and the like: the answer is still to come
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self.keep_alive = self.keep_alive and self._parser.should_keep_alive()
        self._done = Answer(status, self._headers, body)
