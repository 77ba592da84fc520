"""Turns the wishes of a policy into a number that neither lags nor flaps: up at once, down slowly, within limits.

Pure functions: readings and the time are arguments, decisions are results. The rules, in order:

1. Never fewer than the minimum (the warm workers) nor more than the maximum.
2. More, if the policy asks for more and the last increase is `up_cooldown_s` ago.
3. Fewer, if during `down_window_s` the policy always asked for fewer than there are, and the last decrease is
   `down_cooldown_s` ago; then down to the largest number of that window, by at most `down_share` at a time.
4. A number that differs by no more than `tolerance` from the current one changes nothing, unless it is a limit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from batonq.errors import InvalidInput
from batonq.scaling.policies import Policy, Wish
from batonq.scaling.readings import Rates, Reading


@dataclass(slots=True, frozen=True)
class Pace:
    """How quickly the number may change."""

    up_cooldown_s: float = 10.0  # between two increases
    down_window_s: float = 300.0  # how long the policy must ask for fewer workers before there are fewer
    down_cooldown_s: float = 60.0  # between two decreases
    down_share: float = 0.5  # maximum share of the workers that is stopped at a time
    tolerance: float = 0.1  # tolerated deviation, as a share

    def __post_init__(self) -> None:
        if min(self.up_cooldown_s, self.down_window_s, self.down_cooldown_s, self.tolerance) < 0:
            raise InvalidInput("cool-downs and the tolerance must not be negative")
        if not 0 < self.down_share <= 1:
            raise InvalidInput(f"down_share must be greater than 0 and at most 1, not {self.down_share:g}")


@dataclass(slots=True, frozen=True)
class Decision:
    """The number of workers there should be, and why."""

    workers: int
    before: int  # the current number
    wanted: int | None  # the policy's number, before limits and pace; None: unknown
    why: str  # a text for operators

    @property
    def changes(self) -> bool:
        return self.workers != self.before


class Scaler:
    """A policy with its limits and pace, for one lane. `decide` is called with each new reading."""

    def __init__(self, policy: Policy, minimum: int, maximum: int, pace: Pace | None = None) -> None:
        if not 0 <= minimum <= maximum or maximum < 1:
            raise InvalidInput(
                f"{minimum} to {maximum} workers is not a valid range; use a minimum and a maximum, for example 2:50"
            )
        self.policy = policy
        self.minimum = minimum
        self.maximum = maximum
        self.pace = pace or Pace()
        self.rates = Rates()
        # decreasing numbers only: the first is the largest of the window
        self._wishes: deque[tuple[float, int]] = deque()
        self._calm_since_s: float | None = None
        self._risen_s: float | None = None
        self._fallen_s: float | None = None

    def decide(self, reading: Reading, now_s: float, workers: int) -> Decision:
        """The number of workers there should be now, if there are `workers`. The time is from any monotonic clock."""
        self.rates.observe(reading, now_s, workers)
        wish = self.policy.wish(reading, self.rates)
        wanted = None if wish is None else wish.workers
        if self._calm_since_s is None:
            self._calm_since_s = now_s
        bounded = min(max(workers if wish is None else wish.workers, self.minimum), self.maximum)
        self._remember(now_s, bounded)
        if not self.minimum <= workers <= self.maximum:
            target = self.minimum if workers < self.minimum else self.maximum
            return self._change(now_s, workers, target, wanted, self._limit(target))
        if wish is None:
            return Decision(workers, workers, None, "the required number is unknown; the current number stays")
        why = self._bounded_why(wish, bounded)
        if bounded > workers:
            return self._rise(now_s, workers, bounded, wanted, why)
        if bounded < workers:
            return self._fall(now_s, workers, wanted, why)
        return Decision(workers, workers, wanted, why)

    # --- up and down

    def _rise(self, now_s: float, workers: int, target: int, wanted: int | None, why: str) -> Decision:
        if target - workers <= workers * self.pace.tolerance and target != self.maximum:
            return Decision(workers, workers, wanted, f"{why}; {target} is within the tolerance of {workers}")
        wait_s = _left(self._risen_s, self.pace.up_cooldown_s, now_s)
        if wait_s > 0:
            return Decision(
                workers, workers, wanted, f"{why}; the last increase was a moment ago, next one in {wait_s:.0f} s"
            )
        return self._change(now_s, workers, target, wanted, why)

    def _fall(self, now_s: float, workers: int, wanted: int | None, why: str) -> Decision:
        pace = self.pace
        peak = self._wishes[0][1]
        wait_s = max(
            _left(self._calm_since_s, pace.down_window_s, now_s),
            _left(self._risen_s, pace.down_window_s, now_s),
            _left(self._fallen_s, pace.down_cooldown_s, now_s),
        )
        if peak >= workers:
            return Decision(
                workers, workers, wanted, f"{why}; the maximum of the last {pace.down_window_s:g} s was {peak}"
            )
        if wait_s > 0:
            return Decision(workers, workers, wanted, f"{why}; decrease in {wait_s:.0f} s if that stays so")
        if workers - peak <= workers * pace.tolerance and peak != self.minimum:
            return Decision(workers, workers, wanted, f"{why}; {peak} is within the tolerance of {workers}")
        target = max(peak, workers - max(1, int(workers * pace.down_share)))
        return self._change(now_s, workers, target, wanted, why)

    def _change(self, now_s: float, workers: int, target: int, wanted: int | None, why: str) -> Decision:
        if target > workers:
            self._risen_s = now_s
        else:
            self._fallen_s = now_s
        return Decision(target, workers, wanted, why)

    # --- memory and words

    def _remember(self, now_s: float, wish: int) -> None:
        while self._wishes and self._wishes[-1][1] <= wish:
            self._wishes.pop()
        self._wishes.append((now_s, wish))
        while self._wishes[0][0] <= now_s - self.pace.down_window_s and len(self._wishes) > 1:
            self._wishes.popleft()

    def _limit(self, target: int) -> str:
        return f"the minimum is {target}" if target == self.minimum else f"the maximum is {target}"

    def _bounded_why(self, wish: Wish, bounded: int) -> str:
        return wish.why if bounded == wish.workers else f"{wish.why} = {wish.workers}; {self._limit(bounded)}"


def _left(since_s: float | None, cooldown_s: float, now_s: float) -> float:
    return 0.0 if since_s is None else max(0.0, since_s + cooldown_s - now_s)
