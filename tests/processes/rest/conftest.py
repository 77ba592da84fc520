"""The fixtures of the REST tests, over two processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.processes.server import ProcessesServer
from tests.rest.conftest import account, held_clock, packed, rest, sqs
from tests.support.patience import patient_nodes

__all__ = ["account", "held_clock", "packed", "rest", "server", "sqs"]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessesServer]:
    processes = ProcessesServer(str(tmp_path_factory.mktemp("processes")))
    with patient_nodes(), processes:
        yield processes
