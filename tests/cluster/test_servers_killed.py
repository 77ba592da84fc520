"""The servers that keep the logs of a cluster go and come back."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.processes import Cluster
from tests.cluster.test_cluster import Load, create, shard_of
from tests.support.nats import nats_servers


def test_the_leader_of_a_shard_s_stream_is_killed(tmp_path: Path) -> None:
    with nats_servers(3) as nats:
        log = f"{nats.address}/servers?{nats.monitoring}"
        with Cluster(tmp_path, log, "--shards", "2", "--hold-s", "3600", nodes=2) as cluster:
            create(cluster, "work", VisibilityTimeout="5")
            shard = shard_of(cluster, "work")
            with Load(cluster, "work") as load:
                load.wait_sent()
                leader = nats.leader(f"baton-servers-shard-{shard:04}")
                nats.kill(leader)
                load.wait_sent()
                nats.start(leader)
                nats.wait_until_ready(leader)
                load.wait_sent()
            load.check()
