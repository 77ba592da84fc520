"""Where a scenario runs: one node with its log on disk, or a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench import clusters
from bench.clusters import Cluster
from bench.servers import Servers


@dataclass(slots=True)
class Place:
    name: str
    ports: list[int]
    shards: int
    components_us: Callable[[], dict[str, float]]  # CPU time so far
    settle: Callable[[], None]  # wait until the followers have caught up
    discard: Callable[[], None]


def embedded(servers: Servers) -> Place:
    server = servers.baton()
    return Place(
        "embedded", [server.port], 1, lambda: {"node": server.cpu_us()}, settle=lambda: None, discard=server.discard
    )


def cluster(servers: Servers, shards: int) -> Place:
    return on(clusters.start(servers, shards))


def on(running: Cluster) -> Place:
    shards = running.shards
    name = f"cluster, {shards} shards" if shards > 1 else "cluster, 1 shard"
    return Place(name, running.ports, shards, running.components_us, running.settle, running.discard)
