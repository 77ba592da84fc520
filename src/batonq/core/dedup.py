"""The deduplication window: an open-addressed table in arrays, at most 32 bytes an entry.

An entry is a 64-bit hash of its key, the first message's sequence, when it expires and a fingerprint of the content.
Entries stand in a ring in the order in which they were made; the front is swept as new ones come, by the records'
own times, so that replay sweeps alike. Entries that live as long as their message are moved to the back when met.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from batonq.core.hashindex import EMPTY, HashIndex

FOREVER_S = 0xFFFFFFFF
_NUMBER_MAX = 0xFFFF0000
_TRIM = 64
_SWEEP = 3  # entries looked at for each one that is made: more than one, so that the ring shrinks


class Known(NamedTuple):
    sequence: int
    expires_s: int
    fingerprint: int


class DedupTable:
    """Entries are numbered as they are made; `_base` is the number of the ring's first."""

    def __init__(self) -> None:
        self._key: array[int] = array("Q")  # 0: a hole, its entry was moved or removed
        self._sequence: array[int] = array("Q")
        self._expires: array[int] = array("I")
        self._fingerprint: array[int] = array("I")
        self._base = 0
        self._front = 0  # entries before this offset have been swept
        self._index = HashIndex()

    def __len__(self) -> int:
        return self._index.live

    def get(self, key: int, now_s: int) -> Known | None:
        number = self._index.find(key, self._key, self._base)
        if number == EMPTY:
            return None
        at = number - self._base
        if self._expires[at] <= now_s:
            return None
        return Known(self._sequence[at], self._expires[at], self._fingerprint[at])

    def put(self, key: int, sequence: int, expires_s: int, fingerprint: int, now_s: int) -> None:
        """Make an entry; one of the same key that is over is replaced."""
        self._sweep(now_s)
        old = self._index.find(key, self._key, self._base)
        if old != EMPTY:
            self._remove(old - self._base)
        if self._base + len(self._key) >= _NUMBER_MAX:
            self._renumber()
        number = self._base + len(self._key)
        self._key.append(key)
        self._sequence.append(sequence)
        self._expires.append(expires_s)
        self._fingerprint.append(fingerprint)
        self._index.add(key, number, self._key, self._base)

    def end_life(self, key: int, sequence: int, expires_s: int) -> None:
        """The message of a living entry is gone: the entry now ends with its window."""
        number = self._index.find(key, self._key, self._base)
        if number != EMPTY:
            at = number - self._base
            if self._sequence[at] == sequence and self._expires[at] == FOREVER_S:
                self._expires[at] = expires_s

    def entries(self) -> list[tuple[int, int, int, int]]:
        """(key, sequence, expires, fingerprint) of every entry, in the ring's order."""
        columns = (self._key, self._sequence, self._expires, self._fingerprint)
        return [entry for entry in zip(*(column[self._front :] for column in columns), strict=True) if entry[0]]

    def save(self) -> dict[str, bytes]:
        start = self._front
        return {
            "key": self._key[start:].tobytes(),
            "sequence": self._sequence[start:].tobytes(),
            "expires": self._expires[start:].tobytes(),
            "fingerprint": self._fingerprint[start:].tobytes(),
        }

    def load(self, sections: dict[str, bytes]) -> None:
        self._clear()
        self._key.frombytes(sections["key"])
        self._sequence.frombytes(sections["sequence"])
        self._expires.frombytes(sections["expires"])
        self._fingerprint.frombytes(sections["fingerprint"])
        self._renumber()

    def validate(self) -> None:
        keys = [key for key in self._key[self._front :] if key]
        assert len(keys) == len(set(keys)) == len(self), "a deduplication key has two entries"
        for key in keys:
            number = self._index.find(key, self._key, self._base)
            assert number != EMPTY, "a deduplication entry cannot be found by its key"

    def _clear(self) -> None:
        for column in (self._key, self._sequence, self._expires, self._fingerprint):
            del column[:]
        self._front = 0

    def _renumber(self) -> None:
        self._base = 0
        self._index.rebuild([(key, number) for number, key in enumerate(self._key) if key])

    def _remove(self, at: int) -> None:
        self._index.remove(self._key[at], self._base + at, self._key, self._base)
        self._key[at] = 0

    def _sweep(self, now_s: int) -> None:
        for _ in range(_SWEEP):
            at = self._front
            if at >= len(self._key):
                break
            if self._key[at]:
                expires = self._expires[at]
                if expires <= now_s:
                    self._remove(at)
                elif expires == FOREVER_S:
                    self._move_to_back(at)
                else:
                    break
            self._front += 1
        if self._front >= _TRIM and self._front * 2 > len(self._key):
            for column in (self._key, self._sequence, self._expires, self._fingerprint):
                del column[: self._front]
            self._base += self._front
            self._front = 0

    def _move_to_back(self, at: int) -> None:
        key = self._key[at]
        self._index.move(key, self._base + at, self._base + len(self._key))
        self._key.append(key)
        self._sequence.append(self._sequence[at])
        self._expires.append(FOREVER_S)
        self._fingerprint.append(self._fingerprint[at])
        self._key[at] = 0
