"""The embedded log: segment files in a directory, one write and one fdatasync per frame.

A frame is written at the end of the newest segment, followed by a blank header, which separates the end of the log from
the old frames of a recycled file. A frame never spans two segments. When it is synced it is committed; at intervals a
note of that is written to the file `committed`, unsynced (see committed.py). After a disk error the log accepts nothing
more: the result of a failed sync is known only after reopening, which reads what is there and writes the last frame
again.
"""

from __future__ import annotations

import errno
import os
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from batonq.core.records import ROW_BYTES
from batonq.errors import DiskFull, Fenced, LogCorrupt, LogError, LogGap
from batonq.log import committed, layout, opening
from batonq.log.cache import FreshCache, ReadCache
from batonq.log.disk import Disk, RealDisk, create_directory, write_atomically
from batonq.log.frames import HEADER_BYTES, NO_DIGEST, NO_HEADER, VARIABLE_BYTES_MAX, Frame, parse
from batonq.log.interface import Done, Piece, Room, SegmentInfo
from batonq.log.opening import OnFrame, Start, Torn
from batonq.log.reading import Chain, Damage, read_frames
from batonq.log.segment import Segment, save_index
from batonq.log.spare_segment import Spare
from batonq.log.worker_thread import CallSoon, Worker

MIB = 1 << 20
CHECKED_MAX = 10_000
RESERVE_FRAME_BYTES = 4 * MIB  # a frame that contains only deletes is at most this long


