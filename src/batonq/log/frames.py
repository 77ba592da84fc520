"""A frame on the wire and on disk: header, rows, variable section.

    offset  size  field
    0       4     magic "BTNF"
    4       2     format version
    6       2     region
    8       8     cluster id
    16      4     shard (65535 is the catalog)
    20      4     row count
    24      8     ownership epoch
    32      8     frame number
    40      8     time of the last row, ms
    48      16    digest of the frame before
    64      8     length of the variable section
    72      4     CRC32C of rows and variable section
    76      4     CRC32C of the header's first 76 bytes

All integers are little-endian. The digest of a frame is the BLAKE2b-128 of its header, which names its content by
CRC, its predecessor by digest and its author by epoch.
"""

from __future__ import annotations

import struct
import sys
from array import array
from hashlib import blake2b
from typing import NamedTuple

import google_crc32c

from batonq.core.records import FORMAT_VERSION, FRAME_ROWS_MAX, ROW_BYTES
from batonq.errors import LogCorrupt

MAGIC = b"BTNF"
HEADER = struct.Struct("<4sHHQIIQQQ16sQI")
HEADER_BYTES = HEADER.size + 4
CRC = struct.Struct("<I")
VARIABLE_BYTES_MAX = 1 << 30
NO_DIGEST = bytes(16)
NO_HEADER = bytes(HEADER_BYTES)

assert HEADER_BYTES == 80

_crc = google_crc32c.value
_extend = google_crc32c.extend
_new = tuple.__new__  # what a named tuple's own constructor calls, without an extra Python frame
_unpack = struct.Struct("<4sHHQIIQQQ16sQII").unpack


class FrameUnreadable(LogCorrupt):
    """The stored bytes are not a frame, or not the frame that was written.

    A write that a crash interrupted looks like this, and so does damage; the caller knows which it can be. `number` is
    the frame's number, if the header could be read.
    """

    def __init__(self, message: str, number: int | None = None) -> None:
        super().__init__(message)
        self.number = number


class FrameCutOff(FrameUnreadable):
    """The data ends before the frame does; `needed` is the frame's full size."""

    def __init__(self, available: int, needed: int, number: int | None = None) -> None:
        what = "frame header" if number is None else f"frame {number}"
        super().__init__(f"{what} is truncated after {available} of {needed} bytes", number)
        self.needed = needed


class Header(NamedTuple):
    version: int
    region: int
    cluster: int
    shard: int
    row_count: int
    epoch: int
    number: int
    time_ms: int
    previous_digest: bytes
    variable_bytes: int
    content_crc: int

    @property
    def frame_bytes(self) -> int:
        return HEADER_BYTES + self.row_count * ROW_BYTES + self.variable_bytes


class Frame(NamedTuple):
    """One group commit. `header`, `rows` and `variable` are the stored bytes."""

    cluster: int
    region: int
    shard: int
    epoch: int
    number: int
    time_ms: int
    previous_digest: bytes
    rows: bytes
    variable: bytes
    header: bytes
    digest: bytes
    version: int = FORMAT_VERSION

    @property
    def row_count(self) -> int:
        return len(self.rows) // ROW_BYTES

    @property
    def size(self) -> int:
        return HEADER_BYTES + len(self.rows) + len(self.variable)

    def words(self) -> array[int]:
        """The rows as a flat array of 64-bit words; word k of row r is at 8 * r + k."""
        words = array("Q")
        words.frombytes(self.rows)
        if sys.byteorder == "big":
            words.byteswap()
        return words


def build(
    *,
    cluster: int,
    region: int,
    shard: int,
    epoch: int,
    number: int,
    time_ms: int,
    previous_digest: bytes,
    rows: bytes,
    variable: bytes,
    version: int = FORMAT_VERSION,
) -> Frame:
    """Build a frame from rows and variable section."""
    count, rest = divmod(len(rows), ROW_BYTES)
    variable_bytes = len(variable)
    assert 0 < count <= FRAME_ROWS_MAX and not rest
    assert variable_bytes <= VARIABLE_BYTES_MAX
    crc = _extend(_crc(rows), variable) if variable else _crc(rows)
    head = HEADER.pack(
        MAGIC,
        version,
        region,
        cluster,
        shard,
        count,
        epoch,
        number,
        time_ms,
        previous_digest,
        variable_bytes,
        crc,
    )
    header = head + CRC.pack(_crc(head))
    digest = blake2b(header, digest_size=16).digest()
    fields = (cluster, region, shard, epoch, number, time_ms, previous_digest, rows, variable, header, digest)
    return _new(Frame, (*fields, version))


def parse_header(data: bytes) -> Header:
    """Parse and check a header. Raises LogCorrupt without the location, which the caller adds."""
    if len(data) < HEADER_BYTES:
        raise FrameCutOff(len(data), HEADER_BYTES)
    head = data[:HEADER_BYTES]
    fields = _unpack(head)
    if fields[0] != MAGIC:
        raise FrameUnreadable(f"no frame here: magic is {fields[0]!r}, expected {MAGIC!r}")
    if _crc(head[:76]) != fields[12]:
        raise FrameUnreadable("frame header does not match its checksum")
    header = Header(*fields[1:12])
    _check_limits(header)
    return header


def _check_limits(header: Header) -> None:
    if header.version > FORMAT_VERSION:
        # Not FrameUnreadable: a newer release wrote this on purpose, so it must never be taken for a torn write.
        raise LogCorrupt(
            f"frame {header.number} has format version {header.version}, this Baton reads up to {FORMAT_VERSION}: "
            "use a newer release"
        )
    if not 0 < header.row_count <= FRAME_ROWS_MAX or header.variable_bytes > VARIABLE_BYTES_MAX:
        raise LogCorrupt(
            f"frame {header.number} is over the limits: {header.row_count} rows, {header.variable_bytes} variable bytes"
        )


def parse(data: bytes, offset: int = 0) -> Frame:
    """Check and take apart a whole frame at `offset`. Raises FrameUnreadable, or LogCorrupt for a newer version.

    Recovery and every read of an old message come through here, so it does the work of `parse_header` in place.
    """
    rows_at = offset + HEADER_BYTES
    header = data[offset:rows_at]
    if len(header) < HEADER_BYTES:
        raise FrameCutOff(len(header), HEADER_BYTES)
    (
        magic,
        version,
        region,
        cluster,
        shard,
        count,
        epoch,
        number,
        time_ms,
        previous,
        variable_bytes,
        crc,
        header_crc,
    ) = _unpack(header)
    if magic != MAGIC or _crc(header[:76]) != header_crc or version > FORMAT_VERSION or not 0 < count <= FRAME_ROWS_MAX:
        parse_header(header)  # raises with the reason
    variable_at = rows_at + count * ROW_BYTES
    end = variable_at + variable_bytes
    if end > len(data):
        parse_header(header)
        raise FrameCutOff(len(data) - offset, end - offset, number)
    rows = data[rows_at:variable_at]
    variable = data[variable_at:end]
    if _extend(_crc(rows), variable) != crc:
        raise FrameUnreadable(f"frame {number} does not match its checksum", number)
    digest = blake2b(header, digest_size=16).digest()
    return _new(
        Frame, (cluster, region, shard, epoch, number, time_ms, previous, rows, variable, header, digest, version)
    )
