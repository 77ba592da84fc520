"""A PostgreSQL for the tests of the upload service; the runs of whole examples start their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.transcode.database import Database
from tests.support.postgres import fresh_database, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    with postgres_server() as address:
        yield address


@pytest.fixture
def database(postgres: str) -> Iterator[Database]:
    with fresh_database(postgres) as dsn:
        made = Database(dsn)
        made.create()
        with made.transaction() as connection:
            connection.execute("INSERT INTO users VALUES ('u-1', 'paid'), ('u-2', 'free')")
        yield made
        made.close()
