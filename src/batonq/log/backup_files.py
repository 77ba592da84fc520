"""A backup as files: a directory, or a tar file of one, with the frames of each log and a manifest.

    backup.json          where each log is cut, with checksums
    catalog.frames       frames as they are stored, one after another
    shard-0000.frames, …

Every frame is checked when it is written into a backup, and again when the backup is restored: its own checksum, its
place in the chain of digests, and the end of the chain against the manifest.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import IO, Any

from batonq.errors import InvalidInput, LogCorrupt, LogError
from batonq.log import committed, layout
from batonq.log.disk import DIRECTORY_MODE, FILE_MODE, RealDisk, write_atomically
from batonq.log.frames import Frame, FrameCutOff, parse
from batonq.log.ownership import adopt_identity
from batonq.log.reading import Chain

FORMAT = "baton-backup"
VERSION = 1
MANIFEST = "backup.json"
MANIFEST_BYTES_MAX = 4 << 20
READ_BYTES = 4 << 20
SEGMENT_BYTES = 64 << 20

Progress = Callable[[int], None]  # told how many bytes were read so far


@dataclass(slots=True, frozen=True)
class BackupLog:
    """One log in a backup: frames `first` up to `next` (exclusive)."""

    shard: int
    first: int
    next: int
    digest: str  # of the last frame, in hexadecimal
    bytes: int = 0
    sha256: str = ""

    @property
    def file(self) -> str:
        return "catalog.frames" if self.shard == layout.CATALOG_SHARD else f"shard-{self.shard:04}.frames"

    @property
    def title(self) -> str:
        return "the catalog" if self.shard == layout.CATALOG_SHARD else f"shard {self.shard}"


@dataclass(slots=True, frozen=True)
class Manifest:
    at_ms: int  # the point in time
    release: str
    cluster: str
    account: str
    logs: tuple[BackupLog, ...]  # the catalog last

    @property
    def bytes(self) -> int:
        return sum(log.bytes for log in self.logs)


# --- writing -------------------------------------------------------------------------------------


class LogWriter:
    """Writes one log of a backup. `write` takes pieces of stored frames, in order; `finish` checks the end."""

    def __init__(self, directory: str, log: BackupLog, cluster: int) -> None:
        self._log = log
        self._path = os.path.join(directory, log.file)
        self._chain = Chain(log.shard, cluster, log.first)
        self._hash = hashlib.sha256()
        self._bytes = 0
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        self._file = open(handle, "wb")  # noqa: SIM115 - closed by `finish` or `close`

    @property
    def next(self) -> int:
        """The frame to read next."""
        return self._chain.number

    def write(self, data: bytes) -> int:
        """Check and write whole frames. Frames from the cut on are left out. Returns the number of bytes written."""
        kept = 0
        for frame in _frames_in(data, self._chain, self._log.title, self._log.next):
            kept += frame.size
        self._hash.update(data[:kept])
        self._file.write(data[:kept])
        self._bytes += kept
        return kept

    def finish(self) -> BackupLog:
        """Make the file durable. Raises LogCorrupt if the log does not end as the server said."""
        _check_end(self._chain, self._log)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return replace(self._log, bytes=self._bytes, sha256=self._hash.hexdigest())

    def close(self) -> None:
        self._file.close()


def write_manifest(directory: str, manifest: Manifest) -> None:
    """The last file of a backup: without it there is none."""
    text = json.dumps({"format": FORMAT, "version": VERSION, **asdict(manifest)}, indent=1)
    write_atomically(RealDisk(), os.path.join(directory, MANIFEST), (text.encode() + b"\n",))


def make_tar(directory: str, path: str) -> None:
    """Pack a backup into one new file that only its owner can read. After an error nothing is left of it."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        with open(handle, "wb") as file:
            with tarfile.open(fileobj=file, mode="w") as tar:
                for name in sorted(os.listdir(directory)):
                    tar.add(os.path.join(directory, name), arcname=name)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        os.unlink(path)
        raise


# --- reading -------------------------------------------------------------------------------------


