"""When to retry: only errors that can go away, with exponential backoff and full jitter."""

from __future__ import annotations

import os

from msgspec import Struct

from batonq.errors import BatonError

# Conflicts (409) may go away by themselves, but whether to wait is the caller's decision.
RETRIED_STATUSES = frozenset((429, 502, 503, 504, 507))


class Retries(Struct, frozen=True, kw_only=True):
    """How often and how long a request is retried.

    The pause before the nth retry is a random value up to `base × factor^n` and `cap` seconds (full jitter), and at
    least the server's Retry-After. There is no retry if it would end after `deadline` seconds.

    If no server can be reached at the client's first request, the address is most likely wrong, so the request fails at
    once. With `first_connection` it is retried too, for programs that start together with their server.
    """

    attempts: int = 20
    base: float = 0.05
    factor: float = 2.0
    cap: float = 5.0
    deadline: float = 60.0
    first_connection: bool = False

    def pause(self, attempt: int, error: BatonError, elapsed: float, retry_after: float = 0.0) -> float | None:
        """Seconds to wait before the next attempt; None if there is none. `attempt` counts from 0."""
        if attempt + 1 >= self.attempts or not helps(error):
            return None
        seconds = _chance() * min(self.cap, self.base * self.factor ** min(attempt, 64))
        if seconds < retry_after:
            seconds += retry_after
        return seconds if elapsed + seconds <= self.deadline else None


NO_RETRIES = Retries(attempts=1)


def helps(error: BatonError) -> bool:
    """Whether the client retries this error by itself."""
    return error.retryable and error.status in RETRIED_STATUSES


def as_retries(given: Retries | int | None) -> Retries:
    """The `retries` argument of a Baton: a policy, a number of retries, or None for the default."""
    if given is None:
        return Retries()
    return given if isinstance(given, Retries) else Retries(attempts=given + 1)


def _chance() -> float:
    """A random number from 0 to 1 from the system: no state that a fork would copy, and no further import."""
    return int.from_bytes(os.urandom(4), "big") / 0xFFFFFFFF
