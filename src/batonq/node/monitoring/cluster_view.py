"""The nodes of a server and the owners of its shards, as its nodes tell: for any server, also one that runs alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from batonq.node.alarms.desk import OwnershipFacts
from batonq.node.alarms.rules import MOVES_MS
from batonq.node.cluster.moves import Move, joined
from batonq.node.monitoring.everywhere import Part
from batonq.node.monitoring.overview import NodeReading, Overview, ShardReading

UP = "up"
DRAINING = "draining"
SILENT = "silent"
FOLLOWING = "following"


class Position(NamedTuple):
    """How far a node has read a shard's log."""

    state: str
    next_frame: int


class Told(msgspec.Struct):
    """What one node tells of itself."""

    url: str = ""
    draining: bool = False
    positions: dict[int, Position] = {}
    moves: list[Move] = []
    clock_offsets_ms: dict[str, int] = {}  # of the other nodes' clocks to its own
    catalog_owner: str = ""
    gone: list[str] = []  # nodes that left in the last hour without being drained


class Follower(NamedTuple):
    node: str
    lag_frames: int


class ClusterShard(NamedTuple):
    reading: ShardReading
    since_ms: int  # when its owner took it; 0: unknown
    followers: list[Follower]


class ClusterNode(NamedTuple):
    reading: NodeReading
    state: str
    url: str
    shards: int  # that it owns
    clock_offset_ms: int | None


class ClusterView(NamedTuple):
    clustered: bool
    nodes: list[ClusterNode]
    shards: list[ClusterShard]
    moves: list[Move]  # newest first
    catalog_owner: str
    expected: int  # nodes: those that are there, and those that are missing


DECODER = msgspec.msgpack.Decoder(Told)


def cluster_view(clustered: bool, overview: Overview, parts: Sequence[Part]) -> ClusterView:
    """`parts` are what the nodes told, this node's first."""
    told: dict[str, Told] = {part.node: part.value for part in parts if part.value is not None}
    mine = parts[0].value if parts and parts[0].value is not None else Told()
    moves = joined([each.moves for each in told.values()])
    since = {move.shard: move.at_ms for move in reversed(moves)}
    nodes = [
        ClusterNode(
            node,
            SILENT if node.problem else DRAINING if told.get(node.name, Told()).draining else UP,
            told.get(node.name, Told()).url,
            sum(shard.owner == node.name for shard in overview.shards),
            mine.clock_offsets_ms.get(node.name),
        )
        for node in overview.nodes
    ]
    shards = [
        ClusterShard(shard, since.get(shard.number, 0), _followers(shard, told) if clustered else [])
        for shard in overview.shards
    ]
    missing = {*mine.gone} - {node.name for node in overview.nodes}
    return ClusterView(clustered, nodes, shards, moves, mine.catalog_owner, len(nodes) + len(missing))


def ownership_facts(view: ClusterView, now_ms: int, gone_ms: dict[str, int]) -> OwnershipFacts:
    """What the alarms' rules need."""
    moves: dict[int, int] = {}
    for move in view.moves:
        if move.at_ms > now_ms - MOVES_MS:
            moves[move.shard] = moves.get(move.shard, 0) + 1
    lag: dict[str, dict[int, int]] = {}
    for shard in view.shards:
        for follower in shard.followers:
            lag.setdefault(follower.node, {})[shard.reading.number] = follower.lag_frames
    return OwnershipFacts(moves, lag, gone_ms)


def _followers(shard: ShardReading, told: dict[str, Told]) -> list[Follower]:
    """The nodes that follow a shard. The positions are not of exactly the same time."""
    owner = told.get(shard.owner)
    end = owner.positions.get(shard.number) if owner is not None else None
    if end is None:
        return []
    return [
        Follower(name, max(0, end.next_frame - position.next_frame))
        for name, each in sorted(told.items())
        if name != shard.owner and (position := each.positions.get(shard.number)) is not None
    ]
