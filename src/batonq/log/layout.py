"""Where everything lies: the names of a data directory's parts and of a log's files.

DATA/LOCK                                 who owns the directory (see ownership.py)
DATA/identity                             the cluster id
DATA/epoch                                the last ownership epoch given
DATA/catalog/, DATA/shard-0000/, …        one directory a log:
    segment-<first frame>.log             frames, pre-written with zeros
    index-<first frame>.idx               where the frames of a sealed segment begin; can be made again
    spare.log                             the next segment, kept in reserve
    committed                             the last frame known to be committed
    snapshots/snapshot-<frame>.bin        the state after that frame; can be made again
    torn-<frame>-<time ms>.bin            a write that a crash cut short, kept aside
    cut-<frame>-<time ms>…                what `baton log repair` cut off
"""

from __future__ import annotations

import os
import re

from batonq.log.disk import Disk

CATALOG_SHARD = 0xFFFF
LOCK = "LOCK"
IDENTITY = "identity"
EPOCH = "epoch"
SPARE = "spare.log"
SPARE_UNFINISHED = "spare.tmp"
COMMITTED = "committed"
SNAPSHOTS = "snapshots"

_SEGMENT = re.compile(r"segment-([0-9]{20})\.log")
_INDEX = re.compile(r"index-([0-9]{20})\.idx")
_SNAPSHOT = re.compile(r"snapshot-([0-9]{20})\.bin")
_SHARD = re.compile(r"shard-([0-9]{4,5})")


def log_directory(data_directory: str, shard: int) -> str:
    """The directory of one shard's log, or of the catalog's."""
    return os.path.join(data_directory, "catalog" if shard == CATALOG_SHARD else f"shard-{shard:04}")


def log_directories(disk: Disk, data_directory: str) -> dict[int, str]:
    """The logs in a data directory, by shard: shards in order, the catalog last."""
    found = {}
    for name in disk.listdir(data_directory):
        match = _SHARD.fullmatch(name)
        if match:
            found[int(match[1])] = os.path.join(data_directory, name)
        elif name == "catalog":
            found[CATALOG_SHARD] = os.path.join(data_directory, name)
    return dict(sorted(found.items()))


def segment_name(first: int) -> str:
    return f"segment-{first:020}.log"


def index_name(first: int) -> str:
    return f"index-{first:020}.idx"


def snapshot_name(frame_number: int) -> str:
    return f"snapshot-{frame_number:020}.bin"


def segments(disk: Disk, directory: str) -> list[int]:
    """The first frame numbers of the segments in a log's directory, in order."""
    return _numbers(_SEGMENT, disk.listdir(directory))


def indexes(disk: Disk, directory: str) -> list[int]:
    return _numbers(_INDEX, disk.listdir(directory))


def snapshots(disk: Disk, directory: str) -> list[int]:
    return _numbers(_SNAPSHOT, disk.listdir(directory))


def _numbers(pattern: re.Pattern[str], names: list[str]) -> list[int]:
    return sorted(int(match[1]) for match in map(pattern.fullmatch, names) if match)
