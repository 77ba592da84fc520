"""From wishes to a number that neither lags behind nor flaps: up at once, down slowly, within limits.

Pure: readings and the time come in, decisions go out. The rules, in the order in which they are tried:

1. Never fewer than the minimum (those are the warm workers) nor more than the maximum.
2. More, when the policy wishes more and the last rise is `up_cooldown_s` ago.
3. Fewer, when for `down_window_s` the policy never wished for as many as there are, and the last fall is
   `down_cooldown_s` ago; then down to the largest wish of that window, by at most `down_share` of them at a time.
4. A wish that differs by no more than `tolerance` from what there is changes nothing, unless it is one of the limits.
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

    up_cooldown_s: float = 10.0  # between two rises
    down_window_s: float = 300.0  # so long nobody may have wished for as many as there are, before there are fewer
    down_cooldown_s: float = 60.0  # between two falls
    down_share: float = 0.5  # of the workers, how many may go at a time
    tolerance: float = 0.1  # share by which the number may be off

    def __post_init__(self) -> None:
        if min(self.up_cooldown_s, self.down_window_s, self.down_cooldown_s, self.tolerance) < 0:
            raise InvalidInput("cool-downs and the tolerance cannot be negative")
        if not 0 < self.down_share <= 1:
            raise InvalidInput(f"the share that may go at a time is above 0 and up to 1, not {self.down_share:g}")


@dataclass(slots=True, frozen=True)
class Decision:
    """How many workers there should be, and why."""

    workers: int
    before: int  # how many there are
    wanted: int | None  # what the policy wished for, before limits and pace; None: it could not tell
    why: str  # for people

    @property
    def changes(self) -> bool:
        return self.workers != self.before


class Scaler:
    """One lane's: a policy, its limits and its pace. `decide` is called with each new reading."""

    def __init__(self, policy: Policy, minimum: int, maximum: int, pace: Pace | None = None) -> None:
        if not 0 <= minimum <= maximum or maximum < 1:
            raise InvalidInput(
                f"from {minimum} to {maximum} workers is no range: give a minimum and a maximum, as 2:50"
            )
        self.policy = policy
        self.minimum = minimum
        self.maximum = maximum
        self.pace = pace or Pace()
        self.rates = Rates()
        self._wishes: deque[tuple[float, int]] = deque()  # falling wishes only: the first is the window's largest
        self._calm_since_s: float | None = None
        self._risen_s: float | None = None
        self._fallen_s: float | None = None

    def decide(self, reading: Reading, now_s: float, workers: int) -> Decision:
        """How many there should be now, given that there are `workers`. The time is any clock that does not go back."""
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
            return Decision(workers, workers, None, "what is known does not say how many; the number stays")
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
            return Decision(workers, workers, wanted, f"{why}; the last rise was a moment ago, {wait_s:.0f} s to wait")
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
                workers, workers, wanted, f"{why}; {peak} were wished for in the last {pace.down_window_s:g} s"
            )
        if wait_s > 0:
            return Decision(workers, workers, wanted, f"{why}; fewer in {wait_s:.0f} s if that stays so")
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
