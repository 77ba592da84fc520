"""The answers about the whole server: its status, and its nodes and shards."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from batonq.api.rest.shapes import Answered

Level = Literal["ok", "warning", "critical"]


class VerdictProblem(Answered, kw_only=True):
    level: Level
    text: str
    queue: str | UnsetType = UNSET
    account: str | UnsetType = UNSET
    alarm: str | UnsetType = UNSET


class Verdict(Answered, kw_only=True):
    """Whether all is well, in one sentence for people."""

    level: Level
    sentence: str
    problems: list[VerdictProblem]


class StatusShard(Answered, kw_only=True):
    number: int
    state: str
    why: str
    epoch: int
    owner: str
    log_bytes: int
    room: str
    failures: int


class StatusNode(Answered, kw_only=True):
    name: str
    problem: str | UnsetType = UNSET


class Disk(Answered, kw_only=True):
    free_bytes: int
    total_bytes: int
    used_bytes: int


class Memory(Answered, kw_only=True):
    resident_bytes: int


class AlarmCounts(Answered, kw_only=True):
    active: int
    unacknowledged: int


class Status(Answered, kw_only=True):
    """The whole server at one moment."""

    version: str
    node: str
    profile: Literal["development", "secured"]
    read_only: bool
    started_at_ms: int
    at_ms: int
    verdict: Verdict
    queues: int
    visible: int
    in_flight: int
    delayed: int
    owed: int
    dead: int
    dead_letters: int
    bytes: int
    oldest_age_seconds: float
    oldest_visible_age_seconds: float
    sent_per_second: float
    received_per_second: float
    acked_per_second: float
    retried_per_second: float
    dead_lettered_per_second: float
    connections: int
    waiting_receives: int
    shards: list[StatusShard]
    nodes: list[StatusNode]
    disk: Disk
    memory: Memory
    cpu_seconds: float
    alarms: AlarmCounts
    oldest_queue: str | UnsetType = UNSET


class ClusterNode(Answered, kw_only=True):
    """A node of a cluster, or a process of a server with several."""

    name: str
    state: Literal["up", "draining", "silent"]
    version: str
    started_at_ms: int
    at_ms: int
    shards: int
    resident_bytes: int
    disk_free_bytes: int
    disk_total_bytes: int
    cpu_seconds: float
    url: str | UnsetType = UNSET
    clock_offset_ms: int | UnsetType = UNSET
    problem: str | UnsetType = UNSET


class ShardFollower(Answered, kw_only=True):
    node: str
    lag_frames: int


class ClusterShard(Answered, kw_only=True):
    number: int
    state: str
    owner: str
    epoch: int
    log_bytes: int
    room: str
    why: str
    followers: list[ShardFollower]
    since_at_ms: int | UnsetType = UNSET


class ShardMove(Answered, kw_only=True, rename={"at_ms": "atMs", "source": "from"}):
    """A change of a shard's owner."""

    at_ms: int
    shard: int
    to: str
    reason: str
    source: str | UnsetType = UNSET


class Cluster(Answered, kw_only=True):
    clustered: bool
    expected: int
    at_ms: int
    catalog_owner: str
    nodes: list[ClusterNode]
    shards: list[ClusterShard]
    moves: list[ShardMove]
