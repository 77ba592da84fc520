"""An open-addressed index from 64-bit keys to entry numbers: four bytes a place, at most three of four taken.

The keys themselves stand in a column of the caller's; entry number n's key is `keys[n - base]`. Removal closes the gap
behind it, so that probing never meets tombstones.
"""

from __future__ import annotations

from array import array

EMPTY = 0xFFFFFFFF
_SIZE_MIN = 8


class HashIndex:
    __slots__ = ("_mask", "_places", "live")

    def __init__(self) -> None:
        self._places: array[int] = array("I", [EMPTY]) * _SIZE_MIN
        self._mask = _SIZE_MIN - 1
        self.live = 0

    def find(self, key: int, keys: array[int], base: int = 0) -> int:
        """The entry number of `key`, or EMPTY."""
        places, mask = self._places, self._mask
        at = key & mask
        while (number := places[at]) != EMPTY:
            if keys[number - base] == key:
                return number
            at = (at + 1) & mask
        return EMPTY

    def add(self, key: int, number: int, keys: array[int], base: int = 0) -> None:
        """Add an entry whose key is not there yet. `keys` is needed when the index must grow."""
        if (self.live + 1) * 4 > (self._mask + 1) * 3:
            self._grow(keys, base)
        places, mask = self._places, self._mask
        at = key & mask
        while places[at] != EMPTY:
            at = (at + 1) & mask
        places[at] = number
        self.live += 1

    def move(self, key: int, old: int, new: int) -> None:
        """The entry of `key` has another number now."""
        self._places[self._place_of(key, old)] = new

    def remove(self, key: int, number: int, keys: array[int], base: int = 0) -> None:
        places, mask = self._places, self._mask
        hole = at = self._place_of(key, number)
        while (other := places[at := (at + 1) & mask]) != EMPTY:
            home = keys[other - base] & mask
            if (at - home) & mask >= (at - hole) & mask:
                places[hole] = other
                hole = at
        places[hole] = EMPTY
        self.live -= 1

    def rebuild(self, entries: list[tuple[int, int]]) -> None:
        """Start again with these (key, number) pairs."""
        size = _SIZE_MIN
        while len(entries) * 4 > size * 3:
            size *= 2
        self._places = array("I", [EMPTY]) * size
        self._mask = mask = size - 1
        self.live = len(entries)
        places = self._places
        for key, number in entries:
            at = key & mask
            while places[at] != EMPTY:
                at = (at + 1) & mask
            places[at] = number

    def _place_of(self, key: int, number: int) -> int:
        places, mask = self._places, self._mask
        at = key & mask
        while places[at] != number:
            assert places[at] != EMPTY, "the entry is not in the index"
            at = (at + 1) & mask
        return at

    def _grow(self, keys: array[int], base: int) -> None:
        old = self._places
        size = len(old) * 2
        self._places = places = array("I", [EMPTY]) * size
        self._mask = mask = size - 1
        for number in old:
            if number != EMPTY:
                at = keys[number - base] & mask
                while places[at] != EMPTY:
                    at = (at + 1) & mask
                places[at] = number
