"""How a command reaches a shard, and how its outcome returns: `submit`, on this node or another one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from batonq.core.commands import Command, Receive
from batonq.errors import FAULT, BatonError
from batonq.node import events

T = TypeVar("T")

# Called once, when the decision is committed: with the outcome, or with the error that the command ended with. The
# outcomes are Sent, Leases or Received (a list of results for the other commands).
Done = Callable[[Any], None]


class Waiting(Protocol):
    """A receive that may be waiting for messages."""

    def abandon(self) -> None:
        """The caller no longer wants the receive. `done` may still be called, and must then give back what it gets."""


Submit = Callable[[Command, Done], Waiting | None]


def tell(done: Done, outcome: object) -> None:
    """Call `done`. If `done` raises, the other callers must still get their outcomes."""
    try:
        done(outcome)
    except Exception:
        events.logger.exception("a response could not be written")


def client_error(problem: BaseException) -> BatonError:
    """The error that a client is told for a problem. An unexpected problem is described in the server's log."""
    if isinstance(problem, BatonError):
        return problem.with_traceback(None)  # a traceback would keep the command in memory
    events.logger.error("a request failed", exc_info=problem)
    return BatonError(FAULT)


async def submitted(submit: Submit, command: Command) -> Any:
    """The outcome of a command. Raises BatonError. If the caller is cancelled, the leases are given back."""

    def release(result: Any) -> None:
        if isinstance(command, Receive) and not isinstance(result, BatonError):
            result.give_back()

    result = await awaited(lambda done: submit(command, done), release)
    if isinstance(result, BatonError):
        try:
            raise result
        finally:
            del result  # an error in its own traceback's frames would keep the command in memory
    return result


async def awaited(begin: Callable[[Callable[[T], None]], Waiting | None], release: Callable[[T], None]) -> T:
    """The result that `begin` reports to its callback. If the caller is cancelled, the work is abandoned, and a result
    that comes nevertheless is released.
    """
    outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T) -> None:
        if not outcome.done():
            outcome.set_result(result)
        else:
            release(result)

    waiting = begin(done)
    try:
        return await outcome
    except asyncio.CancelledError:
        if waiting is not None:
            waiting.abandon()
        if outcome.done() and not outcome.cancelled():  # the result came at the same time
            release(outcome.result())
        raise
