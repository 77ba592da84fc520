"""Estimates the cost of decoding a JSON or MessagePack document before it is decoded.

The time to decode depends on the number of values, not of bytes: 4 MiB of `{},{},…` would block the event loop for most
of a second. Counting brackets and separators takes a thousandth of that time. Brackets and separators inside strings do
not count. Excluding them is slower, so it is done only when the first count exceeds the limit.

The bytes of MessagePack cannot be counted like that: the same byte is a list in one place and a letter in another. A
long document is therefore walked from value to value, without creating the values, until it ends or exceeds the limit.
The walk takes longer than decoding into a type that limits the work itself (`rest.shapes.Bulk`).
"""

from __future__ import annotations

from typing import NamedTuple

SMALL_BYTES = 64 * 1024  # a document up to this size is always allowed


class WeightLimit(NamedTuple):
    brackets_max: int  # { and [
    separators_max: int  # , and :

    def allows(self, document: bytes) -> bool:
        return len(document) <= SMALL_BYTES or self._counts(document) or self._counts_outside_strings(document)

    def _counts(self, text: bytes) -> bool:
        return (
            text.count(b"{") + text.count(b"[") <= self.brackets_max
            and text.count(b",") + text.count(b":") <= self.separators_max
        )

    def _counts_outside_strings(self, document: bytes) -> bool:
        if b"\\" in document:
            document = document.replace(b"\\\\", b"").replace(b'\\"', b"")
        # Every string is followed by a separator or by the end of an object or a list.
        if document.count(b'"') > 2 * (self.brackets_max + self.separators_max):
            return False
        return self._counts(b"".join(document.split(b'"')[::2]))


CONTAINER_WEIGHT = 5  # a list or map takes as long to decode and check as this many scalar values


class PackedWeightLimit(NamedTuple):
    values_max: int  # keys of maps count too, and a list or map counts as CONTAINER_WEIGHT

    def allows(self, document: bytes) -> bool:
        if len(document) * CONTAINER_WEIGHT <= self.values_max:  # a value has at least one byte
            return True
        at, end, weight = 0, len(document), 0
        steps, weights = _STEPS, _WEIGHTS
        while at < end:
            code = document[at]
            weight += weights[code]
            if weight > self.values_max:
                return False
            step = steps[code]
            if step:
                at += step
            else:
                size = _SIZES[code]
                at += 1 + size + int.from_bytes(document[at + 1 : at + 1 + size], "big") + (code in _EXTENSIONS)
        return True


def packed_fields(document: bytes) -> int:
    """The number of fields that a MessagePack document says to have. A field that is repeated counts each time."""
    code = document[0]
    if 0x80 <= code < 0x90:
        return code & 0x0F
    return int.from_bytes(document[1 : _LONG_CONTAINERS[code]], "big") if code in (0xDE, 0xDF) else 0


# MessagePack, by the first byte of a value: how many bytes the value has, for lists and maps without their members. 0:
# the bytes after the first one hold the length.
_SIZES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_EXTENSIONS = (0xC7, 0xC8, 0xC9)
_NUMBERS = {0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}
_FIXED_EXTENSIONS = {0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18}
_LONG_CONTAINERS = {0xDC: 3, 0xDD: 5, 0xDE: 3, 0xDF: 5}
_FIXED = {**dict.fromkeys(_SIZES, 0), **_NUMBERS, **_FIXED_EXTENSIONS, **_LONG_CONTAINERS}
_STEPS = [1 + (code & 0x1F) if 0xA0 <= code < 0xC0 else _FIXED.get(code, 1) for code in range(256)]
_WEIGHTS = [CONTAINER_WEIGHT if 0x80 <= code < 0xA0 or code in _LONG_CONTAINERS else 1 for code in range(256)]
