"""The fixtures of the REST tests, over a cluster in which every standard queue lies on three shards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.server import ClusterServer
from tests.rest.conftest import account, held_clock, packed, rest, sqs
from tests.support.patience import patient_nodes

__all__ = ["account", "held_clock", "packed", "rest", "server", "sqs"]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterServer]:
    cluster = ClusterServer(str(tmp_path_factory.mktemp("cluster")), spread=3)
    with patient_nodes(), cluster:
        yield cluster
