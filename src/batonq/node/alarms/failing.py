"""How many receives of each queue failed in the last full minute."""

from __future__ import annotations

from typing import NamedTuple

MINUTE_MS = 60_000


class Failed(NamedTuple):
    """A part of the past, of about a minute."""

    received: int
    returned: int
    passed_ms: int

    @property
    def per_s(self) -> float:
        return self.returned * 1000 / self.passed_ms

    @property
    def share(self) -> float:
        """Of the receives; at most 1, because a return may belong to an earlier receive."""
        return min(1.0, self.returned / self.received) if self.received else 1.0


class _Window(NamedTuple):
    since_ms: int
    received: int  # in total, as all counters
    returned: int
    last: Failed | None  # the window before


class FailedReceives:
    """Compares counters of queues a minute apart. A queue that never returned a message is not remembered."""

    def __init__(self) -> None:
        self._windows: dict[str, _Window] = {}

    def observe(self, id: str, received: int, returned: int, now_ms: int) -> Failed | None:
        """What the last full minute was like; None if that is not known yet."""
        window = self._windows.get(id)
        if window is None and not returned:
            return None
        passed_ms = now_ms - window.since_ms if window is not None else -1
        # A clock that was set, a queue that was empty for long, or counters that begin anew: begin anew.
        goes_on = window is not None and 0 <= passed_ms < 2 * MINUTE_MS and returned >= window.returned
        if window is None or not goes_on or received < window.received:
            window = _Window(now_ms, received, returned, None)
        elif passed_ms >= MINUTE_MS:
            last = Failed(received - window.received, returned - window.returned, passed_ms)
            window = _Window(now_ms, received, returned, last)
        self._windows[id] = window
        return window.last

    def keep(self, ids: set[str]) -> None:
        """Forget the queues that no longer exist."""
        for id in self._windows.keys() - ids:
            del self._windows[id]
