"""Addresses of replicated logs."""

from __future__ import annotations

import pytest

from batonq.errors import InvalidInput
from batonq.log.jetstream import address as nats
from batonq.log.jetstream.address import NatsAddress
from batonq.log.postgres import address as postgres
from batonq.log.postgres.connection import conninfo_of


def test_a_postgres_address_keeps_what_libpq_reads() -> None:
    found = postgres.parse("postgres://me:secret@db:5433/queues?schema=two&sslmode=require&unsafe=yes")
    assert (found.schema, found.unsafe) == ("two", True)
    assert found.conninfo == "postgres://me:secret@db:5433/queues?sslmode=require"
    assert found.shown == "postgres://me@db:5433/queues"
    told = conninfo_of(found)
    assert "sslmode=require" in told and "search_path=two" in told and "synchronous_commit=on" in told


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("mysql://db/x", "must begin with postgres://"),
        ("postgres://db/x?schema=Two", "lower-case letters"),
        ("postgres://db/x?schema=", "lower-case letters"),
        ("postgres://db/x?schema=a;drop", "lower-case letters"),
        ("postgres://db/x?unsafe=maybe", "must be yes or no"),
    ],
)
def test_a_postgres_address_that_cannot_be_used(url: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        postgres.parse(url)


def test_a_nats_address() -> None:
    found = nats.parse(
        "nats://me:p%40ss@n0:4222,n1/orders?replicas=5&monitor=http://n0:8222/&monitor=http://n1:8222&max_bytes=1000"
    )
    assert found == NatsAddress(
        ("n0:4222", "n1:4222"),
        name="orders",
        user="me",
        password="p@ss",
        replicas=5,
        monitors=("http://n0:8222", "http://n1:8222"),
        max_bytes=1000,
    )
    assert found.shown == "nats://n0:4222,n1:4222/orders"
    assert nats.parse("tls://n0").tls and nats.parse("nats://n0").name == "baton"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://n0", "must begin with nats://"),
        ("nats:///name", "has no server"),
        ("nats://n0/Upper", "lower-case letters"),
        ("nats://n0?replicas=2", "one of 1, 3, 5"),
        ("nats://n0?max_bytes=0", "positive integer"),
        ("nats://n0?replica=3", "an unknown option 'replica'"),
    ],
)
def test_a_nats_address_that_cannot_be_used(url: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        nats.parse(url)
