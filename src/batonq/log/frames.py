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

import hashlib
import struct
import sys
from array import array
from dataclasses import dataclass

import google_crc32c

from batonq.core.records import FORMAT_VERSION, FRAME_ROWS_MAX, ROW_BYTES
from batonq.errors import LogCorrupt

MAGIC = b"BTNF"
HEADER = struct.Struct("<4sHHQIIQQQ16sQI")
HEADER_BYTES = HEADER.size + 4
CRC = struct.Struct("<I")
VARIABLE_BYTES_MAX = 1 << 30
NO_DIGEST = bytes(16)

assert HEADER_BYTES == 80


@dataclass(slots=True, frozen=True)
class Frame:
    """One group commit. `rows` and `variable` are the bytes as stored."""

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
    version: int = FORMAT_VERSION

    @property
    def row_count(self) -> int:
        return len(self.rows) // ROW_BYTES

    @property
    def size(self) -> int:
        return HEADER_BYTES + len(self.rows) + len(self.variable)

    @property
    def digest(self) -> bytes:
        return header_digest(self.header)

    def words(self) -> array[int]:
        """The rows as a flat array of 64-bit words; row r's word k is at 8 * r + k."""
        words = array("Q")
        words.frombytes(self.rows)
        if sys.byteorder == "big":
            words.byteswap()
        return words


@dataclass(slots=True, frozen=True)
class Header:
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


def header_digest(header: bytes) -> bytes:
    return hashlib.blake2b(header, digest_size=16).digest()


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
) -> Frame:
    """Seal rows and variable section into a frame."""
    count = len(rows) // ROW_BYTES
    assert 0 < count <= FRAME_ROWS_MAX and len(rows) % ROW_BYTES == 0
    assert len(variable) <= VARIABLE_BYTES_MAX
    crc = google_crc32c.extend(google_crc32c.value(rows), variable)
    head = HEADER.pack(
        MAGIC,
        FORMAT_VERSION,
        region,
        cluster,
        shard,
        count,
        epoch,
        number,
        time_ms,
        previous_digest,
        len(variable),
        crc,
    )
    header = head + CRC.pack(google_crc32c.value(head))
    return Frame(cluster, region, shard, epoch, number, time_ms, previous_digest, rows, variable, header)


def parse_header(data: bytes | memoryview) -> Header:
    """Check and take apart a header. Raises LogCorrupt with what is wrong; the caller adds where."""
    if len(data) < HEADER_BYTES:
        raise LogCorrupt(f"frame header is cut off after {len(data)} of {HEADER_BYTES} bytes")
    head = bytes(data[:HEADER_BYTES])
    if head[:4] != MAGIC:
        raise LogCorrupt(f"no frame here: magic is {head[:4]!r}, expected {MAGIC!r}")
    if google_crc32c.value(head[: HEADER.size]) != CRC.unpack_from(head, HEADER.size)[0]:
        raise LogCorrupt("frame header does not match its checksum")
    fields = HEADER.unpack_from(head)
    version = fields[1]
    if version > FORMAT_VERSION:
        raise LogCorrupt(
            f"frame has format version {version}, this Baton reads up to {FORMAT_VERSION}: use a newer release"
        )
    return Header(version, *fields[2:])


def parse(data: bytes, offset: int = 0) -> Frame:
    """Check and take apart a whole frame at `offset`. Raises LogCorrupt."""
    header = parse_header(data[offset : offset + HEADER_BYTES])
    rows_at = offset + HEADER_BYTES
    variable_at = rows_at + header.row_count * ROW_BYTES
    end = variable_at + header.variable_bytes
    if end > len(data):
        raise LogCorrupt(f"frame {header.number} is cut off: {len(data) - offset} of {header.frame_bytes} bytes")
    rows = data[rows_at:variable_at]
    variable = data[variable_at:end]
    if google_crc32c.extend(google_crc32c.value(rows), variable) != header.content_crc:
        raise LogCorrupt(f"frame {header.number} does not match its checksum")
    return Frame(
        header.cluster,
        header.region,
        header.shard,
        header.epoch,
        header.number,
        header.time_ms,
        header.previous_digest,
        rows,
        variable,
        data[offset : offset + HEADER_BYTES],
        header.version,
    )
