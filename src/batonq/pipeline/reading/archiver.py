"""Copies a shard's sealed segments into an archive: `python -m batonq.pipeline.reading.archiver DATA SHARD URL SIZE`.

A node runs it as a child process, so that it affects neither the node's loop nor its memory. It prints the first frame
that is not in the archive. It may be killed at any time: segments without a manifest are copied again, those with one
are not touched.

In a directory that mirrors a shared log, segments begin at other frames than on other nodes. From a mirror the archive
gets pieces that begin where it ends and have `SIZE` bytes, or a frame more, so that every node makes the same pieces;
if two copy at the same time, the first piece counts, and the other continues after it.
"""

from __future__ import annotations

import os
import sys
from itertools import pairwise

from batonq.errors import BatonError, LogCorrupt
from batonq.log import layout
from batonq.log.disk import Disk, RealDisk
from batonq.log.frames import HEADER_BYTES, Frame, parse_header
from batonq.log.ownership import cluster_of, mirrored_in
from batonq.log.reading import Chain, read_frames
from batonq.pipeline.reading.archive import Archive, Manifest, describe, folder

NICENESS = 10
PIECE_BYTES = 64 << 20


def archive_shard(
    data_directory: str, shard: int, archive: Archive, piece_bytes: int = PIECE_BYTES, disk: Disk | None = None
) -> int:
    """Copy sealed segments that are not in the archive, oldest first. Returns the first frame that is not in the
    archive.
    """
    disk = disk or RealDisk()
    directory = layout.log_directory(data_directory, shard)
    cluster = cluster_of(disk, data_directory)
    if cluster is None:
        raise LogCorrupt(f"{data_directory} has no cluster id")
    archive.store.sweep(folder(shard))
    if mirrored_in(disk, data_directory):
        return _archive_mirror(disk, directory, shard, cluster, archive, piece_bytes)
    firsts = layout.segments(disk, directory)
    known = archive.firsts(shard)
    if known:
        _check_cluster(archive.manifest(shard, known[-1]), cluster, archive)
    done = archive.manifest(shard, known[-1]).last + 1 if known else 0
    for first, stop in pairwise(firsts):
        if first in known and _is_there(archive, shard, first, stop, _digest_before(disk, directory, stop)):
            done = max(done, stop)
            continue
        data = _sealed(disk, os.path.join(directory, layout.segment_name(first)), shard, cluster, first, stop)
        if data is None:
            continue  # deleted meanwhile: the node did not wait
        archive.write(describe(data, shard, cluster, first, layout.segment_name(first)), data)
        done = stop
    return done


def _archive_mirror(disk: Disk, directory: str, shard: int, cluster: int, archive: Archive, piece_bytes: int) -> int:
    while True:
        known = archive.firsts(shard)
        last = archive.manifest(shard, known[-1]) if known else None
        if last is not None:
            _check_cluster(last, cluster, archive)
        done = last.last + 1 if last is not None else 0
        data = _piece(disk, directory, shard, cluster, done, piece_bytes)
        if data is None:
            return done
        first = parse_header(data[:HEADER_BYTES])
        if last is not None and first.number == done and first.previous_digest.hex() != last.last_digest:
            raise LogCorrupt(
                f"{archive.store.address(last.name)} has other frames than the log. Move the archive away, or "
                "use another URL."
            )
        archive.write_new(describe(data, shard, cluster, first.number, directory), data)


def _piece(disk: Disk, directory: str, shard: int, cluster: int, start: int, piece_bytes: int) -> bytes | None:
    """Frames from `start` on (from the first one, if that is gone) with `piece_bytes` in total; None if that many are
    not sealed yet, or the mirror is being dropped or rebuilt.
    """
    parts: list[bytes] = []
    size = 0
    for first, stop in pairwise(layout.segments(disk, directory)):
        if stop <= start:
            continue
        frames = _sealed_frames(disk, os.path.join(directory, layout.segment_name(first)), shard, cluster, first, stop)
        if frames is None:
            return None
        for frame in frames:
            if frame.number < start:
                continue
            parts += (frame.header, frame.rows, frame.variable)
            size += frame.size
            if size >= piece_bytes:
                return b"".join(parts)
    return None


def _check_cluster(manifest: Manifest, cluster: int, archive: Archive) -> None:
    if manifest.cluster != f"{cluster:016x}":
        raise LogCorrupt(
            f"{archive.store.url} is the archive of cluster {manifest.cluster}, but this is cluster "
            f"{cluster:016x}. Use a separate archive per cluster."
        )


def _is_there(archive: Archive, shard: int, first: int, stop: int, last_digest: bytes | None) -> bool:
    manifest = archive.manifest(shard, first)
    if manifest.last < stop - 1:
        return False  # it was sealed, reopened after a crash, and has grown since
    if manifest.last > stop - 1 or (last_digest is not None and manifest.last_digest != last_digest.hex()):
        raise LogCorrupt(
            f"{archive.store.address(manifest.name)} has other frames than the log, which may have been "
            "repaired. Move the archive away, or use another URL."
        )
    return True


def _digest_before(disk: Disk, directory: str, first: int) -> bytes | None:
    """The digest in the first frame of a segment: that of the frame before it. None: not written yet."""
    try:
        handle = disk.open(os.path.join(directory, layout.segment_name(first)))
    except FileNotFoundError:
        return None
    try:
        header = parse_header(disk.pread(handle, HEADER_BYTES, 0))
    except LogCorrupt:
        return None
    finally:
        disk.close(handle)
    return header.previous_digest if header.number == first else None


def _sealed(disk: Disk, path: str, shard: int, cluster: int, first: int, stop: int) -> bytes | None:
    """The frames of a sealed segment, without the unused rest of its file. None: it no longer exists."""
    frames = _sealed_frames(disk, path, shard, cluster, first, stop)
    if frames is None:
        return None
    return b"".join(part for frame in frames for part in (frame.header, frame.rows, frame.variable))


def _sealed_frames(disk: Disk, path: str, shard: int, cluster: int, first: int, stop: int) -> list[Frame] | None:
    try:
        size = disk.size(path)
        handle = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        chain = Chain(shard, cluster, first)
        frames = [frame for _, frame in read_frames(disk, handle, path, size, chain, 0, stop)]
        if chain.number != stop:
            raise LogCorrupt(f"{path}: frame {chain.number} is missing")
    except LogCorrupt:
        if not disk.exists(path):
            return None
        raise
    finally:
        disk.close(handle)
    return frames


def main(arguments: list[str]) -> int:
    os.nice(NICENESS)
    try:
        data_directory, shard, url, *size = arguments
        done = archive_shard(data_directory, int(shard), Archive.at(url), int(size[0]) if size else PIECE_BYTES)
    except (BatonError, OSError, ImportError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    sys.stdout.write(f"{done}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
