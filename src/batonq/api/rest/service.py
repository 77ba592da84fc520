"""What all operations share: the broker, the caller, and the formats of the request and its answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct

from batonq.api import started_operation
from batonq.api.consumer_names import agent_of, consumer_named
from batonq.api.http import Request
from batonq.api.rest.codec import MSGPACK, Codec
from batonq.api.rest.rates import RateBook
from batonq.api.rest.shapes import Given
from batonq.api.sqs.access import Caller
from batonq.core.catalog.entries import ADMIN
from batonq.errors import FAULT, AccessDenied, BatonError, QueueDoesNotExist
from batonq.node.broker import Broker, Queue

T = TypeVar("T", bound=Struct)
Result = TypeVar("Result")
Turns = Generator[None, None, Result]  # work that yields when it is time to let the event loop run
logger = logging.getLogger("batonq.rest")
SECOND_MS = 1000


class Answer(NamedTuple):
    """The answer of an operation: a status, a value to encode or None, and headers."""

    status: int
    value: Any = None
    headers: tuple[tuple[str, str], ...] = ()


NO_CONTENT = Answer(204)


Outcome = Answer | BatonError
Finish = started_operation.Finish[Outcome]


def fault(request: Request, problem: BaseException) -> BatonError:
    """The error for an unexpected exception. The log gets the exception; the client only learns that there was one."""
    logger.error("an operation failed: %s %s", request.method, request.path[:256], exc_info=problem)
    return BatonError(FAULT)


async def finished(work: Turns[Result]) -> Result:
    """The result of work that is run turn by turn."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        await asyncio.sleep(0)


class Call:
    """One request as an operation sees it."""

    __slots__ = ("broker", "caller", "give_back", "given", "name", "rates", "request", "spawn", "token", "wanted")

    def __init__(
        self,
        broker: Broker,
        rates: RateBook,
        request: Request,
        caller: Caller,
        given: Codec,
        wanted: Codec,
        name: str,
        token: str,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self.broker = broker
        self.rates = rates
        self.request = request
        self.caller = caller
        self.given = given
        self.wanted = wanted
        self.name = name  # of the queue, or the job's id
        self.token = token  # the receipt
        self.spawn = spawn  # starts work that takes more than one turn of the event loop
        self.give_back: Callable[[], Awaitable[None]] | None = None  # releases messages leased for the answer

    def fault(self, problem: BaseException) -> BatonError:
        return fault(self.request, problem)

    def run_in_turns(
        self, work: Turns[Result], done: Callable[[Result], None], failed: Callable[[Exception], None]
    ) -> None:
        """Run work, then call `done` with its result. Most work is done before its first yield, and needs no task."""
        try:
            next(work)
        except StopIteration as end:
            done(end.value)
            return
        except Exception as problem:
            failed(problem)
            return

        async def go_on() -> None:
            try:
                await asyncio.sleep(0)
                done(await finished(work))
            except Exception as problem:
                failed(problem)

        self.spawn(go_on())

    def require_operator(self, write: bool) -> None:
        """Refuse a caller who may not operate the server itself. Call it in every operation that concerns the whole
        server; `write`: the operation changes something.
        """
        if not self.caller.operator:
            raise AccessDenied(
                "This operation concerns the whole server, with all its accounts. Use a key of the server's own "
                f"account, {self.broker.account}, or the admin token."
            )
        if write and self.caller.role != ADMIN:
            raise AccessDenied(
                f"Key {self.caller.key} has the role {self.caller.role}. A change of the whole server needs a key with "
                f"the role {ADMIN}, or the admin token."
            )

    def queue(self) -> Queue:
        """The queue that the request names. It must belong to the caller's account."""
        return find_queue(self, self.name)

    def read(self, shape: type[T]) -> T:
        """Decode the request's body. An empty body means no fields."""
        body = self.request.body
        return self.given.decode(body or (b"\x80" if self.given is MSGPACK else b"{}"), shape)

    @property
    def holder(self) -> str:
        """The holder of a lease when the consumer does not name itself."""
        return consumer_named(self.request) or f"{self.caller.key or 'anonymous'}@{self.request.peer}"

    def settles(self, *, acked: int = 0, failed: int = 0, extended: bool = False) -> None:
        """Count what the caller did with messages that it held."""
        request = self.request
        self.broker.consumers.settles(
            self.caller.account,
            consumer_named(request),
            request.peer,
            agent_of(request),
            acked=acked,
            failed=failed,
            extended=extended,
        )


class Nothing(Given):
    """No fields."""


def find_queue(call: Call, name: str) -> Queue:
    try:
        return call.broker.queue(call.caller.account, name)
    except QueueDoesNotExist:
        raise no_such_queue(name) from None


def no_such_queue(name: str) -> QueueDoesNotExist:
    return QueueDoesNotExist(f"Queue {name[:80]!r} does not exist. Create it first.")


def milliseconds(seconds: float) -> int:
    return round(seconds * SECOND_MS)
