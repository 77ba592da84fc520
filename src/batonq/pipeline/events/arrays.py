"""Arrow arrays from numpy arrays, and the checks and conversions that the columns share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from batonq.core.ids import message_id
from batonq.errors import LogCorrupt
from batonq.pipeline.events.schema import NEVER_MS, arrow_type

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_MIX = int(message_id(0, 1)[24:], 16)  # the factor with which core.ids multiplies a sequence
_MASK48 = np.uint64((1 << 48) - 1)
_HEX = np.frombuffer(b"".join(b"%02x" % value for value in range(256)), dtype="<u2")


class Fixed:
    """Numbers or times of some rows; the others are null."""

    __slots__ = ("valid", "values")

    def __init__(self, values: Any, valid: Bools) -> None:
        self.values = values
        self.valid = valid


_NUMPY = {pa.int16(): np.int16, pa.int32(): np.int32, pa.int64(): np.int64, arrow_type("time"): np.int64}


def fixed(kind: pa.DataType, values: Any, valid: Bools | None) -> pa.Array:
    count = len(values)
    nulls = 0 if valid is None else count - int(np.count_nonzero(valid))
    if nulls == count and count:
        return pa.nulls(count, kind)
    bits = None
    if nulls and valid is not None:
        bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    data = np.ascontiguousarray(values.astype(_NUMPY[kind], copy=False))
    return pa.Array.from_buffers(kind, count, [bits, pa.py_buffer(data)], nulls)


def time(values_ms: Words, valid: Bools) -> Fixed:
    """Microseconds; null for no time or "never"."""
    return Fixed(values_ms * np.uint64(1000), valid & (values_ms > 0) & (values_ms < NEVER_MS))


def within(needed: Any, lengths: Ints, what: str) -> None:
    if (needed > lengths).any():
        raise LogCorrupt(f"the variable part of {what} is too short")


def message_ids(shard: int, sequences: Words, valid: Bools) -> pa.Array:
    """core.ids.message_id for many messages: the shard's part, then twelve hexadecimal digits of the mixed sequence."""
    count = int(np.count_nonzero(valid))
    some = sequences if count == len(sequences) else sequences[valid]
    mixed = some * np.uint64(_MIX) & _MASK48
    text = np.empty((count, 36), dtype=np.uint8)
    text[:, :24] = np.frombuffer(message_id(shard, 0)[:24].encode(), dtype=np.uint8)
    octets = mixed.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 2:]
    text[:, 24:] = _HEX[octets].view(np.uint8).reshape(-1, 12)
    offsets = np.zeros(len(sequences) + 1, dtype=np.int32)
    np.cumsum(valid, out=offsets[1:], dtype=np.int32)
    offsets *= 36
    bits = None if count == len(sequences) else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [bits, pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.string(), len(sequences), buffers, len(sequences) - count)
