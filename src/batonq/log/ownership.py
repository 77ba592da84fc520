"""Ownership of a data directory: a lock file, and epochs that always increase.

The operating system's lock on DATA/LOCK is what counts; it ends with the process. The text in the file only tells a
second process who holds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

import google_crc32c

from batonq.errors import LogCorrupt, LogError, OwnershipHeld
from batonq.log.disk import FILE_MODE, Disk, RealDisk, create_directory, write_atomically
from batonq.log.layout import EPOCH, IDENTITY, LOCK
from batonq.log.private_files import make_private

TEXT_BYTES_MAX = 4096
HOLDER_BYTES = 512  # always this long, so that rewriting it needs no new disk space
LOCK_TRIES = 5  # `holder_of` checks by taking the lock for a moment
LOCK_RETRY_S = 0.02


@dataclass(slots=True, frozen=True)
class Holder:
    """The process that is using a data directory."""

    pid: int = 0
    host: str = ""
    started_ms: int = 0
    address: str = ""

    def __str__(self) -> str:
        if not self.pid:
            return "another process"
        text = f"process {self.pid} on {self.host}"
        if self.started_ms:
            text += f", started {datetime.fromtimestamp(self.started_ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
        return f"{text}, serving {self.address}" if self.address else text


class LockFileOwnership:
    """Ownership of a data directory and of every log in it (see interface.Ownership).

    `take` takes the directory, or raises OwnershipHeld; `acquire` does so if it is not taken yet. The lock belongs to
    this process: a forked child shares it, so children must be spawned.
    """

    def __init__(self, data_directory: str, *, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._directory = data_directory
        self._disk = RealDisk()
        self._now_ms = now_ms
        self._lock: int | None = None
        self._holder = Holder()
        self._epochs = EpochFile(self._disk, os.path.join(data_directory, EPOCH))
        self._cluster = 0

    def take(self, address: str = "") -> None:
        """Take the directory, creating it if needed; `address` is shown to a second process."""
        if self._lock is not None:
            return
        try:
            create_directory(self._disk, self._directory)
            lock = _open_lock(self._directory)
        except OSError as error:
            raise LogError(f"cannot use {self._directory} as a data directory: {error.strerror}") from error
        try:
            _lock_or_raise(lock, self._directory)
            make_private(self._directory)
            self._epochs.load()
            self._cluster = self._identify()
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock
        self._holder = Holder(os.getpid(), socket.gethostname(), self._now_ms(), address)
        self._write_holder()

    def _identify(self) -> int:
        """The cluster id, created if there is none yet."""
        where = mirrored_in(self._disk, self._directory)
        if where:
            raise LogError(
                f"the data directory {self._directory} is a mirror of the logs in {where}. Set --log-url to them, "
                "or use another directory with --data."
            )
        return cluster_of(self._disk, self._directory) or _make_identity(
            self._disk, self._directory, {"cluster": f"{secrets.randbits(64) or 1:016x}", "created_ms": self._now_ms()}
        )

    def set_address(self, address: str) -> None:
        """Record where this process serves, for a second process."""
        self._holder = replace(self._holder, address=address)
        self._write_holder()

    @property
    def cluster(self) -> int:
        """The cluster id of the data directory: random, created once, never 0."""
        assert self._lock is not None
        return self._cluster

    @property
    def lock_handle(self) -> int:
        """The lock's file descriptor. A process that inherits it holds the lock too, until the last of them ends, so
        that no other server can use the directory while one of them may still write.
        """
        assert self._lock is not None
        return self._lock

    async def acquire(self, shard: int, above: int = 0) -> int:
        self.take()
        try:
            return self._epochs.raise_(above)
        except OSError as error:
            raise LogError(f"cannot write the epoch in {self._directory}: {error.strerror}") from error

    async def release(self, shard: int) -> None:
        """A lock file is released as a whole: see `close`."""

    def close(self) -> None:
        """Release the directory."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _write_holder(self) -> None:
        assert self._lock is not None
        text = json.dumps(asdict(self._holder)).encode()
        try:
            os.pwrite(self._lock, text.ljust(HOLDER_BYTES - 1) + b"\n", 0)
        except OSError:
            pass  # a full disk; the lock itself holds all the same


