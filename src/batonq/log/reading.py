"""Reading a segment: every frame is checked by itself and against the one before, and what does not fit is reported.

Used by opening a log, by reading its history and by the repair tools, so that all of them agree on what is valid.
"""

from __future__ import annotations

from collections.abc import Iterator

from batonq.core.records import FORMAT_VERSION
from batonq.errors import LogCorrupt
from batonq.log.disk import Disk
from batonq.log.frames import (
    HEADER_BYTES,
    MAGIC,
    NO_DIGEST,
    NO_HEADER,
    Frame,
    FrameCutOff,
    FrameUnreadable,
    parse,
    parse_header,
)

READ_BYTES = 1 << 20  # large enough that the cost of a system call does not show, small enough for the CPU's cache


WHAT_TO_DO = (
    "Nothing was skipped or changed. `baton log verify` on the data directory shows the damage. Restore the "
    "file from a copy if there is one; otherwise `baton log repair --truncate-at {number}` truncates the log "
    "here, which loses that frame and all after it."
)


class Damage(LogCorrupt):
    """An invalid place in a log: the file, the offset, the expected frame, and what is wrong.

    `readable` distinguishes a valid frame that does not fit from bytes that are not a frame; only the latter can be a
    torn write.
    """

    def __init__(
        self, path: str, offset: int, number: int, what: str, *, readable: bool, advice: str = WHAT_TO_DO
    ) -> None:
        super().__init__(f"{path}, offset {offset}: {what}. {advice.format(number=number)}")
        self.path = path
        self.offset = offset
        self.number = number
        self.what = what
        self.readable = readable


class Chain:
    """What the next frame must match: its number, the previous digest, and an epoch that is not below the last one.

    `cluster` and `digest` are None until the first frame sets them: the front of a log may have been dropped.
    """

    __slots__ = ("cluster", "digest", "epoch", "number", "shard")

    def __init__(self, shard: int, cluster: int | None, number: int) -> None:
        self.shard = shard
        self.cluster = cluster
        self.number = number
        self.digest: bytes | None = NO_DIGEST if number == 1 else None
        self.epoch = 0

    def mismatch(self, frame: Frame) -> str | None:
        """What does not fit about a frame that is valid in itself."""
        if frame.shard != self.shard:
            return f"frame {frame.number} belongs to shard {frame.shard}, this is the log of shard {self.shard}"
        if self.cluster is not None and frame.cluster != self.cluster:
            return f"frame {frame.number} belongs to cluster {frame.cluster:016x}, this is {self.cluster:016x}"
        if frame.number != self.number:
            return f"frame {self.number} is missing: frame {frame.number} is in its place"
        if self.digest is not None and frame.previous_digest != self.digest:
            return f"frame {frame.number} does not follow the frame before it: the digests differ"
        if frame.epoch < self.epoch:
            return f"frame {frame.number} has epoch {frame.epoch}, after a frame with epoch {self.epoch}"
        return None


def read_frames(
    disk: Disk, handle: int, path: str, size: int, chain: Chain, offset: int = 0, stop: int | None = None
) -> Iterator[tuple[int, Frame]]:
    """Frames from `offset` on with their offsets, each checked; `chain` is advanced before a frame is returned.

    Ends before frame `stop`, or where the written part ends: at zeros, at a frame from the file's earlier use (its
    number is below the next one), or at the end of the file. The caller knows whether it may end there. Raises Damage.
    """
    data = b""
    base = offset
    at = 0
    while stop is None or chain.number < stop:
        try:
            frame = parse(data, at)
        except FrameCutOff as error:
            offset = base + at
            if size - offset < HEADER_BYTES:
                return
            if size - offset < error.needed:
                if _is_stale(error, chain):
                    return
                raise Damage(path, offset, chain.number, error.message, readable=False) from None
            data = disk.pread(handle, min(max(READ_BYTES, error.needed), size - offset), offset)
            base, at = offset, 0
            if len(data) < error.needed:
                raise Damage(path, offset, chain.number, "the file was truncated", readable=True) from None
            continue
        except FrameUnreadable as error:
            if data[at : at + HEADER_BYTES] == NO_HEADER or _is_stale(error, chain):
                return
            readable = error.number is not None and error.number > chain.number
            raise Damage(path, base + at, chain.number, error.message, readable=readable) from None
        except LogCorrupt as error:
            raise Damage(path, base + at, chain.number, error.message, readable=True, advice="") from None
        cluster, _, shard, epoch, number, _, previous, rows, variable, _, digest, _ = frame
        if (
            number != chain.number
            or previous != chain.digest
            or cluster != chain.cluster
            or shard != chain.shard
            or epoch < chain.epoch
        ):
            if number < chain.number and shard == chain.shard and cluster == chain.cluster:
                return
            wrong = chain.mismatch(frame)
            if wrong is not None:
                raise Damage(path, base + at, chain.number, wrong, readable=True)
            chain.cluster = cluster
        chain.digest = digest
        chain.epoch = epoch
        chain.number = number + 1
        yield base + at, frame
        at += HEADER_BYTES + len(rows) + len(variable)


def _is_stale(error: FrameUnreadable, chain: Chain) -> bool:
    return error.number is not None and error.number < chain.number


def find_later_frame(disk: Disk, handle: int, size: int, chain: Chain, offset: int) -> tuple[int, int] | None:
    """(offset, number) of a frame header at or after `offset` whose number proves that frames are missing before it.

    There is one append at a time, so a later header with the number `chain.number` or above was written after the
    expected frame was committed. The search is for the bytes that begin this log's headers; a message body cannot
    imitate them without knowing the cluster id.
    """
    if chain.cluster is None:
        return None
    for version in range(1, FORMAT_VERSION + 1):
        found = _find_version(disk, handle, size, chain, offset, version)
        if found is not None:
            return found
    return None


def _find_version(
    disk: Disk, handle: int, size: int, chain: Chain, offset: int, version: int
) -> tuple[int, int] | None:
    assert chain.cluster is not None
    start = MAGIC + version.to_bytes(2, "little")
    rest = chain.cluster.to_bytes(8, "little") + chain.shard.to_bytes(4, "little")
    while offset < size:
        data = disk.pread(handle, min(READ_BYTES, size - offset), offset)
        at = data.find(start)
        while at >= 0:
            header = data[at : at + HEADER_BYTES]
            if len(header) < HEADER_BYTES:
                header = disk.pread(handle, HEADER_BYTES, offset + at)
            if header[8:20] == rest:
                number = _header_number(header)
                if number >= chain.number:
                    return offset + at, number
            at = data.find(start, at + 1)
        if offset + len(data) >= size:
            return None
        offset += len(data) - len(start) + 1
    return None


def _header_number(header: bytes) -> int:
    try:
        return parse_header(header).number
    except LogCorrupt:
        return 0


def frames_of(data: bytes, chain: Chain, where: str) -> Iterator[Frame]:
    """Every frame in `data`, each checked by itself and against the one before; `chain` is advanced.

    Raises LogCorrupt with the location (a file, a URL) and the reason.
    """
    at = 0
    while at < len(data):
        try:
            frame = parse(data, at)
        except LogCorrupt as error:
            raise LogCorrupt(f"{where}, offset {at}: {error.message}") from None
        wrong = chain.mismatch(frame)
        if wrong is not None:
            raise LogCorrupt(f"{where}, offset {at}: {wrong}")
        chain.cluster, chain.digest, chain.epoch = frame.cluster, frame.digest, frame.epoch
        chain.number = frame.number + 1
        yield frame
        at += frame.size
