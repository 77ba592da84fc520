"""Many slices of one buffer as an Arrow array, without a Python object for each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]


def pieces(data: bytes, starts: Ints, lengths: Ints, kind: pa.DataType) -> pa.Array:
    """data[start : start + length] of each; `kind` is pa.string() or pa.binary(). The buffer must be smaller than 2
    GiB.
    """
    if not len(starts):
        return pa.array([], kind)
    if np.all(starts[1:] >= starts[:-1] + lengths[:-1]):
        return _in_order(data, starts, lengths, kind)
    order = np.argsort(starts, kind="stable")
    sorted_starts, sorted_lengths = starts[order], lengths[order]
    fresh = np.ones(len(order), dtype=bool)
    fresh[1:] = (sorted_starts[1:] != sorted_starts[:-1]) | (sorted_lengths[1:] != sorted_lengths[:-1])
    one_starts, one_lengths = sorted_starts[fresh], sorted_lengths[fresh]
    if not np.all(one_starts[1:] >= one_starts[:-1] + one_lengths[:-1]):
        found = [data[start : start + length] for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)]
        return pa.array(found, pa.binary()).cast(kind)
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.cumsum(fresh) - 1
    return _in_order(data, one_starts, one_lengths, kind).take(pa.array(places))


def _in_order(data: bytes, starts: Ints, lengths: Ints, kind: pa.DataType) -> pa.Array:
    """Slices that do not overlap: they are every second entry of an array over the whole
    buffer, with gaps in between.
    """
    count = len(starts)
    offsets = np.empty(2 * count, dtype=np.int32)
    offsets[0::2] = starts
    offsets[1::2] = starts + lengths
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    with_gaps = pa.Array.from_buffers(kind, 2 * count - 1, buffers)
    return with_gaps.take(pa.array(np.arange(0, 2 * count, 2)))


def windows(data: npt.NDArray[np.uint8], starts: Ints, layout: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """A fixed layout read at each start."""
    size = layout.itemsize
    if not len(starts):
        return np.empty(0, layout)
    found = np.lib.stride_tricks.sliding_window_view(data, size)[starts]
    return np.ascontiguousarray(found).view(layout).reshape(-1)


def runs(keys: Ints) -> tuple[Ints, Ints]:
    """Where each run of equal neighbours begins, and the run of every entry."""
    fresh = np.ones(len(keys), dtype=bool)
    fresh[1:] = keys[1:] != keys[:-1]
    return np.flatnonzero(fresh), np.cumsum(fresh) - 1
