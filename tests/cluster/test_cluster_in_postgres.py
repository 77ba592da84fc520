"""A cluster of real nodes whose logs and leases are in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.processes import Cluster
from tests.cluster.test_cluster import Load, create, shard_of
from tests.support.postgres import PostgresServer, running_postgres


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with running_postgres("max_connections = 100\n") as server:
        yield server


def test_an_owner_is_moved_and_killed_under_load(postgres: PostgresServer, tmp_path: Path) -> None:
    joint = "&" if "?" in postgres.address else "?"
    log = f"{postgres.address}{joint}schema=cluster"
    with Cluster(tmp_path, log, "--shards", "2", "--hold-s", "3600", nodes=2) as cluster:
        create(cluster, "work", VisibilityTimeout="4")
        shard = shard_of(cluster, "work")
        with Load(cluster, "work") as load:
            owner = cluster.owner(shard)
            target = next(node for node in cluster.nodes if node is not owner)
            load.wait_sent()
            owner.ask("move", [shard, target.name])
            load.wait_sent()
            target.kill()
            load.wait_sent()
        load.check()
