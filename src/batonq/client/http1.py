"""HTTP/1.1 as bytes: URLs, request headers, and a parser for responses. This module does no I/O."""

from __future__ import annotations

import ssl as tls
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httptools

from batonq import __version__
from batonq.client.transport import Answer, Headers, NotSent, Unreachable
from batonq.errors import InvalidInput, Unavailable

CONSUMER_LENGTH_MAX = 256
ANSWER_BYTES_MAX = 256 << 20  # larger than a thousand messages of the maximum size
_PORTS = {"http": 80, "https": 443}


class Address(NamedTuple):
    """A server's address: `http://host:port/prefix`."""

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
            raise InvalidInput(f"{url!r} is not a valid URL: {problem}.") from None
        if parts.scheme not in _PORTS or not parts.hostname:
            raise InvalidInput(f"The URL must look like http://127.0.0.1:9324, not {url!r}.")
        if parts.query or parts.fragment or parts.username is not None:
            raise InvalidInput("The URL cannot contain a query or credentials. Pass keys as access_key and secret_key.")
        secure = parts.scheme == "https"
        return cls(secure, parts.hostname, port or _PORTS[parts.scheme], parts.path.rstrip("/"))

    @property
    def host(self) -> str:
        """The value of the Host header."""
        name = f"[{self.name}]" if ":" in self.name else self.name
        return name if self.port == (443 if self.secure else 80) else f"{name}:{self.port}"

    def context(self, given: tls.SSLContext | None) -> tls.SSLContext | None:
        """The TLS context: the caller's, or one with the system's certificates."""
        if not self.secure:
            return None
        if given is not None:
            return given
        context = tls.create_default_context()
        context.minimum_version = tls.TLSVersion.TLSv1_2  # whatever the system's default is
        return context


def unreachable(address: Address, problem: OSError) -> NotSent:
    """The error for a connection that could not be made. After a timeout the server may only be busy."""
    if isinstance(problem, TimeoutError):
        return NotSent(f"Cannot connect to {address.host}: no response. Is the server running?")
    return Unreachable(
        f"Cannot connect to {address.host}: {problem}. Is the server running, and is this its address (the URL of the "
        "client, or BATON_URL)?"
    )


class Writer:
    """Writes requests to one address."""

    def __init__(self, address: Address, consumer: str = "") -> None:
        """`consumer`: the name that the server shows for this client."""
        self._prefix = address.prefix
        self._fixed = f" HTTP/1.1\r\nHost: {address.host}\r\nUser-Agent: batonq/{__version__}\r\n"
        if consumer:
            self._fixed += f"Baton-Consumer: {header_value(consumer)}\r\n"

    def write(self, method: str, path: str, body: bytes, headers: Headers) -> bytes:
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
        head = f"{method} {self._prefix}{path}{self._fixed}{lines}Content-Length: {len(body)}\r\n\r\n"
        return head.encode("latin-1") + body


def header_value(text: str) -> str:
    """A text as the value of a header: other characters than printable ASCII are replaced."""
    return "".join(letter if " " <= letter <= "~" else "?" for letter in text)[:CONSUMER_LENGTH_MAX].strip()


class Reader:
    """Reads the responses of one connection, one after another.

    `feed` returns the response when it is complete. `started` is True if a part of it has arrived.
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
        """Raises Unavailable if the data is not HTTP."""
        self.started = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as problem:
            raise Unavailable(
                f"The response is not HTTP/1.1 ({type(problem).__name__}). Is a Baton server at this address?"
            ) from None
        answer = self._done
        if answer is not None:
            self._done = None
            self.started = False
        return answer

    def end(self) -> Answer | None:
        """The connection was closed, which ends a response without a length."""
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
            raise Unavailable(f"The response is larger than {ANSWER_BYTES_MAX} bytes.")
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._whole_head = False  # later data does not belong to this response
        status = self._parser.get_status_code()
        if status < 200:
            return  # 100 Continue or similar: the response is still to come
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self.keep_alive = self.keep_alive and self._parser.should_keep_alive()
        self._done = Answer(status, self._headers, body)
