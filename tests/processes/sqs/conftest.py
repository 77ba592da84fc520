"""The fixtures of the SQS tests, over two processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.conftest import account, fifo, held_clock, queue, sqs
from tests.processes.server import ProcessesServer
from tests.support.patience import patient_nodes

__all__ = ["account", "fifo", "held_clock", "queue", "server", "sqs"]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessesServer]:
    processes = ProcessesServer(str(tmp_path_factory.mktemp("processes")))
    with patient_nodes(), processes:
        yield processes
