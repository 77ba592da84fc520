"""Servers with a history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.rest.support import Rest
from tests.support.server import ACCOUNT, TestServer

SMALL = {"segment_bytes": 64 * 1024, "history_hours": 0.0, "history_bytes": 0}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    with TestServer(str(tmp_path_factory.mktemp("history")), shards=2) as running:
        yield running


@pytest.fixture
def rest(server: TestServer) -> Iterator[Rest]:
    made = Rest(server, ACCOUNT)
    yield made
    made.close()


def small(directory: Any, **settings: Any) -> TestServer:
    """One that forgets at once what no message needs, in small segments."""
    return TestServer(str(directory), **{**SMALL, **settings})
