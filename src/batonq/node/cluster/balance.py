"""Who should own what: plain numbers in, a decision out.

Every node reckons with the same numbers, which all tell in their notes, and only the one that has to give acts: so one
shard moves at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

BACKOFF_FIRST_S = 0.3
BACKOFF_STEP_S = 0.25  # for each shard that a node owns already
BACKOFF_MAX_S = 3.0
CLOCK_OFF_MAX_MS = 2_000
SPREAD_MIN = 1.5  # two nodes are left alone that differ by less
SPREAD_SHARE = 0.25  # or by less than this share of what the heavier has
EVENED_MIN = 0.25  # a move that makes less than this share of the difference go away is not worth it


class Load(NamedTuple):
    """What one shard asks of its owner."""

    rows_per_s: float = 0.0  # records written
    reads_per_s: float = 0.0  # messages handed out
    bytes: int = 0  # of the retained log
    leases: int = 0  # messages in flight

    @property
    def weight(self) -> float:
        """An idle shard weighs 1, and so does each of these alone."""
        busy = self.rows_per_s / 2_000 + self.reads_per_s / 2_000
        return 1.0 + busy + self.bytes / (4 << 30) + self.leases / 50_000


class Move(NamedTuple):
    shard: int
    source: str
    target: str


def backoff_s(owned: int, chance: float) -> float:
    """How long a node lets a free shard be: the longer, the more it has. `chance` is from 0 to 1."""
    return min(BACKOFF_FIRST_S + BACKOFF_STEP_S * owned, BACKOFF_MAX_S) + 0.2 * chance


def next_move(weights: Mapping[str, Mapping[int, float]], full: Sequence[str] = ()) -> Move | None:
    """The shard whose move makes the heaviest and the lightest node most alike, the lighter of two that do; None when
    they are alike enough, or nothing makes them much more so: one busy shard is not handed round.

    `weights` has the shards of every live node; nodes that are `full` (being drained) take nothing.
    """
    takers = {node: sum(shards.values()) for node, shards in weights.items() if node not in full}
    if not takers or len(weights) < 2:
        return None
    totals = {node: sum(shards.values()) for node, shards in weights.items()}
    source = max(sorted(totals), key=lambda node: totals[node])
    target = min(sorted(takers), key=lambda node: takers[node])
    gap = totals[source] - totals[target]
    if source == target or gap < max(SPREAD_MIN, SPREAD_SHARE * totals[source]):
        return None
    candidates = weights[source]
    shard = min(sorted(candidates), key=lambda number: (abs(gap - 2 * candidates[number]), candidates[number]))
    if abs(gap - 2 * candidates[shard]) > (1 - EVENED_MIN) * gap:
        return None
    return Move(shard, source, target)


def lightest(weights: Mapping[str, Mapping[int, float]], without: Sequence[str] = ()) -> str | None:
    """The node that should get the next shard."""
    totals = {node: sum(shards.values()) for node, shards in weights.items() if node not in without}
    return min(sorted(totals), key=lambda node: totals[node]) if totals else None


def clock_off_ms(others_ms: Sequence[int]) -> int:
    """How far this node's clock is off the median of all; `others_ms` is how far each other one is ahead of it."""
    return -round(median([0, *others_ms]))
