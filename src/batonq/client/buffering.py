"""The parts that both forms of a buffer share; see buffer.py."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from concurrent.futures import Future
from typing import Any, NamedTuple, TypedDict

from msgspec.structs import replace

from batonq.client import tracing
from batonq.client.backlog import Backlog, Counters, Limits
from batonq.client.breaker import Breaker
from batonq.client.models import Outgoing, Sent
from batonq.client.spill import FileStore, MemoryStore
from batonq.errors import BatonError, InvalidInput

SEND_WAIT_S = 5.0
CLOSE_S = 10.0
LOOK_S = 1.0  # how often a pause is checked: another user of the breaker may have closed it
URGENT_PAUSE_S = 0.2  # between two attempts while a flush is waiting
log = logging.getLogger("batonq.client")


class Buffered(NamedTuple):
    """The message is in the buffer; the server has not accepted it yet."""

    position: int


class BufferSettings(TypedDict, total=False):
    """Settings of a buffer."""

    max_messages: int  # maximum number of messages: 10,000 by default
    max_bytes: int  # maximum number of bytes: 64 MiB by default
    batch: int  # messages per request: 500 by default, at most 1,000
    spill: str | os.PathLike[str] | None  # file that keeps unsent messages for the next process
    durable: bool  # sync the file for each message, so that it survives a crash of the machine too
    breaker: Breaker | None  # a shared breaker; by default each buffer has its own
    close_seconds: float  # how long closing waits for unsent messages: 10 by default


class Buffering:
    """The parts that both forms share."""

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
            raise InvalidInput("a buffer needs messages >= 1 and batch from 1 to 1,000")
        store = FileStore(spill, durable=durable) if spill is not None else MemoryStore()
        self._backlog = Backlog(store, Limits(messages=max_messages, bytes=max_bytes, batch=batch))
        self._spill = None if spill is None else os.fspath(spill)
        self._breaker = breaker or Breaker()
        self._close_s = close_seconds
        self._closed = False
        self._pid = os.getpid()
        self._due_s = 0.0  # the next request is not made before
        self._urgent = 0  # number of waiting flushes; while there are any, the breaker is not consulted

    @property
    def counters(self) -> Counters:
        """Counts and current values."""
        return self._backlog.counters()

    def _check(self) -> None:
        if self._closed:
            raise InvalidInput("the buffer is closed: create a new one")
        if os.getpid() != self._pid:
            raise InvalidInput("this buffer was created before the process was forked: create a new one after the fork")

    def _delay_s(self) -> float:
        """Seconds to wait before the next request, or before this is checked again; 0: send now."""
        left_s = self._due_s - time.monotonic()
        if not self._urgent:
            left_s = max(left_s, self._breaker.wait())
        return min(max(0.0, left_s), LOOK_S)

    def _answered(self) -> None:
        pause_s = self._backlog.pause_s()
        self._due_s = time.monotonic() + (min(pause_s, URGENT_PAUSE_S) if self._urgent else pause_s)

    def _tell_at_exit(self) -> None:
        if os.getpid() == self._pid and not self._closed and (unsent := self._backlog.unsent(self._spill)) is not None:
            log.error("The process exits with an unclosed buffer: %s", unsent.message)


def outgoing_of(body: Any, fields: dict[str, Any]) -> Outgoing:
    """The message with the sender's current trace context, because it will be sent from elsewhere."""
    if isinstance(body, Outgoing) and fields:
        raise InvalidInput("pass the fields to Outgoing(...), not to put or send")
    outgoing = body if isinstance(body, Outgoing) else Outgoing(body, **fields)
    if outgoing.traceparent is None and (context := tracing.outgoing()) is not None:
        return replace(outgoing, traceparent=context.traceparent, tracestate=context.tracestate or None)
    return outgoing


def tell(waiter: asyncio.Future[Sent] | Future[Sent], result: Sent | BatonError) -> None:
    if isinstance(result, BatonError):
        waiter.set_exception(result)
    else:
        waiter.set_result(result)
