"""How far ingests have loaded history into a table: positions that are stored with the table's commits."""

from __future__ import annotations

from batonq.pipeline.lake.delta import Snapshot


def position_name(cluster: str, what: int | str) -> str:
    """The name of a shard's position, or of another number of the ingest of a cluster."""
    return f"ingest/{cluster}/{what}"


def positions(snapshot: Snapshot, cluster: str) -> dict[int, int]:
    """The next frame of each shard."""
    shards = range(snapshot.position(position_name(cluster, "shards")) or 0)
    found = {shard: snapshot.position(position_name(cluster, shard)) for shard in shards}
    return {shard: frame for shard, frame in found.items() if frame is not None}