@dataclass(slots=True, frozen=True)
class FileLogSettings:
    segment_bytes: int = 64 * MIB
    free_floor_bytes: int = 64 * MIB  # kept free on the disk when a spare segment is created
    fresh_cache_bytes: int = 16 * MIB
    read_cache_bytes: int = 4 * MIB
    open_files_max: int = 16  # open handles for reading old segments
    background: bool = True  # create spare segments on a thread
    prewrite: bool = True  # fill spare segments with zeros; otherwise they are sparse files


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class FileLog:
    """See interface.Log. Created by `FileLog.open`."""

    far = False

    def __init__(
        self,
        disk: Disk,
        directory: str,
        cluster: int,
        settings: FileLogSettings,
        loaded: opening.Loaded,
        spare: Spare,
        call_soon: CallSoon | None,
    ) -> None:
        self.shard = loaded.chain.shard
        self.directory = directory
        self.cluster = cluster
        self.torn: Torn | None = loaded.torn
        self.next = loaded.chain.number
        self.tail_digest = loaded.chain.digest or NO_DIGEST
        self.tail_epoch = loaded.chain.epoch
        self._disk = disk
        self._settings = settings
        self._segments = loaded.segments
        self._firsts = [segment.first for segment in loaded.segments]
        self._unindexed = loaded.unindexed
        self._active = loaded.segments[-1]
        self._handle = disk.open(self._active.path, write=True)
        self._note_handle = disk.open(os.path.join(directory, layout.COMMITTED), write=True)
        self._spare = spare
        self._spare_wanted_bytes = settings.segment_bytes // 2
        self._reserve_bytes_min = min(RESERVE_FRAME_BYTES, settings.segment_bytes // 8)
        self._fresh = FreshCache(settings.fresh_cache_bytes)
        self._fresh_get = self._fresh.get
        self._read = ReadCache(settings.read_cache_bytes)
        self._checked: set[int] = set()  # large frames that were read and checked in full since the log was opened
        self._readers: OrderedDict[str, int] = OrderedDict()
        self._worker = Worker(call_soon) if call_soon is not None else None
        self._new_name = True  # the newest segment's name may not be on the disk yet
        self._noted = True  # the last committed frame is the one in the note
        self._pending: tuple[Frame, Done] | None = None
        self._failed: BaseException | None = None
        self._closed = False

    frame_bytes_max = VARIABLE_BYTES_MAX

    @classmethod
    def open(
        cls,
        directory: str,
        *,
        shard: int,
        cluster: int,
        settings: FileLogSettings | None = None,
        disk: Disk | None = None,
        start: Start | None = None,
        begin: Start | None = None,
        on_frame: OnFrame | None = None,
        call_soon: CallSoon | None = None,
        now_ms: Callable[[], int] = _wall_clock_ms,
    ) -> FileLog:
        """Open a log for appending, or create one, starting with frame 1 or `begin`. The caller owns the directory.

        Every frame is checked, and frames from `start` on (default: all) are passed to `on_frame`, so that the files
        are read once. With `start`, segments that lie completely before it are not read. `call_soon` returns the
        callbacks of commits on a thread to the loop; without it every commit is inline. `torn` of the result describes
        a write that a crash interrupted. Raises LogCorrupt, LogGap (`start` is not retained), DiskFull, LogError.
        """
        settings = settings or FileLogSettings()
        disk = disk or RealDisk()
        try:
            create_directory(disk, directory)
            opening.remove_leftovers(disk, directory)
            loaded = opening.load(disk, directory, shard=shard, cluster=cluster, start=start, on_frame=on_frame)
            opening.mend(disk, directory, loaded, now_ms())
            spare = Spare(
                disk,
                directory,
                segment_bytes=settings.segment_bytes,
                free_floor_bytes=settings.free_floor_bytes,
                background=settings.background,
                prewrite=settings.prewrite,
                now_ms=now_ms,
            )
            if not loaded.segments:
                _begin(disk, directory, settings, loaded, spare, begin)
            if not disk.exists(os.path.join(directory, layout.COMMITTED)):
                write_atomically(disk, os.path.join(directory, layout.COMMITTED), (bytes(committed.NOTE_BYTES),))
            log = cls(disk, directory, cluster, settings, loaded, spare, call_soon)
        except OSError as error:
            raise _as_log_error(error, f"cannot open the log in {directory}") from error
        log._write_note()
        log._prepare_spare()
        return log

    # --- appending ----------------------------------------------------------------------------

    def append(self, frame: Frame, done: Done, *, in_thread: bool = False) -> None:
        if self._pending is not None:
            raise AssertionError("one append at a time")
        if frame.number != self.next or frame.previous_digest != self.tail_digest:
            raise AssertionError(f"frame {frame.number} does not follow frame {self.next - 1}")
        if self._failed is not None or self._closed:
            done(LogError(f"the log in {self.directory} accepts nothing more until it is reopened: {self._failed}"))
            return
        if frame.epoch < self.tail_epoch:
            done(Fenced(f"epoch {frame.epoch} has ended: the log of shard {self.shard} is at epoch {self.tail_epoch}"))
            return
        self._pending = (frame, done)
        active = self._active
        left = active.size - active.bytes - HEADER_BYTES - len(frame.rows) - len(frame.variable)
        try:
            if left < 0:
                self._roll(frame.number, frame.size)
            if in_thread and self._worker is not None:
                self._worker.submit(self._write_pending, self._finish)
                return
            self._write_pending()
        except OSError as error:
            self._finish(error)
        else:
            self._finish(None)

    def _write_pending(self) -> None:
        """Write and sync; may run on the worker's thread."""
        assert self._pending is not None
        frame = self._pending[0]
        active = self._active
        offset = active.bytes
        end = offset + HEADER_BYTES + len(frame.rows) + len(frame.variable)
        blank = NO_HEADER if active.size - end >= HEADER_BYTES else b""
        self._disk.pwrite(self._handle, (frame.header, frame.rows, frame.variable, blank), offset)
        self._disk.fdatasync(self._handle)
        if self._new_name:
            self._disk.fsync_directory(self.directory)
            self._new_name = False

    def _finish(self, error: BaseException | None) -> None:
        assert self._pending is not None
        frame, done = self._pending
        self._pending = None
        if error is not None:
            # Never retried: after a failed sync the content of the disk is unknown.
            self._failed = error
            done(_as_log_error(error, f"cannot append frame {frame.number} to {self._active.path}"))
            return
        self._active.add(frame)
        self.next = frame.number + 1
        self.tail_digest = frame.digest
        self.tail_epoch = frame.epoch
        self._fresh.put(frame.number, frame.variable)
        if not self._closed:
            self._noted = False
            if self._active.left < self._spare_wanted_bytes and not self._spare.ready:
                self._prepare_spare()
        done(None)

    def note(self) -> None:
        if not self._noted and not self._closed:
            self._write_note()

    def _write_note(self) -> None:
        self._noted = True
        note = committed.encode(self.shard, self.next - 1, self.tail_digest, self.tail_epoch)
        try:
            self._disk.pwrite(self._note_handle, (note,), 0)
        except OSError as error:
            self._failed = error  # the frame is committed; a failed disk accepts no more

    def _roll(self, number: int, size: int) -> None:
        """Continue in a new segment: the spare, or for a frame that is longer than a
        segment, a file of its own length.
        """
        if size > self._settings.segment_bytes and self._disk.free(self.directory) < size:
            raise OSError(errno.ENOSPC, f"no room for a frame of {size} bytes")
        if not self._active.offsets:
            self._active.size = size  # empty, and still too short: the file grows with the write
            return
        segment = Segment(self.directory, number, max(size, self._settings.segment_bytes))
        if size > self._settings.segment_bytes:
            handle = self._disk.open(segment.path, create=True)
        else:
            self._spare.take(segment.path)
            handle = self._disk.open(segment.path, write=True)
        self._disk.close(self._handle)
        self._handle = handle
        self._new_name = True
        self._active.sealed = True
        self._unindexed.append(self._active)
        self._active = segment
        self._segments.append(segment)
        self._firsts.append(segment.first)
        self._prepare_spare()

    # --- reading ------------------------------------------------------------------------------

    @property
    def first(self) -> int:
        return self._firsts[0]

    def read_variable(self, position: int, offset: int, length: int) -> bytes:
        number = position >> 16
        if number < self._firsts[0]:
            raise self._gap(number)
        variable = self._fresh_get(number)
        if variable is None:
            variable = self._read.get(number)
            if variable is None:
                return self._read_old(number, offset, length)
        if offset + length > len(variable):
            raise self._beyond(number, offset, length, len(variable))
        return variable[offset : offset + length]

    def section(self, number: int) -> bytes | None:
        if number < self._firsts[0]:
            raise self._gap(number)
        variable = self._fresh_get(number)
        if variable is None:
            variable = self._read.get(number)
            if variable is None and self._locate(number)[2] <= self._settings.read_cache_bytes // 4:
                variable = self.frame(number).variable
                self._read.put(number, variable)
        return variable

    def is_cold(self, number: int) -> bool:
        if self._fresh_get(number) is not None or self._read.get(number) is not None:
            return False
        if not self.first <= number < self.next:
            return False  # the reader will get the error
        segment, offset, length = self._locate(number)
        return self._disk.is_cold(self._reader(segment.path), length, offset)

    def warm(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            try:
                segment, offset, length = self._locate(number)
                handle = self._disk.open(segment.path)  # its own handle, because this may be another thread
            except (LogGap, OSError):
                continue  # deleted in the meantime
            try:
                for at in range(offset, offset + length, MIB):
                    self._disk.pread(handle, min(MIB, offset + length - at), at)
            except OSError:
                pass  # the reader will get the error
            finally:
                self._disk.close(handle)

    def _read_old(self, number: int, offset: int, length: int) -> bytes:
        """Read from the disk. The whole frame is checked, and cached unless it is large.

        A large frame is checked once; after that only the requested bytes are read.
        """
        segment, frame_offset, frame_length = self._locate(number)
        large = frame_length > self._settings.read_cache_bytes // 4
        if large and number in self._checked:
            rows_bytes = segment.row_counts[number - segment.first] * ROW_BYTES
            if offset + length > frame_length - HEADER_BYTES - rows_bytes:
                raise self._beyond(number, offset, length, frame_length - HEADER_BYTES - rows_bytes)
            data = self._pread(segment.path, length, frame_offset + HEADER_BYTES + rows_bytes + offset)
            if len(data) < length:
                raise Damage(segment.path, frame_offset, number, "the file was truncated", readable=True)
            return data
        variable = self.frame(number).variable
        if not large:
            self._read.put(number, variable)
        else:
            if len(self._checked) >= CHECKED_MAX:
                self._checked.clear()
            self._checked.add(number)
        if offset + length > len(variable):
            raise self._beyond(number, offset, length, len(variable))
        return variable[offset : offset + length]

    def frame(self, number: int) -> Frame:
        segment, offset, length = self._locate(number)
        try:
            frame = parse(self._pread(segment.path, length, offset))
        except LogCorrupt as error:
            raise Damage(segment.path, offset, number, error.message, readable=False) from None
        if frame.number != number or frame.shard != self.shard or frame.cluster != self.cluster:
            what = f"frame {frame.number} of shard {frame.shard} is stored in place of frame {number}"
            raise Damage(segment.path, offset, number, what, readable=True)
        return frame

    def _locate(self, number: int) -> tuple[Segment, int, int]:
        if not self.first <= number < self.next:
            raise self._gap(number)
        segment = self._segments[bisect_right(self._firsts, number) - 1]
        return segment, *segment.locate(number)

    def _pread(self, path: str, length: int, offset: int) -> bytes:
        try:
            return self._disk.pread(self._reader(path), length, offset)
        except OSError as error:
            raise _as_log_error(error, f"cannot read {path}") from error

    def frames(self, start: int, stop: int | None = None) -> Iterator[Frame]:
        stop = self.next if stop is None else min(stop, self.next)
        if start < self.first or start > self.next:
            raise self._gap(start)
        return self._frames(start, stop)

    def _frames(self, start: int, stop: int) -> Iterator[Frame]:
        chain = Chain(self.shard, self.cluster, start)
        while chain.number < stop:
            if chain.number < self.first:
                raise self._gap(chain.number)
            segment = self._segments[bisect_right(self._firsts, chain.number) - 1]
            yield from self._segment_frames(segment, chain, min(stop, segment.stop))

    def _segment_frames(self, segment: Segment, chain: Chain, stop: int) -> Iterator[Frame]:
        offset, _ = segment.locate(chain.number)
        last_offset, last_length = segment.locate(stop - 1)
        end = last_offset + last_length
        handle = self._disk.open(segment.path)
        try:
            for _, frame in read_frames(self._disk, handle, segment.path, end, chain, offset, stop):
                yield frame
            if chain.number < stop:
                what = f"frame {chain.number} is missing"
                raise Damage(segment.path, offset, chain.number, what, readable=True)
        except LogCorrupt:
            if chain.number < self.first:  # deleted, and its file reused, while it was being read
                raise self._gap(chain.number) from None
            raise
        finally:
            self._disk.close(handle)

    def piece(self, start: int, bytes_max: int, frames_max: int = 1 << 32) -> Piece:
        segment, offset, _ = self._locate(start)
        stop = segment.stop
        if segment.bytes > offset + bytes_max:  # a frame that begins within the bytes ends the previous one
            stop = max(segment.first + bisect_right(segment.offsets, offset + bytes_max) - 1, start + 1)
        stop = min(stop, start + frames_max)
        last_offset, last_length = segment.locate(stop - 1)
        end = last_offset + last_length
        disk, path = self._disk, segment.path

        def read() -> bytes:
            handle = disk.open(path)
            try:
                return disk.pread(handle, end - offset, offset)
            finally:
                disk.close(handle)

        return Piece(start, stop, read)

    def _gap(self, number: int) -> LogGap:
        return LogGap(
            f"shard {self.shard}: frame {number} is not in the log, which has {self.first} to {self.next - 1}"
        )

    def _beyond(self, number: int, offset: int, length: int, available: int) -> LogCorrupt:
        return LogCorrupt(
            f"shard {self.shard}: a record refers to bytes {offset} to {offset + length} of frame {number}, "
            f"which has {available}"
        )

    def _reader(self, path: str) -> int:
        handle = self._readers.get(path)
        if handle is not None:
            self._readers.move_to_end(path)
            return handle
        while len(self._readers) >= self._settings.open_files_max:
            self._disk.close(self._readers.popitem(last=False)[1])
        handle = self._disk.open(path)
        self._readers[path] = handle
        return handle

    # --- room and retention -------------------------------------------------------------------

    def room(self) -> Room:
        if self._spare.blocked is None or self._spare.ready:
            return Room.PLENTY
        return Room.RESERVE if self._active.left >= self._reserve_bytes_min else Room.NONE

    def bytes_retained(self) -> int:
        return sum(segment.bytes for segment in self._segments)

    def segments(self) -> list[SegmentInfo]:
        return list(self._segments)

    def droppable(self, before: int) -> int:
        at = bisect_right(self._firsts, before) - 1
        if at == len(self._segments) - 1 and at > 0 and not self._active.offsets:
            at -= 1  # the last frame stays
        return self._firsts[max(at, 0)]

    def drop_front(self, before: int) -> None:
        keep = self.droppable(before)
        while self._firsts[0] < keep:
            self._drop(self._segments[0])

    def _drop(self, segment: Segment) -> None:
        """Oldest first, each synced before the next, so that a crash never leaves a gap."""
        reader = self._readers.pop(segment.path, None)
        if reader is not None:
            self._disk.close(reader)
        del self._segments[0], self._firsts[0]
        if segment in self._unindexed:
            self._unindexed.remove(segment)
        try:
            index = os.path.join(self.directory, layout.index_name(segment.first))
            if self._disk.exists(index):
                self._disk.unlink(index)
            if not self._spare.give(segment.path, segment.size):
                self._disk.unlink(segment.path)
            self._disk.fsync_directory(self.directory)
        except OSError as error:
            self._failed = error
            raise _as_log_error(error, f"cannot delete {segment.path}") from error

    # --- housekeeping -------------------------------------------------------------------------

    def tick(self) -> None:
        self._prepare_spare()
        self.note()
        while self._unindexed:
            segment = self._unindexed.pop()
            try:
                save_index(self._disk, segment, self.shard, self.cluster)
            except OSError:
                break  # the index only saves reading; opening recreates it

    def _prepare_spare(self) -> None:
        self._spare.prepare(wanted=self._active.left < self._spare_wanted_bytes)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._spare.close()
        if self._worker is not None:
            self._worker.close()
        if not self._noted:
            self._write_note()
        try:
            self._disk.fdatasync(self._note_handle)
        except OSError:
            pass  # the note is optional evidence; nothing depends on it
        for handle in (self._handle, self._note_handle, *self._readers.values()):
            self._disk.close(handle)
        self._readers.clear()


def _begin(
    disk: Disk,
    directory: str,
    settings: FileLogSettings,
    loaded: opening.Loaded,
    spare: Spare,
    begin: Start | None,
) -> None:
    """Create the first segment of a new log."""
    if begin is not None:
        loaded.chain.number, loaded.chain.digest = begin.number, begin.digest
    segment = Segment(directory, loaded.chain.number, settings.segment_bytes)
    spare.take(segment.path)
    disk.fsync_directory(directory)
    loaded.segments.append(segment)


def _as_log_error(error: BaseException, what: str) -> LogError | DiskFull | BaseException:
    if not isinstance(error, OSError):
        return error
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"{what}: {reason}. Free disk space, or delete messages.")
    return LogError(f"{what}: {reason}")
