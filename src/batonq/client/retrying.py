"""When to try again: only where it helps, later each time, by chance so that clients do not come back together."""

from __future__ import annotations

import os

from msgspec import Struct

from batonq.errors import BatonError

# Conflicts (409) may end by themselves, but whether to wait for it is the caller's decision.
RETRIED_STATUSES = frozenset((429, 502, 503, 504, 507))


class Retries(Struct, frozen=True, kw_only=True):
    """How often and how long a request is tried again.

    The pause before the nth retry is anything up to `base × factor^n` and `cap` seconds (full jitter), and never less
    than the server's Retry-After. What would end after `deadline` seconds is not tried any more.
    """

    attempts: int = 20
    base: float = 0.05
    factor: float = 2.0
    cap: float = 5.0
    deadline: float = 60.0

    def pause(self, attempt: int, error: BatonError, elapsed: float, retry_after: float = 0.0) -> float | None:
        """Seconds to wait before the next try; None when there is none. `attempt` counts from 0."""
        if attempt + 1 >= self.attempts or not helps(error):
            return None
        seconds = _chance() * min(self.cap, self.base * self.factor ** min(attempt, 64))
        if seconds < retry_after:
            seconds += retry_after
        return seconds if elapsed + seconds <= self.deadline else None


NO_RETRIES = Retries(attempts=1)


def helps(error: BatonError) -> bool:
    """Whether the client tries again by itself."""
    return error.retryable and error.status in RETRIED_STATUSES


def as_retries(given: Retries | int | None) -> Retries:
    """`retries=` of a Baton: a policy, how many more tries, or None for the usual one."""
    if given is None:
        return Retries()
    return given if isinstance(given, Retries) else Retries(attempts=given + 1)


def _chance() -> float:
    """Anything from 0 to 1. The system's randomness: no state that a fork would copy, nothing more to import."""
    return int.from_bytes(os.urandom(4), "big") / 0xFFFFFFFF