class MirrorDirectory(LockFileOwnership):
    """A data directory with mirrors of remote logs. It never gets logs of its own."""

    def __init__(self, data_directory: str, cluster: int, where: str) -> None:
        super().__init__(data_directory)
        self._mirrored_cluster = cluster
        self._where = where

    def _identify(self) -> int:
        found = cluster_of(self._disk, self._directory)
        if found is None:
            identity = {
                "cluster": f"{self._mirrored_cluster:016x}",
                "created_ms": self._now_ms(),
                "mirrors": self._where,
            }
            return _make_identity(self._disk, self._directory, identity)
        if not mirrored_in(self._disk, self._directory):
            raise LogError(
                f"the data directory {self._directory} contains logs of its own, which --log-url would ignore. "
                "Use another directory with --data."
            )
        if found != self._mirrored_cluster:
            raise LogError(
                f"the data directory {self._directory} mirrors cluster {found:016x}, but {self._where} has "
                f"cluster {self._mirrored_cluster:016x}. Use another directory with --data, or remove this "
                "one if the remote logs are the right ones."
            )
        return found


class SharedDirectory:
    """A data directory that a parent process owns, for one of its child processes: see `lock_handle`.

    The parent assigns each log to one process at a time, and waits for its end before the next. Epochs are issued under
    a lock of the directory.
    """

    def __init__(self, data_directory: str) -> None:
        self._directory = data_directory
        self._disk = RealDisk()
        self._epochs = EpochFile(self._disk, os.path.join(data_directory, EPOCH))
        self._cluster = 0

    def take(self) -> None:
        cluster = cluster_of(self._disk, self._directory)
        if cluster is None:
            raise LogError(f"the data directory {self._directory} has no identity: no server has used it yet")
        self._cluster = cluster

    def set_address(self, address: str) -> None:
        """The parent records where it serves."""

    @property
    def cluster(self) -> int:
        return self._cluster

    async def acquire(self, shard: int, above: int = 0) -> int:
        handle = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)  # for the duration of one small write
            self._epochs.load()
            return self._epochs.raise_(above)
        except OSError as error:
            raise LogError(f"cannot write the epoch in {self._directory}: {error.strerror}") from error
        finally:
            os.close(handle)

    async def release(self, shard: int) -> None:
        """It is released with the process."""

    def close(self) -> None:
        """The parent releases the directory."""


class EpochFile:
    """The last issued epoch, on the disk before it is used.

    Two places are written in turn, so that one is always valid, and in place, so that a full disk prevents no start. At
    offset 0 and 512: magic "BTNE" (4), epoch (8), CRC32C of both (4).
    """

    _RECORD = struct.Struct("<4sQI")
    _MAGIC = b"BTNE"
    _PLACES = (0, 512)
    _FILE_BYTES = 1024

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self.epoch = 0

    def load(self) -> int:
        """The last issued epoch; 0 for a new directory. Raises LogCorrupt."""
        if not self._disk.exists(self._path):
            return 0
        handle = self._disk.open(self._path)
        try:
            data = self._disk.pread(handle, self._FILE_BYTES, 0)
        finally:
            self._disk.close(handle)
        found = [self._parse(data[place : place + self._RECORD.size]) for place in self._PLACES]
        self.epoch = max(found)
        if not self.epoch:
            raise LogCorrupt(
                f"{self._path} cannot be read. If the logs are valid, remove it: epochs then continue from "
                "those in the logs."
            )
        return self.epoch

    def raise_(self, above: int = 0) -> int:
        """A new epoch, above the last one and `above`. Raises OSError."""
        epoch = max(self.epoch, above) + 1
        epoch += (epoch - self.epoch) % 2 == 0  # the place of the last one is not touched
        record = self._RECORD.pack(self._MAGIC, epoch, self._crc(epoch))
        if self._disk.exists(self._path):
            handle = self._disk.open(self._path, write=True)
            try:
                self._disk.pwrite(handle, (record,), self._PLACES[epoch % 2])
                self._disk.fdatasync(handle)
            finally:
                self._disk.close(handle)
        else:
            empty = bytes(self._FILE_BYTES - len(record))
            write_atomically(self._disk, self._path, (record, empty))
        self.epoch = epoch
        return epoch

    def _parse(self, record: bytes) -> int:
        if len(record) < self._RECORD.size:
            return 0
        magic, epoch, crc = self._RECORD.unpack(record)
        return int(epoch) if magic == self._MAGIC and crc == self._crc(epoch) else 0

    def _crc(self, epoch: int) -> int:
        return int(google_crc32c.value(self._RECORD.pack(self._MAGIC, epoch, 0)[:12]))


