"""The disk interface of the log, so that tests and the simulator can substitute a faulty disk.

All file operations of `file_log.py`, `snapshots.py` and `ownership.py` go through it. Paths are strings; a handle is an
integer that only its disk can interpret.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

PREAD_BYTES_MAX = 1 << 30  # Linux transfers at most 2 GiB per call
# Only for the server's own user: the catalog's log contains the secrets of access keys, the other logs contain
# messages.
FILE_MODE = 0o600
DIRECTORY_MODE = 0o700


class Disk(Protocol):
    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        """A handle to a file; `create` creates an empty one (and fails if it exists). Raises OSError."""

    def close(self, handle: int) -> None:
        """Close the handle."""

    def pread(self, handle: int, length: int, offset: int) -> bytes:
        """`length` bytes from `offset`; fewer only at the end of the file."""

    def is_cold(self, handle: int, length: int, offset: int) -> bool:
        """Whether a read would have to wait for the disk; False also if that is unknown. Never waits."""

    def pwrite(self, handle: int, buffers: Sequence[bytes], offset: int) -> None:
        """Write the buffers one after another from `offset`: all of them, or OSError with an unknown number of bytes
        written.
        """

    def fdatasync(self, handle: int) -> None:
        """Make the file's content and length survive a power failure."""

    def fsync_directory(self, path: str) -> None:
        """Make the names in a directory survive a power failure."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file atomically, replacing an existing one."""

    def unlink(self, path: str) -> None:
        """Remove a file."""

    def size(self, path: str) -> int:
        """Size of a file in bytes."""

    def exists(self, path: str) -> bool:
        """Whether a file or directory with this name exists."""

    def listdir(self, path: str) -> list[str]:
        """The names in a directory, in no order."""

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents; not an error if it exists."""

    def free(self, path: str) -> int:
        """Free bytes on the disk that contains `path`."""


class RealDisk:
    """The operating system's disk."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        flags = os.O_CLOEXEC | (os.O_RDWR if write or create else os.O_RDONLY)
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        return os.open(path, flags, FILE_MODE)

    def close(self, handle: int) -> None:
        os.close(handle)

    def pread(self, handle: int, length: int, offset: int) -> bytes:
        data = os.pread(handle, min(length, PREAD_BYTES_MAX), offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        got = len(data)
        while got < length:
            data = os.pread(handle, min(length - got, PREAD_BYTES_MAX), offset + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def is_cold(self, handle: int, length: int, offset: int) -> bool:
        flag = getattr(os, "RWF_NOWAIT", 0)
        if not flag:
            return False
        try:  # checking both ends is enough
            for at in (offset, offset + max(length, 1) - 1):
                os.preadv(handle, (bytearray(1),), at, flag)
        except BlockingIOError:
            return True
        except OSError:
            return False  # the file system does not support this
        return False

    def pwrite(self, handle: int, buffers: Sequence[bytes], offset: int) -> None:
        written = os.pwritev(handle, buffers, offset)
        total = sum(map(len, buffers))
        if written < total:
            # Signals and the 2 GiB limit of one call cause short writes; continue with the rest.
            rest = memoryview(b"".join(buffers))
            while written < total:
                written += os.pwrite(handle, rest[written:], offset + written)

    def fdatasync(self, handle: int) -> None:
        os.fdatasync(handle)

    def fsync_directory(self, path: str) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def listdir(self, path: str) -> list[str]:
        return os.listdir(path)

    def make_directory(self, path: str) -> None:
        os.makedirs(path, mode=DIRECTORY_MODE, exist_ok=True)

    def free(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize


def create_directory(disk: Disk, path: str) -> None:
    """Create a directory and its missing parents, so that they survive a power failure."""
    if disk.exists(path):
        return
    parent = os.path.dirname(os.path.abspath(path))
    create_directory(disk, parent)
    disk.make_directory(path)
    disk.fsync_directory(parent)


def write_atomically(disk: Disk, path: str, buffers: Sequence[bytes], *, durable: bool = True) -> None:
    """Write a whole file atomically: readers see the old one or the new one, never a part.

    Without `durable` the file may be empty after a power failure: for data that can be recreated and has a checksum.
    """
    temporary = f"{path}.tmp"
    if disk.exists(temporary):
        disk.unlink(temporary)
    handle = disk.open(temporary, create=True)
    try:
        disk.pwrite(handle, buffers, 0)
        if durable:
            disk.fdatasync(handle)
    except OSError:
        disk.unlink(temporary)
        raise
    finally:
        disk.close(handle)
    disk.rename(temporary, path)
    if durable:
        disk.fsync_directory(os.path.dirname(path))
