"""What a guarded handler may raise instead of running, and what each asks of the worker."""

from __future__ import annotations

from batonq.errors import LeaseLost, Unavailable


class Busy(Unavailable):
    """Another holder works on the same key right now; the message is to be delivered again later, not acknowledged.

    `delay` (seconds) and `reason` are what a worker needs to give the message back. It was not tried, so that is no
    receive: a second copy of a message whose work takes long does not die of waiting for it.
    """

    untried = True

    def __init__(self, delay: float, reason: str = "") -> None:
        self.delay = max(0.0, float(delay))
        self.reason = reason or "another holder works on the same key"
        super().__init__(f"{self.reason}; try again in {self.delay:.1f} s")

    def __reduce__(self) -> tuple[type[Busy], tuple[float, str]]:
        """A handler may raise it in a process of its own."""
        return type(self), (self.delay, self.reason)


class OutOfOrder(Busy):
    """A message came before one that precedes it; it is to be delivered again later, when that one is done.

    This counts as a receive: if the one before it never comes, it ends among the dead letters.
    """

    untried = False


class ClaimLost(LeaseLost):
    """The claim ran out while the handler worked, and another holder has taken it: the work may be done twice.

    A lease that is longer than any pause of the process, or a handler that is quicker, prevents it.
    """
