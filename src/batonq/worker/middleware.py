"""What may stand around every handler: hooks, and the four that come with the worker.

A middleware overrides what it needs; hooks that nobody overrides cost nothing. `around` runs on the worker's event loop
whatever the handler runs in; the others are called between messages, and must be quick.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from batonq.client import tracing
from batonq.errors import BatonError
from batonq.worker.errors import Failure
from batonq.worker.source import Message

Call = Callable[[Any], Awaitable[Any]]  # a handler: a message, or for batch handlers a list of them
_log = logging.getLogger("batonq.worker")


class Middleware:
    """The hooks, which do nothing here."""

    async def around(self, message: Any, call: Call) -> Any:
        """Call the handler, with whatever is to happen before and after. Gets a list where the handler does."""
        return await call(message)

    def done(self, message: Message) -> None:
        """The handler has returned; the acknowledgement is on its way."""

    def failed(self, message: Message, failure: Failure, error: BaseException) -> None:
        """The handler has failed, and the message is given back as `failure` says."""

    def lease_lost(self, message: Message, error: BatonError) -> None:
        """The lease was lost while the handler was at work. Called on the heartbeat's thread."""

    def deadline_passed(self, message: Message) -> None:
        """The handler is still at work at the message's deadline. Called on the heartbeat's thread."""

    def refused(self, message: Message, error: BatonError) -> None:
        """A late acknowledgement was refused: the work was done, and may be done again by somebody else."""


def overriding(middleware: Sequence[Middleware], hook: str) -> tuple[Callable[..., Any], ...]:
    """The hooks of this name that do something."""
    nothing = getattr(Middleware, hook)
    return tuple(getattr(each, hook) for each in middleware if getattr(type(each), hook) is not nothing)


def wrapped(call: Call, middleware: Sequence[Middleware]) -> Call:
    """The handler inside of every `around`, the first middleware outermost."""
    for around in reversed(overriding(middleware, "around")):
        call = _inside(around, call)
    return call


def _inside(around: Callable[[Any, Call], Awaitable[Any]], call: Call) -> Call:
    async def through(message: Any) -> Any:
        return await around(message, call)

    return through


class Logging(Middleware):
    """A line for each message: what became of it and how long it took."""

    def __init__(self, logger: logging.Logger | None = None, level: int = logging.INFO) -> None:
        self._log = logger or _log
        self._level = level

    async def around(self, message: Any, call: Call) -> Any:
        started = time.perf_counter()
        name = f"{len(message)} messages" if isinstance(message, list) else f"{message.queue} {message.id}"
        try:
            result = await call(message)
        except BaseException as error:
            self._log.log(self._level, "%s: %r after %.3f s", name, error, time.perf_counter() - started)
            raise
        self._log.log(self._level, "%s: done in %.3f s", name, time.perf_counter() - started)
        return result


class Timing(Middleware):
    """How long handlers take, as a histogram with buckets that you choose; `text()` is for a metrics page of yours."""

    def __init__(self, buckets_s: Sequence[float] = (0.001, 0.01, 0.1, 1, 10, 60, 600)) -> None:
        self.buckets_s = tuple(sorted(buckets_s))
        self.counts = [0] * (len(self.buckets_s) + 1)
        self.sum_s = 0.0

    async def around(self, message: Any, call: Call) -> Any:
        started = time.perf_counter()
        try:
            return await call(message)
        finally:
            seconds = time.perf_counter() - started
            self.sum_s += seconds
            self.counts[sum(seconds > bucket for bucket in self.buckets_s)] += 1

    def text(self, name: str = "baton_worker_handler_duration_seconds") -> str:
        lines, total = [f"# TYPE {name} histogram"], 0
        for bucket, count in zip((*self.buckets_s, float("inf")), self.counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{"+Inf" if bucket == float("inf") else bucket}"}} {total}')
        return "\n".join([*lines, f"{name}_sum {self.sum_s}", f"{name}_count {total}"]) + "\n"


class Tracing(Middleware):
    """The handler runs within the sender's trace: what it sends carries it on. Batches begin a trace of their own."""

    async def around(self, message: Any, call: Call) -> Any:
        context = None if isinstance(message, list) else message.trace
        with tracing.within(context or tracing.start()):
            return await call(message)


class TimeLimit(Middleware):
    """A limit on the handler's time that is softer than the deadline: TimeoutError, which is retried like any other."""

    def __init__(self, seconds: float) -> None:
        if not seconds > 0:
            raise ValueError(f"a time limit is more than 0 seconds, not {seconds}")
        self.seconds = seconds

    async def around(self, message: Any, call: Call) -> Any:
        try:
            async with asyncio.timeout(self.seconds) as limit:
                return await call(message)
        except TimeoutError:
            if not limit.expired():  # the handler's own
                raise
            raise TimeoutError(f"the handler took longer than {self.seconds:g} s") from None
