"""Makes a snapshot of a shard in its own process: `python -m batonq.node.shard_host.snapshot_process DATA SHARD`.

The process replays what is known to be committed on top of the newest snapshot. It never touches the files that the
serving process writes, and the serving process deletes no segment while this process runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import pairwise

from batonq.core.shard.machine import Shard
from batonq.errors import BatonError, LogCorrupt
from batonq.log import committed, layout
from batonq.log.disk import Disk, RealDisk
from batonq.log.frames import Frame
from batonq.log.reading import Chain, read_frames
from batonq.node.shard_host.recovery import LogReplay, snapshot_store

NICENESS = 10
NOTHING_NEW = 3


def make_snapshot(data_directory: str, shard_number: int, disk: Disk | None = None) -> int | None:
    """Write a snapshot of all that is known to be committed. Returns its frame, or None when there is nothing new."""
    disk = disk or RealDisk()
    directory = layout.log_directory(data_directory, shard_number)
    firsts = layout.segments(disk, directory)
    if not firsts:
        return None
    stop = _committed_stop(disk, directory, shard_number, firsts[-1])
    store = snapshot_store(data_directory, shard_number, disk)
    snapshot = store.latest(before=stop)
    if snapshot is not None and snapshot.frame_number < firsts[0] - 1:
        snapshot = None  # the log begins after the snapshot
    first = firsts[0] if snapshot is None else snapshot.frame_number + 1
    if first >= stop:
        return None
    shard = Shard(shard_number)
    if snapshot is not None:
        shard.load(snapshot.sections)
    replay = LogReplay(shard, snapshot is not None)
    chain = Chain(shard_number, None, firsts[0])
    for segment_first, following in pairwise([*firsts, stop] if stop > firsts[-1] else firsts):
        if following <= first:
            chain = Chain(shard_number, chain.cluster, following)
            continue
        path = os.path.join(directory, layout.segment_name(segment_first))
        for frame in _frames(disk, path, chain, following):
            if snapshot is not None and frame.number == first and frame.previous_digest != snapshot.digest:
                raise LogCorrupt(
                    f"{path}: the snapshot of frame {first - 1} belongs to another log. Remove the snapshot."
                )
            if frame.number >= first:
                replay(frame)
    if shard.before_base:
        return None  # the Base that completes the state comes later in the log
    assert chain.digest is not None
    store.save(stop - 1, chain.digest, shard.save())
    return stop - 1


def _committed_stop(disk: Disk, directory: str, shard: int, last_segment: int) -> int:
    """The frame after the last one known to be committed: all sealed segments, and what the commit note says."""
    note = committed.load(disk, os.path.join(directory, layout.COMMITTED), shard)
    return last_segment if note is None else max(last_segment, note.number + 1)


def _frames(disk: Disk, path: str, chain: Chain, stop: int) -> Iterator[Frame]:
    """The frames of one segment up to `stop`, each checked."""
    handle = disk.open(path)
    try:
        for _, frame in read_frames(disk, handle, path, disk.size(path), chain, 0, stop):
            yield frame
    finally:
        disk.close(handle)
    if chain.number != stop:
        raise LogCorrupt(f"{path}: frame {chain.number} is missing")


def main(arguments: list[str]) -> int:
    os.nice(NICENESS)
    try:
        frame_number = make_snapshot(arguments[0], int(arguments[1]))
    except (BatonError, OSError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    return NOTHING_NEW if frame_number is None else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
