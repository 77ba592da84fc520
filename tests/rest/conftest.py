"""One server for all tests of REST; each test has an account of its own, so none sees another's queues."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.api.conftest import client, held_clock
from tests.rest.support import Rest
from tests.support.server import TestServer

__all__ = ["account", "held_clock", "packed", "rest", "server", "sqs"]
_accounts = count(300_000_000_001)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    with TestServer(str(tmp_path_factory.mktemp("rest"))) as running:
        yield running


@pytest.fixture
def account() -> str:
    return str(next(_accounts))


@pytest.fixture
def rest(server: TestServer, account: str) -> Iterator[Rest]:
    made = Rest(server, account)
    yield made
    made.close()


@pytest.fixture
def packed(server: TestServer, account: str) -> Iterator[Rest]:
    """The same account in MessagePack."""
    made = Rest(server, account, packed=True)
    yield made
    made.close()


@pytest.fixture
def sqs(server: TestServer, account: str) -> Iterator[Any]:
    """The same account as an SQS client sees it."""
    made = client("sqs", server.url, account)
    yield made
    made.close()
