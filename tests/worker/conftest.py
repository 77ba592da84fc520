"""A server process for all tests with real workers; each test purges what it leaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from batonq.client.blocking.baton import Baton
from tests.system.process import ServerProcess
from tests.worker.processes import Stage


@pytest.fixture(scope="session")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as server:
        yield server.url


@pytest.fixture
def baton(server_url: str) -> Iterator[Baton]:
    with Baton(server_url) as made:
        yield made
        for queue in list(made.queues()):
            made.queue(queue.name).delete()


@pytest.fixture
def stage(tmp_path: Path, server_url: str) -> Iterator[Stage]:
    with Stage(tmp_path, server_url) as made:
        yield made
