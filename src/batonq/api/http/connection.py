"""One client connection: a reader parses its bytes into requests, and one task answers them in order.

Reading continues while a request is in progress, so that a disconnect is noticed. Reading pauses when a few pipelined
requests are waiting. Bytes that were received and not parsed by then are kept as they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, cast

from batonq.api.http.memory_limits import AddressUsage, address_of
from batonq.api.http.messages import Request, Response, plain
from batonq.api.http.request_reader import RequestReader
from batonq.errors import FAULT

if TYPE_CHECKING:
    from batonq.api.http.server import HttpServer

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
NO_ROOM = "The server is receiving too many requests at the moment. Retry."
ANSWERS_IN_A_ROW = 8  # to pipelined requests, before other connections get their turn

logger = logging.getLogger("batonq.http")


class Connection(asyncio.Protocol):
    __slots__ = (
        "_address",
        "_bytes_held",
        "_bytes_receiving",
        "_bytes_unsent",
        "_cut_short",
        "_finishing",
        "_limits",
        "_lingering",
        "_queue",
        "_reader",
        "_reading_paused",
        "_server",
        "_since",
        "_streaming",
        "_transport",
        "_unread",
        "_usage",
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
        self._reader: RequestReader
        self.task: asyncio.Task[None] | None = None
        # parsed and waiting: requests, and a last response when the connection must close
        self._queue: deque[Request | Response] = deque()
        self._unread: bytes | memoryview = b""  # received bytes, not parsed until the queue is empty
        self._wakeup: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._working: Request | None = None
        self._without_task = False  # whether the request in progress is answered without the task
        # resources
        self._address = ""
        self._usage: AddressUsage
        self._bytes_held = 0  # by requests in progress or waiting, the request being received, and unsent responses
        self._bytes_receiving = 0  # the part of these held by the request being received and by unread bytes
        self._bytes_unsent = 0  # the part held by responses that the client is slow to read
        # state
        self._since = server.tick  # when the present state began
        self._reading_paused = False
        self._finishing = False  # no requests are read after the present ones
        self._cut_short = False  # the last request was not read completely
        self._lingering = False  # the last response is sent; waiting for the client to close
        self._streaming = False  # the task sends a response piece by piece

    # --- from the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        server = self._server
        peer = transport.get_extra_info("peername")
        name = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "local"
        self._reader = RequestReader(self, self._limits, server.gate, name, server.scheme)
        self._address = address_of(peer)
        usage = server.opened(self, self._address)
        if usage is None:
            self._reader.close()
            self._transport.write(
                self._written(
                    plain(503, "The limit of open connections is reached. Retry later.", close=True), close=True
                )
            )
            transport.close()
            return
        self._usage = usage
        self.task = server.loop.create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        self._server.counters.received_bytes += len(data)
        if reader.closed:
            return
        if not reader.reading:
            self._since = self._server.tick
        self._unread = reader.feed(data) if not self._unread else bytes(self._unread) + data
        if reader.reading or self._unread:
            self._hold_unfinished()

    def eof_received(self) -> bool:
        """The client has closed its side: finish the requests in progress, except long polls."""
        self._finishing = True
        if self._working is not None and self._working.brief:
            self._wake()
        else:
            self._leave()
        # A TLS connection cannot stay half open.
        return (
            self._server.scheme == "http"
            and not self._lingering
            and (self._working is not None or bool(self._queue) or bool(self._unread))
        )

    def connection_lost(self, error: Exception | None) -> None:
        self._finishing = True
        self._reader.release()
        self._queue.clear()
        self._unread = b""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._leave()
        if self.task is not None:  # the connection was accepted
            self._server.usage.end(self._usage, self)
            self._release(self._bytes_held)
            self._bytes_receiving = self._bytes_unsent = 0
            self._server.closed(self, self._address)

    def pause_writing(self) -> None:
        self._since = self._server.tick
        self._writable = self._server.loop.create_future()
        if self.task is None:
            return  # the connection was not accepted
        self._bytes_unsent = self._transport.get_write_buffer_size()
        self._server.usage.begin(self._usage, self)
        self._hold(self._bytes_unsent)  # may evict older requests; if there are none, this may exceed the limit

    def resume_writing(self) -> None:
        if self._bytes_unsent:
            self._release_unsent()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # --- from the server

    def finish(self) -> None:
        """Close after the requests in progress; at once when there are none, or when the response is a stream."""
        self._finishing = True
        if self._streaming and self.task is not None:
            self.task.cancel()
        self._wake()

    def abort(self) -> None:
        self._finishing = True
        if self.task is not None:
            self.task.cancel()
        self._transport.abort()

    def check(self, tick: int) -> None:
        """Called every second: closes the connection when a timeout has passed."""
        passed_s = tick - self._since
        if self._writable is not None:
            if passed_s > self._limits.write_s:
                self.abort()
        elif self._lingering:
            if passed_s > self._limits.linger_s:
                self._transport.abort()
        elif self._working is not None or self._queue or self._unread:
            self._reader.begin_window(tick)
        elif self._reader.reading:
            if passed_s > self._limits.request_s or self._reader.is_slow(tick):
                self.refuse(408, "The request took too long to arrive.")
        elif passed_s > self._limits.idle_s:
            self._transport.close()

    def give_way(self) -> None:
        """Refuse the request being received, or drop an unread response, since other connections need the memory."""
        if self._bytes_unsent:
            self._release_unsent()
            self.abort()
        else:
            self.refuse(503, NO_ROOM)

    # --- from the reader

    def take(self, request: Request) -> None:
        if self._bytes_receiving:
            self._release_unfinished()
        if not self._hold(request.bytes_held):
            self._end_with(request, 503, NO_ROOM)
            return
        if self._take_directly(request):
            return
        self._queue.append(request)
        if len(self._queue) > 1 or self._working is not None:
            self._pause_if_full()
        self._wake()

    def take_last(self, request: Request) -> None:
        self._cut_short = True
        self._reader.close()
        self.take(request)

    def refuse(self, status: int, text: str) -> None:
        """Answer with an error after the earlier requests, and read no further."""
        if not self._reader.closed:
            self._end(self._server.refusal(self._reader.target, status, text))

    def expected(self, expectation: bytes) -> None:
        if self._queue or self._working is not None:
            return
        if expectation.lower() == b"100-continue":
            self._transport.write(CONTINUE)
        else:
            self.refuse(417, "The only supported value of the Expect header is 100-continue.")

    # --- without the task

    def _take_directly(self, request: Request) -> bool:
        """Have a request answered without the task, if its handler can do that and no other request is waiting."""
        direct = self._server.direct
        if direct is None or self._working is not None or self._queue or not request.keep_alive:
            return False
        if self._finishing or self._writable is not None:
            return False
        self._working = request
        self._without_task = True
        try:
            if direct(request, self._reply):
                self._server.counters.requests += 1
                return True
        except Exception:
            self._server.counters.failures += 1
            logger.exception("a request failed: %s %s", request.method, request.path)
            self._working = None
            self._end_with(request, 500, FAULT)
            return True
        self._working = None
        return False

    def _end_with(self, request: Request, status: int, text: str) -> None:
        self._release(request.bytes_held)
        self._end(self._server.refusal(request.path.encode("latin-1"), status, text))

    def _end(self, last: Response) -> None:
        """Answer the earlier requests, then send this response, and read no further."""
        self._server.counters.refused_requests += 1
        self._queue.append(last)
        self._reader.close()
        self._unread = b""
        self._release_unfinished()
        self._wake()

    def _reply(self, answer: bytes) -> bool:
        """Write the whole response to the request in progress. Returns False when the client has disconnected."""
        request = self._working
        if request is None or self._transport.is_closing():
            return False
        self._working = None
        self._release(request.bytes_held)
        self._since = self._server.tick
        self._server.counters.sent(request.method, answer)
        self._transport.write(answer)
        if self._queue or self._finishing or self._unread:
            self._wake()
        return True

    # --- the task

    async def _serve(self) -> None:
        try:
            await self._answer_all()
        except asyncio.CancelledError:
            pass  # the client has disconnected, or the server is stopping
        if self._lingering:
            return
        self._transport.close()

    async def _answer_all(self) -> None:
        queue = self._queue
        in_a_row = 0
        while True:
            if self._working is not None or not (queue or self._unread):
                # Wait for a request that is answered without this task, unless its client has disconnected.
                if self._finishing and (self._working is None or self._transport.is_closing()):
                    return
                in_a_row = 0
                self._wakeup = self._server.loop.create_future()
                await self._wakeup
                continue
            in_a_row += 1
            if not queue and self._read_on():
                continue  # the next request must not be answered before the one that was just started
            if not queue or in_a_row % ANSWERS_IN_A_ROW == 0:
                await asyncio.sleep(0)
                continue
            request = queue.popleft()
            if self._transport.is_closing():
                return  # no client to read a response
            if isinstance(request, Response):
                self._write("", self._written(request, close=True))
                self._linger()
                return
            await self._answer(request)
            del request  # otherwise it stays in memory while this task waits for the next request
            if self._reading_paused and not queue and not self._unread:
                self._resume_reading()
            if self._writable is not None:
                await self._writable

    def _read_on(self) -> bool:
        """All requests so far are answered: parse the bytes that had to wait. Returns whether a request is in progress
        now, which is answered without this task.
        """
        self._unread = self._reader.feed(self._unread)
        self._hold_unfinished()
        if self._reading_paused and not self._queue and not self._unread:
            self._resume_reading()
        return self._working is not None

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
            response = plain(500, FAULT)
        finally:
            self._working = None
            self._release(request.bytes_held)
            self._since = server.tick
        if self._transport.is_closing():
            if response.stream is not None:
                await response.stream.aclose()
            return  # the client has disconnected meanwhile, and uvloop raises on a write
        close = response.close or not request.keep_alive or (self._finishing and not self._queue and not self._unread)
        if request.method == "HEAD":
            self._write(request.method, server.heads.head(response, close=close))
        else:
            self._write(request.method, self._written(response, close=close))
        if response.stream is not None:
            await self._send_stream(request, response.stream)
        if close:
            self._finishing = True
            self._reader.close()
            self._queue.clear()
            self._unread = b""
            if self._cut_short:
                self._linger()

    async def _send_stream(self, request: Request, pieces: AsyncGenerator[bytes, None]) -> None:
        """Send pieces until they end. A disconnect, or the server's stop, cancels the task."""
        request.cancellable = True
        self._working = request
        self._streaming = True
        try:
            if request.method == "HEAD" or self._finishing:
                return
            async for piece in pieces:
                if self._transport.is_closing():
                    return
                self._transport.write(piece)
                if self._writable is not None:
                    await self._writable
        except Exception:
            self._server.counters.failures += 1
            logger.exception("a stream failed: %s %s", request.method, request.path)
        finally:
            self._streaming = False
            self._working = None
            self._since = self._server.tick
            await pieces.aclose()

    # --- small things

    def _pause_if_full(self) -> None:
        """Pause reading when a client that pipelines has too many requests, or too many bytes of them, waiting."""
        limits = self._limits
        if len(self._queue) >= limits.pipelined_max or self._bytes_held >= limits.body_bytes_max:
            self._pause_reading()

    def _pause_reading(self) -> None:
        if not self._reading_paused and not self._transport.is_closing():
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        self._reading_paused = False
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _hold(self, count: int) -> bool:
        """Count bytes held for this connection. Returns False when the memory limit is reached."""
        usage, total = self._usage, self._server.usage
        self._bytes_held += count
        usage.bytes_held += count
        total.bytes_held += count
        if total.bytes_held > total.bytes_max or usage.bytes_held > total.address_bytes_max:
            return total.make_room(usage, self)
        return True

    def _release(self, count: int) -> None:
        if count > self._bytes_held:  # all bytes are released at once when the connection is lost
            count = self._bytes_held
        self._bytes_held -= count
        self._usage.bytes_held -= count
        self._server.usage.bytes_held -= count

    def _hold_unfinished(self) -> None:
        """Count the memory that the request being received has taken so far."""
        reader = self._reader
        if reader.closed:
            return
        if not reader.reading and not self._unread:
            self._release_unfinished()
            return
        before = self._bytes_receiving
        self._bytes_receiving = (reader.bytes_held() if reader.reading else 0) + len(self._unread)
        if not before:
            self._server.usage.begin(self._usage, self)
            reader.begin_window(self._server.tick)
        if self._unread:
            self._pause_reading()
            self._wake()
        if not self._hold(self._bytes_receiving - before):
            self.give_way()

    def _release_unfinished(self) -> None:
        if not self._bytes_unsent:
            self._server.usage.end(self._usage, self)
        self._release(self._bytes_receiving)
        self._bytes_receiving = 0

    def _release_unsent(self) -> None:
        if not self._bytes_receiving:
            self._server.usage.end(self._usage, self)
        self._release(self._bytes_unsent)
        self._bytes_unsent = 0

    def _write(self, method: str, response: bytes) -> None:
        """Write a response. The method is empty for a request that was refused before it was read."""
        self._server.counters.sent(method, response)
        self._transport.write(response)

    def _written(self, response: Response, *, close: bool) -> bytes:
        return self._server.heads.head(response, close=close) + response.body

    def _linger(self) -> None:
        """Wait before closing: closing while the client still sends would reset the connection before it has read the
        response.
        """
        if self._transport.is_closing():
            return
        self._lingering = True
        self._since = self._server.tick
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def _leave(self) -> None:
        """The client has disconnected: cancel a handler that only waits, and let the task end."""
        if self._working is not None and self._working.cancellable:
            if self._without_task:
                if self._working.abandon is not None:
                    self._working.abandon()
                self._working = None  # makes `_reply` return False
                self._queue.clear()  # clients match responses by order, so after a missing one none can be sent
                self._unread = b""
                self._reader.close()
            elif self.task is not None:
                self.task.cancel()
        self._wake()

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)
