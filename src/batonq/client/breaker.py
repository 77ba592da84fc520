"""A circuit breaker: after several failures in a row, calls fail at once for a while; then one probe decides.

`Circuit` is the pure state machine; `Breaker` adds a clock and wraps calls, in threads and in tasks.

    CLOSED     calls pass; `failures` in a row open the circuit
    OPEN       calls fail at once until the pause is over
    HALF_OPEN  one call passes as a probe: success closes the circuit, failure opens it again for longer
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import TypeVar

from batonq.errors import BatonError, InvalidInput, Unavailable

T = TypeVar("T")
PROBE_SECONDS = 60.0  # a probe that has not reported by then counts as lost
_EXPONENT_MAX = 32


class State(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class BreakerOpen(Unavailable):
    """The broker has failed several times in a row and is not asked for a while."""

    def __init__(self, message: str | None = None, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Circuit:
    """The state machine. Times are arguments. A ticket represents one call that passed; the result of a call from
    before the last change of state is ignored."""

    def __init__(self, failures: int = 5, pause_s: float = 1.0, factor: float = 2.0, pause_max_s: float = 60.0) -> None:
        if failures < 1 or pause_s <= 0 or factor < 1 or pause_max_s < pause_s:
            raise InvalidInput(
                "a breaker needs failures >= 1, pause > 0, factor >= 1, and a maximum pause that is not below the pause"
            )
        self.state = State.CLOSED
        self.failures = 0  # in a row
        self.opened = 0  # how often it was opened in a row without a success
        self._failures_max = failures
        self._pause_s = pause_s
        self._factor = factor
        self._pause_max_s = pause_max_s
        self._until_s = 0.0
        self._probe_s = 0.0
        self._generation = 0

    def wait_s(self, now_s: float) -> float:
        """Seconds until a call may pass; 0 if one may pass now."""
        if self.state is State.CLOSED:
            return 0.0
        until_s = self._until_s if self.state is State.OPEN else self._probe_s + PROBE_SECONDS
        return max(0.0, until_s - now_s)

    def ask(self, now_s: float) -> int | None:
        """A ticket for a call, or None while calls are refused."""
        if self.state is State.CLOSED:
            return self._generation
        if self.wait_s(now_s) > 0:
            return None
        self._move(State.HALF_OPEN)
        self._probe_s = now_s
        return self._generation

    def succeeded(self, ticket: int) -> None:
        if ticket != self._generation:
            return
        self.failures = self.opened = 0
        if self.state is not State.CLOSED:
            self._move(State.CLOSED)

    def failed(self, ticket: int, now_s: float, spread: float = 1.0) -> None:
        """The call failed. `spread`, from 0 to 1, shortens the pause, so that many breakers do not probe at the same
        time.
        """
        if ticket != self._generation:
            return
        self.failures += 1
        if self.state is State.HALF_OPEN or self.failures >= self._failures_max:
            pause_s = min(self._pause_max_s, self._pause_s * self._factor ** min(self.opened, _EXPONENT_MAX))
            self.opened += 1
            self._until_s = now_s + pause_s * spread
            self._move(State.OPEN)

    def abandoned(self, ticket: int) -> None:
        """The call ended without a result about the broker. If it was the probe, another call may be the probe."""
        if ticket == self._generation and self.state is State.HALF_OPEN:
            self._probe_s = float("-inf")

    def _move(self, state: State) -> None:
        self.state = state
        self._generation += 1


def is_outage(problem: BaseException) -> bool:
    """Whether the error means that the broker is unavailable, not that it refused this request."""
    if isinstance(problem, BatonError):
        return problem.status >= 500 and problem.retryable
    return isinstance(problem, OSError)  # includes TimeoutError


class Breaker:
    """Wraps calls: `breaker.call(queue.send, body)`, `await breaker.run(queue.send, body)`, `with breaker.guard():`.

    Use one breaker per broker; threads and tasks share it.
    """

    def __init__(
        self,
        failures: int = 5,
        pause: float = 1.0,
        pause_max: float = 60.0,
        *,
        counts: Callable[[BaseException], bool] = is_outage,
        clock: Callable[[], float] = time.monotonic,
        spread: Callable[[], float] = lambda: random.uniform(0.5, 1.0),
    ) -> None:
        self._circuit = Circuit(failures, pause, pause_max_s=pause_max)
        self._counts = counts
        self._clock = clock
        self._spread = spread
        self._lock = threading.Lock()
        self.refused = 0  # calls that were refused
        self.failed = 0  # calls that failed in a way that counts

    @property
    def state(self) -> State:
        """CLOSED, OPEN or HALF_OPEN."""
        return self._circuit.state

    def wait(self) -> float:
        """Seconds until a call may pass; 0 if one may pass now."""
        with self._lock:
            return self._circuit.wait_s(self._clock())

    def call(self, work: Callable[..., T], *arguments: object, **named: object) -> T:
        """Call the function, or raise BreakerOpen without calling it."""
        with self.guard():
            return work(*arguments, **named)

    async def run(self, work: Callable[..., Awaitable[T]], *arguments: object, **named: object) -> T:
        """The same for a coroutine function."""
        with self.guard():
            return await work(*arguments, **named)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Treats the block as one call. The block may await."""
        ticket = self._ask()
        try:
            yield
        except BaseException as problem:
            with self._lock:
                if self._counts(problem):
                    self.failed += 1
                    self._circuit.failed(ticket, self._clock(), self._spread())
                elif isinstance(problem, BatonError):
                    self._circuit.succeeded(ticket)  # it answered, if not with success
                else:
                    self._circuit.abandoned(ticket)
            raise
        else:
            with self._lock:
                self._circuit.succeeded(ticket)

    def _ask(self) -> int:
        with self._lock:
            now_s = self._clock()
            ticket = self._circuit.ask(now_s)
            if ticket is None:
                self.refused += 1
                wait_s = self._circuit.wait_s(now_s)
                raise BreakerOpen(
                    f"The broker failed {self._circuit.failures} times in a row, so calls are refused for "
                    f"another {wait_s:.1f} s. Keep the message in a SendBuffer, or answer your own caller "
                    "with 503 and Retry-After.",
                    wait_s,
                )
            return ticket
