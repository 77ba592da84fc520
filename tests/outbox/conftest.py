"""One PostgreSQL and one Baton for the session."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from batonq.sync import Baton
from tests.support.postgres import fresh_database, postgres_server
from tests.system.process import ServerProcess

_numbers = count(1)


@pytest.fixture(scope="session")
def postgres_address() -> Iterator[str]:
    with postgres_server() as address:
        yield address


@pytest.fixture
def database(postgres_address: str) -> Iterator[str]:
    with fresh_database(postgres_address) as address:
        yield address


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("baton")) as process:
        yield process


@pytest.fixture
def baton(server: ServerProcess) -> Iterator[Baton]:
    with Baton(server.url) as client:
        yield client


@pytest.fixture
def name() -> str:
    """Of a queue that no other test uses."""
    return f"q-{next(_numbers)}"


@pytest.fixture
def sqlite_path(tmp_path: Path) -> str:
    return str(tmp_path / "shop.db")
