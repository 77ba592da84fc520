"""Ranges of numbers, and which of them contain a number: a search that costs the logarithm of the number of ranges.

The ranges are kept in an interval tree that is built anew once enough of them have changed. Until then new ranges are
compared one by one, and removed ones stay in the tree as empty sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

from batonq.core.topics.conditions import End

CHANGES_MIN = 32  # ranges that may be new or empty before the tree is built again


Item = TypeVar("Item")


class _Member(NamedTuple, Generic[Item]):
    low: End
    high: End
    items: set[Item]


class _Node(NamedTuple, Generic[Item]):
    center: End
    by_low: list[_Member[Item]]  # the ranges that contain the center, the lowest start first
    by_high: list[_Member[Item]]  # the same, the highest end first
    below: _Node[Item] | None
    above: _Node[Item] | None


class RangeTable(Generic[Item]):
    """Sets of items, each for a closed range."""

    def __init__(self) -> None:
        self._members: dict[tuple[End, End], _Member[Item]] = {}
        self._recent: dict[tuple[End, End], _Member[Item]] = {}  # not in the tree
        self._empty = 0  # in the tree
        self._tree: _Node[Item] | None = None

    def __len__(self) -> int:
        return len(self._members)

    def add(self, low: End, high: End, item: Item) -> None:
        member = self._members.get((low, high))
        if member is None:
            member = self._members[low, high] = self._recent[low, high] = _Member(low, high, set())
        member.items.add(item)

    def discard(self, low: End, high: End, item: Item) -> None:
        member = self._members.get((low, high))
        if member is None:
            return
        member.items.discard(item)
        if not member.items:
            del self._members[low, high]
            if self._recent.pop((low, high), None) is None:
                self._empty += 1

    def containing(self, point: End) -> Iterator[set[Item]]:
        """The items of each range that contains this point."""
        if len(self._recent) + self._empty > max(CHANGES_MIN, len(self._members) // 4):
            self._tree = _build([*self._members.values()])
            self._recent.clear()
            self._empty = 0
        for member in self._recent.values():
            if member.low <= point <= member.high:
                yield member.items
        node = self._tree
        while node is not None:
            if point < node.center:
                for member in node.by_low:
                    if member.low > point:
                        break
                    yield member.items
                node = node.below
            else:
                for member in node.by_high:
                    if member.high < point:
                        break
                    yield member.items
                node = node.above


def _build(members: list[_Member[Item]]) -> _Node[Item] | None:
    if not members:
        return None
    ends = sorted([member.low for member in members] + [member.high for member in members])
    center = ends[len(ends) // 2]
    here = [member for member in members if member.low <= center <= member.high]
    return _Node(
        center,
        sorted(here, key=itemgetter(0)),
        sorted(here, key=itemgetter(1), reverse=True),
        _build([member for member in members if member.high < center]),
        _build([member for member in members if member.low > center]),
    )
