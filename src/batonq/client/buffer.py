"""A bounded local buffer in front of a queue, for times when the broker is unavailable.

`SendBuffer` is for asyncio, `BlockingSendBuffer` for threads. `put` adds a message without waiting; `send` waits a
while for the server's response. Messages are sent in the background, in order and in batches, with backoff while the
broker fails. If the buffer is full, BufferFull is raised; no message is dropped silently. With `spill`, unsent messages
are kept in a file for the next process.

The server recognizes each message by the buffer's producer id and its position, so a message whose response was lost is
not stored twice, not even after a restart from the spill file.
"""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Awaitable, Iterable
from contextvars import Context
from typing import Any, Protocol, Unpack

from batonq.client.backlog import BufferFull, Counters, RefusedMessage, Unsent
from batonq.client.buffering import SEND_WAIT_S, Buffered, Buffering, BufferSettings, log, outgoing_of, tell
from batonq.client.models import Outgoing, Sent
from batonq.client.threadbuffer import BlockingSendBuffer
from batonq.errors import BatonError

__all__ = [
    "BlockingSendBuffer",
    "BufferFull",
    "BufferSettings",
    "Buffered",
    "Counters",
    "RefusedMessage",
    "SendBuffer",
    "Unsent",
]


class SendMany(Protocol):
    """`queue.send_many` of the async client."""

    def __call__(
        self, messages: Iterable[Outgoing], *, producer: tuple[str, int]
    ) -> Awaitable[list[Sent | BatonError]]: ...


class SendBuffer(Buffering):
    """For asyncio: `async with SendBuffer(queue.send_many, spill="emails.db") as buffer`. At the end of the block it
    sends the remaining messages for up to `close_seconds`, and raises Unsent if some are left.
    """

    def __init__(self, send_many: SendMany, **settings: Unpack[BufferSettings]) -> None:
        super().__init__(**settings)
        self._send_many = send_many
        self._waiters: dict[int, asyncio.Future[Sent]] = {}
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        atexit.register(self._tell_at_exit)

    async def __aenter__(self) -> SendBuffer:
        self._start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        try:
            await self.close()
        except Unsent as unsent:
            if error is None:
                raise
            log.error("%s", unsent.message)  # the error of the block itself is more important

    def put(self, body: Any, **fields: Any) -> int:
        """Add a message without waiting: a body and the fields of `queue.send`, or an Outgoing. Raises BufferFull."""
        self._check()
        position = self._backlog.put(outgoing_of(body, fields))
        self._start()
        self._wake.set()
        return position

    async def send(self, body: Any, *, wait: float = SEND_WAIT_S, **fields: Any) -> Sent | Buffered:
        """Add a message and wait up to `wait` seconds for the server. Returns Sent if it is stored on the server,
        Buffered if not yet. Raises BufferFull, or the server's error if it will never accept the message.
        """
        position = self.put(body, **fields)
        future: asyncio.Future[Sent] = asyncio.get_running_loop().create_future()
        self._waiters[position] = future
        try:
            await asyncio.wait({future}, timeout=wait)
        except asyncio.CancelledError:
            if future.done() and (problem := future.exception()) is not None:
                log.error("The server refused a message whose sender was cancelled: %s", problem)
            raise
        finally:
            del self._waiters[position]
        return future.result() if future.done() else Buffered(position)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything is sent. Raises Unsent on timeout."""
        self._start()
        self._urgent += 1
        self._due_s = 0.0
        self._wake.set()
        try:
            async with asyncio.timeout(timeout):
                while self._backlog.waiting:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            pass
        finally:
            self._urgent -= 1
        unsent = self._backlog.unsent(self._spill)
        if unsent is not None:
            raise unsent

    def take_refused(self) -> list[RefusedMessage]:
        """Return and remove the messages that the server will never accept as they are, so that you can correct or
        record them.
        """
        return self._backlog.take_refused()

    async def close(self, timeout: float | None = None) -> None:
        """Send the remaining messages, for up to `timeout` (or `close_seconds`), and stop. Raises Unsent if some are
        left.
        """
        if self._closed:
            return
        try:
            await self.flush(self._close_s if timeout is None else timeout)
        finally:
            self._closed = True
            atexit.unregister(self._tell_at_exit)
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
            self._backlog.store.close()

    # --- in the background

    def _start(self) -> None:
        if self._task is None:
            self._check()
            # In a context of its own. Otherwise it would send everything in the trace of the first caller.
            self._task = asyncio.get_running_loop().create_task(self._run(), context=Context())

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            if not self._backlog.waiting:
                self._empty.set()
                await self._wake.wait()
            elif (delay_s := self._delay_s()) > 0:
                try:
                    await asyncio.wait_for(self._wake.wait(), delay_s)
                except TimeoutError:
                    pass
            else:
                for position, result in (await self._try()).items():
                    waiter = self._waiters.get(position)
                    if waiter is not None and not waiter.done():
                        tell(waiter, result)

    async def _try(self) -> dict[int, Sent | BatonError]:
        batch = self._backlog.batch()
        if batch is None:
            self._answered()
            return {}
        try:
            if self._urgent:
                results = await self._send_many(batch.messages, producer=batch.producer)
            else:
                results = await self._breaker.run(self._send_many, batch.messages, producer=batch.producer)
            return self._backlog.settle(batch, results, self._waiters)
        except Exception as problem:  # whatever the error is, the messages stay in the buffer
            return self._backlog.fail(batch, problem, self._waiters)
        finally:
            self._answered()
