"""Opening a log: every required frame is read once, checked, and passed to the caller for replay.

`load` only reads; `mend` makes the log ready for writing. An unreadable last frame with nothing after it, and no
committed note about it, is a write that a crash interrupted: it was never acknowledged, so it is removed from the log
and kept in a file. Everything else that is not valid stops the opening with a Damage.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest

from batonq.errors import LogCorrupt, LogGap
from batonq.log import committed, layout
from batonq.log.disk import Disk, write_atomically
from batonq.log.frames import HEADER_BYTES, NO_HEADER, Frame, parse_header
from batonq.log.reading import READ_BYTES, Chain, Damage, find_later_frame, read_frames
from batonq.log.segment import Segment, load_index

OnFrame = Callable[[Frame], None]


@dataclass(slots=True)
class Torn:
    """A write that a crash interrupted: its location, and the file with its bytes (None: there was no space for it)."""

    path: str
    offset: int
    number: int
    bytes: int
    what: str
    kept_in: str | None = None


@dataclass(slots=True)
class Start:
    """Where replay begins: the frame after a snapshot, and the digest of the snapshot's frame."""

    number: int
    digest: bytes


@dataclass(slots=True)
class Loaded:
    chain: Chain
    segments: list[Segment] = field(default_factory=list)
    unindexed: list[Segment] = field(default_factory=list)  # sealed, without a valid index file
    last_frame: Frame | None = None  # if it is in the last segment
    torn: Torn | None = None


def load(
    disk: Disk,
    directory: str,
    *,
    shard: int,
    cluster: int | None,
    start: Start | None = None,
    stop: int | None = None,
    on_frame: OnFrame | None = None,
) -> Loaded:
    """Read and check a log. Frames from `start` on (default: all) are passed to `on_frame`.

    Segments that lie completely before `start` are not read if their index file is valid. With `stop` (for a log that
    another process is writing), frames from there on are ignored, and the end is not checked. Raises LogCorrupt, and
    LogGap if `start` is before the first retained frame.
    """
    return _Loader(disk, directory, shard, cluster, start, stop, on_frame).load()


