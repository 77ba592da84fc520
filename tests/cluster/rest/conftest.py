"""The fixtures of the REST tests, over a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.server import ClusterServer
from tests.rest.conftest import account, held_clock, packed, rest, sqs
from tests.support.patience import patient_nodes

__all__ = ["account", "held_clock", "packed", "rest", "server", "sqs"]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterServer]:
    # One shard, because these tests count on moves that are done when the request is.
    cluster = ClusterServer(str(tmp_path_factory.mktemp("cluster")), shards=1)
    with patient_nodes(), cluster:
        yield cluster
