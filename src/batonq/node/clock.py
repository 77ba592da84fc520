"""A shard's time: a base plus the monotonic clock, so that it never goes back and never jumps.

When the wall clock is stepped, the difference is slewed by at most a tenth of the time that passes: ten seconds of real
time count as nine to eleven. In the development profile a test may move the clock forward. That lead is permanent and
is not slewed away. In a cluster the wall clock is that of most nodes (cluster/members.py).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

SLEW_MAX = 0.1
ADJUST_EVERY_S = 1.0
ERROR_TOLERATED_MS = 2.0
ERROR_SET_MS = 1_000.0  # a smaller error is slewed, even where a jump would do no harm


class Clock:
    """Milliseconds since the Unix epoch for shards. `monotonic` and `wall` give seconds, like those of `time`."""

    __slots__ = (
        "_adjust_at",
        "_anchor_ms",
        "_anchor_s",
        "_correction_ms",
        "_lead_ms",
        "_monotonic",
        "_slew_s",
        "_wall",
    )

    def __init__(self, monotonic: Callable[[], float], wall: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._lead_ms = 0.0  # how far tests have moved the clock forward
        self._anchor_s = monotonic()
        self._anchor_ms = wall() * 1000
        self._slew_s = 0.0  # for this long after the anchor, the correction is being slewed
        self._correction_ms = 0.0
        self._adjust_at = self._anchor_s + ADJUST_EVERY_S

    @property
    def monotonic(self) -> Callable[[], float]:
        """The underlying clock, for measuring."""
        return self._monotonic

    def follow(self, wall: Callable[[], float]) -> None:
        """Slew towards another wall clock from now on: that of a whole cluster."""
        self._wall = wall

    def set(self) -> None:
        """Jump to the wall clock's time. Only while no shard has its time from this clock."""
        now_s = self._monotonic()
        error_ms = self._wall() * 1000 + self._lead_ms - self._time_ms(now_s)
        if abs(error_ms) > ERROR_SET_MS:
            self._anchor(now_s, self._time_ms(now_s) + error_ms)

    def now_ms(self) -> int:
        now_s = self._monotonic()
        if now_s >= self._adjust_at:
            self._adjust(now_s)
        return int(self._time_ms(now_s))

    def raise_to(self, base_ms: int, *, keep_lead: bool = False) -> None:
        """Never show a time before `base_ms` again: what a log has recorded is past. For start-up, before serving.

        With `keep_lead` the clock stays ahead of the wall clock permanently (a test moved it before the restart).
        Otherwise the lead is slewed away.
        """
        now_s = self._monotonic()
        ahead_ms = base_ms - self._time_ms(now_s)
        if ahead_ms <= 0:
            return
        self._anchor(now_s, float(base_ms))
        if keep_lead:
            self._lead_ms += ahead_ms

    def advance(self, forward_ms: int) -> None:
        """Move forward at once (development profile only)."""
        assert forward_ms >= 0
        now_s = self._monotonic()
        time_ms = self._time_ms(now_s)
        self._lead_ms += forward_ms
        self._anchor(now_s, time_ms + forward_ms)

    def seconds_until(self, due_ms: int) -> float:
        """How long the monotonic clock has to run until this clock shows `due_ms`; may be a little early."""
        now_s = self._monotonic()
        wait_s = (due_ms - self._time_ms(now_s)) / 1000
        if wait_s <= 0:
            return 0.0
        return wait_s / (1 + SLEW_MAX) if self._correction_ms > 0 else wait_s

    def _time_ms(self, now_s: float) -> float:
        passed_s = now_s - self._anchor_s
        if passed_s < self._slew_s:
            return self._anchor_ms + passed_s * 1000 + self._correction_ms * (passed_s / self._slew_s)
        return self._anchor_ms + passed_s * 1000 + self._correction_ms

    def _anchor(self, now_s: float, time_ms: float) -> None:
        self._anchor_s = now_s
        self._anchor_ms = time_ms
        self._correction_ms = 0.0
        self._slew_s = 0.0
        self._adjust_at = now_s

    def _adjust(self, now_s: float) -> None:
        self._anchor(now_s, self._time_ms(now_s))
        self._adjust_at = now_s + ADJUST_EVERY_S
        error_ms = self._wall() * 1000 + self._lead_ms - self._anchor_ms
        if abs(error_ms) > ERROR_TOLERATED_MS:
            self._correction_ms = error_ms
            self._slew_s = abs(error_ms) / 1000 / SLEW_MAX


def iso_time(time_ms: int) -> str:
    """A time for machines: 2026-03-01T12:04:31.250Z."""
    moment = _moment(time_ms)
    if moment is None:
        return f"{time_ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clock_time(time_ms: int, now_ms: int) -> str:
    """A time for people: 12:04:31, with the date when that is not today. UTC."""
    moment, now = _moment(time_ms), _moment(now_ms)
    if moment is None or now is None:
        return f"{time_ms} ms"
    return moment.strftime("%H:%M:%S" if moment.date() == now.date() else "%Y-%m-%d %H:%M:%S")


def _moment(time_ms: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):  # the clock was moved past the year 9999
        return None


_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))


def duration(ms: int) -> str:
    """A duration in the largest unit that fits: 0.2 s, 45 s, 4 min, 3 h, 2 d."""
    seconds = ms / 1000
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
