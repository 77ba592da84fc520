"""A cluster of real nodes in PostgreSQL: failures, and who may join."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.processes import STEADY_LEASE_S, Cluster, NodeProcess
from tests.cluster.test_cluster import Load, create, shard_of
from tests.support.postgres import PostgresServer, running_postgres


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with running_postgres("max_connections = 100\n") as server:
        yield server


def log_in(postgres: PostgresServer, schema: str) -> str:
    return f"{postgres.address}{'&' if '?' in postgres.address else '?'}schema={schema}"


def test_an_owner_is_moved_and_killed_under_load(postgres: PostgresServer, tmp_path: Path) -> None:
    log = log_in(postgres, "cluster")
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


def test_who_may_join(postgres: PostgresServer, tmp_path: Path) -> None:
    log = log_in(postgres, "members")
    secret, other = tmp_path / "secret", tmp_path / "other"
    secret.write_text("0123456789abcdef0123456789abcdef\n")
    other.write_text("fedcba9876543210fedcba9876543210\n")
    flags = ("--cluster-secret-file", str(secret))
    with Cluster(tmp_path, log, *flags, "--shards", "1", nodes=1, lease_s=STEADY_LEASE_S) as cluster:
        (first,) = cluster.nodes
        for more, expected in (
            (("--cluster-secret-file", str(other)), "is not the secret of this cluster"),
            (("--node", "n0"), f"running as node n0, at {first.url}"),
        ):
            wrong = NodeProcess(1, tmp_path, log, *flags, *more)
            wrong.start()
            code, text = wrong.ended()
            assert code and expected in text, text
        assert first.readiness()[0] == 200


def test_the_clock_of_the_first_node_is_compared_with_the_databases(postgres: PostgresServer, tmp_path: Path) -> None:
    alone = NodeProcess(1, tmp_path, log_in(postgres, "clock"))
    alone.alter("import time; real = time.time; time.time = lambda: real() - 7200")
    alone.start()
    code, text = alone.ended()
    assert code == 1 and "2 h behind the clock of the log's server" in text, text
