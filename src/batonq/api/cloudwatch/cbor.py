"""CBOR (RFC 8949) as far as AWS's protocol rpc-v2-cbor uses it: the values of JSON, byte strings, and timestamps.

Timestamps are `Timestamp` in both directions. Decoding is bounded by depth and by the number of values, and never
allocates more than the input's length suggests.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

DEPTH_MAX = 16
VALUES_MAX = 20_000  # 500 queries, the most of a request, have 15,000
_EPOCH_TAG = 1
_BREAK = object()
_FALSE, _TRUE, _NULL, _UNDEFINED, _HALF, _SINGLE, _DOUBLE, _INDEFINITE = 20, 21, 22, 23, 25, 26, 27, 31


class Timestamp(NamedTuple):
    seconds: float


class CborError(ValueError):
    """The bytes are not CBOR, or CBOR that this protocol does not use."""


def decode(data: bytes) -> Any:
    reader = _Reader(data)
    value = reader.value(0)
    if value is _BREAK or reader.at != len(data):
        raise CborError("there is more than one value, or a break outside of a collection")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self._values = 0

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise CborError("the data ends too early")
        found = self.data[self.at : end]
        self.at = end
        return found

    def value(self, depth: int) -> Any:
        self._values += 1
        if depth > DEPTH_MAX or self._values > VALUES_MAX:
            raise CborError("it is nested too deeply, or has too many values")
        first = self.take(1)[0]
        major, info = first >> 5, first & 31
        if major == 7:
            return self._simple(info)
        if info == _INDEFINITE and major in (2, 3, 4, 5):
            return self._indefinite(major, depth)
        number = self._number(info)
        if major == 0:
            return number
        if major == 1:
            return -1 - number
        if major == 2:
            return self.take(number)
        if major == 3:
            return self._text(self.take(number))
        if major == 4:
            return [self._inside(depth) for _ in range(self._count(number))]
        if major == 5:
            return {self._key(depth): self._inside(depth) for _ in range(self._count(number))}
        return self._tagged(number, depth)

    def _inside(self, depth: int) -> Any:
        value = self.value(depth + 1)
        if value is _BREAK:
            raise CborError("a break is where a value should be")
        return value

    def _key(self, depth: int) -> str:
        key = self._inside(depth)
        if not isinstance(key, str):
            raise CborError("a key is not text")
        return key

    def _count(self, number: int) -> int:
        if number > len(self.data) - self.at:  # each entry takes a byte at least
            raise CborError("the data ends too early")
        return number

    def _number(self, info: int) -> int:
        if info < 24:
            return info
        if info > 27:
            raise CborError("the length of a value is not valid")
        return int.from_bytes(self.take(1 << (info - 24)), "big")

    def _indefinite(self, major: int, depth: int) -> Any:
        parts: list[Any] = []
        while (part := self.value(depth + 1)) is not _BREAK:
            parts.append(part)
            if major == 5:
                parts.append(self._inside(depth))
        if major == 4:
            return parts
        if major == 5:
            if not all(isinstance(key, str) for key in parts[::2]):
                raise CborError("a key is not text")
            return dict(zip(parts[::2], parts[1::2], strict=True))
        kind = str if major == 3 else bytes
        if not all(isinstance(part, kind) for part in parts):
            raise CborError("a string has parts of another type")
        return ("" if major == 3 else b"").join(parts)

    def _tagged(self, tag: int, depth: int) -> Any:
        value = self._inside(depth)
        if tag != _EPOCH_TAG:
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise CborError("a timestamp is not a number")
        return Timestamp(float(value))

    def _simple(self, info: int) -> Any:
        if info == _FALSE:
            return False
        if info == _TRUE:
            return True
        if info in (_NULL, _UNDEFINED):
            return None
        if info == _INDEFINITE:
            return _BREAK
        formats = {_HALF: ">e", _SINGLE: ">f", _DOUBLE: ">d"}
        if info not in formats:
            raise CborError("a simple value is not known")
        form = formats[info]
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    @staticmethod
    def _text(data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise CborError("a text is not UTF-8") from None


def encode(value: Any) -> bytes:
    parts: list[bytes] = []
    _encode(value, parts)
    return b"".join(parts)


def _encode(value: Any, parts: list[bytes]) -> None:
    if value is None:
        parts.append(b"\xf6")
    elif value is True or value is False:
        parts.append(b"\xf5" if value else b"\xf4")
    elif isinstance(value, Timestamp):
        parts.append(b"\xc1")
        _encode(value.seconds, parts)
    elif isinstance(value, int):
        parts.append(_head(0, value) if value >= 0 else _head(1, -1 - value))
    elif isinstance(value, float):
        parts.append(b"\xfb" + struct.pack(">d", value))
    elif isinstance(value, str):
        data = value.encode("utf-8", "replace")
        parts.append(_head(3, len(data)) + data)
    elif isinstance(value, (list, tuple)):
        parts.append(_head(4, len(value)))
        for entry in value:
            _encode(entry, parts)
    elif isinstance(value, dict):
        parts.append(_head(5, len(value)))
        for key, entry in value.items():
            _encode(key, parts)
            _encode(entry, parts)
    else:
        raise TypeError(f"{type(value).__name__} has no form in CBOR")


def _head(major: int, number: int) -> bytes:
    if number < 24:
        return bytes((major << 5 | number,))
    for info, length in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if number < 1 << (8 * length):
            return bytes((major << 5 | info,)) + number.to_bytes(length, "big")
    raise ValueError(f"{number} is too large for CBOR")
