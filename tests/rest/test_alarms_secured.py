"""Who may see and acknowledge alarms on a secured server: keys of the server's own account, and the admin token."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from typing import Any

import pytest

from batonq.core.catalog.machine import Catalog
from tests.rest.test_secured import KEY, OTHER, SECRET, ask
from tests.support.server import ACCOUNT, TestServer

READS = ("/v1/status", "/v1/cluster", "/v1/alarms", "/v1/alarms?history=true")
ACKNOWLEDGE = "/v1/alarms/lease-store:acknowledge"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    with TestServer(str(tmp_path_factory.mktemp("secured-alarms")), secure=True) as running:
        catalog = running.node.catalog

        async def make() -> None:
            await catalog.change(Catalog.put_key, KEY, SECRET, ACCOUNT, role="admin")
            await catalog.change(Catalog.put_key, "BTNREAD", SECRET, ACCOUNT, role="read")
            await catalog.change(Catalog.put_key, "BTNWRITE", SECRET, ACCOUNT)
            await catalog.change(Catalog.put_key, "BTNOTHER", SECRET, OTHER, role="admin")

        running.run(make)
        yield running


def bare(server: TestServer, method: str, path: str, authorization: str = "") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.http.port, timeout=30)
    try:
        connection.request(method, path, headers={"Authorization": authorization} if authorization else {})
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("path", READS)
def test_reading_needs_a_key_of_the_servers_account_or_the_token(secured: TestServer, path: str) -> None:
    for key in (KEY, "BTNREAD", "BTNWRITE"):
        status, answer = ask(secured, "GET", path, key=key)
        assert status == 200, answer
    assert ask(secured, "GET", path, key="BTNOTHER")[0] == 403
    assert ask(secured, "GET", path, secret="wrong")[0] == 403
    assert bare(secured, "GET", path) == 403
    assert bare(secured, "GET", path, "Bearer wrong") == 403
    assert bare(secured, "GET", path, f"Bearer {secured.broker.admin_token}") == 200


@pytest.mark.parametrize("path", [ACKNOWLEDGE, "/v1/alarms:test"])
def test_changes_need_an_admin(secured: TestServer, path: str) -> None:
    for key in ("BTNREAD", "BTNWRITE", "BTNOTHER"):
        assert ask(secured, "POST", path, {} if path == ACKNOWLEDGE else None, key=key)[0] == 403
    assert bare(secured, "POST", path) == 403


def test_an_acknowledgement_names_the_key(secured: TestServer) -> None:
    secured.node.alarms.put("lease-store", "An alarm to acknowledge.")
    status, answer = ask(secured, "POST", ACKNOWLEDGE, {"note": "on it"})
    acknowledged: dict[str, Any] = answer
    assert status == 200 and (acknowledged["acknowledgedBy"], acknowledged["note"]) == (KEY, "on it")
    assert ask(secured, "GET", "/v1/status")[1]["profile"] == "secured"