class Backup:
    """A backup that can be read: a directory, or a tar file. Use it as a context manager."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._tar: tarfile.TarFile | None = None
        try:
            if not os.path.isdir(path):
                self._tar = tarfile.open(path, mode="r:")  # noqa: SIM115 - closed by `__exit__`
            with self._open(MANIFEST) as file:
                text = file.read(MANIFEST_BYTES_MAX)
        except (OSError, KeyError, tarfile.TarError) as problem:
            self.__exit__()
            raise InvalidInput(
                f"{path} is not a backup: {MANIFEST} cannot be read ({_reason(problem)}). A backup is a directory or a "
                "tar file that `baton backup` has written to the end."
            ) from None
        self.manifest = _read_manifest(path, text)

    def __enter__(self) -> Backup:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._tar is not None:
            self._tar.close()

    @contextmanager
    def _open(self, name: str) -> Iterator[IO[bytes]]:
        if self._tar is None:
            with open(os.path.join(self.path, name), "rb") as file:
                yield file
            return
        member = self._tar.extractfile(name)
        if member is None:
            raise KeyError(f"{name} is not a file")
        with member:
            yield member

    def frames(self, log: BackupLog, progress: Progress | None = None) -> Iterator[Frame]:
        """Every frame of a log, checked. Raises LogCorrupt at the end if anything is missing or changed."""
        chain = Chain(log.shard, int(self.manifest.cluster, 16), log.first)
        where = f"{log.file} of {self.path}"
        digest = hashlib.sha256()
        try:
            with self._open(log.file) as file:
                yield from _stream(file, chain, where, digest.update, progress)
        except (OSError, KeyError, tarfile.TarError) as problem:
            raise LogError(f"{where} cannot be read: {_reason(problem)}.") from None
        _check_end(chain, log)
        if digest.hexdigest() != log.sha256:
            raise LogCorrupt(f"{where} was changed: its SHA-256 checksum is not the one in {MANIFEST}.")


def _stream(
    file: IO[bytes], chain: Chain, where: str, hashed: Callable[[bytes], object], progress: Progress | None
) -> Iterator[Frame]:
    data, needed, total = b"", 0, 0
    while True:
        more = file.read(max(READ_BYTES, needed - len(data)))
        if not more:
            if data:
                raise LogCorrupt(f"{where} ends in the middle of frame {chain.number}.")
            return
        hashed(more)
        total += len(more)
        data += more
        used = 0
        for frame in _frames_in(data, chain, where):
            used += frame.size
            yield frame
        data = data[used:]
        needed = _needed(data)
        if progress is not None:
            progress(total)


def _needed(data: bytes) -> int:
    """The size of the frame that begins here."""
    try:
        return parse(data).size
    except FrameCutOff as cut:
        return cut.needed


def _frames_in(data: bytes, chain: Chain, where: str, stop: int | None = None) -> Iterator[Frame]:
    """The whole frames in `data`, each checked, before frame `stop`. A part of a frame at the end is left."""
    at = 0
    while at < len(data) and (stop is None or chain.number < stop):
        try:
            frame = parse(data, at)
        except FrameCutOff:
            return
        except LogCorrupt as problem:
            raise LogCorrupt(f"{where}, in place of frame {chain.number}: {problem.message}") from None
        wrong = chain.mismatch(frame)
        if wrong is not None:
            raise LogCorrupt(f"{where}: {wrong}")
        chain.cluster, chain.digest, chain.epoch, chain.number = (
            frame.cluster,
            frame.digest,
            frame.epoch,
            frame.number + 1,
        )
        at += frame.size
        yield frame


def _check_end(chain: Chain, log: BackupLog) -> None:
    if chain.number != log.next:
        raise LogCorrupt(f"{log.title} ends at frame {chain.number - 1}; the backup's point is frame {log.next - 1}.")
    if log.next > log.first and (chain.digest or b"").hex() != log.digest:
        raise LogCorrupt(f"the last frame of {log.title} has another digest than the point of the backup.")


def _read_manifest(path: str, text: bytes) -> Manifest:
    try:
        found: dict[str, Any] = json.loads(text)
        if found["format"] != FORMAT:
            raise ValueError(f"its format is {found['format']!r}")
        if found["version"] != VERSION:
            raise InvalidInput(
                f"{path} is a backup of version {found['version']}; this Baton reads version {VERSION}. Use a newer "
                "release."
            )
        logs = tuple(BackupLog(**log) for log in found["logs"])
        for log in logs:  # names of files and directories are made of these numbers
            if not all(type(number) is int and number >= 0 for number in (log.shard, log.first, log.next, log.bytes)):
                raise ValueError("a log has a number that is not one")
        int(found["cluster"], 16)
        shards = [log.shard for log in logs]
        if len(set(shards)) != len(shards) or layout.CATALOG_SHARD not in shards:
            raise ValueError("it lacks the catalog, or has a log twice")
        return Manifest(int(found["at_ms"]), str(found["release"]), found["cluster"], str(found["account"]), logs)
    except (ValueError, KeyError, TypeError) as problem:
        raise InvalidInput(f"{path} is not a backup: {MANIFEST} is not valid ({problem}).") from None


def _reason(problem: BaseException) -> str:
    return problem.strerror or str(problem) if isinstance(problem, OSError) else str(problem)


# --- restoring -----------------------------------------------------------------------------------


def restore(
    backup: Backup,
    data_directory: str,
    *,
    now_ms: int,
    on_frame: Callable[[BackupLog, Frame], None] | None = None,
    before_end: Callable[[], object] | None = None,
    progress: Progress | None = None,
) -> None:
    """Write a backup's logs into a new data directory. Every frame is checked. `before_end` may check what `on_frame`
    was given, and raise.

    The directory must not exist, or be empty. It appears when everything is written and durable; after an error nothing
    is left. Raises InvalidInput, LogCorrupt, LogError.
    """
    target = os.path.abspath(data_directory)
    if os.path.exists(target) and (not os.path.isdir(target) or os.listdir(target)):
        raise InvalidInput(
            f"{data_directory} exists and is not an empty directory. A backup is restored into a new directory only."
        )
    if os.path.ismount(target):  # it could not be replaced at the end
        raise InvalidInput(
            f"{data_directory} is a mount point. Restore into a new directory inside it, such as "
            f"{os.path.join(data_directory, 'data')}."
        )
    unfinished = f"{target}.restoring"
    try:
        if os.path.exists(unfinished):
            raise InvalidInput(f"{unfinished} exists: another restore is running, or was interrupted. Remove it first.")
        os.makedirs(unfinished, mode=DIRECTORY_MODE)
    except OSError as problem:
        raise LogError(f"{unfinished} cannot be created: {problem.strerror}.") from None
    try:
        done = 0
        for log in backup.manifest.logs:
            told = None if progress is None else lambda read, before=done: progress(before + read)
            _restore_log(backup, log, unfinished, on_frame, told)
            done += log.bytes
        if before_end is not None:
            before_end()
        adopt_identity(unfinished, int(backup.manifest.cluster, 16), now_ms)
        if os.path.isdir(target):
            os.rmdir(target)
        os.rename(unfinished, target)
        RealDisk().fsync_directory(os.path.dirname(target))
    except OSError as problem:
        raise LogError(f"The backup cannot be written to {data_directory}: {problem.strerror}.") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _restore_log(
    backup: Backup,
    log: BackupLog,
    data_directory: str,
    on_frame: Callable[[BackupLog, Frame], None] | None,
    progress: Progress | None,
) -> None:
    directory = layout.log_directory(data_directory, log.shard)
    os.mkdir(directory, mode=DIRECTORY_MODE)
    file: IO[bytes] | None = None
    last: Frame | None = None
    size = 0
    try:
        for frame in backup.frames(log, progress):
            if file is None or size + frame.size > SEGMENT_BYTES:
                _close_durably(file)
                path = os.path.join(directory, layout.segment_name(frame.number))
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
                file, size = open(handle, "wb", buffering=1 << 20), 0  # noqa: SIM115 - closed below
            for part in (frame.header, frame.rows, frame.variable):
                file.write(part)
            size += frame.size
            last = frame
            if on_frame is not None:
                on_frame(log, frame)
    finally:
        _close_durably(file)
    if last is not None:
        note = committed.encode(log.shard, last.number, last.digest, last.epoch)
        write_atomically(RealDisk(), os.path.join(directory, layout.COMMITTED), (note,))
    RealDisk().fsync_directory(directory)


def _close_durably(file: IO[bytes] | None) -> None:
    if file is not None:
        file.flush()
        os.fsync(file.fileno())
        file.close()
