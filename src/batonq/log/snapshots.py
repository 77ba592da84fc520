"""Snapshots of a shard's state: a cache that saves reading the log from its beginning, never the truth.

A snapshot is named sections of bytes after a frame. It is put in place whole or not at all, the two newest are kept,
and one that does not check is passed over: the log can always rebuild the state.

    offset  size  field
    0       4     magic "BTNS"
    4       2     version of this layout
    6       2     section count
    8       4     shard
    12      8     frame number: the state is that after this frame
    20      16    digest of that frame
    36      4     length of the table of sections
    40      n     the table: for each section the length of its name (2), name, length (8) and CRC32C (4)
    …       4     CRC32C of all of the above
    …             the sections, one after another
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import google_crc32c

from batonq.errors import DiskFull, LogCorrupt, LogError
from batonq.log import layout
from batonq.log.disk import Disk, RealDisk, create_directory, write_atomically
from batonq.log.opening import Start

MAGIC = b"BTNS"
VERSION = 1
KEPT = 2
SECTIONS_MAX = 1000
NAME_BYTES_MAX = 200
_HEAD = struct.Struct("<4sHHIQ16sI")
_NAME = struct.Struct("<H")
_SECTION = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_TABLE_BYTES_MAX = SECTIONS_MAX * (_NAME.size + NAME_BYTES_MAX + _SECTION.size)


@dataclass(slots=True)
class Snapshot:
    """The state after frame `frame_number`. Sections may be popped as they are used, to free memory."""

    frame_number: int
    digest: bytes
    sections: dict[str, bytes]

    @property
    def start(self) -> Start:
        """Where replay continues after this snapshot."""
        return Start(self.frame_number + 1, self.digest)


class SnapshotStore:
    """The snapshots of one log, in their own directory."""

    def __init__(
        self, directory: str, *, shard: int, disk: Disk | None = None, free_floor_bytes: int = 64 << 20
    ) -> None:
        self._directory = directory
        self._shard = shard
        self._disk = disk or RealDisk()
        self._free_floor_bytes = free_floor_bytes
        self.passed_over: list[str] = []  # unusable snapshots that `latest` skipped, and why, for the host to log

    def save(self, frame_number: int, digest: bytes, sections: Mapping[str, bytes]) -> str:
        """Write a snapshot and return its path. Raises DiskFull rather than use the space that the log needs."""
        head = self._head(frame_number, digest, sections)
        path = self._path(frame_number)
        total = len(head) + sum(map(len, sections.values()))
        try:
            create_directory(self._disk, self._directory)
            self._remove_unfinished()
            if self._disk.free(self._directory) < total + self._free_floor_bytes:
                raise OSError(errno.ENOSPC, f"{total} bytes would go below the free-space floor")
            write_atomically(self._disk, path, (head, *sections.values()))
            for number in self.numbers()[:-KEPT]:
                self._disk.unlink(self._path(number))
        except OSError as error:
            kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else LogError
            raise kind(f"cannot write snapshot {path}: {error.strerror or error}") from error
        return path

    def latest(self, before: int | None = None) -> Snapshot | None:
        """The newest valid snapshot (of a frame below `before`, if given), or None."""
        self.passed_over.clear()
        for number in reversed(self.numbers()):
            if before is not None and number >= before:
                continue
            try:
                return self.load(number)
            except (LogCorrupt, OSError) as error:
                self.passed_over.append(f"{self._path(number)}: {error}")
        return None

    def load(self, frame_number: int) -> Snapshot:
        """Load and check one snapshot. Raises LogCorrupt, OSError."""
        handle = self._disk.open(self._path(frame_number))
        try:
            return self._read(handle, frame_number)
        finally:
            self._disk.close(handle)

    def numbers(self) -> list[int]:
        """The frames that have snapshots, in order."""
        if not self._disk.exists(self._directory):
            return []
        return layout.snapshots(self._disk, self._directory)

    def _remove_unfinished(self) -> None:
        """Remove what a killed writer left; there is one writer at a time."""
        for name in self._disk.listdir(self._directory):
            if name.endswith(".tmp"):
                self._disk.unlink(os.path.join(self._directory, name))

    def _path(self, frame_number: int) -> str:
        return os.path.join(self._directory, layout.snapshot_name(frame_number))

    def _head(self, frame_number: int, digest: bytes, sections: Mapping[str, bytes]) -> bytes:
        assert len(sections) <= SECTIONS_MAX and len(digest) == 16
        table = bytearray()
        for name, content in sections.items():
            raw = name.encode()
            assert 0 < len(raw) <= NAME_BYTES_MAX
            table += _NAME.pack(len(raw)) + raw + _SECTION.pack(len(content), google_crc32c.value(content))
        head = _HEAD.pack(MAGIC, VERSION, len(sections), self._shard, frame_number, digest, len(table)) + bytes(table)
        return head + _CRC.pack(google_crc32c.value(head))

    def _read(self, handle: int, frame_number: int) -> Snapshot:
        fixed = self._disk.pread(handle, _HEAD.size, 0)
        if len(fixed) < _HEAD.size or fixed[:4] != MAGIC:
            raise LogCorrupt("not a snapshot")
        _, version, count, shard, number, digest, table_bytes = _HEAD.unpack(fixed)
        if table_bytes > _TABLE_BYTES_MAX:
            raise LogCorrupt("the snapshot's table is over its limit")
        rest = self._disk.pread(handle, table_bytes + _CRC.size, _HEAD.size)
        head = fixed + rest[:table_bytes]
        if len(rest) < table_bytes + _CRC.size or google_crc32c.value(head) != _CRC.unpack_from(rest, table_bytes)[0]:
            raise LogCorrupt("the snapshot's header does not match its checksum")
        if version != VERSION:
            raise LogCorrupt(f"the snapshot has layout version {version}, but this release supports {VERSION}")
        if shard != self._shard or number != frame_number:
            raise LogCorrupt(f"the snapshot belongs to frame {number} of shard {shard}")
        sections = {}
        offset = _HEAD.size + table_bytes + _CRC.size
        for name, length, crc in _entries(rest[:table_bytes], count):
            content = self._disk.pread(handle, length, offset)
            if len(content) < length or google_crc32c.value(content) != crc:
                raise LogCorrupt(f"section {name!r} of the snapshot does not match its checksum")
            sections[name] = content
            offset += length
        return Snapshot(number, digest, sections)


def _entries(table: bytes, count: int) -> list[tuple[str, int, int]]:
    entries = []
    at = 0
    for _ in range(count):
        (length,) = _NAME.unpack_from(table, at)
        at += _NAME.size
        name = table[at : at + length].decode()
        at += length
        size, crc = _SECTION.unpack_from(table, at)
        at += _SECTION.size
        entries.append((name, size, crc))
    return entries
