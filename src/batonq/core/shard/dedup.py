"""The deduplication window: an open-addressed table in arrays, at most 32 bytes an entry.

An entry is a 64-bit hash of its key, the first message's sequence (48 bits, as in its id), a fingerprint of the content
(32 bits), and when it expires: 22 bytes, and at most 9 for its place in the index. Entries stand in a ring in the order
in which they were made; the front is swept as new ones come, by the records' own times, so that replay sweeps alike.
Entries that stay long, some as long as their message, are moved to the back when met.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from batonq.core.shard.hashindex import EMPTY, HashIndex

FOREVER_S = 0xFFFFFFFF
_NUMBER_MAX = 0xFFFF0000
_SEQUENCE_BITS = 48
_SEQUENCE_MASK = (1 << _SEQUENCE_BITS) - 1
_TRIM = 64
_SWEPT_SHARE = 32  # swept entries are given back when they are more than one in so many
_PATIENCE_S = 600  # an entry that stays longer must not keep the shorter ones behind it
_SWEEP = 3  # entries looked at for each one that is made: more than one, so that the ring shrinks


class Known(NamedTuple):
    sequence: int
    expires_s: int
    fingerprint: int


class DedupTable:
    """Entries are numbered as they are made; `_base` is the number of the ring's first."""

    def __init__(self) -> None:
        self._key: array[int] = array("Q")  # 0: a hole, its entry was moved or removed
        self._message: array[int] = array("Q")  # sequence | low half of the fingerprint << 48
        self._mark: array[int] = array("H")  # its high half
        self._expires: array[int] = array("I")
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
        message = self._message[at]
        fingerprint = message >> _SEQUENCE_BITS | self._mark[at] << 16
        return Known(message & _SEQUENCE_MASK, self._expires[at], fingerprint)

    def put(self, key: int, sequence: int, expires_s: int, fingerprint: int, now_s: int) -> None:
        """Make an entry; one of the same key that is over is replaced. A fingerprint has 32 bits."""
        self._sweep(now_s)
        old = self._index.find(key, self._key, self._base)
        if old != EMPTY:
            self._remove(old - self._base)
        if self._base + len(self._key) >= _NUMBER_MAX:
            self._renumber()
        number = self._base + len(self._key)
        self._key.append(key)
        self._message.append(sequence | (fingerprint & 0xFFFF) << _SEQUENCE_BITS)
        self._mark.append(fingerprint >> 16)
        self._expires.append(expires_s)
        self._index.add(key, number, self._key, self._base)

    def end_life(self, key: int, sequence: int, expires_s: int) -> None:
        """The message of a living entry is gone: the entry now ends with its window."""
        number = self._index.find(key, self._key, self._base)
        if number != EMPTY:
            at = number - self._base
            if self._message[at] & _SEQUENCE_MASK == sequence and self._expires[at] == FOREVER_S:
                self._expires[at] = expires_s

    def entries(self) -> list[tuple[int, int, int, int]]:
        """(key, sequence, expires, fingerprint) of every entry, in the ring's order."""
        columns = (self._key, self._message, self._expires, self._mark)
        return [
            (key, message & _SEQUENCE_MASK, expires, message >> _SEQUENCE_BITS | mark << 16)
            for key, message, expires, mark in zip(*(column[self._front :] for column in columns), strict=True)
            if key
        ]

    def save(self) -> dict[str, bytes]:
        start = self._front
        return {
            "key": self._key[start:].tobytes(),
            "message": self._message[start:].tobytes(),
            "mark": self._mark[start:].tobytes(),
            "expires": self._expires[start:].tobytes(),
        }

    def load(self, sections: dict[str, bytes]) -> None:
        self._clear()
        self._key.frombytes(sections["key"])
        self._message.frombytes(sections["message"])
        self._mark.frombytes(sections.get("mark") or bytes(2 * len(self._key)))
        self._expires.frombytes(sections["expires"])
        self._renumber()

    def validate(self) -> None:
        keys = [key for key in self._key[self._front :] if key]
        assert len(keys) == len(set(keys)) == len(self), "a deduplication key has two entries"
        for key in keys:
            number = self._index.find(key, self._key, self._base)
            assert number != EMPTY, "a deduplication entry cannot be found by its key"

    def _clear(self) -> None:
        for column in (self._key, self._message, self._mark, self._expires):
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
                elif expires - now_s > _PATIENCE_S:
                    self._move_to_back(at)
                else:
                    break
            self._front += 1
        if self._front >= _TRIM and self._front * _SWEPT_SHARE > len(self._key):
            for column in (self._key, self._message, self._mark, self._expires):
                del column[: self._front]
            self._base += self._front
            self._front = 0

    def _move_to_back(self, at: int) -> None:
        key = self._key[at]
        self._index.move(key, self._base + at, self._base + len(self._key))
        self._key.append(key)
        self._message.append(self._message[at])
        self._mark.append(self._mark[at])
        self._expires.append(self._expires[at])
        self._key[at] = 0