class _Loader:
    def __init__(
        self,
        disk: Disk,
        directory: str,
        shard: int,
        cluster: int | None,
        start: Start | None,
        stop: int | None,
        on_frame: OnFrame | None,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._start = start
        self._stop = stop
        self._on_frame = on_frame
        self._firsts = layout.segments(disk, directory)
        self._note = committed.load(disk, os.path.join(directory, layout.COMMITTED), shard)
        self._chain = Chain(shard, cluster, self._firsts[0] if self._firsts else 1)
        self._loaded = Loaded(self._chain)

    def load(self) -> Loaded:
        chain, start = self._chain, self._start
        if not self._firsts and self._note is not None and self._note.number > 0:
            raise LogCorrupt(
                f"{self._directory}: the segment files are missing, although frame {self._note.number} was "
                "committed. Restore them, or move the directory away to start a new log."
            )
        if start is not None and start.number < chain.number:
            raise LogGap(f"frame {start.number} is no longer retained; the log begins with frame {chain.number}")
        for first, following in zip_longest(self._firsts, self._firsts[1:]):
            if self._stop is not None and first >= self._stop:
                break
            self._load(first, following)
        _check_start(self._directory, start, chain.number, chain.digest)
        return self._loaded

    def _load(self, first: int, following: int | None) -> None:
        path = os.path.join(self._directory, layout.segment_name(first))
        segment = Segment(self._directory, first, self._disk.size(path))
        if first != self._chain.number:
            what = f"frame {self._chain.number} is missing: this segment begins with frame {first}"
            raise Damage(path, 0, self._chain.number, what, readable=True)
        if following is None or not self._load_sidecar(segment, following):
            handle = self._disk.open(path)
            try:
                self._load_segment(handle, segment, following)
            finally:
                self._disk.close(handle)

    def _load_sidecar(self, segment: Segment, following: int) -> bool:
        """Load a segment that need not be replayed from its index file alone."""
        chain = self._chain
        if self._start is None or following > self._start.number or chain.cluster is None:
            return False
        known = load_index(self._disk, self._directory, segment.first, segment.size, chain.shard, chain.cluster)
        if known is None or known.stop != following or known.last_epoch < chain.epoch:
            return False
        if chain.digest is not None and known.first_previous != chain.digest:
            return False
        chain.number = known.stop
        chain.digest = known.last_digest
        chain.epoch = known.last_epoch
        self._loaded.segments.append(known)
        return True

    def _load_segment(self, handle: int, segment: Segment, following: int | None) -> None:
        """Read a whole segment. Only the last one may end with a torn write."""
        stop = following
        if self._stop is not None and (following is None or self._stop < following):
            stop = self._stop
        frame, problem = self._fold(handle, segment, stop)
        self._loaded.segments.append(segment)
        if stop is None:
            self._loaded.last_frame = frame
            self._loaded.torn = _judge_end(self._disk, handle, segment, self._chain, self._note, problem)
            return
        if self._chain.number != stop:
            what = f"frame {self._chain.number} is missing"
            if stop == following:
                what += f": the next segment begins with frame {following}"
            raise Damage(segment.path, segment.bytes, self._chain.number, what, readable=True)
        if stop == following:
            segment.sealed = True
            self._loaded.unindexed.append(segment)

    def _fold(self, handle: int, segment: Segment, stop: int | None) -> tuple[Frame | None, Damage | None]:
        """Pass on a segment's frames. Returns the last one, and what is in place of the next if it may be torn."""
        start_number = self._start.number if self._start is not None else 0
        frame = None
        try:
            for _, frame in read_frames(self._disk, handle, segment.path, segment.size, self._chain, 0, stop):
                segment.add(frame)
                if frame.number >= start_number:
                    if frame.number == start_number:
                        _check_start(segment.path, self._start, start_number, frame.previous_digest)
                    if self._on_frame is not None:
                        self._on_frame(frame)
        except Damage as damage:
            if damage.readable or stop is not None:
                raise
            return frame, damage
        return frame, None


def _judge_end(
    disk: Disk,
    handle: int,
    segment: Segment,
    chain: Chain,
    note: committed.Committed | None,
    problem: Damage | None,
) -> Torn | None:
    """Check whether the log may end here. Returns the torn write, if any; raises Damage for a lost frame."""
    what = problem.what if problem is not None else f"frame {chain.number} is missing"
    if note is not None and note.number >= chain.number:
        proof = f"{what}, but the committed note says that frames up to {note.number} were committed"
        raise Damage(segment.path, segment.bytes, chain.number, proof, readable=True)
    if note is not None and note.number == chain.number - 1 and chain.digest not in (None, note.digest):
        proof = (
            f"frame {note.number} is not the frame that was committed: its digest differs from the one in the "
            "committed note"
        )
        raise Damage(segment.path, segment.bytes, chain.number, proof, readable=True)
    later = find_later_frame(disk, handle, segment.size, chain, segment.bytes + 1)
    if later is not None:
        proof = f"{what}, but frame {later[1]} follows it, at offset {later[0]}"
        raise Damage(segment.path, segment.bytes, chain.number, proof, readable=True)
    if problem is None:
        return None
    length = _torn_bytes(disk, handle, segment, chain)
    return Torn(segment.path, segment.bytes, chain.number, length, problem.what)


def _torn_bytes(disk: Disk, handle: int, segment: Segment, chain: Chain) -> int:
    """The possible length of the torn write: its frame's length if the header is readable, otherwise up to the last
    non-zero byte.
    """
    try:
        header = parse_header(disk.pread(handle, HEADER_BYTES, segment.bytes))
        if header.number == chain.number:
            return min(header.frame_bytes, segment.size - segment.bytes)
    except LogCorrupt:
        pass
    length = 0
    for offset in range(segment.bytes, segment.size, READ_BYTES):
        written = disk.pread(handle, min(READ_BYTES, segment.size - offset), offset).rstrip(b"\0")
        if written:
            length = offset - segment.bytes + len(written)
    return length


def _check_start(path: str, start: Start | None, number: int, digest: bytes | None) -> None:
    """The snapshot must belong to this log: its digest is the one in the next frame."""
    if start is None or number > start.number:
        return
    if number < start.number:
        what = f"the log ends before frame {number}, but there is a snapshot of frame {start.number - 1}"
    elif digest is not None and digest != start.digest:
        what = f"the snapshot of frame {start.number - 1} belongs to another log: the digests differ"
    else:
        return
    raise LogCorrupt(f"{path}: {what}. If the log is correct, remove the snapshot; a new one will be written.")


# --- making the log fit to be written to ------------------------------------------------------


def mend(disk: Disk, directory: str, loaded: Loaded, now_ms: int) -> None:
    """Remove a torn write, and make sure that the last frame is on the disk."""
    if not loaded.segments:
        return
    segment = loaded.segments[-1]
    handle = disk.open(segment.path, write=True)
    try:
        if loaded.torn is not None:
            _keep_aside(disk, handle, directory, loaded.torn, now_ms)
            _write_zeros(disk, handle, segment)
        if loaded.last_frame is not None:
            # The process that wrote it may have died before its sync, or seen the sync fail, which leaves pages that
            # only look clean. Writing the same bytes again makes the sync below a real one.
            frame = loaded.last_frame
            end = NO_HEADER if segment.left >= HEADER_BYTES else b""
            disk.pwrite(handle, (frame.header, frame.rows, frame.variable, end), segment.bytes - frame.size)
        disk.fdatasync(handle)
    finally:
        disk.close(handle)
    disk.fsync_directory(directory)


def _keep_aside(disk: Disk, handle: int, directory: str, torn: Torn, now_ms: int) -> None:
    path = os.path.join(directory, f"torn-{torn.number}-{now_ms}.bin")
    try:
        write_atomically(disk, path, (disk.pread(handle, torn.bytes, torn.offset),))
    except OSError:
        # A full disk must not prevent the log from opening: the write was never acknowledged.
        return
    torn.kept_in = path


def _write_zeros(disk: Disk, handle: int, segment: Segment) -> None:
    zeros = bytes(READ_BYTES)
    for offset in range(segment.bytes, segment.size, READ_BYTES):
        length = min(READ_BYTES, segment.size - offset)
        if disk.pread(handle, length, offset) != zeros[:length]:
            disk.pwrite(handle, (zeros[:length],), offset)


def remove_leftovers(disk: Disk, directory: str) -> None:
    """Remove files of interrupted work, and indexes of deleted segments."""
    firsts = set(layout.segments(disk, directory))
    for first in layout.indexes(disk, directory):
        if first not in firsts:
            disk.unlink(os.path.join(directory, layout.index_name(first)))
    for name in disk.listdir(directory):
        if name.endswith(".tmp"):
            disk.unlink(os.path.join(directory, name))
