"""A segment: a run of frames in one file, and where each of them begins.

The index costs six bytes a frame in memory. When a segment is sealed it is written to a sidecar file, so that opening
with a snapshot need not read the segments before it. A sidecar that is missing or does not check is made again.

    offset  size  field
    0       4     magic "BTNI"
    4       2     version of this layout
    6       2     zero
    8       4     shard
    12      8     cluster id
    20      8     first frame
    28      8     frame count
    36      8     where the last frame ends
    44      8     time of the first frame, ms
    52      8     time of the last frame, ms
    60      8     epoch of the last frame
    68      16    digest that the first frame names
    84      16    digest of the last frame
    100     4     CRC32C of everything else
    104     4·n   offset of each frame
    …       2·n   row count of each frame
"""

from __future__ import annotations

import os
import struct
import sys
from array import array

import google_crc32c

from batonq.errors import LogCorrupt
from batonq.log.disk import Disk, write_atomically
from batonq.log.frames import HEADER_BYTES, NO_DIGEST, Frame
from batonq.log.layout import index_name, segment_name

INDEX_MAGIC = b"BTNI"
INDEX_VERSION = 1
_INDEX = struct.Struct("<4sHxxIQQQQQQQ16s16s")
_CRC = struct.Struct("<I")
_INDEX_BYTES = _INDEX.size + _CRC.size

assert _INDEX_BYTES == 104
assert array("I").itemsize == 4 and array("H").itemsize == 2


class Segment:
    """Frames `first` up to `stop` (exclusive) are in `path`, up to `bytes`; `size` is the file's length."""

    __slots__ = (
        "bytes",
        "first",
        "first_previous",
        "first_time_ms",
        "last_digest",
        "last_epoch",
        "last_time_ms",
        "offsets",
        "path",
        "row_counts",
        "sealed",
        "size",
    )

    def __init__(self, directory: str, first: int, size: int) -> None:
        self.path = os.path.join(directory, segment_name(first))
        self.first = first
        self.size = size
        self.bytes = 0
        self.offsets: array[int] = array("I")
        self.row_counts: array[int] = array("H")
        self.first_time_ms = 0
        self.last_time_ms = 0
        self.first_previous = NO_DIGEST
        self.last_digest = NO_DIGEST
        self.last_epoch = 0
        self.sealed = False

    @property
    def stop(self) -> int:
        return self.first + len(self.offsets)

    @property
    def left(self) -> int:
        return self.size - self.bytes

    def add(self, frame: Frame) -> None:
        """Record a frame that begins where the last one ended."""
        _, _, _, epoch, _, time_ms, previous_digest, rows, variable, _, digest, _ = frame
        rows_bytes = len(rows)
        end = self.bytes
        if not end:
            self.first_time_ms = time_ms
            self.first_previous = previous_digest
        self.offsets.append(end)
        self.row_counts.append(rows_bytes >> 6)
        self.bytes = end + HEADER_BYTES + rows_bytes + len(variable)
        self.last_time_ms = time_ms
        self.last_digest = digest
        self.last_epoch = epoch

    def locate(self, number: int) -> tuple[int, int]:
        """Offset and length of a frame."""
        at = number - self.first
        offset = self.offsets[at]
        end = self.offsets[at + 1] if at + 1 < len(self.offsets) else self.bytes
        return offset, end - offset


def save_index(disk: Disk, segment: Segment, shard: int, cluster: int) -> None:
    """Write the index file of a sealed segment. It is not synced, because it can be recreated."""
    head = _INDEX.pack(
        INDEX_MAGIC,
        INDEX_VERSION,
        shard,
        cluster,
        segment.first,
        len(segment.offsets),
        segment.bytes,
        segment.first_time_ms,
        segment.last_time_ms,
        segment.last_epoch,
        segment.first_previous,
        segment.last_digest,
    )
    body = _little_endian(segment.offsets) + _little_endian(segment.row_counts)
    crc = _CRC.pack(google_crc32c.extend(google_crc32c.value(head), body))
    path = os.path.join(os.path.dirname(segment.path), index_name(segment.first))
    write_atomically(disk, path, (head, crc, body), durable=False)


def load_index(disk: Disk, directory: str, first: int, size: int, shard: int, cluster: int) -> Segment | None:
    """The sealed segment that an index file describes, or None if there is no valid one."""
    path = os.path.join(directory, index_name(first))
    try:
        length = disk.size(path)
        handle = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        data = disk.pread(handle, length, 0)
    finally:
        disk.close(handle)
    try:
        segment, index_shard, index_cluster = parse_index(data, directory, size)
    except LogCorrupt:
        return None
    sound = segment.first == first and index_shard == shard and index_cluster == cluster and segment.bytes <= size
    return segment if sound else None


def parse_index(data: bytes, directory: str, size: int) -> tuple[Segment, int, int]:
    """(segment, shard, cluster) of the bytes of an index file. Raises LogCorrupt with the reason."""
    if len(data) < _INDEX_BYTES or data[:4] != INDEX_MAGIC:
        raise LogCorrupt("not a segment index")
    head = data[: _INDEX.size]
    body = data[_INDEX_BYTES:]
    if google_crc32c.extend(google_crc32c.value(head), body) != _CRC.unpack_from(data, _INDEX.size)[0]:
        raise LogCorrupt("the segment index does not match its checksum")
    (_, version, shard, cluster, first, count, end, first_time, last_time, epoch, first_previous, last_digest) = (
        _INDEX.unpack(head)
    )
    if version != INDEX_VERSION or len(body) != 6 * count or not count:
        raise LogCorrupt("the segment index has another version or length")
    segment = Segment(directory, first, size)
    segment.offsets = _from_little_endian("I", body[: 4 * count])
    segment.row_counts = _from_little_endian("H", body[4 * count :])
    segment.bytes = end
    segment.first_time_ms = first_time
    segment.last_time_ms = last_time
    segment.last_epoch = epoch
    segment.first_previous = first_previous
    segment.last_digest = last_digest
    segment.sealed = True
    return segment, shard, cluster


def _little_endian(values: array[int]) -> bytes:
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()


def _from_little_endian(typecode: str, data: bytes) -> array[int]:
    values: array[int] = array(typecode)
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values
