"""The committed note: the number of the last frame known to be committed.

It is written a few milliseconds after a commit and when the log is closed, and nothing waits for it. If it survives, it
proves that its frame was committed, so an unreadable frame at or below it is damage and not a torn write.

    offset  size  field
    0       4     magic "BTNC"
    4       2     version of this layout
    6       2     zero
    8       4     shard
    12      8     frame number
    20      16    digest of that frame
    36      8     its epoch
    44      4     CRC32C of the first 44 bytes
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import google_crc32c

from batonq.log.disk import Disk

MAGIC = b"BTNC"
VERSION = 1
_NOTE = struct.Struct("<4sHxxIQ16sQ")
_CRC = struct.Struct("<I")
NOTE_BYTES = _NOTE.size + _CRC.size

assert NOTE_BYTES == 48


class Committed(NamedTuple):
    shard: int
    number: int
    digest: bytes
    epoch: int


def encode(shard: int, number: int, digest: bytes, epoch: int) -> bytes:
    note = _NOTE.pack(MAGIC, VERSION, shard, number, digest, epoch)
    return note + _CRC.pack(google_crc32c.value(note))


def load(disk: Disk, path: str, shard: int | None) -> Committed | None:
    """The note, or None if there is no valid one: then nothing is proven, and nothing is wrong."""
    try:
        handle = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        data = disk.pread(handle, NOTE_BYTES, 0)
    finally:
        disk.close(handle)
    if len(data) < NOTE_BYTES or google_crc32c.value(data[:44]) != _CRC.unpack_from(data, 44)[0]:
        return None
    magic, version, note_shard, number, digest, epoch = _NOTE.unpack_from(data)
    if magic != MAGIC or version != VERSION or (shard is not None and note_shard != shard):
        return None
    return Committed(note_shard, number, digest, epoch)
