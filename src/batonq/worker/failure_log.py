"""The log of failed messages: one line each that says which attempt it was and what happens next, and the traceback of
an error only the first time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from batonq.errors import BatonError
from batonq.worker.errors import DeadlineExceeded, Failure, HandlerCrashed, Poison, RetryLater
from batonq.worker.metrics import Counters
from batonq.worker.retry import Retry
from batonq.worker.source import Message, QueueFacts, Source

WAITING_MAX = 1000  # reports that wait for the facts of their queues; beyond it they are written without
PLACES_MAX = 1000  # errors whose traceback was logged; beyond it the set starts again
CLOSE_S = 2.0
UNKNOWN = QueueFacts()
_SELF_EXPLAINING = (Poison, RetryLater, HandlerCrashed, DeadlineExceeded, BatonError)
_PACKAGE = str(Path(__file__).resolve().parent.parent)
_log = logging.getLogger("batonq.worker")


class Report(NamedTuple):
    message: Message
    failure: Failure
    error: BaseException


class FailureLog:
    """The failures of one task. It counts them as `retried` or `dead_lettered` too, which depends on the queue."""

    def __init__(self, source: Source, counters: Counters, retry: Retry | None) -> None:
        self._source = source
        self._counters = counters
        self._attempts = retry.attempts if retry is not None else None
        self._waiting: deque[Report] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._places: set[tuple[str, str, int]] = set()

    def add(self, message: Message, failure: Failure, error: BaseException) -> None:
        """Write the line for a failed message as soon as the facts of its queue are known."""
        report = Report(message, failure, error)
        if len(self._waiting) >= WAITING_MAX:
            self._write(report, UNKNOWN)
            return
        self._waiting.append(report)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.get_running_loop().create_task(self._write_waiting())

    async def close(self) -> None:
        """Write every line, without the facts of a queue whose broker does not answer soon."""
        if self._writer is not None:
            await asyncio.wait([self._writer], timeout=CLOSE_S)
            self._writer.cancel()
        while self._waiting:
            self._write(self._waiting.popleft(), UNKNOWN)

    # ---

    async def _write_waiting(self) -> None:
        while self._waiting:
            queue = self._waiting[0].message.queue
            try:
                facts = await self._source.facts(queue)
            except Exception:  # the broker is away, or the queue is gone: the line matters more than its details
                facts = UNKNOWN
            self._write(self._waiting.popleft(), facts)

    def _write(self, report: Report, facts: QueueFacts) -> None:
        message, failure, error = report
        last = failure.dead_letter or 0 < facts.max_receives <= message.receive_count
        if last:
            self._counters.dead_lettered += 1
        else:
            self._counters.retried += 1
        most = min(filter(None, (self._attempts, facts.max_receives)), default=0)
        _log.log(
            logging.ERROR if last else logging.WARNING,
            "%s %s failed on attempt %d%s: %s: %s; %s",
            message.queue,
            message.id,
            message.receive_count,
            f" of {most}" if most else "",
            failure.error_class,
            failure.reason,
            _next_step(message.queue, failure, facts, last),
            exc_info=(type(error), error, _of_the_handler(error)) if self._needs_traceback(error) else None,
        )

    def _needs_traceback(self, error: BaseException) -> bool:
        """At the debug level always; otherwise once per class and place, unless the error's own text says it all."""
        if _log.isEnabledFor(logging.DEBUG):
            return True
        if isinstance(error, _SELF_EXPLAINING):
            return False
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        code = trace.tb_frame.f_code.co_filename if trace is not None else ""
        place = (type(error).__qualname__, code, trace.tb_lineno if trace is not None else 0)
        if place in self._places:
            return False
        if len(self._places) >= PLACES_MAX:
            self._places.clear()
        self._places.add(place)
        return True


def _of_the_handler(error: BaseException) -> TracebackType | None:
    """The traceback without the worker's own frames, which come first."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        trace = trace.tb_next
    return trace or error.__traceback__


def _next_step(queue: str, failure: Failure, facts: QueueFacts, last: bool) -> str:
    if last:
        if facts.dead_letter_queue:
            return f"moved to {facts.dead_letter_queue}"
        return "dead-lettered" if facts is UNKNOWN else f"not retried, and {queue} has no dead-letter queue"
    if failure.delay is not None:
        return f"retried in {failure.delay:.3g} s"
    return "retried"
