"""A bounded local buffer in front of a queue, for the day on which the broker cannot be reached.

`SendBuffer` is for asyncio, `BlockingSendBuffer` for threads. `put` takes a message in without waiting; `send` waits a
while for the server's answer. In the background they are sent in order, in batches, with pauses that grow while the
broker fails. A message that does not fit is refused with BufferFull; none is dropped in silence. With `spill`, a file
keeps what was not sent for the next process.

The server knows each message by the buffer's producer id and its position, so that one whose answer was lost is not
taken twice, not even after a restart from the spill file.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time
from collections.abc import Awaitable, Iterable
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from batonq.client.backlog import Backlog, Batch, BufferFull, Counters, Limits, RefusedMessage, Unsent
from batonq.client.breaker import Breaker
from batonq.client.models import Outgoing, Sent
from batonq.client.spill import FileStore, MemoryStore
from batonq.errors import BatonError, InvalidInput

__all__ = ["BlockingSendBuffer", "BufferFull", "Buffered", "Counters", "RefusedMessage", "SendBuffer", "Unsent"]

SEND_WAIT_S = 5.0
CLOSE_S = 10.0
LOOK_S = 1.0  # how often a pause is looked at anew: another user of the breaker may have closed it
URGENT_PAUSE_S = 0.2  # between two tries while somebody waits for a flush
_log = logging.getLogger("batonq.client")


class SendMany(Protocol):
    """`queue.send_many` of the async client."""

    def __call__(
        self, messages: Iterable[Outgoing], *, producer: tuple[str, int]
    ) -> Awaitable[list[Sent | BatonError]]: ...


class BlockingSendMany(Protocol):
    """`queue.send_many` of the client for threads."""

    def __call__(self, messages: Iterable[Outgoing], *, producer: tuple[str, int]) -> list[Sent | BatonError]: ...


class Buffered(NamedTuple):
    """The message is in the buffer; the server has not answered for it yet."""

    position: int


class _Common:
    """What both forms are made of."""

    def __init__(
        self,
        *,
        max_messages: int = Limits().messages,
        max_bytes: int = Limits().bytes,
        batch: int = Limits().batch,
        spill: str | os.PathLike[str] | None = None,
        durable: bool = False,
        breaker: Breaker | None = None,
        close_seconds: float = CLOSE_S,
    ) -> None:
        if max_messages < 1 or max_bytes < 1 or not 1 <= batch <= 1_000:
            raise InvalidInput("a buffer holds at least one message, and sends from 1 to 1,000 at a time")
        store = FileStore(spill, durable=durable) if spill is not None else MemoryStore()
        self._backlog = Backlog(store, Limits(messages=max_messages, bytes=max_bytes, batch=batch))
        self._spill = None if spill is None else os.fspath(spill)
        self._breaker = breaker or Breaker()
        self._close_s = close_seconds
        self._closed = False
        self._pid = os.getpid()
        self._due_s = 0.0  # the next request is not made before
        self._urgent = 0  # how many wait for a flush: then the breaker is not asked

    @property
    def counters(self) -> Counters:
        return self._backlog.counters()

    def _check(self) -> None:
        if self._closed:
            raise InvalidInput("the buffer is closed")
        if os.getpid() != self._pid:
            raise InvalidInput("this buffer belongs to the process that made it: make one after the fork")

    def _delay_s(self) -> float:
        """How long to wait before the next request, or before this question is asked again; 0: now."""
        left_s = self._due_s - time.monotonic()
        if not self._urgent:
            left_s = max(left_s, self._breaker.wait())
        return min(max(0.0, left_s), LOOK_S)

    def _answered(self) -> None:
        pause_s = self._backlog.pause_s()
        self._due_s = time.monotonic() + (min(pause_s, URGENT_PAUSE_S) if self._urgent else pause_s)

    def _tell_at_exit(self) -> None:
        if os.getpid() == self._pid and not self._closed and (unsent := self._backlog.unsent(self._spill)) is not None:
            _log.error("The process ends with a buffer that was not closed: %s", unsent.message)


def _outgoing(body: Any, fields: dict[str, Any]) -> Outgoing:
    if isinstance(body, Outgoing):
        if fields:
            raise InvalidInput("give an Outgoing its fields when it is made")
        return body
    return Outgoing(body, **fields)


class SendBuffer(_Common):
    """For asyncio: `async with SendBuffer(queue.send_many, spill="emails.db") as buffer`. The end of the block sends
    what is left, for up to `close_seconds`, and raises Unsent if something stays."""

    def __init__(self, send_many: SendMany, **settings: Any) -> None:
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
            _log.error("%s", unsent.message)  # the block's own error is the one to see

    def put(self, body: Any, **fields: Any) -> int:
        """Take a message in and return at once: a body with the fields of `queue.send`, or an Outgoing. Raises
        BufferFull."""
        self._check()
        position = self._backlog.put(_outgoing(body, fields))
        self._start()
        self._wake.set()
        return position

    async def send(self, body: Any, *, wait: float = SEND_WAIT_S, **fields: Any) -> Sent | Buffered:
        """Take a message in and wait up to `wait` seconds for the server. Sent: it is on the server's disk. Buffered:
        not yet. Raises BufferFull, or the server's error if it will never take this message."""
        position = self.put(body, **fields)
        future: asyncio.Future[Sent] = asyncio.get_running_loop().create_future()
        self._waiters[position] = future
        try:
            await asyncio.wait({future}, timeout=wait)
        except asyncio.CancelledError:
            if future.done() and (problem := future.exception()) is not None:
                _log.error("The server refused a message whose sender was cancelled: %s", problem)
            raise
        finally:
            del self._waiters[position]
        return future.result() if future.done() else Buffered(position)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything was sent. Raises Unsent when it was not in time."""
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
        """Messages that the server will never take as they are: yours to mend or to write down. They are no longer
        kept."""
        return self._backlog.take_refused()

    async def close(self, timeout: float | None = None) -> None:
        """Send what is left, for up to `timeout` (or `close_seconds`), and stop. Raises Unsent if something stays."""
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
            self._task = asyncio.get_running_loop().create_task(self._run())

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
                        _tell(waiter, result)

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
        except Exception as problem:  # whatever it is, the messages stay
            return self._backlog.fail(batch, problem, self._waiters)
        finally:
            self._answered()


class BlockingSendBuffer(_Common):
    """For threads, any number of which may put. What is left when the interpreter exits is sent then, for up to
    `close_seconds`, and told of in the log if something stays."""

    def __init__(self, send_many: BlockingSendMany, **settings: Any) -> None:
        super().__init__(**settings)
        self._send_many = send_many
        self._waiters: dict[int, Future[Sent]] = {}
        self._changed = threading.Condition()  # guards the backlog and the waiters
        self._thread = threading.Thread(target=self._run, name="baton send buffer", daemon=True)
        self._thread.start()
        atexit.register(self._close_at_exit)

    def __enter__(self) -> BlockingSendBuffer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        try:
            self.close()
        except Unsent as unsent:
            if error is None:
                raise
            _log.error("%s", unsent.message)

    def put(self, body: Any, **fields: Any) -> int:
        """Take a message in and return at once: a body with the fields of `queue.send`, or an Outgoing. Raises
        BufferFull."""
        return self._put(_outgoing(body, fields), None)

    def send(self, body: Any, *, wait: float = SEND_WAIT_S, **fields: Any) -> Sent | Buffered:
        """Take a message in and wait up to `wait` seconds for the server. Sent: it is on the server's disk. Buffered:
        not yet. Raises BufferFull, or the server's error if it will never take this message."""
        future: Future[Sent] = Future()
        position = self._put(_outgoing(body, fields), future)
        try:
            return future.result(wait)
        except TimeoutError:
            pass
        finally:
            with self._changed:
                del self._waiters[position]
        return future.result() if future.done() else Buffered(position)  # it may have come in the last moment

    def _put(self, outgoing: Outgoing, waiter: Future[Sent] | None) -> int:
        self._check()
        with self._changed:
            position = self._backlog.put(outgoing)
            if waiter is not None:
                self._waiters[position] = waiter
            self._changed.notify_all()
        return position

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything was sent. Raises Unsent when it was not in time."""
        with self._changed:
            self._urgent += 1
            self._due_s = 0.0
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._backlog.waiting, timeout)
            self._urgent -= 1
            unsent = self._backlog.unsent(self._spill)
        if unsent is not None:
            raise unsent

    def take_refused(self) -> list[RefusedMessage]:
        """Messages that the server will never take as they are: yours to mend or to write down. They are no longer
        kept."""
        with self._changed:
            return self._backlog.take_refused()

    @property
    def counters(self) -> Counters:
        with self._changed:
            return self._backlog.counters()

    def close(self, timeout: float | None = None) -> None:
        """Send what is left, for up to `timeout` (or `close_seconds`), and stop. Raises Unsent if something stays."""
        if self._closed:
            return
        deadline = time.monotonic() + (self._close_s if timeout is None else timeout)
        try:
            self.flush(max(0.0, deadline - time.monotonic()))
        finally:
            atexit.unregister(self._close_at_exit)
            with self._changed:
                self._closed = True
                self._changed.notify_all()
            self._thread.join(max(1.0, deadline - time.monotonic()))
            if (
                not self._thread.is_alive()
            ):  # else it still has a request under way; the file is let go with the process
                self._backlog.store.close()

    def _close_at_exit(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child: what is in there is its parent's to send
        try:
            self.close()
        except Unsent as unsent:
            _log.error("%s", unsent.message)

    # --- in the background

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            problem: Exception | None = None
            results: list[Sent | BatonError] = []
            try:
                if self._urgent:
                    results = self._send_many(batch.messages, producer=batch.producer)
                else:
                    results = self._breaker.call(self._send_many, batch.messages, producer=batch.producer)
            except Exception as raised:  # whatever it is, the messages stay
                problem = raised
            with self._changed:
                final = self._settle(batch, results, problem)
                for position, result in final.items():
                    if (waiter := self._waiters.get(position)) is not None:
                        _tell(waiter, result)
                self._answered()
                self._changed.notify_all()

    def _settle(
        self, batch: Batch, results: list[Sent | BatonError], problem: Exception | None
    ) -> dict[int, Sent | BatonError]:
        if problem is None:
            try:
                return self._backlog.settle(batch, results, self._waiters)
            except Exception as raised:
                problem = raised
        return self._backlog.fail(batch, problem, self._waiters)

    def _next(self) -> Batch | None:
        """The next batch, when it is time to send it; None at the end."""
        with self._changed:
            while not self._closed:
                if not self._backlog.waiting:
                    self._changed.wait()
                elif (delay_s := self._delay_s()) > 0:
                    self._changed.wait(delay_s)
                elif (batch := self._backlog.batch()) is not None:
                    return batch
                else:
                    self._answered()
            return None


def _tell(waiter: asyncio.Future[Sent] | Future[Sent], result: Sent | BatonError) -> None:
    if isinstance(result, BatonError):
        waiter.set_exception(result)
    else:
        waiter.set_result(result)
