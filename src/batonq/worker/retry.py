"""The delay before the next attempt, for tasks with their own policy; otherwise the queue's policy applies. Pure
functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

DELAY_MAX_S = 43_200.0  # the longest time that a broker keeps a nacked message invisible


@dataclass(slots=True, frozen=True)
class Retry:
    """Either a schedule of delays, of which the last repeats, or base × factor^n up to a maximum.

    `jitter` is the share of a delay by which it varies at random, as in a queue's policy: 0.2 turns 60 s into 48 s to
    72 s. After `attempts` deliveries the message is dead-lettered; None leaves that to the queue.
    """

    base: float = 1.0
    factor: float = 2.0
    maximum: float = 3600.0
    jitter: float = 0.2
    schedule: Sequence[float] = ()
    attempts: int | None = None

    def __post_init__(self) -> None:
        if self.base < 0 or self.factor < 1 or self.maximum < 0:
            raise ValueError("Retry: base and maximum must be 0 or more seconds, and factor 1 or more")
        if not 0 <= self.jitter <= 1:
            raise ValueError("Retry: jitter must be between 0 and 1")
        if any(delay < 0 for delay in self.schedule):
            raise ValueError("Retry: the delays of a schedule must be 0 or more seconds")
        if self.attempts is not None and self.attempts < 1:
            raise ValueError("Retry: attempts must be 1 or more")

    def delay(self, receive_count: int, draw: float) -> float:
        """Seconds until the next attempt after the delivery with this count (1 is the first); `draw` is in [0, 1)."""
        tries = max(receive_count, 1) - 1
        if self.schedule:
            whole = self.schedule[min(tries, len(self.schedule) - 1)]
        else:
            # The exponent is limited so that a message with a thousand receives does not overflow a float.
            whole = min(self.base * self.factor ** min(tries, 64), self.maximum)
        return min(whole * (1 + self.jitter * (2 * draw - 1)), DELAY_MAX_S)

    def is_last(self, receive_count: int) -> bool:
        return self.attempts is not None and receive_count >= self.attempts
