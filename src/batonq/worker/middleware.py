"""Middleware: hooks around every handler, and the three middlewares that are included.

A middleware overrides the hooks that it needs; hooks that are not overridden cost nothing. `around` runs on the
worker's event loop, wherever the handler runs. The other hooks are called between messages and must be fast.
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

Call = Callable[[Any], Awaitable[Any]]  # a handler: takes a message, or for batch handlers a list of messages
_log = logging.getLogger("batonq.worker")


class Middleware:
    """The hooks. By default they do nothing."""

    async def around(self, message: Any, call: Call) -> Any:
        """Call the handler, with code before and after it. For batch handlers, `message` is a list."""
        return await call(message)

    def done(self, message: Message) -> None:
        """The handler has returned; the ack will be sent."""

    def failed(self, message: Message, failure: Failure, error: BaseException) -> None:
        """The handler failed, and the message is nacked with `failure`."""

    def lease_lost(self, message: Message, error: BatonError) -> None:
        """The lease was lost while the handler was running. Called on the heartbeat's thread."""

    def deadline_passed(self, message: Message) -> None:
        """The handler is still running at the message's deadline. Called on the heartbeat's thread."""

    def refused(self, message: Message, error: BatonError) -> None:
        """A late ack was refused: the work was done, and another consumer may do it again."""


def overriding(middleware: Sequence[Middleware], hook: str) -> tuple[Callable[..., Any], ...]:
    """The hooks with this name that are overridden."""
    nothing = getattr(Middleware, hook)
    return tuple(getattr(each, hook) for each in middleware if getattr(type(each), hook) is not nothing)


def wrapped(call: Call, middleware: Sequence[Middleware]) -> Call:
    """The handler wrapped in every `around`; the first middleware is the outermost."""
    for around in reversed(overriding(middleware, "around")):
        call = _inside(around, call)
    return call


def _inside(around: Callable[[Any, Call], Awaitable[Any]], call: Call) -> Call:
    async def through(message: Any) -> Any:
        return await around(message, call)

    return through


class Logging(Middleware):
    """Logs one line per message: the result and how long it took."""

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


class Tracing(Middleware):
    """Runs the handler in the sender's trace, so that messages it sends carry the trace on. A batch starts its own."""

    async def around(self, message: Any, call: Call) -> Any:
        context = None if isinstance(message, list) else message.trace
        with tracing.within(context or tracing.start()):
            return await call(message)


class TimeLimit(Middleware):
    """A limit on the handler's time that is softer than the deadline: it raises TimeoutError, which is retried like any
    error.
    """

    def __init__(self, seconds: float) -> None:
        if not seconds > 0:
            raise ValueError(f"a time limit must be greater than 0 seconds, not {seconds}")
        self.seconds = seconds

    async def around(self, message: Any, call: Call) -> Any:
        try:
            async with asyncio.timeout(self.seconds) as limit:
                return await call(message)
        except TimeoutError:
            if not limit.expired():  # raised by the handler itself
                raise
            raise TimeoutError(f"the handler took longer than {self.seconds:g} s") from None
