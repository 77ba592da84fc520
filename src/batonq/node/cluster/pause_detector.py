"""Detects whether this node was awake all the time.

A process that was stopped, or had no processor, does not know what happened to its leases meanwhile. It resumes its
work as if no time had passed. A process that was awake, and whose renewals got no answer, knows that it was told
nothing.
"""

from __future__ import annotations

from collections.abc import Callable

ASLEEP_S = 1.0  # a gap between beats that counts as sleep


class Awake:
    """`beat` is called several times per ASLEEP_S."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._beat_s = self._woke_s = now_s()

    def beat(self) -> None:
        now_s = self._now_s()
        if now_s - self._beat_s > ASLEEP_S:
            self._woke_s = now_s
        self._beat_s = now_s

    def since(self, start_s: float) -> bool:
        """Whether the node was awake from then until now. Also correct just before the first beat after a sleep."""
        return self._woke_s <= start_s and self._now_s() - self._beat_s <= ASLEEP_S
