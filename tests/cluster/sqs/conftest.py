"""The fixtures of the SQS tests, over a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.conftest import account, fifo, held_clock, queue, sqs
from tests.cluster.server import ClusterServer
from tests.support.patience import patient_nodes

__all__ = ["account", "fifo", "held_clock", "queue", "server", "sqs"]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterServer]:
    cluster = ClusterServer(str(tmp_path_factory.mktemp("cluster")))
    with patient_nodes(), cluster:
        yield cluster
