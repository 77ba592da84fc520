"""What is remembered for a time, by a hash: deduplication ids, and requests by their names. At most 32 bytes an entry.

An entry is a 64-bit hash of its key, the first message's sequence (48 bits, as in its id), a fingerprint of the content
(32 bits), and when it expires: 22 bytes, and at most 9 for its place in the index.

Entries stand in rings, in the order in which they were made; those in one ring have windows of about the same length
(one is less than twice as long as another), so the first is about the first to expire, and finding what has expired
means looking at the front of each ring. A table is full only when it has as many entries as it may and none of the
fronts has expired. The fronts are swept as new entries come, by the records' own times, so that replay sweeps alike.
Entries that live as long as their message have a ring of their own.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from batonq.core.shard.hash_index import EMPTY, HashIndex

FOREVER_S = 0xFFFFFFFF
_BITS_MAX = 31
_FOREVER = 32  # the ring of entries that live as long as their message
_UNSORTED = 33  # the ring of entries from snapshots of older releases, which do not tell rings apart
_NUMBER_MAX = 0xFFFF0000
_SEQUENCE_BITS = 48
_SEQUENCE_MASK = (1 << _SEQUENCE_BITS) - 1
_TRIM = 64
_SWEPT_SHARE = 32  # swept entries are given back when they are more than one in so many
_HOLES_SHARE = 16  # entries that stay are moved to the back when more than one place in so many is empty
_SWEEP = 3  # entries of a ring looked at for each one that is made: more than one, so that the ring shrinks
_LOOK = 64  # empty places that are passed over in search of the front


class Known(NamedTuple):
    sequence: int
    expires_s: int
    fingerprint: int


class _Ring:
    """Entries are numbered as they are made; `base` is the number of the first, `front` how many have been swept."""

    __slots__ = ("base", "expires", "front", "index", "key", "mark", "message")

    def __init__(self) -> None:
        self.key: array[int] = array("Q")  # 0: an empty place, its entry was moved or removed
        self.message: array[int] = array("Q")  # sequence | low half of the fingerprint << 48
        self.mark: array[int] = array("H")  # its high half
        self.expires: array[int] = array("I")  # of an empty place: 0
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

    def remove(self, at: int) -> None:
        self.index.remove(self.key[at], self.base + at, self.key, self.base)
        self.key[at] = self.expires[at] = 0

    def oldest(self) -> int:
        """Where the first entry is, if it is not behind many empty places; else the last of those, or the end."""
        at, end = self.front, len(self.key)
        for _ in range(_LOOK):
            if at == end or self.key[at]:
                break
            at += 1
        return at

    def has_expired(self, now_s: int) -> bool:
        """Whether the first entry has: then the next one that is made takes its place."""
        at = self.oldest()
        return at < len(self.key) and self.expires[at] <= now_s

    def sweep(self, now_s: int) -> None:
        """Give up entries at the front that have expired, a few at a time."""
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
        """Pass over empty places at the front, and move entries to the back that keep others from it."""
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
        self._rings: dict[int, _Ring] = {}  # by the number of bits of a window in seconds

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
        """How many entries there are with a window of about this length."""
        ring = self._rings.get(window_s.bit_length())
        return 0 if ring is None else ring.index.live

    def oldest(self, window_s: int) -> int:
        """The key of the first of them, or 0."""
        ring = self._rings.get(window_s.bit_length())
        at = 0 if ring is None else ring.oldest()
        return 0 if ring is None or at == len(ring.key) else ring.key[at]

    def full(self, now_s: int, entries_max: int, beside_s: int = 0) -> bool:
        """Is there no room for another entry, not counting those with a window of about `beside_s`?"""
        if len(self) - self.count(beside_s) < entries_max:
            return False
        beside = beside_s.bit_length()
        return not any(ring.has_expired(now_s) for bits, ring in self._rings.items() if bits != beside)

    def put(self, key: int, sequence: int, expires_s: int, fingerprint: int, now_s: int) -> None:
        """Make an entry in place of one with the same key. One that is over at once only removes that.

        A fingerprint has 32 bits.
        """
        for ring in self._rings.values():
            expires, front = ring.expires, ring.front
            if front < len(expires) and expires[front] <= now_s:
                ring.sweep(now_s)
            old = ring.index.find(key, ring.key, ring.base)
            if old != EMPTY:
                ring.remove(old - ring.base)
        if expires_s > now_s:
            message = sequence | (fingerprint & 0xFFFF) << _SEQUENCE_BITS
            self._append(key, message, fingerprint >> 16, expires_s, now_s)

    def end_life(self, key: int, sequence: int, expires_s: int, now_s: int) -> None:
        """The message of a living entry is gone: the entry now ends with its window."""
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
        bits = _FOREVER if expires_s == FOREVER_S else min((expires_s - now_s).bit_length(), _BITS_MAX)
        ring = self._rings.get(bits)
        if ring is None:
            ring = self._rings[bits] = _Ring()
        ring.append(key, message, mark, expires_s)

    def entries(self) -> list[tuple[int, int, int, int]]:
        """(key, sequence, expires, fingerprint) of every entry, ring by ring."""
        return [
            (key, message & _SEQUENCE_MASK, expires_s, message >> _SEQUENCE_BITS | mark << 16)
            for _, ring in sorted(self._rings.items())
            for key, message, mark, expires_s in zip(*(column[ring.front :] for column in ring.columns), strict=True)
            if key
        ]

    def save(self) -> dict[str, bytes]:
        """The entries of all rings, one ring after the other, and which rings there are (bits, places)."""
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
        """Entries as older releases saved them, in one ring and by no order of time."""
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
