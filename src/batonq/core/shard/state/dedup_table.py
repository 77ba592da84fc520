"""Tables of hashes that are remembered for a time: deduplication ids and request names. An entry takes at most 32
bytes.

An entry is a 64-bit hash of its key, the first message's sequence (48 bits, as in its id), a fingerprint of the content
(32 bits), and its expiry: 22 bytes, and at most 9 for its place in the index.

Entries are in rings, in the order in which they were added. The entries of one ring have windows of similar length:
none is twice as long as another. The first entry of a ring is therefore among the first to expire, and only the front
of each ring needs to be examined for expired entries. A table is full only if it has its maximum of entries and no
front has expired. Each new entry sweeps the fronts by the times in the records, so that replay sweeps the same entries.
Entries that live as long as their message have their own ring.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from batonq.core.shard.state.hash_index import EMPTY, HashIndex

FOREVER_S = 0xFFFFFFFF
_BITS_MAX = 31
_FOREVER = 32  # the ring of entries that live as long as their message
_UNSORTED = 33  # the ring of entries from snapshots of older releases, which had no separate rings
_NUMBER_MAX = 0xFFFF0000
_SEQUENCE_BITS = 48
_SEQUENCE_MASK = (1 << _SEQUENCE_BITS) - 1
_TRIM = 64
_SWEPT_SHARE = 32  # the memory of swept entries is freed when they are more than 1 in this many
_HOLES_SHARE = 16  # living entries move to the back when more than 1 place in this many is empty
_SWEEP = 3  # entries of a ring examined per new entry: more than one, so that the ring shrinks
_LOOK = 64  # maximum of empty places skipped in search of the first entry


class Known(NamedTuple):
    sequence: int
    expires_s: int
    fingerprint: int


class _Ring:
    """Entries are numbered in the order of their creation. `base` is the number of the first place, `front` the
    number of swept places.
    """

    __slots__ = ("base", "expires", "front", "index", "key", "mark", "message")

    def __init__(self) -> None:
        self.key: array[int] = array("Q")  # 0: an empty place, whose entry was moved or removed
        self.message: array[int] = array("Q")  # sequence | low half of the fingerprint << 48
        self.mark: array[int] = array("H")  # high half of the fingerprint
        self.expires: array[int] = array("I")  # 0 for an empty place
        self.base = 0
        self.front = 0
        self.index = HashIndex()

    @property
    def columns(self) -> tuple[array[int], ...]:
        return self.key, self.message, self.mark, self.expires

    def append(self, key: int, message: int, mark: int, expires_s: int) -> None:
        keys = self.key
        if self.base + len(keys) >= _NUMBER_MAX:
            self.renumber()
        number = self.base + len(keys)
        keys.append(key)
        self.message.append(message)
        self.mark.append(mark)
        self.expires.append(expires_s)
        self.index.add(key, number, keys, self.base)

    def extend(self, keys: Sequence[int], first: int, marks: Sequence[int], expires_s: int) -> None:
        """Append entries of messages with consecutive sequences. There must be numbers left for them."""
        own = self.key
        number = self.base + len(own)
        own.extend(keys)
        self.message.extend(
            [sequence | (mark & 0xFFFF) << _SEQUENCE_BITS for sequence, mark in enumerate(marks, start=first)]
        )
        self.mark.extend([mark >> 16 for mark in marks])
        self.expires.extend(array("I", (expires_s,)) * len(keys))
        self.index.add_run(keys, number, own, self.base)

    def is_due(self, now_s: int) -> bool:
        """Whether the place at the front can be swept."""
        front, expires = self.front, self.expires
        return front < len(expires) and expires[front] <= now_s

    def remove(self, at: int) -> None:
        self.index.remove(self.key[at], self.base + at, self.key, self.base)
        self.key[at] = self.expires[at] = 0

    def oldest(self) -> int:
        """The index of the first entry. If many empty places precede it, the index at which the search stopped; if
        there is no entry, the end.
        """
        at, end = self.front, len(self.key)
        for _ in range(_LOOK):
            if at == end or self.key[at]:
                break
            at += 1
        return at

    def has_expired(self, now_s: int) -> bool:
        """Whether the first entry has expired. If so, the next new entry replaces it."""
        at = self.oldest()
        return at < len(self.key) and self.expires[at] <= now_s

    def sweep(self, now_s: int) -> None:
        """Drop a few expired entries at the front."""
        keys, expires, index, base = self.key, self.expires, self.index, self.base
        at = self.front
        for _ in range(_SWEEP):
            if at == len(expires) or expires[at] > now_s:
                break
            if keys[at]:
                index.remove(keys[at], base + at, keys, base)
                keys[at] = expires[at] = 0
            at += 1
        self.front = at
        self._trim()

    def close_up(self) -> None:
        """Skip empty places at the front, and move entries that keep the front from advancing to the back."""
        for _ in range(_SWEEP):
            at, places = self.front, len(self.key)
            if at == places:
                break
            key = self.key[at]
            if key:
                if (places - at - self.index.live) * _HOLES_SHARE <= places - at:
                    break
                self.index.move(key, self.base + at, self.base + places)
                for column in self.columns:
                    column.append(column[at])
                self.key[at] = self.expires[at] = 0
            self.front += 1
        self._trim()

    def _trim(self) -> None:
        if self.front >= _TRIM and self.front * _SWEPT_SHARE > len(self.key):
            for column in self.columns:
                del column[: self.front]
            self.base += self.front
            self.front = 0

    def renumber(self) -> None:
        self.base = 0
        self.index.rebuild([(key, number) for number, key in enumerate(self.key) if key])


class DedupTable:
    def __init__(self) -> None:
        self._rings: dict[int, _Ring] = {}  # bit length of the window in seconds → ring

    def __len__(self) -> int:
        return sum([ring.index.live for ring in self._rings.values()])

    def get(self, key: int, now_s: int) -> Known | None:
        for ring in self._rings.values():
            number = ring.index.find(key, ring.key, ring.base)
            if number != EMPTY:
                at = number - ring.base
                expires_s = ring.expires[at]
                if expires_s <= now_s:
                    return None
                message = ring.message[at]
                fingerprint = message >> _SEQUENCE_BITS | ring.mark[at] << 16
                return Known(message & _SEQUENCE_MASK, expires_s, fingerprint)
        return None

    def count(self, window_s: int) -> int:
        """The number of entries with a window of about this length."""
        ring = self._rings.get(window_s.bit_length())
        return 0 if ring is None else ring.index.live

    def oldest(self, window_s: int) -> int:
        """The key of the oldest entry with a window of about this length, or 0."""
        ring = self._rings.get(window_s.bit_length())
        at = 0 if ring is None else ring.oldest()
        return 0 if ring is None or at == len(ring.key) else ring.key[at]

    def full(self, now_s: int, entries_max: int, beside_s: int = 0) -> bool:
        """Whether there is no room for another entry. Entries with a window of about `beside_s` do not count."""
        if len(self) - self.count(beside_s) < entries_max:
            return False
        beside = beside_s.bit_length()
        return not any(ring.has_expired(now_s) for bits, ring in self._rings.items() if bits != beside)

    def put(self, key: int, sequence: int, expires_s: int, fingerprint: int, now_s: int) -> None:
        """Add an entry, replacing one with the same key. If the new entry has already expired, only the old one is
        removed.

        A fingerprint has 32 bits.
        """
        for ring in self._rings.values():
            if ring.is_due(now_s):
                ring.sweep(now_s)
            old = ring.index.find(key, ring.key, ring.base)
            if old != EMPTY:
                ring.remove(old - ring.base)
        if expires_s > now_s:
            message = sequence | (fingerprint & 0xFFFF) << _SEQUENCE_BITS
            self._append(key, message, fingerprint >> 16, expires_s, now_s)

    def has_none(self, keys: Sequence[int]) -> bool:
        """Whether the table has no entry for any of these keys, not even one that has expired."""
        for ring in self._rings.values():
            find, own, base = ring.index.find, ring.key, ring.base
            for key in keys:
                if key and find(key, own, base) != EMPTY:
                    return False
        return True

    def put_run(self, keys: Sequence[int], first: int, expires_s: int, marks: Sequence[int], now_s: int) -> None:
        """Add entries of messages with consecutive sequences, for keys that the table does not have."""
        if expires_s > now_s and not any(ring.is_due(now_s) for ring in self._rings.values()):
            ring = self._ring(expires_s, now_s)
            if ring.base + len(ring.key) + len(keys) < _NUMBER_MAX:
                ring.extend(keys, first, marks, expires_s)
                return
        for at, key in enumerate(keys):
            self.put(key, first + at, expires_s, marks[at], now_s)

    def end_life(self, key: int, sequence: int, expires_s: int, now_s: int) -> None:
        """Let the entry of a message that is gone expire with its window."""
        ring = self._rings.get(_FOREVER)
        number = EMPTY if ring is None else ring.index.find(key, ring.key, ring.base)
        if ring is None or number == EMPTY:
            return
        at = number - ring.base
        message, mark = ring.message[at], ring.mark[at]
        if message & _SEQUENCE_MASK == sequence:
            ring.remove(at)
            ring.close_up()
            if expires_s > now_s:
                self._append(key, message, mark, expires_s, now_s)

    def _append(self, key: int, message: int, mark: int, expires_s: int, now_s: int) -> None:
        self._ring(expires_s, now_s).append(key, message, mark, expires_s)

    def _ring(self, expires_s: int, now_s: int) -> _Ring:
        bits = _FOREVER if expires_s == FOREVER_S else min((expires_s - now_s).bit_length(), _BITS_MAX)
        ring = self._rings.get(bits)
        if ring is None:
            ring = self._rings[bits] = _Ring()
        return ring

    def entries(self) -> list[tuple[int, int, int, int]]:
        """(key, sequence, expires, fingerprint) of every entry, ring by ring."""
        return [
            (key, message & _SEQUENCE_MASK, expires_s, message >> _SEQUENCE_BITS | mark << 16)
            for _, ring in sorted(self._rings.items())
            for key, message, mark, expires_s in zip(*(column[ring.front :] for column in ring.columns), strict=True)
            if key
        ]

    def save(self) -> dict[str, bytes]:
        """The entries of all rings, one ring after the other, and the rings as (bits, places)."""
        rings = sorted(self._rings.items())
        names = ("key", "message", "mark", "expires")
        sections = {
            name: b"".join(ring.columns[at][ring.front :].tobytes() for _, ring in rings)
            for at, name in enumerate(names)
        }
        shape = [number for bits, ring in rings for number in (bits, len(ring.key) - ring.front)]
        return {**sections, "rings": array("I", shape).tobytes()}

    def load(self, sections: dict[str, bytes]) -> None:
        columns = array("Q"), array("Q"), array("H"), array("I")
        key, _, mark, _ = columns
        for column, name in zip(columns, ("key", "message", "mark", "expires"), strict=True):
            column.frombytes(sections.get(name, b""))
        mark.extend([0] * (len(key) - len(mark)))
        shape = array("I")
        shape.frombytes(sections.get("rings", b""))
        self._rings = {}
        if not shape:
            self._load_unsorted(columns)
            return
        start = 0
        for bits, places in zip(shape[0::2], shape[1::2], strict=True):
            ring = self._rings[bits] = _Ring()
            for column, part in zip(ring.columns, columns, strict=True):
                column.extend(part[start : start + places])
            ring.renumber()
            start += places

    def _load_unsorted(self, columns: tuple[array[int], ...]) -> None:
        """Load entries that an older release saved, in one ring and in no order of time."""
        key, _, _, expires = columns
        for at in sorted(range(len(key)), key=expires.__getitem__):
            if key[at]:
                bits = _FOREVER if expires[at] == FOREVER_S else _UNSORTED
                self._rings.setdefault(bits, _Ring()).append(*(column[at] for column in columns))

    def validate(self) -> None:
        keys = [entry[0] for entry in self.entries()]
        assert len(keys) == len(set(keys)) == len(self), "a key has two entries"
        for bits, ring in self._rings.items():
            for at, key in enumerate(ring.key[ring.front :], start=ring.front):
                found = ring.index.find(key, ring.key, ring.base) if key else EMPTY
                assert not key or found == ring.base + at, "an entry cannot be found by its key"
                assert bool(ring.expires[at]) == bool(key), "an empty place expires, or an entry does not"
                lives = ring.expires[at] == FOREVER_S
                assert not key or lives == (bits == _FOREVER), "an entry that lives stands among others, or the reverse"
