"""How far a history reaches, by something other than its events: a log whose end is cut off looks complete.

An end is the number of the last frame, by shard.
"""

from __future__ import annotations

import json
from pathlib import Path

from batonq.pipeline.reading.history import History
from batonq.pipeline.spark.offsets import decode


def of_history(history: History) -> dict[int, int]:
    """What a node, a data directory or an archive says about itself."""
    return {span.shard: span.next - 1 for span in history.shards() if span.next > span.first}


def of_checkpoint(checkpoint: Path) -> dict[int, int]:
    """Up to where an ingest has loaded history: the end of its last committed batch. Empty if there is no batch."""
    commits = checkpoint / "commits"
    batches = [int(entry.name) for entry in commits.iterdir() if entry.name.isdigit()] if commits.is_dir() else []
    offsets = checkpoint / "offsets" / str(max(batches, default=-1))
    if not offsets.exists():
        return {}
    position = decode(json.loads(offsets.read_text().splitlines()[-1]))
    return {shard: following - 1 for shard, following in position.items()}
