"""A disk in memory that loses, tears and refuses writes as a real one may (see log.disk.Disk for the methods).

Synced data survives a crash. Each write that was not synced may be lost, kept, or kept in part, sector by sector. Of
the names created, changed and removed in a directory since its last sync, a crash keeps the first n for some n, as a
journaling file system does. A failed sync leaves pages that look clean and never reach the disk.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from enum import Enum
from functools import lru_cache
from random import Random
from typing import NamedTuple

SECTOR_BYTES = 512


class Step(NamedTuple):
    """One change that is about to be made to the disk."""

    kind: str  # create, write, sync, sync_directory, rename, unlink, make_directory
    path: str
    number: int  # 1, 2, 3…


class Survival(Enum):
    """Which unsynced data survives a crash."""

    NOTHING = "nothing"
    EVERYTHING = "everything"
    SOME = "some"  # each write and name at random
    NAMES_ONLY = "names only"
    WRITES_ONLY = "writes only"


class Crashed(BaseException):
    """Raised from `on_step` to stop a run at once; no code under test catches it."""


class _File:
    __slots__ = ("content", "durable", "linked", "pending")

    def __init__(self) -> None:
        self.linked = True  # it has a name: an open file without one takes no room here
        self.content = bytearray()  # as a running process sees it
        self.durable = bytearray()  # as a crash leaves it in the worst case
        self.pending: list[tuple[int, bytes]] = []  # writes since the last sync


class _Directory:
    __slots__ = ("durable", "names", "pending")

    def __init__(self) -> None:
        self.names: dict[str, _File] = {}
        self.durable: dict[str, _File] = {}
        self.pending: list[tuple[str, str, str, _File | None]] = []  # kind, name, target, file


class SimulatedDisk:
    """`on_step` is called before each change. It may raise OSError (the change fails) or Crashed."""

    def __init__(self, *, capacity_bytes: int = 1 << 40) -> None:
        self.capacity_bytes = capacity_bytes
        self.on_step: Callable[[Step], None] | None = None
        self.steps = 0
        self._directories: dict[str, _Directory] = {"/": _Directory()}
        self._new_directories: set[str] = set()  # not yet synced by their parent
        self._handles: dict[int, tuple[_File, str]] = {}
        self._next_handle = 3
        self._used_bytes = -1  # of all files; negative: to be counted

    # --- the port -----------------------------------------------------------------------------

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        directory, name = self._parent(path)
        if create:
            if name in directory.names:
                raise FileExistsError(errno.EEXIST, "file exists", path)
            self._step("create", path)
            file = _File()
            directory.names[name] = file
            directory.pending.append(("link", name, "", file))
        elif name not in directory.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        handle = self._next_handle
        self._next_handle += 1
        self._handles[handle] = (directory.names[name], path)
        return handle

    def close(self, handle: int) -> None:
        del self._handles[handle]

    def pread(self, handle: int, length: int, offset: int) -> bytes:
        return bytes(self._handles[handle][0].content[offset : offset + length])

    def is_cold(self, handle: int, length: int, offset: int) -> bool:
        return False

    def pwrite(self, handle: int, buffers: Sequence[bytes], offset: int) -> None:
        file, path = self._handles[handle]
        self._step("write", path)
        data = b"".join(buffers)
        room = self.free("/") + max(len(file.content) - offset, 0)
        taken = data[: max(room, 0)]
        before = len(file.content)
        _put(file.content, offset, taken)
        if file.linked:
            self._used_bytes += len(file.content) - before
        file.pending.append((offset, taken))
        if len(taken) < len(data):
            raise OSError(errno.ENOSPC, "no space left on device", path)

    def fdatasync(self, handle: int) -> None:
        file, path = self._handles[handle]
        try:
            self._step("sync", path)
        except OSError:
            file.pending.clear()
            raise
        for offset, data in file.pending:
            _put(file.durable, offset, data)
        file.pending.clear()

    def fsync_directory(self, path: str) -> None:
        directory = self._directory(path)
        self._step("sync_directory", path)
        directory.durable = dict(directory.names)
        directory.pending.clear()
        self._new_directories = {new for new in self._new_directories if os.path.dirname(new) != _clean(path)}

    def rename(self, source: str, target: str) -> None:
        directory, name = self._parent(source)
        target_directory, target_name = self._parent(target)
        assert directory is target_directory, "the log renames within a directory"
        if name not in directory.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        self._step("rename", source)
        self._unlink(directory, target_name)
        directory.names[target_name] = directory.names.pop(name)
        directory.pending.append(("rename", name, target_name, None))

    def unlink(self, path: str) -> None:
        directory, name = self._parent(path)
        if name not in directory.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        self._step("unlink", path)
        self._unlink(directory, name)
        directory.pending.append(("unlink", name, "", None))

    def size(self, path: str) -> int:
        return len(self._file(path).content)

    def exists(self, path: str) -> bool:
        path = _clean(path)
        if path in self._directories:
            return True
        directory = self._directories.get(os.path.dirname(path))
        return directory is not None and os.path.basename(path) in directory.names

    def listdir(self, path: str) -> list[str]:
        path = _clean(path)
        inner = [os.path.basename(name) for name in self._directories if name != "/" and os.path.dirname(name) == path]
        return [*self._directory(path).names, *inner]

    def make_directory(self, path: str) -> None:
        path = _clean(path)
        if path not in self._directories:
            self._step("make_directory", path)
            self._directories[path] = _Directory()
            self._new_directories.add(path)

    def free(self, path: str) -> int:
        if self._used_bytes < 0:
            directories = self._directories.values()
            self._used_bytes = sum(len(file.content) for directory in directories for file in directory.names.values())
        return self.capacity_bytes - self._used_bytes

    # --- what goes wrong ----------------------------------------------------------------------

    def after_crash(self, survival: Survival, random: Random) -> SimulatedDisk:
        """The disk as the next start finds it after a power failure now. This disk is not changed."""
        found = type(self)(capacity_bytes=self.capacity_bytes)
        lost = self._lost_directories(survival, random)
        contents: dict[int, _File] = {}
        for path, directory in self._directories.items():
            if any(path == gone or path.startswith(gone + "/") for gone in lost):
                continue
            names = _surviving_names(directory, survival, random)
            copy = _Directory()
            for name, file in names.items():
                if id(file) not in contents:
                    contents[id(file)] = _surviving_file(file, survival, random)
                copy.names[name] = contents[id(file)]
            copy.durable = dict(copy.names)
            found._directories[path] = copy
        return found

    def flip(self, path: str, offset: int, bit: int = 0) -> None:
        """Flip one bit of a file, on the disk itself."""
        file = self._file(path)
        file.content[offset] ^= 1 << bit
        if offset < len(file.durable):
            file.durable[offset] ^= 1 << bit

    def read(self, path: str) -> bytes:
        """The content of a whole file."""
        return bytes(self._file(path).content)

    def replace(self, path: str, content: bytes) -> None:
        """Write a whole file and sync it."""
        directory, name = self._parent(path)
        file = _File()
        file.content = bytearray(content)
        file.durable = bytearray(content)
        self._unlink(directory, name)
        self._used_bytes = -1
        directory.names[name] = directory.durable[name] = file

    # --- inside -------------------------------------------------------------------------------

    def _step(self, kind: str, path: str) -> None:
        self.steps += 1
        if self.on_step is not None:
            self.on_step(Step(kind, path, self.steps))

    def _directory(self, path: str) -> _Directory:
        directory = self._directories.get(_clean(path))
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return directory

    def _parent(self, path: str) -> tuple[_Directory, str]:
        path = _clean(path)
        return self._directory(os.path.dirname(path)), os.path.basename(path)

    def _file(self, path: str) -> _File:
        directory, name = self._parent(path)
        if name not in directory.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return directory.names[name]

    def _unlink(self, directory: _Directory, name: str) -> None:
        """Remove a name, if it exists."""
        file = directory.names.pop(name, None)
        if file is not None:
            file.linked = False
            self._used_bytes = -1

    def _lost_directories(self, survival: Survival, random: Random) -> set[str]:
        if survival in (Survival.EVERYTHING, Survival.NAMES_ONLY):
            return set()
        if survival is Survival.SOME:
            return {path for path in sorted(self._new_directories) if random.random() < 0.5}
        return set(self._new_directories)


@lru_cache(maxsize=4096)
def _clean(path: str) -> str:
    return os.path.normpath(path)


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _surviving_names(directory: _Directory, survival: Survival, random: Random) -> dict[str, _File]:
    if survival in (Survival.EVERYTHING, Survival.NAMES_ONLY):
        return dict(directory.names)
    names = dict(directory.durable)
    if survival is not Survival.SOME:
        return names
    for kind, name, target, file in directory.pending[: random.randint(0, len(directory.pending))]:
        if kind == "link":
            assert file is not None
            names[name] = file
        elif kind == "rename":
            names[target] = names.pop(name)
        else:
            del names[name]
    return names


def _surviving_file(file: _File, survival: Survival, random: Random) -> _File:
    copy = _File()
    copy.content = bytearray(file.durable)
    for offset, data in file.pending:
        if survival in (Survival.EVERYTHING, Survival.WRITES_ONLY):
            _put(copy.content, offset, data)
        elif survival is Survival.SOME:
            _put_some(copy.content, offset, data, random)
    copy.durable = bytearray(copy.content)
    return copy


def _put_some(content: bytearray, offset: int, data: bytes, random: Random) -> None:
    """Lose a write, keep it, keep its first sectors, or keep any of its sectors."""
    fate = random.choice(("lost", "kept", "first", "any"))
    if fate == "lost":
        return
    cut = random.randint(0, len(data) // SECTOR_BYTES + 1) if fate == "first" else 0
    at = 0
    sector = 0
    while at < len(data):
        length = min(SECTOR_BYTES - (offset + at) % SECTOR_BYTES, len(data) - at)
        if fate == "kept" or (fate == "first" and sector < cut) or (fate == "any" and random.random() < 0.5):
            _put(content, offset + at, data[at : at + length])
        at += length
        sector += 1
