"""How far a history reaches, by something other than its events: a log whose end is cut off looks complete.

An end is the number of the last frame, by shard.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path


def of_ranges(ranges: Iterable[tuple[int, int, int]]) -> dict[int, int]:
    """What a node, a data directory or an archive says about itself: shard, first frame, next frame."""
    return {shard: following - 1 for shard, first, following in ranges if following > first}


def of_checkpoint(checkpoint: Path) -> dict[int, int]:
    """Up to where an ingest has loaded history: the end of its last committed batch. Empty if there is no batch."""
    commits = checkpoint / "commits"
    batches = [int(entry.name) for entry in commits.iterdir() if entry.name.isdigit()] if commits.is_dir() else []
    offsets = checkpoint / "offsets" / str(max(batches, default=-1))
    if not offsets.exists():
        return {}
    position = json.loads(offsets.read_text().splitlines()[-1])
    return {int(shard): following - 1 for shard, following in position.items()}
