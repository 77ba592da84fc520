"""The spare segment: prepared in advance, so that a sync writes no metadata, and a reserve for a full disk.

A log with a spare always has room to roll into. If the next spare cannot be created, the rest of the current segment is
the reserve, for deletes and similar records. A spare is created when half of that segment is used, not sooner: by then
a dropped segment may have become the spare, which costs no writing.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable

from batonq.log.disk import Disk
from batonq.log.layout import SPARE, SPARE_UNFINISHED

STEP_BYTES = 1 << 20
# Allocated for good: once malloc has freed a block of this size, it treats all smaller ones as small, and the columns
# of a shard leave holes there as they grow (17 bytes per message).
_ZEROS = bytes(STEP_BYTES)
SYNC_EVERY_BYTES = 8 << 20  # in small portions, so that commits do not wait behind one large flush
RETRY_MS = 1000


class Spare:
    """At most one spare file. It may be created on a thread; everything else is called from the log's own thread."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        segment_bytes: int,
        free_floor_bytes: int,
        background: bool,
        now_ms: Callable[[], int],
        prewrite: bool = True,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._path = os.path.join(directory, SPARE)
        self._unfinished = os.path.join(directory, SPARE_UNFINISHED)
        self._segment_bytes = segment_bytes
        self._free_floor_bytes = free_floor_bytes
        self._background = background
        self._prewrite = prewrite
        self._now_ms = now_ms
        self._retry_at_ms = 0
        self._stopping = False
        self._thread: threading.Thread | None = None
        self.ready = disk.exists(self._path) and disk.size(self._path) == segment_bytes
        self.blocked: str | None = None  # why none can be created, as long as that is so
        if not self.ready and disk.exists(self._path):
            disk.unlink(self._path)  # of another size, from before a setting was changed

    def prepare(self, *, wanted: bool) -> None:
        """Check whether there is space for a spare, and create one if it is needed; after a failure once per second."""
        if self.ready or self._is_making():
            return
        if self.blocked is not None and self._now_ms() < self._retry_at_ms:
            return
        try:
            room = self._has_room()
        except OSError as error:
            self._block(error.strerror or str(error))
            return
        if not room:
            self._block("the disk has less free space than a segment and the required minimum")
            return
        if not wanted and self.blocked is None:
            return
        if self._background:
            self._thread = threading.Thread(target=self._make, name="baton-spare", daemon=True)
            self._thread.start()
        else:
            self._make()

    def take(self, target: str) -> None:
        """Rename the spare to a segment's name, waiting if it is being created. Raises OSError if there is none.

        The directory is not synced: the caller does that with the first frame.
        """
        if self._thread is not None:
            self._thread.join()
        if not self.ready and self._has_room():
            self._make()
        if not self.ready:
            raise OSError(errno.ENOSPC, self.blocked or "no room for another segment")
        self._disk.rename(self._path, target)
        self.ready = False

    def give(self, path: str, size: int) -> bool:
        """Use a dropped segment as the spare if one is needed. Its old frames stay: they are recognized by their
        numbers.
        """
        if self.ready or size != self._segment_bytes or self._is_making():
            return False
        self._disk.rename(path, self._path)
        self.ready = True
        self.blocked = None
        return True

    def close(self) -> None:
        self._stopping = True
        if self._thread is not None:
            self._thread.join()

    def _is_making(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _has_room(self) -> bool:
        return self._disk.free(self._directory) >= self._segment_bytes + self._free_floor_bytes

    def _block(self, why: str) -> None:
        self._retry_at_ms = self._now_ms() + RETRY_MS
        self.blocked = why

    def _make(self) -> None:
        try:
            if self._write():
                self._disk.rename(self._unfinished, self._path)
                self._disk.fsync_directory(self._directory)
                self.ready = True
                self.blocked = None
        except OSError as error:
            self._discard()
            self._block(error.strerror or str(error))

    def _write(self) -> bool:
        """Write the zeros; False if the log was closed meanwhile."""
        self._discard()
        handle = self._disk.open(self._unfinished, create=True)
        try:
            if not self._prewrite:
                self._disk.pwrite(handle, (b"\0",), self._segment_bytes - 1)
                return True
            for offset in range(0, self._segment_bytes, STEP_BYTES):
                if self._stopping:
                    return False
                self._disk.pwrite(handle, (_ZEROS[: self._segment_bytes - offset],), offset)
                if (offset + STEP_BYTES) % SYNC_EVERY_BYTES == 0:
                    self._disk.fdatasync(handle)
            self._disk.fdatasync(handle)
        finally:
            self._disk.close(handle)
        return True

    def _discard(self) -> None:
        try:
            self._disk.unlink(self._unfinished)
        except OSError:
            pass
