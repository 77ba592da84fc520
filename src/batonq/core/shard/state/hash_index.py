"""An index from 64-bit keys to entry numbers, with four bytes per place and a load of at most three quarters.

The keys are in the caller's column: the key of entry number n is `keys[n - base]`. A removal closes the gap that it
leaves, so that probing never meets tombstones.

The index grows in small steps, because the caller that adds an entry waits for them. Its places are in segments of
about a thousand, found by the key's first bits. A full segment is split in two (extendible hashing); a small segment
grows by two thirds.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

EMPTY = 0xFFFFFFFF
_SIZE_MIN = 8
_SPLIT_AT = 1_024  # places: splitting takes less than a millisecond
_DEPTH_MAX = 18
_KEY_BITS = 64


class _Segment:
    """Open addressing with linear probing, starting at `key % size`."""

    __slots__ = ("depth", "live", "places")

    def __init__(self, depth: int, size: int) -> None:
        self.depth = depth  # number of first bits that its keys share
        self.places: array[int] = array("I", [EMPTY]) * size
        self.live = 0

    def put(self, key: int, number: int) -> None:
        places = self.places
        size = len(places)
        at = key % size
        while places[at] != EMPTY:
            at += 1
            if at == size:
                at = 0
        places[at] = number
        self.live += 1

    def place_of(self, key: int, number: int) -> int:
        places = self.places
        size = len(places)
        at = key % size
        while places[at] != number:
            assert places[at] != EMPTY, "the entry is not in the index"
            at += 1
            if at == size:
                at = 0
        return at


class HashIndex:
    __slots__ = ("_depth", "_directory", "_shift", "live")

    def __init__(self) -> None:
        self._depth = 0
        self._shift = _KEY_BITS  # the first `_depth` bits of a key select its segment
        self._directory = [_Segment(0, _SIZE_MIN)]
        self.live = 0

    @property
    def places(self) -> int:
        """The number of places, of four bytes each."""
        return sum(len(segment.places) for segment in dict.fromkeys(self._directory))

    def find(self, key: int, keys: array[int], base: int = 0) -> int:
        """The entry number of `key`, or EMPTY."""
        places = self._directory[key >> self._shift].places
        size = len(places)
        at = key % size
        while (number := places[at]) != EMPTY:
            if keys[number - base] == key:
                return number
            at += 1
            if at == size:
                at = 0
        return EMPTY

    def add(self, key: int, number: int, keys: array[int], base: int = 0) -> None:
        """Add an entry whose key is not in the index yet. `keys` is needed when the index must grow."""
        segment = self._directory[key >> self._shift]
        while (segment.live + 1) * 4 > len(segment.places) * 3:
            self._make_room(segment, key, keys, base)
            segment = self._directory[key >> self._shift]
        segment.put(key, number)
        self.live += 1

    def add_run(self, added: Sequence[int], number: int, keys: array[int], base: int = 0) -> None:
        """Add entries with consecutive numbers, as `add` does."""
        for key in added:
            segment = self._directory[key >> self._shift]
            if (segment.live + 1) * 4 > len(segment.places) * 3:
                self.add(key, number, keys, base)
            else:
                segment.put(key, number)
                self.live += 1
            number += 1

    def move(self, key: int, old: int, new: int) -> None:
        """Change the number of the entry of `key`."""
        segment = self._directory[key >> self._shift]
        segment.places[segment.place_of(key, old)] = new

    def remove(self, key: int, number: int, keys: array[int], base: int = 0) -> None:
        segment = self._directory[key >> self._shift]
        places = segment.places
        size = len(places)
        hole = at = segment.place_of(key, number)
        while True:
            at = at + 1 if at + 1 < size else 0
            other = places[at]
            if other == EMPTY:
                break
            home = keys[other - base] % size
            if (at - home) % size >= (at - hole) % size:
                places[hole] = other
                hole = at
        places[hole] = EMPTY
        segment.live -= 1
        self.live -= 1

    def rebuild(self, entries: list[tuple[int, int]]) -> None:
        """Replace the contents with these (key, number) pairs."""
        depth = 0
        while len(entries) >> depth > _SPLIT_AT // 2 and depth < _DEPTH_MAX:
            depth += 1
        self._depth, self._shift = depth, _KEY_BITS - depth
        parts: list[list[tuple[int, int]]] = [[] for _ in range(1 << depth)]
        for entry in entries:
            parts[entry[0] >> self._shift].append(entry)
        self._directory = [_filled(depth, part) for part in parts]
        self.live = len(entries)

    def _make_room(self, segment: _Segment, key: int, keys: array[int], base: int) -> None:
        entries = [(keys[number - base], number) for number in segment.places if number != EMPTY]
        if len(segment.places) < _SPLIT_AT or segment.depth >= _DEPTH_MAX:
            self._replace(key, segment.depth, [_filled(segment.depth, entries)])
            return
        if segment.depth == self._depth:
            self._directory = [segment for segment in self._directory for _ in (0, 1)]
            self._depth += 1
            self._shift -= 1
        bit = _KEY_BITS - 1 - segment.depth
        halves = [[entry for entry in entries if entry[0] >> bit & 1 == side] for side in (0, 1)]
        self._replace(key, segment.depth, [_filled(segment.depth + 1, half) for half in halves])

    def _replace(self, key: int, depth: int, segments: list[_Segment]) -> None:
        """Replace the segment with the key's first `depth` bits by one segment, or by two halves."""
        span = 1 << self._depth - depth
        first = (key >> _KEY_BITS - depth) * span
        each = span // len(segments)
        for at, segment in enumerate(segments):
            start = first + at * each
            self._directory[start : start + each] = [segment] * each


def _filled(depth: int, entries: list[tuple[int, int]]) -> _Segment:
    """A segment with these (key, number) pairs, and room for two thirds more."""
    segment = _Segment(depth, max(_SIZE_MIN, len(entries) * 20 // 9 + 1))
    places = segment.places
    size = len(places)
    for key, number in entries:  # the same as `put`, without a call per entry
        at = key % size
        while places[at] != EMPTY:
            at += 1
            if at == size:
                at = 0
        places[at] = number
    segment.live = len(entries)
    return segment
