"""An operation on messages in progress: started without an asyncio task, and answered when its records are committed.

The SQS and REST applications start these operations in the same way, and differ in how they read requests and write
answers.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar

from batonq.api.http import Request
from batonq.node.monitoring.histogram import Histogram
from batonq.node.routing.submission import awaited

Outcome = TypeVar("Outcome")
Outcome_contra = TypeVar("Outcome_contra", contravariant=True)
Written = TypeVar("Written")
Undo = Callable[[], None] | None


class Finish(Protocol[Outcome_contra]):
    """Answers a request with the operation's outcome or an error."""

    def __call__(self, outcome: Outcome_contra, undo: Undo = None) -> None:
        """`undo` is called when the answer cannot be sent: it releases the messages leased for the request."""


class Application(Protocol[Outcome]):
    """The application that a request was sent to."""

    def error_of(self, problem: BaseException, request: Request) -> Outcome:
        """The error that the client is told for an exception."""

    def has_no_queue(self, outcome: Outcome) -> bool:
        """Whether the outcome says that the queue does not exist."""

    async def refresh(self) -> bool:
        """Refresh the catalog. Returns whether this node's copy was outdated."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> object:
        """Run work that no caller waits for."""


class StartedOperation(Generic[Outcome, Written]):
    """Calling it with the operation's outcome answers the request. If the queue was not found, the catalog is refreshed
    first, and the operation is started again, once.
    """

    __slots__ = ("_application", "_began_s", "_is_last", "_reply", "_start", "_timer", "_undo", "_write", "request")

    def __init__(
        self,
        application: Application[Outcome],
        request: Request,
        start: Callable[[Finish[Outcome]], None],
        write: Callable[[Outcome], Written],
        reply: Callable[[Written], bool],
        timer: Histogram | None = None,
    ) -> None:
        self._timer = timer  # counts how long it takes until the answer is written
        self._began_s = perf_counter()
        self._application = application
        self._start = start
        self._write = write
        self._reply = reply  # returns False when the client has disconnected
        self._undo: Undo = None
        self._is_last = False  # when True, a missing queue is reported
        self.request = request

    def begin(self) -> None:
        try:
            self._start(self)
        except Exception as problem:
            self(self._application.error_of(problem, self.request))

    def __call__(self, outcome: Outcome, undo: Undo = None) -> None:
        if isinstance(outcome, Exception) and not self._is_last and self._application.has_no_queue(outcome):
            self._is_last = True
            self._application.spawn(self._begin_again(outcome))
            return
        self._undo = undo
        try:
            answer = self._write(outcome)
        except Exception as problem:
            self.release()
            answer = self._write(self._application.error_of(problem, self.request))
        if self._timer is not None:
            self._timer.observe(perf_counter() - self._began_s)
        if not self._reply(answer):
            self.release()

    async def _begin_again(self, outcome: Outcome) -> None:
        try:
            is_newer = await self._application.refresh()
        except Exception as problem:
            self(self._application.error_of(problem, self.request))
        else:
            if is_newer:
                self.begin()
            else:
                self(outcome)

    def abandon(self) -> None:
        """The client has disconnected: stop waiting for messages."""
        if self.request.abandon is not None:
            self.request.abandon()

    def release(self) -> None:
        """The answer cannot be sent: release the messages leased for it."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()


async def answer_to(
    application: Application[Outcome],
    request: Request,
    start: Callable[[Finish[Outcome]], None],
    write: Callable[[Outcome], Written],
) -> Written:
    """The answer to an operation, for a caller that awaits it. If the caller is cancelled, no message stays leased."""
    started: list[StartedOperation[Outcome, Written]] = []

    def begin(done: Callable[[Written], None]) -> StartedOperation[Outcome, Written]:
        def reply(answer: Written) -> bool:
            done(answer)
            return True

        started.append(StartedOperation(application, request, start, write, reply))
        started[0].begin()
        return started[0]

    answer = await awaited(begin, lambda answer: started[0].release())
    started.clear()  # the operation refers to itself through `reply`, which would keep the request in memory
    return answer
