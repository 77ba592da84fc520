"""Truncating a log at a frame, on purpose: the removed part is kept in files next to it.

The steps are in an order that a crash may interrupt anywhere: the log then still shows its damage, or is already
truncated, and the same repair can be run again.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field

from batonq.core.records import ROW_BYTES, Type
from batonq.errors import InvalidInput
from batonq.log import committed, layout
from batonq.log.damage_scan import walk
from batonq.log.disk import Disk, write_atomically
from batonq.log.frames import Frame
from batonq.log.reading import READ_BYTES, Chain, Damage, read_frames


@dataclass(slots=True)
class Cut:
    """The effect of truncating a log at `frame_number`: what stays before it, and what is lost."""

    directory: str
    shard: int
    frame_number: int
    first: int  # of the segment that is truncated
    offset: int  # in that segment
    later_segments: list[int]
    snapshots: list[int]
    frames_lost: int = 0  # readable ones
    records_lost: Counter[str] = field(default_factory=Counter)
    kept_in: list[str] = field(default_factory=list)


def plan_cut(disk: Disk, directory: str, *, shard: int, cluster: int | None, frame_number: int) -> Cut:
    """Determine the effect of removing `frame_number` and all later frames. Changes nothing. Raises InvalidInput,
    Damage.
    """
    firsts = layout.segments(disk, directory)
    if not firsts or frame_number < firsts[0]:
        begins = f"begins with frame {firsts[0]}" if firsts else "has no segments"
        raise InvalidInput(f"frame {frame_number} is not in the log in {directory}, which {begins}")
    first = max(number for number in firsts if number <= frame_number)
    chain = Chain(shard, cluster, first)
    offset = _offset_of(disk, directory, first, chain, frame_number)
    store = os.path.join(directory, layout.SNAPSHOTS)
    cut = Cut(
        directory,
        shard,
        frame_number,
        first,
        offset,
        [number for number in firsts if number > first],
        [number for number in _snapshots(disk, store) if number >= frame_number],
    )
    _count_losses(disk, cut, cluster)
    return cut


def _offset_of(disk: Disk, directory: str, first: int, chain: Chain, frame_number: int) -> int:
    """Where the frame begins, or would; everything before it in its segment must be valid."""
    path = os.path.join(directory, layout.segment_name(first))
    handle = disk.open(path)
    end = 0
    try:
        for at, frame in read_frames(disk, handle, path, disk.size(path), chain, 0, frame_number):
            end = at + frame.size
    finally:
        disk.close(handle)
    if chain.number != frame_number:
        raise InvalidInput(
            f"frame {frame_number} is not in the log in {directory}: the frames end with {chain.number - 1} "
            f"in {path}. To truncate there, use --truncate-at {chain.number}"
        )
    return end


def _count_losses(disk: Disk, cut: Cut, cluster: int | None) -> None:
    """Count the readable part of what is removed."""
    for found in walk(disk, cut.directory, shard=cut.shard, cluster=cluster, start=cut.frame_number):
        if not isinstance(found, Damage) and found.frame.number >= cut.frame_number:
            cut.frames_lost += 1
            _count_records(cut, found.frame)


def _count_records(cut: Cut, frame: Frame) -> None:
    for type_, count in Counter(frame.rows[::ROW_BYTES]).items():
        cut.records_lost[type_name(type_)] += count


def type_name(type_: int) -> str:
    try:
        return Type(type_).name
    except ValueError:
        return f"type {type_}"


def carry_out(disk: Disk, cut: Cut, now_ms: int) -> None:
    """Truncate the log. The removed part is in the files `cut.kept_in`."""
    names = disk.listdir(cut.directory)
    while any(name.startswith(f"cut-{cut.frame_number}-{now_ms}-") for name in names):
        now_ms += 1  # never overwrite the files of an earlier repair
    mark = f"cut-{cut.frame_number}-{now_ms}"
    path = os.path.join(cut.directory, layout.segment_name(cut.first))
    size = disk.size(path)
    kept = _read(disk, path, 0, size)
    _keep(disk, cut, f"{mark}-{layout.segment_name(cut.first)}", kept[cut.offset :])
    # The note would still refer to the removed frames; a blank one proves nothing until the log is opened.
    write_atomically(disk, os.path.join(cut.directory, layout.COMMITTED), (bytes(committed.NOTE_BYTES),))
    for number in cut.snapshots:
        directory = os.path.join(cut.directory, layout.SNAPSHOTS)
        disk.unlink(os.path.join(directory, layout.snapshot_name(number)))
        disk.fsync_directory(directory)
    for number in (cut.first, *cut.later_segments):
        index = os.path.join(cut.directory, layout.index_name(number))
        if disk.exists(index):
            disk.unlink(index)
    for number in reversed(cut.later_segments):  # the newest first, so that a gap is never left
        source = os.path.join(cut.directory, layout.segment_name(number))
        target = os.path.join(cut.directory, f"{mark}-{layout.segment_name(number)}")
        disk.rename(source, target)
        disk.fsync_directory(cut.directory)
        cut.kept_in.append(target)
    write_atomically(disk, path, (kept[: cut.offset], bytes(size - cut.offset)))


def _keep(disk: Disk, cut: Cut, name: str, content: bytes) -> None:
    path = os.path.join(cut.directory, name)
    write_atomically(disk, path, (content,))
    cut.kept_in.append(path)


def _read(disk: Disk, path: str, offset: int, length: int) -> bytes:
    handle = disk.open(path)
    try:
        parts = [disk.pread(handle, min(READ_BYTES, length - at), offset + at) for at in range(0, length, READ_BYTES)]
    finally:
        disk.close(handle)
    return b"".join(parts)


def _snapshots(disk: Disk, directory: str) -> list[int]:
    return layout.snapshots(disk, directory) if disk.exists(directory) else []
