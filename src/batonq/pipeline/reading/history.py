"""One interface to history: in a data directory, in an archive, or from a node over HTTP.

`open_history` takes a path (a data directory), `file://…` or `s3://…` (an archive) or `http(s)://…` (a node). Frames
are returned in order, each checked; a position that is no longer retained raises LogGap.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from batonq.errors import InvalidInput, LogCorrupt, LogGap, NotFound
from batonq.log import committed, layout
from batonq.log.disk import RealDisk
from batonq.log.frames import HEADER_BYTES, Frame, Header, parse_header
from batonq.log.ownership import cluster_of
from batonq.log.reading import Chain, Damage, read_frames
from batonq.pipeline.events.names import Names, told_by
from batonq.pipeline.reading.archive import Archive, Manifest


class Range(NamedTuple):
    """Frames `first` up to `next` (exclusive) of a shard can be read."""

    shard: int
    first: int
    next: int


class History(Protocol):
    knows_deleted_queues: bool  # whether `names` has the names of queues that were deleted since

    def shards(self) -> list[Range]:
        """The available ranges, by shard. A range grows at its end, and may lose its front."""

    def frames(self, shard: int, start: int, stop: int | None = None) -> Iterator[Frame]:
        """Frames from `start` up to `stop` (exclusive; default: the current end), checked and without gaps.

        A start at the end returns nothing. Raises LogGap (not retained), LogCorrupt (damaged), NotFound (no such
        shard).
        """

    def names(self, shard: int, before: int) -> Names:
        """The queue names in the shard's history before a frame, for a reader that starts there."""

    def marks(self, shard: int, start: int, stop: int) -> list[int]:
        """Frames between `start` and `stop` where a part may begin: nothing before it needs to be read."""

    def time_ms(self, shard: int, number: int) -> int:
        """The time of a frame's last event. Raises LogGap if the frame is not there."""

    def find_time(self, shard: int, time_ms: int) -> int:
        """The first frame whose last event is at or after a time, or the end. A shard's time never goes back, so all
        events before this frame are earlier. It is found by a search that reads few frames.
        """


def last_frames(history: History) -> dict[int, int]:
    """The number of the last frame of each shard, as the history itself knows it: a log whose end is cut off looks
    complete otherwise.
    """
    return {span.shard: span.next - 1 for span in history.shards() if span.next > span.first}


def open_history(source: str, *, access_key: str = "", secret_key: str = "") -> History:
    """The history at `source`. Keys are for a node in the secured profile: of its own account."""
    if source.startswith(("http://", "https://")):
        from batonq.pipeline.reading.remote import RemoteHistory

        return RemoteHistory(source, access_key=access_key, secret_key=secret_key)
    if "://" in source:
        return ArchivedHistory(source)
    return DirectoryHistory(source)


class DirectoryHistory:
    """The logs of a data directory, which a node may be writing. Only committed frames are read.

    A running node records within a second which frames are committed, so its last frames become available a little
    later.
    """

    knows_deleted_queues = True

    def __init__(self, directory: str) -> None:
        self._disk = RealDisk()
        self._directory = directory
        self._told: dict[int, tuple[int, Names]] = {}  # by shard: the names before a frame
        if not os.path.isdir(directory) or not layout.log_directories(self._disk, directory):
            raise InvalidInput(f"There is no log in {directory}. Use a data directory, or the URL of an archive.")

    def shards(self) -> list[Range]:
        logs = layout.log_directories(self._disk, self._directory)
        return [self._range(shard) for shard in logs if shard != layout.CATALOG_SHARD]

    def _range(self, shard: int) -> Range:
        directory = self._log(shard)
        firsts = layout.segments(self._disk, directory)
        note = committed.load(self._disk, os.path.join(directory, layout.COMMITTED), shard)
        first = firsts[0] if firsts else 1
        return Range(shard, first, max(note.number + 1 if note else first, first))

    def _log(self, shard: int) -> str:
        logs = layout.log_directories(self._disk, self._directory)
        if shard not in logs or shard == layout.CATALOG_SHARD:
            raise NotFound(f"Shard {shard} does not exist in {self._directory}.")
        return logs[shard]

    def frames(self, shard: int, start: int, stop: int | None = None) -> Iterator[Frame]:
        span = self._range(shard)
        if start < span.first:
            raise self._gap(shard, start)
        stop = span.next if stop is None else min(stop, span.next)
        return self._frames(shard, start, stop)

    def _frames(self, shard: int, start: int, stop: int) -> Iterator[Frame]:
        directory = self._log(shard)
        firsts = layout.segments(self._disk, directory)
        begin = max(sum(first <= start for first in firsts) - 1, 0)
        chain = Chain(shard, cluster_of(self._disk, self._directory), firsts[begin])
        for first, following in zip(firsts[begin:], [*firsts[begin + 1 :], stop], strict=True):
            if first >= stop:
                return
            for frame in self._segment(directory, first, chain, min(following, stop)):
                if frame.number >= start:
                    yield frame

    def _segment(self, directory: str, first: int, chain: Chain, stop: int) -> Iterator[Frame]:
        path = os.path.join(directory, layout.segment_name(first))
        number = chain.number
        try:
            handle = self._disk.open(path)
        except FileNotFoundError:
            raise self._gap(chain.shard, number) from None
        try:
            for _, frame in read_frames(self._disk, handle, path, self._disk.size(path), chain, 0, stop):
                yield frame
            if chain.number < stop:
                raise Damage(path, 0, chain.number, f"frame {chain.number} is missing", readable=True)
        except (LogCorrupt, FileNotFoundError):
            if not self._disk.exists(path):  # deleted, and its file reused, while it was being read
                raise self._gap(chain.shard, chain.number) from None
            raise
        finally:
            self._disk.close(handle)

    def names(self, shard: int, before: int) -> Names:
        """Read from the log once, up to the requested frame; later requests continue from there."""
        start, names = self._told.get(shard, (0, {}))
        first = self._range(shard).first
        if before < start:
            start, names = 0, {}
        names = dict(names)
        for frame in self.frames(shard, max(start, first), max(before, first)):
            names |= told_by(frame)
        self._told[shard] = (max(before, first), names)
        return dict(names)

    def marks(self, shard: int, start: int, stop: int) -> list[int]:
        return [first for first in layout.segments(self._disk, self._log(shard)) if start < first < stop]

    def time_ms(self, shard: int, number: int) -> int:
        span = self._range(shard)
        if not span.first <= number < span.next:
            raise self._gap(shard, number)
        firsts = layout.segments(self._disk, self._log(shard))
        for header in self._headers(shard, firsts[bisect_right(firsts, number) - 1], span.next):
            if header.number == number:
                return header.time_ms
        raise self._gap(shard, number)

    def find_time(self, shard: int, time_ms: int) -> int:
        """By the first header of each segment, and then by the headers of one segment."""
        span = self._range(shard)
        firsts = [first for first in layout.segments(self._disk, self._log(shard)) if first < span.next]
        after = bisect_left(firsts, time_ms, key=lambda first: next(self._headers(shard, first, span.next)).time_ms)
        if not after:
            return span.first
        stop = firsts[after] if after < len(firsts) else span.next
        found = (header.number for header in self._headers(shard, firsts[after - 1], stop) if header.time_ms >= time_ms)
        return next(found, stop)

    def _headers(self, shard: int, first: int, stop: int) -> Iterator[Header]:
        """The headers of a segment's frames up to `stop`, each checked. The rest of the frames is not read."""
        path = os.path.join(self._log(shard), layout.segment_name(first))
        try:
            handle = self._disk.open(path)
        except FileNotFoundError:
            raise self._gap(shard, first) from None
        offset, number = 0, first
        try:
            while number < stop:
                header = parse_header(self._disk.pread(handle, HEADER_BYTES, offset))
                if (header.shard, header.number) != (shard, number):
                    raise LogCorrupt(f"frame {header.number} of shard {header.shard} is in the place of frame {number}")
                yield header
                offset, number = offset + header.frame_bytes, number + 1
        except LogCorrupt as problem:
            if not self._disk.exists(path):  # deleted, and its file reused, while it was being read
                raise self._gap(shard, number) from None
            raise Damage(path, offset, number, problem.message, readable=False) from None
        finally:
            self._disk.close(handle)

    def _gap(self, shard: int, number: int) -> LogGap:
        return LogGap(
            f"Frame {number} of shard {shard} is no longer in {self._directory}; the first retained frame is "
            f"{self._range(shard).first}. Read earlier frames from the archive."
        )


