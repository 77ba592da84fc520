from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from batonq.log.jetstream.address import NatsAddress
from batonq.log.postgres.address import PostgresAddress
from tests.support.nats import NatsServers, nats_servers
from tests.support.postgres import PostgresServer, running_postgres

pytest.register_assert_rewrite("tests.log.conformance", "tests.log.fencing", "tests.log.leasing", "tests.support.logs")

_numbers = count(1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """As an operator would have it: synced."""
    with running_postgres("max_connections = 100\n") as server:
        yield server


@pytest.fixture
def postgres_address(postgres: PostgresServer) -> PostgresAddress:
    """A schema of its own for one test; the server is thrown away with all of them."""
    return PostgresAddress(postgres.address, schema=f"test_{next(_numbers)}")


@pytest.fixture(scope="session")
def nats() -> Iterator[NatsServers]:
    """One server, which keeps everything once."""
    with nats_servers(1) as servers:
        yield servers


@pytest.fixture
def nats_address(nats: NatsServers) -> NatsAddress:
    """Streams of their own for one test."""
    return NatsAddress(nats.servers, name=f"test-{next(_numbers)}", replicas=1, monitors=nats.monitor_addresses)
