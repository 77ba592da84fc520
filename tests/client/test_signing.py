"""Signatures: the ones that botocore makes, and that the secured profile takes."""

from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path
from unittest import mock

import botocore.auth
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from batonq.client import connect
from batonq.client.signing import REGION, SERVICE, Signer
from batonq.errors import AccessDenied, InvalidInput
from tests.client.support import connected, run
from tests.support.server import TestServer

NOW = dt.datetime(2026, 3, 4, 5, 6, 7, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/queues",
        "/v1/queues/jobs/messages:batch",
        "/v1/queues?prefix=a%20b&cursor=x%2Fy&limit=3",
        "/v1/queues/a%2Fb/messages?after=0&limit=10",
    ],
)
@pytest.mark.parametrize(
    "others", [{}, {"Idempotency-Key": "a  b", "Baton-Dead-Letter": "true", "baton-reason": "x", "X-Amz-Meta": "y"}]
)
def test_the_signature_is_botocores(path: str, others: dict[str, str]) -> None:
    body = b"\x81\xa1a\x01"
    host = "queue.example:9324"
    sent = [*others.items(), ("Accept", "application/msgpack")]
    ours = dict(Signer("key", "secret", NOW.timestamp).headers("POST", host, path, body, sent))
    signed = {"Host": host, "X-Amz-Content-Sha256": ours["X-Amz-Content-Sha256"], **others}
    theirs = AWSRequest("POST", f"http://{host}{path}", data=body, headers=signed)
    # botocore signs with a clock of its own.
    with mock.patch.object(botocore.auth, "get_current_datetime", return_value=NOW.replace(tzinfo=None)):
        SigV4Auth(Credentials("key", "secret"), SERVICE, REGION).add_auth(theirs)
    assert theirs.headers["X-Amz-Date"] == ours["X-Amz-Date"]
    assert theirs.headers["Authorization"] == ours["Authorization"]


def test_a_signing_key_holds_for_a_day() -> None:
    times = iter((0.0, 1.0, 86_400.0))
    signer = Signer("key", "secret", lambda: next(times))
    first, second, third = (dict(signer.headers("GET", "h", "/", b"")) for _ in range(3))
    assert first["X-Amz-Date"] == "19700101T000000Z"
    assert "19700101/local" in second["Authorization"]
    assert "19700102/local" in third["Authorization"]


def test_the_secured_profile(form: str, tmp_path: Path) -> None:
    async def body() -> None:
        with TestServer(str(tmp_path), secure=True) as server:
            key, secret = "BATONKEY", "s3cr3t/+="
            account = server.broker.account
            change = server.node.catalog.change
            server.run(lambda: change(lambda catalog, now_ms: catalog.put_key(key, secret, account, now_ms)))
            async with connected(form, server.url, access_key=key, secret_key=secret) as baton:
                queue = await baton.create_queue("signed")
                await queue.send({"a": 1})
                assert [message.body for message in await queue.receive(wait=0)] == [{"a": 1}]
                assert [info.name async for info in baton.queues("sig")] == ["signed"]
            for wrong in ({"access_key": key, "secret_key": "wrong"}, {"access_key": "who", "secret_key": secret}, {}):
                async with connected(form, server.url, **wrong) as baton:
                    with pytest.raises(AccessDenied):
                        await baton.queue("signed").stats()

    run(body())


def test_one_key_alone_is_refused(form: str) -> None:
    with pytest.raises(InvalidInput, match="must be set together"):
        connected(form, "http://127.0.0.1:1", access_key="x")


def test_connect_reads_the_environment(monkeypatch: pytest.MonkeyPatch, server: TestServer, account: str) -> None:
    monkeypatch.setenv("BATON_URL", server.url)
    monkeypatch.setenv("BATON_ACCESS_KEY_ID", account)
    monkeypatch.setenv("BATON_SECRET_ACCESS_KEY", "any")

    async def body() -> None:
        async with connect() as baton:
            await baton.create_queue("by-environment")
            assert (await baton.queue("by-environment").info()).arn.split(":")[4] == account
            assert baton.url == server.url

    asyncio.run(body())
