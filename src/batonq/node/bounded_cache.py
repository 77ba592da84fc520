"""A cache with a known memory limit: a maximum number of entries and size per entry; the oldest entry is evicted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(OrderedDict[K, V]):
    """Read it like a dict; write it with `put`. It holds at most `entries_max` entries of at most `size_max` each."""

    def __init__(self, entries_max: int, size_max: int) -> None:
        super().__init__()
        self.entries_max = entries_max
        self.size_max = size_max

    def put(self, key: K, value: V, size: int) -> None:
        """Store a value, unless it is too large. `size` counts what the client controls, most often the key."""
        if size > self.size_max:
            return
        if len(self) >= self.entries_max and key not in self:
            self.popitem(last=False)
        self[key] = value