def holder_of(data_directory: str) -> Holder | None:
    """The current owner of a data directory; None if there is none. Does not take ownership."""
    try:
        lock = os.open(os.path.join(data_directory, LOCK), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_holder(lock)
    finally:
        os.close(lock)
    return None


@contextlib.contextmanager
def held(data_directory: str) -> Iterator[None]:
    """Hold a data directory during a repair, without issuing an epoch. Raises OwnershipHeld."""
    lock = _open_lock(data_directory)
    try:
        _lock_or_raise(lock, data_directory)
        yield
    finally:
        os.close(lock)


def _open_lock(directory: str) -> int:
    return os.open(os.path.join(directory, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)


def _lock_or_raise(lock: int, directory: str) -> None:
    for attempt in range(LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if attempt + 1 < LOCK_TRIES:
                time.sleep(LOCK_RETRY_S)
    raise OwnershipHeld(
        f"the data directory {directory} is in use by {_read_holder(lock)}. Stop that process first, or use "
        "another directory with --data."
    )


def _read_holder(lock: int) -> Holder:
    nobody = Holder()
    try:
        found = json.loads(os.pread(lock, TEXT_BYTES_MAX, 0))
        return Holder(**{field.name: type(getattr(nobody, field.name))(found[field.name]) for field in fields(Holder)})
    except (ValueError, KeyError, TypeError):
        return nobody


def cluster_of(disk: Disk, data_directory: str) -> int | None:
    """The cluster id of a data directory; None if it has none yet. Raises LogCorrupt."""
    identity = _read_identity(disk, data_directory)
    return int(identity["cluster"], 16) if identity is not None else None


def mirrored_in(disk: Disk, data_directory: str) -> str:
    """The store whose logs a data directory mirrors; empty if it has its own logs. Raises LogCorrupt."""
    identity = _read_identity(disk, data_directory)
    return str(identity.get("mirrors", "")) if identity is not None else ""


def _read_identity(disk: Disk, data_directory: str) -> dict[str, Any] | None:
    path = os.path.join(data_directory, IDENTITY)
    if not disk.exists(path):
        return None
    handle = disk.open(path)
    try:
        identity: dict[str, Any] = json.loads(disk.pread(handle, TEXT_BYTES_MAX, 0))
        int(identity["cluster"], 16)
        return identity
    except (ValueError, KeyError, TypeError):
        raise LogCorrupt(
            f'{path} cannot be read. Write {{"cluster": "…"}} into it, with the cluster id that `baton log '
            "inspect --json` shows for the logs in this directory."
        ) from None
    finally:
        disk.close(handle)


def adopt_identity(data_directory: str, cluster: int, created_ms: int) -> None:
    """Give a new data directory the cluster id of the logs that were copied into it."""
    _make_identity(RealDisk(), data_directory, {"cluster": f"{cluster:016x}", "created_ms": created_ms})


def _make_identity(disk: Disk, data_directory: str, identity: dict[str, Any]) -> int:
    write_atomically(disk, os.path.join(data_directory, IDENTITY), (json.dumps(identity).encode() + b"\n",))
    return int(identity["cluster"], 16)
