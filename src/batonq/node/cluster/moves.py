"""The latest changes of the shards' owners, as this node has seen them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from typing import NamedTuple

MOVES_MAX = 200


class Move(NamedTuple):
    at_ms: int
    shard: int
    source: str  # the owner before; empty: none was known
    target: str
    epoch: int
    reason: str
    certain: bool = False  # the node that handed the shard over says so; otherwise the reason is inferred


class Moves:
    """`alive` has the names of the nodes that are alive now."""

    def __init__(self, now_ms: Callable[[], int], alive: Callable[[], Container[str]]) -> None:
        self.latest: deque[Move] = deque(maxlen=MOVES_MAX)  # the oldest first
        self.counts: dict[int, int] = {}  # moves of each shard since this node started
        self._now_ms = now_ms
        self._alive = alive
        self._owners: dict[int, tuple[str, int]] = {}  # the last owner of each shard, and its epoch
        self._reasons: dict[int, str] = {}  # shards that this node is handing over

    def hands_over(self, shard: int, reason: str) -> None:
        """This node is about to hand a shard over."""
        self._reasons[shard] = reason

    def note(self, shard: int, node: str, epoch: int) -> None:
        """A shard has this owner now."""
        source, before = self._owners.get(shard, ("", -1))
        if epoch <= before:
            return
        self._owners[shard] = (node, epoch)
        known = self._reasons.pop(shard, "")
        if not source:
            return  # how it was when this node started
        self.counts[shard] = self.counts.get(shard, 0) + 1
        reason = known or self._inferred(source, node)
        self.latest.append(Move(self._now_ms(), shard, source, node, epoch, reason, bool(known)))

    def _inferred(self, source: str, target: str) -> str:
        if source == target:
            return "its owner lost it and took it again"
        if source in self._alive():
            return f"handed over by {source}, or its lease was lost"
        return f"{source} stopped or was not reachable"


def joined(lists: list[list[Move]]) -> list[Move]:
    """The moves that several nodes have seen, newest first. Of one move the certain reason counts."""
    found: dict[tuple[int, int], Move] = {}
    for move in (move for moves in lists for move in moves):
        known = found.get((move.shard, move.epoch))
        if known is None or move.certain > known.certain:
            found[move.shard, move.epoch] = move
    return sorted(found.values(), key=lambda move: -move.at_ms)[:MOVES_MAX]
