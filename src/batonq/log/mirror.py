"""The mirror: a replicated log's frames in local segment files, from which all reads are served.

It is an embedded log that is never synced and is not authoritative. Missing or damaged parts are fetched again.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from batonq.errors import LogCorrupt, LogGap
from batonq.log import layout
from batonq.log.disk import Disk, RealDisk, create_directory
from batonq.log.file_log import FileLog, FileLogSettings
from batonq.log.frames import Frame
from batonq.log.opening import OnFrame, Start

REBUILD = "rebuild"  # if a file of this name exists, the mirror is discarded


class UnsyncedDisk(RealDisk):
    """The operating system's disk, without syncs: nothing has to survive a power failure."""

    def fdatasync(self, handle: int) -> None:
        pass

    def fsync_directory(self, path: str) -> None:
        pass


class Feed:
    """Passes every frame on once, in order, even if frames arrive again because the mirror had to be rebuilt."""

    def __init__(self, start: Start | None, on_frame: OnFrame | None) -> None:
        self._number = start.number if start is not None else 0
        self._digest = start.digest if start is not None else b""
        self._on_frame = on_frame

    @property
    def next(self) -> int:
        """The frame after those that were passed on, or that the state includes."""
        return self._number or 1

    def __call__(self, frame: Frame) -> None:
        if self._number:
            if frame.number < self._number:
                if frame.number == self._number - 1 and frame.digest != self._digest:
                    raise LogCorrupt(
                        f"frame {frame.number} of shard {frame.shard} is not the frame that the state was built from"
                    )
                return
            if frame.number > self._number:
                raise LogGap(f"frame {self._number} of shard {frame.shard} is no longer retained")
            if frame.previous_digest != self._digest:
                raise LogCorrupt(
                    f"the state after frame {frame.number - 1} of shard {frame.shard} belongs to another log"
                )
        self._number = frame.number + 1
        self._digest = frame.digest
        if self._on_frame is not None:
            self._on_frame(frame)

    def check_end(self, stop: int, where: str) -> None:
        """The log ends before `stop`: a later state belongs to another log."""
        if self._number > stop:
            raise LogCorrupt(
                f"{where} ends before frame {stop}, but there is a snapshot of frame {self._number - 1}. If "
                "the log is correct, remove the snapshot; a new one will be written."
            )


class Mirror:
    """The location of one mirror, and how it is opened."""

    def __init__(self, directory: str, *, shard: int, cluster: int, settings: FileLogSettings, disk: Disk) -> None:
        self.directory = directory
        self._shard = shard
        self._cluster = cluster
        self._settings = settings
        self._disk = disk

    def load(self, start: Start | None, feed: Feed, on_damage: Callable[[str], None]) -> FileLog | None:
        """Load the existing mirror and pass all frames to `feed`; None if there is nothing usable.

        Raises LogGap if it begins after `start`.
        """
        if self._disk.exists(os.path.join(self.directory, REBUILD)):
            self.wipe()
        if not self._disk.exists(self.directory) or not layout.segments(self._disk, self.directory):
            self.wipe()
            return None
        try:
            log = self._open(start=start, on_frame=feed)
        except LogCorrupt as problem:
            on_damage(problem.message)
            self.wipe()
            return None
        if log.first == log.next:
            log.close()
            self.wipe()
            return None
        return log

    def begin(self, begin: Start) -> FileLog:
        """An empty mirror, whose first frame will be `begin`."""
        self.wipe()
        return self._open(begin=begin)

    def mark_damaged(self) -> None:
        """Make the next `load` start from scratch."""
        path = os.path.join(self.directory, REBUILD)
        if not self._disk.exists(path):
            self._disk.close(self._disk.open(path, create=True))

    def wipe(self) -> None:
        """Remove the mirror; snapshots stay, because they have digests of their own."""
        create_directory(self._disk, self.directory)
        for name in sorted(self._disk.listdir(self.directory), reverse=True):  # the mark is removed after the segments
            if name.startswith(("segment-", "index-", "spare.", "torn-")) or name in (layout.COMMITTED, REBUILD):
                self._disk.unlink(os.path.join(self.directory, name))

    def _open(
        self, *, start: Start | None = None, begin: Start | None = None, on_frame: OnFrame | None = None
    ) -> FileLog:
        return FileLog.open(
            self.directory,
            shard=self._shard,
            cluster=self._cluster,
            settings=self._settings,
            disk=self._disk,
            start=start,
            begin=begin,
            on_frame=on_frame,
        )