class ArchivedHistory:
    """The segments of an archive."""

    knows_deleted_queues = True

    def __init__(self, url: str) -> None:
        self.archive = Archive.at(url)
        self._told: dict[tuple[int, int, int], Names] = {}  # by shard, first and last frame of a segment

    def shards(self) -> list[Range]:
        found = []
        for shard in self.archive.shards():
            firsts = self.archive.firsts(shard)
            if firsts:
                found.append(Range(shard, firsts[0], self.archive.manifest(shard, firsts[-1]).last + 1))
        return found

    def frames(self, shard: int, start: int, stop: int | None = None) -> Iterator[Frame]:
        firsts = self.archive.firsts(shard)
        if not firsts:
            raise NotFound(f"Shard {shard} does not exist in the archive {self.archive.store.url}.")
        if start < firsts[0]:
            raise LogGap(
                f"Frame {start} of shard {shard} is not in {self.archive.store.url}: it begins at {firsts[0]}."
            )
        return self.archive.frames(shard, start, stop)

    def names(self, shard: int, before: int) -> Names:
        """From the manifests. Only segments with an older manifest are read, and a part of the last one."""
        names: Names = {}
        for first in self.archive.firsts(shard):
            if first >= before:
                break
            manifest = self.archive.manifest(shard, first)
            if manifest.last < before:
                names |= self._told_in(manifest)
            elif manifest.names is None or not manifest.names.keys() <= names.keys():
                for frame in self.archive.frames(shard, first, before):
                    names |= told_by(frame)
        return names

    def _told_in(self, manifest: Manifest) -> Names:
        if manifest.names is not None:
            return manifest.names
        key = (manifest.shard, manifest.first, manifest.last)
        if key not in self._told:
            found: Names = {}
            for frame in self.archive.frames(manifest.shard, manifest.first, manifest.last + 1):
                found |= told_by(frame)
            self._told[key] = found
        return self._told[key]

    def marks(self, shard: int, start: int, stop: int) -> list[int]:
        return [first for first in self.archive.firsts(shard) if start < first < stop]

    def time_ms(self, shard: int, number: int) -> int:
        for frame in self.frames(shard, number, number + 1):
            return frame.time_ms
        raise LogGap(f"Frame {number} of shard {shard} is not in {self.archive.store.url} yet.")

    def find_time(self, shard: int, time_ms: int) -> int:
        """By the times in the manifests, and then in one segment."""
        firsts = self.archive.firsts(shard)
        at = bisect_left(firsts, time_ms, key=lambda first: self.archive.manifest(shard, first).last_time_ms)
        if at == len(firsts):
            return self.archive.manifest(shard, firsts[-1]).last + 1 if firsts else 1
        return next(frame.number for frame in self.archive.frames(shard, firsts[at]) if frame.time_ms >= time_ms)
