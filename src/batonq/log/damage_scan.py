"""Reads a log past damage, for the repair tools. It changes nothing and does not stop at damage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from batonq.log import layout
from batonq.log.disk import Disk
from batonq.log.frames import Frame
from batonq.log.reading import Chain, Damage, find_later_frame, read_frames


class Place(NamedTuple):
    """A valid frame and its location."""

    path: str
    offset: int
    frame: Frame


def walk(
    disk: Disk, directory: str, *, shard: int, cluster: int | None = None, start: int = 1, stop: int | None = None
) -> Iterator[Place | Damage]:
    """Every valid frame from the segment that contains `start` up to `stop` (exclusive), and every damage between them.

    After damage it continues with the next frame that can be found. The end of the log is not checked: an unreadable
    end, which may be a torn write, is a Damage like any other.
    """
    firsts = layout.segments(disk, directory)
    if not firsts:
        return
    begin = max(sum(first <= start for first in firsts) - 1, 0)
    chain = Chain(shard, cluster, firsts[begin])
    for first, following in zip(firsts[begin:], [*firsts[begin + 1 :], None], strict=True):
        if stop is not None and first >= stop:
            return
        if first != chain.number:
            _take_up(chain, first)
        end = following if stop is None or (following is not None and following <= stop) else stop
        yield from _walk_segment(disk, os.path.join(directory, layout.segment_name(first)), chain, end)


def _walk_segment(disk: Disk, path: str, chain: Chain, stop: int | None) -> Iterator[Place | Damage]:
    size = disk.size(path)
    handle = disk.open(path)
    offset: int | None = 0
    try:
        while offset is not None:
            end = offset
            damage = None
            try:
                for at, frame in read_frames(disk, handle, path, size, chain, offset, stop):
                    end = at + frame.size
                    yield Place(path, at, frame)
            except Damage as found:
                damage = found
            if damage is None and stop is not None and chain.number != stop:
                damage = Damage(path, end, chain.number, f"frame {chain.number} is missing", readable=True)
            if damage is None:
                return
            yield damage
            later = find_later_frame(disk, handle, size, chain, end + 1)
            offset = None
            if later is not None:
                offset, number = later
                _take_up(chain, number)
    finally:
        disk.close(handle)


def _take_up(chain: Chain, number: int) -> None:
    """Continue at a frame after damage: its predecessor is unknown."""
    chain.number = number
    chain.digest = None
    chain.epoch = 0
