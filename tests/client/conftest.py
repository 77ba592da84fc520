"""One server for all of the client's tests that need a real one; each test has an account of its own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.support.server import TestServer

_accounts = count(400_000_000_001)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    with TestServer(str(tmp_path_factory.mktemp("client"))) as running:
        yield running


@pytest.fixture
def account() -> str:
    return str(next(_accounts))


@pytest.fixture(params=["async", "sync"])
def form(request: pytest.FixtureRequest) -> str:
    """Which of the two clients a test is about."""
    form: str = request.param
    return form
