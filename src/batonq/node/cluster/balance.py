"""Decides which node should own which shard: plain numbers in, a decision out.

Every node computes with the same numbers, which all nodes publish in their notes. Only the node that has to give a
shard away acts, so one shard moves at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

BACKOFF_FIRST_S = 0.3
BACKOFF_STEP_S = 0.25  # per shard that a node already owns
BACKOFF_MAX_S = 3.0
CLOCK_OFF_MAX_MS = 2_000
SPREAD_MIN = 1.5  # two nodes whose loads differ by less are left alone
SPREAD_SHARE = 0.25  # or by less than this share of the heavier node's load
EVENED_MIN = 0.25  # a move that removes less than this share of the difference is not worth it


class Load(NamedTuple):
    """The load of one shard on its owner."""

    rows_per_s: float = 0.0  # records written
    reads_per_s: float = 0.0  # messages delivered
    bytes: int = 0  # of the retained log
    leases: int = 0  # messages in flight

    @property
    def weight(self) -> float:
        """An idle shard weighs 1, and so does each of these numbers alone."""
        busy = self.rows_per_s / 2_000 + self.reads_per_s / 2_000
        return 1.0 + busy + self.bytes / (4 << 30) + self.leases / 50_000


class Move(NamedTuple):
    shard: int
    source: str
    target: str


def backoff_s(owned: int, chance: float) -> float:
    """How long a node leaves a free shard alone: longer, the more shards it has. `chance` is from 0 to 1."""
    return min(BACKOFF_FIRST_S + BACKOFF_STEP_S * owned, BACKOFF_MAX_S) + 0.2 * chance


def next_move(weights: Mapping[str, Mapping[int, float]], full: Sequence[str] = ()) -> Move | None:
    """The shard whose move best evens out the heaviest and the lightest node; of two equal ones, the lighter shard.

    None when the nodes are alike enough, or no move makes them much more alike: one busy shard must not be passed
    around. `weights` has the shards of every live node. Nodes in `full` (being drained) take no shards.
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
    """How far this node's clock is from the median of all. `others_ms` is how far each other clock is ahead of it."""
    return -round(median([0, *others_ms]))
