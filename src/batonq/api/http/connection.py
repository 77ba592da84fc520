"""One client connection: httptools parses, one task answers in order, limits hold at every step.

While a request is in work, reading goes on (so that a client that leaves is noticed) until a few pipelined requests
are waiting; then it pauses.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, cast

import httptools

from batonq.api.http.messages import Request, Response, plain

if TYPE_CHECKING:
    from batonq.api.http.server import HttpServer

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_HOP_BY_HOP = (b"connection", b"upgrade", b"http2-settings")

logger = logging.getLogger("batonq.http")


class Connection(asyncio.Protocol):
    __slots__ = (
        "_body",
        "_body_bytes",
        "_bytes_in_head",
        "_finishing",
        "_headers",
        "_limits",
        "_lingering",
        "_parser",
        "_peer",
        "_queue",
        "_queued_bytes",
        "_reading",
        "_reading_paused",
        "_refused",
        "_server",
        "_since",
        "_target",
        "_transport",
        "_wakeup",
        "_without_task",
        "_working",
        "_writable",
        "task",
    )

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._limits = server.limits
        self._transport: asyncio.Transport
        self.task: asyncio.Task[None] | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._peer = ""
        # what has been read and waits for its turn: requests, and a last answer when the connection must end
        self._queue: deque[Request | Response] = deque()
        self._wakeup: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._working: Request | None = None
        self._without_task = False  # how the request in work is answered
        # the request being read
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._queued_bytes = 0  # of all bodies that this connection holds
        self._bytes_in_head = 0
        self._reading = False
        # how it goes on
        self._since = server.tick  # when the present state began
        self._reading_paused = False
        self._refused = False  # nothing more is read as a request
        self._finishing = False  # no request after the present ones
        self._lingering = False  # the last answer is out; waiting for the client to close

    # --- from the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its bases
        peer = transport.get_extra_info("peername")
        self._peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "local"
        if not self._server.opened(self):
            self._refused = True
            self._transport.write(self._written(plain(503, "Too many connections.", close=True), close=True))
            transport.close()
            return
        self.task = self._server.loop.create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if not self._reading:
            self._reading = True
            self._since = self._server.tick
        self._bytes_in_head += len(data)
        self._feed(data)
        if self._bytes_in_head > self._limits.head_bytes_max and not self._refused:
            self._refuse(431, "The request's head is too large.")

    def eof_received(self) -> bool:
        """The client has said all it will: answer what it asked, unless that is only a wait."""
        self._finishing = True
        self._leave()
        # Over TLS a connection cannot stay half open.
        return (
            self._server.scheme == "http" and not self._lingering and (self._working is not None or bool(self._queue))
        )

    def connection_lost(self, error: Exception | None) -> None:
        self._finishing = True
        self._refused = True
        self._queue.clear()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._leave()
        self._release_bytes(self._queued_bytes)
        self._server.closed(self)

    def pause_writing(self) -> None:
        self._since = self._server.tick
        self._writable = self._server.loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # --- from the server

    def finish(self) -> None:
        """End after the requests that are in work; at once when there are none."""
        self._finishing = True
        self._wake()

    def abort(self) -> None:
        self._finishing = True
        if self.task is not None:
            self.task.cancel()
        self._transport.abort()

    def check(self, tick: int) -> None:
        """Called every second: end what has lasted too long."""
        passed_s = tick - self._since
        if self._writable is not None:
            if passed_s > self._limits.write_s:
                self.abort()
        elif self._lingering:
            if passed_s > self._limits.linger_s:
                self._transport.abort()
        elif self._working is not None or self._queue:
            pass
        elif self._reading:
            if passed_s > self._limits.request_s:
                self._refuse(408, "The request took too long to arrive.")
        elif passed_s > self._limits.idle_s:
            self._transport.close()

    # --- from the parser

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in self._headers:
            value = self._headers[name] + b"," + value
        self._headers[name] = value

    def on_headers_complete(self) -> None:
        if self._parser.should_upgrade():
            return  # the head is read again without its wish, see _decline_upgrade
        headers = self._headers
        length = headers.get(b"content-length")
        if length is not None and int(length) > self._limits.body_bytes_max:
            self._refuse_large()
        elif b"expect" in headers and not self._queue and self._working is None:
            if headers[b"expect"].lower() == b"100-continue":
                self._transport.write(CONTINUE)
            else:
                self._refuse(417, "Only 100-continue can be expected.")
        self._bytes_in_head = -self._limits.body_bytes_max  # a body of its own limit comes now

    def on_body(self, body: bytes) -> None:
        if self._refused:
            return
        self._body.append(body)
        self._body_bytes += len(body)
        self._queued_bytes += len(body)
        counters = self._server.counters
        counters.bodies_bytes += len(body)
        self._bytes_in_head = -self._limits.body_bytes_max
        if self._body_bytes > self._limits.body_bytes_max:
            self._refuse_large()
        elif counters.bodies_bytes > self._limits.bodies_bytes_max:
            self._refuse(503, "Too much is being received at the moment; try again.")

    def on_message_complete(self) -> None:
        if self._refused or self._parser.should_upgrade():
            return
        path, _, query = self._split_target()
        body = self._body
        parser = self._parser
        request = Request(
            parser.get_method().decode("ascii"),
            path,
            query,
            self._headers,
            b"" if not body else body[0] if len(body) == 1 else b"".join(body),
            self._peer,
            scheme=self._server.scheme,
            keep_alive=parser.should_keep_alive(),
        )
        self._reset_reading()
        if self._express(request):
            return
        self._queue.append(request)
        if len(self._queue) > 1:
            self._pause_reading()
        self._wake()

    # --- without the task

    def _express(self, request: Request) -> bool:
        """Have a request answered from here, if its handler can and nothing is before it."""
        express = self._server.express
        if express is None or self._working is not None or self._queue or not request.keep_alive:
            return False
        if self._finishing or self._writable is not None:
            return False
        self._working = request
        self._without_task = True
        try:
            if express(request, self._reply):
                self._server.counters.requests += 1
                return True
        except Exception:
            self._server.counters.failures += 1
            logger.exception("a request failed: %s %s", request.method, request.path)
            self._working = None
            self._refuse(500, "Something went wrong in the server; its log says what.")
            return True
        self._working = None
        return False

    def _reply(self, answer: bytes | None) -> bool:
        """Write the whole answer of the request in work; False when the client has gone."""
        request = self._working
        if request is None or self._transport.is_closing():
            return False
        self._working = None
        if answer is None:
            self._server.counters.requests -= 1
            self._queue.appendleft(request)
            self._wake()
            return True
        if request.body:
            self._release_bytes(len(request.body))
        self._since = self._server.tick
        self._transport.write(answer)
        if self._queue or self._finishing:
            self._wake()
        return True

    # --- the task

    async def _serve(self) -> None:
        queue = self._queue
        try:
            while True:
                if not queue or self._working is not None:
                    # A request that is answered without this task is waited for, unless its client has gone.
                    if self._finishing and (self._working is None or self._transport.is_closing()):
                        break
                    self._wakeup = self._server.loop.create_future()
                    await self._wakeup
                    continue
                request = queue.popleft()
                if isinstance(request, Response):
                    self._transport.write(self._written(request, close=True))
                    self._linger()
                    return
                await self._answer(request)
                if self._reading_paused and not queue and not self._transport.is_closing():
                    self._reading_paused = False
                    self._transport.resume_reading()
                if self._writable is not None:
                    await self._writable
        except asyncio.CancelledError:
            pass  # the client has gone, or the server stops
        self._transport.close()

    async def _answer(self, request: Request) -> None:
        server = self._server
        server.counters.requests += 1
        self._working = request
        self._without_task = False
        try:
            response = await server.resolve(request)(request)
        except Exception:
            server.counters.failures += 1
            logger.exception("a request failed: %s %s", request.method, request.path)
            response = plain(500, "Something went wrong in the server; its log says what.")
        finally:
            self._working = None
            if request.body:
                self._release_bytes(len(request.body))
            self._since = server.tick
        close = response.close or not request.keep_alive or (self._finishing and not self._queue)
        if request.method == "HEAD":
            self._transport.write(server.heads.head(response, close=close))
        else:
            self._transport.write(self._written(response, close=close))
        if close:
            self._finishing = True
            self._refused = True
            self._queue.clear()

    # --- small things

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade(data[upgrade.args[0] :])
        except (httptools.HttpParserError, ValueError):
            self._refuse(400, "This is not a valid HTTP/1.1 request.")

    def _decline_upgrade(self, rest: bytes) -> None:
        """No other protocol is offered, and a wish for one may be ignored; httptools then does not read the body."""
        method = self._parser.get_method()
        if method == b"CONNECT":
            self._refuse(405, "This server is not a proxy.")
            return
        lines = [method + b" " + self._target + b" HTTP/1.1"]
        lines += [name + b": " + value for name, value in self._headers.items() if name not in _HOP_BY_HOP]
        self._parser = httptools.HttpRequestParser(self)
        self._reset_reading()
        self._feed(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    def _split_target(self) -> tuple[str, str, str]:
        target = self._target
        if not target.startswith(b"/"):  # as a proxy writes it, or OPTIONS *
            scheme, _, rest = target.partition(b"://")
            target = b"/" + rest.partition(b"/")[2] if rest and scheme in (b"http", b"https") else b"/"
        return target.decode("latin-1").partition("?")

    def _pause_reading(self) -> None:
        """A client that sends ahead has to wait when it holds too many requests or too many bytes of them."""
        limits = self._limits
        full = len(self._queue) >= limits.pipelined_max or self._queued_bytes >= limits.body_bytes_max
        if full and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    def _reset_reading(self) -> None:
        self._target = b""
        self._headers = {}
        self._body = []
        self._body_bytes = 0
        self._bytes_in_head = 0
        self._reading = False

    def _refuse(self, status: int, text: str) -> None:
        """Answer after what is before it, and read nothing more."""
        if self._refused:
            return
        self._refused = True
        self._server.counters.refused_requests += 1
        self._queue.append(self._server.refusal(self._target, status, text))
        self._reset_reading()
        self._wake()

    def _refuse_large(self) -> None:
        self._refuse(413, f"The request is larger than {self._limits.body_bytes_max} bytes.")

    def _release_bytes(self, count: int) -> None:
        count = min(count, self._queued_bytes)  # all are released at once when the connection is lost
        self._queued_bytes -= count
        self._server.counters.bodies_bytes -= count

    def _written(self, response: Response, *, close: bool) -> bytes:
        return self._server.heads.head(response, close=close) + response.body

    def _linger(self) -> None:
        """Closing while the client still sends would reset the connection before it has read the answer."""
        if self._transport.is_closing():
            return
        self._lingering = True
        self._since = self._server.tick
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def _leave(self) -> None:
        """The client has gone: stop a handler that only waits, and let the task end."""
        if self._working is not None and self._working.cancellable:
            if self._without_task:
                self._working = None  # so that `_reply` says that nobody is there
            elif self.task is not None:
                self.task.cancel()
        self._wake()

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)
