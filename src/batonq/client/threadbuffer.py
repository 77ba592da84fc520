"""The buffer for threads; see buffer.py."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, Protocol, Unpack

from batonq.client.backlog import Batch, Counters, RefusedMessage, Unsent
from batonq.client.buffering import SEND_WAIT_S, Buffered, Buffering, BufferSettings, log, outgoing_of, tell
from batonq.client.models import Outgoing, Sent
from batonq.errors import BatonError


class BlockingSendMany(Protocol):
    """`queue.send_many` of the client for threads."""

    def __call__(self, messages: Iterable[Outgoing], *, producer: tuple[str, int]) -> list[Sent | BatonError]: ...


class BlockingSendBuffer(Buffering):
    """For threads; any number of threads may use it. When the interpreter exits, the remaining messages are sent for up
    to `close_seconds`, and an error is logged if some are left.
    """

    def __init__(self, send_many: BlockingSendMany, **settings: Unpack[BufferSettings]) -> None:
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
            log.error("%s", unsent.message)

    def put(self, body: Any, **fields: Any) -> int:
        """Add a message without waiting: a body and the fields of `queue.send`, or an Outgoing. Raises BufferFull."""
        return self._put(outgoing_of(body, fields), None)

    def send(self, body: Any, *, wait: float = SEND_WAIT_S, **fields: Any) -> Sent | Buffered:
        """Add a message and wait up to `wait` seconds for the server. Returns Sent if it is stored on the server,
        Buffered if not yet. Raises BufferFull, or the server's error if it will never accept the message.
        """
        future: Future[Sent] = Future()
        position = self._put(outgoing_of(body, fields), future)
        try:
            return future.result(wait)
        except TimeoutError:
            pass
        finally:
            with self._changed:
                del self._waiters[position]
        # the result may have arrived at the last moment
        return future.result() if future.done() else Buffered(position)

    def _put(self, outgoing: Outgoing, waiter: Future[Sent] | None) -> int:
        self._check()
        with self._changed:
            position = self._backlog.put(outgoing)
            if waiter is not None:
                self._waiters[position] = waiter
            self._changed.notify_all()
        return position

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything is sent. Raises Unsent on timeout."""
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
        """Return and remove the messages that the server will never accept as they are, so that you can correct or
        record them.
        """
        with self._changed:
            return self._backlog.take_refused()

    @property
    def counters(self) -> Counters:
        """Counts and current values."""
        with self._changed:
            return self._backlog.counters()

    def close(self, timeout: float | None = None) -> None:
        """Send the remaining messages, for up to `timeout` (or `close_seconds`), and stop. Raises Unsent if some are
        left.
        """
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
            ):  # otherwise a request is still in progress, and the file is released when the process ends
                self._backlog.store.close()

    def _close_at_exit(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child: the messages belong to its parent
        try:
            self.close()
        except Unsent as unsent:
            log.error("%s", unsent.message)

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
            except Exception as raised:  # whatever the error is, the messages stay in the buffer
                problem = raised
            with self._changed:
                final = self._settle(batch, results, problem)
                for position, result in final.items():
                    if (waiter := self._waiters.get(position)) is not None:
                        tell(waiter, result)
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
