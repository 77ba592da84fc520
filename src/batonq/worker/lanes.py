"""Several queues that share one set of slots: which queue is asked next, and for how many messages. Pure functions.

Fair: stride scheduling. Every lane has a pass value that increases by 1/weight with each message; the lane with the
smallest pass is next. A lane that was empty continues at the pass of the others, so it does not catch up on the time in
which it was empty.

Strict: the first lane is always asked first. To avoid starvation, a lane that has been passed over for `patience`
messages is asked for one message before the first lane's next turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

Order = Literal["fair", "strict"]
PROBE_S = 0.1
PATIENCE = 20


@dataclass(slots=True, frozen=True)
class Lane:
    """A queue, or a pattern such as `hooks-*`, and its share of the slots when all are busy."""

    queue: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.queue:
            raise ValueError("a lane needs a queue name")
        if not 0 < self.weight < float("inf"):
            raise ValueError(f"the weight of lane {self.queue!r} must be greater than 0, not {self.weight}")

    @property
    def is_pattern(self) -> bool:
        return "*" in self.queue or "?" in self.queue

    def holds(self, queue: str) -> bool:
        return fnmatchcase(queue, self.queue) if self.is_pattern else queue == self.queue


class Ask(NamedTuple):
    lane: Lane
    wanted: int


class _State:
    __slots__ = ("empty_until", "lane", "passed", "seen")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.passed = 0.0
        self.seen = 0  # messages of other lanes since this lane was last asked
        self.empty_until = 0.0


class Lanes:
    """Call `begin` for a round, then `next` and `took` in turn until `next` returns None: then every lane is empty."""

    def __init__(
        self, lanes: Sequence[Lane], order: Order = "fair", patience: int = PATIENCE, probe_s: float = PROBE_S
    ) -> None:
        if not lanes:
            raise ValueError("at least one lane is needed")
        if len({lane.queue for lane in lanes}) != len(lanes):
            raise ValueError("a queue is in two lanes")
        if order not in ("fair", "strict"):
            raise ValueError(f'the order of lanes must be "fair" or "strict", not {order!r}')
        if patience < 1:
            raise ValueError("patience must be 1 or more")
        self.lanes = tuple(lanes)
        self.order = order
        self._patience = patience
        self._probe_s = probe_s
        self._states = [_State(lane) for lane in lanes]
        self._asked: set[str] = set()  # lanes that returned less than requested in this round

    def begin(self) -> None:
        self._asked.clear()

    def next(self, free: int, now: float) -> Ask | None:
        """The lane to ask, and for how many messages."""
        if free < 1:
            return None
        waiting = [state for state in self._states if state.lane.queue not in self._asked and self._due(state, now)]
        if not waiting:
            return None
        return self._next_strict(waiting, free) if self.order == "strict" else self._next_fair(waiting, free)

    def took(self, lane: Lane, asked: int, got: int, now: float) -> None:
        """Record what a lane returned; less than requested means that it is empty for now."""
        state = self._state(lane)
        if got < asked:
            self._asked.add(lane.queue)
        if got:
            state.empty_until = 0.0
            state.passed += got / lane.weight
        else:
            state.empty_until = now + self._probe_s
        state.seen = 0
        for other in self._states:
            if other is not state:
                other.seen += got

    def woken(self, queue: str, got: int) -> None:
        """A long poll over all lanes returned messages of this queue."""
        for state in self._states:
            if state.lane.holds(queue):
                self._rejoin(state)
                state.empty_until = 0.0
                state.passed += got / state.lane.weight

    # ---

    def _due(self, state: _State, now: float) -> bool:
        if self.order == "strict" or not state.empty_until:
            return True
        if now < state.empty_until:
            return False
        self._rejoin(state)
        state.empty_until = 0.0  # until it is found empty again; otherwise it would always rejoin behind the others
        return True

    def _rejoin(self, state: _State) -> None:
        """A lane that was empty continues at the pass of the others."""
        busy = [other.passed for other in self._states if other is not state and not other.empty_until]
        if busy and state.empty_until:
            state.passed = max(state.passed, min(busy))

    def _next_fair(self, waiting: list[_State], free: int) -> Ask:
        first = min(waiting, key=lambda state: state.passed)
        if len(waiting) == 1:
            return Ask(first.lane, free)
        # The number it would get if slots were assigned one by one.
        passes = {id(state): state.passed for state in waiting}
        count = 0
        for _ in range(free):
            chosen = min(waiting, key=lambda state: passes[id(state)])
            passes[id(chosen)] += 1 / chosen.lane.weight
            count += chosen is first
        return Ask(first.lane, count)

    def _next_strict(self, waiting: list[_State], free: int) -> Ask:
        # The first lane is included: with a small patience the others would starve it.
        longest = max(waiting, key=lambda state: state.seen)
        if longest is not waiting[0] and longest.seen >= self._patience:
            return Ask(longest.lane, min(free, longest.seen // self._patience))
        return Ask(waiting[0].lane, free)

    def _state(self, lane: Lane) -> _State:
        return next(state for state in self._states if state.lane is lane)
