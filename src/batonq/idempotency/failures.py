"""Exceptions that a guarded handler raises instead of running, and what they tell the worker."""

from __future__ import annotations

from batonq.errors import LeaseLost, Unavailable


class Busy(Unavailable):
    """Another consumer is processing the same key; the message must be delivered again later, not acknowledged.

    `delay` (seconds) and `reason` tell the worker how to release the message. It was not tried, so this does not count
    as a receive: a second copy of a message with a long processing time is not dead-lettered while it waits.
    """

    untried = True

    def __init__(self, delay: float, reason: str = "") -> None:
        self.delay = max(0.0, float(delay))
        self.reason = reason or "another consumer is processing the same key"
        super().__init__(f"{self.reason}; retry in {self.delay:.1f} s")

    def __reduce__(self) -> tuple[type[Busy], tuple[float, str]]:
        """It can be raised in a handler's own process."""
        return type(self), (self.delay, self.reason)


class OutOfOrder(Busy):
    """A message arrived before its predecessor; it must be delivered again later, when that one is done.

    This counts as a receive: if the predecessor never arrives, the message is dead-lettered.
    """

    untried = False


class ClaimLost(LeaseLost):
    """The claim expired while the handler was running, and another consumer has taken it: the work may be done twice.

    To prevent it, use a lease that is longer than any pause of the process, or a faster handler.
    """
