"""Every kind of store, on real servers, one of each for the session."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from batonq.idempotency import MemoryStore, PostgresStore, RedisStore, SqliteStore, Store
from tests.support.postgres import fresh_database, postgres_server
from tests.support.redis import redis_server

KINDS = ("memory", "sqlite", "postgres", "redis")
SHARED_KINDS = KINDS[1:]  # those that several processes can use


@pytest.fixture(scope="session")
def postgres_address() -> Iterator[str]:
    with postgres_server() as address:
        yield address


@pytest.fixture(scope="session")
def redis_address() -> Iterator[str]:
    with redis_server() as address:
        yield address


@pytest.fixture
def database(postgres_address: str) -> Iterator[str]:
    with fresh_database(postgres_address) as address:
        yield address


@pytest.fixture
def address_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Where a store of a kind lives; servers are started when they are asked for."""

    def address(kind: str) -> str:
        if kind == "postgres":
            return str(request.getfixturevalue("database"))
        return str(request.getfixturevalue("redis_address")) if kind == "redis" else str(tmp_path / "claims.db")

    return address


def open_store(kind: str, address: str, name: str) -> Store:
    """`name` keeps tests apart that share one Redis."""
    match kind:
        case "memory":
            return MemoryStore()
        case "sqlite":
            return SqliteStore(address)
        case "postgres":
            return PostgresStore(address)
    return RedisStore(address, prefix=f"{name}:")


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, address_of: Callable[[str], str]) -> Iterator[Store]:
    kind: str = request.param
    with closing(open_store(kind, "" if kind == "memory" else address_of(kind), request.node.name)) as opened:
        yield opened


def connection_to(kind: str, address: str) -> Any:
    return psycopg.connect(address) if kind == "postgres" else sqlite3.connect(address, timeout=300)


@pytest.fixture
def connect_to() -> Callable[[str, str], Any]:
    return connection_to


@pytest.fixture(params=["sqlite", "postgres"])
def connect(request: pytest.FixtureRequest, address_of: Callable[[str], str]) -> Callable[[], Any]:
    """Makes connections of the user's own, to one database."""
    address = address_of(request.param)
    return lambda: connection_to(request.param, address)
