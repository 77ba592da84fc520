"""REST in the secured profile: a request counts when a key signed it, and acts for that key's account."""

from __future__ import annotations

import http.client
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from batonq.core.catalog.machine import Catalog
from tests.support.server import ACCOUNT, TestServer

KEY, SECRET = "BTNREST", "a-secret-of-rest"
OTHER = "123456789012"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    with TestServer(str(tmp_path_factory.mktemp("secured")), secure=True) as running:
        catalog = running.node.catalog

        async def make() -> None:
            await catalog.change(Catalog.put_key, KEY, SECRET, ACCOUNT)
            await catalog.change(Catalog.put_key, "BTNOTHER", SECRET, OTHER)

        running.run(make)
        yield running


def ask(
    server: TestServer,
    method: str,
    path: str,
    value: Any = None,
    *,
    key: str = KEY,
    secret: str = SECRET,
    service: str = "sqs",
    region: str = "us-east-1",
    after: Any = None,
) -> tuple[int, Any]:
    """Sign as botocore does, and send; `after` changes the request when it is signed."""
    body = b"" if value is None else json.dumps(value).encode()
    request = AWSRequest(method, server.url + path, {"Content-Type": "application/json"}, body)
    SigV4Auth(Credentials(key, secret), service, region).add_auth(request)
    headers = dict(request.headers.items())
    if after is not None:
        body, headers = after(body, headers)
    connection = http.client.HTTPConnection("127.0.0.1", server.http.port, timeout=30)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        text = response.read()
        return response.status, json.loads(text) if text else None
    finally:
        connection.close()


@pytest.mark.parametrize(("service", "region"), [("sqs", "us-east-1"), ("baton", "anywhere-7")])
def test_signed_requests_are_taken(secured: TestServer, service: str, region: str) -> None:
    def good(method: str, path: str, value: Any = None) -> Any:
        status, answer = ask(secured, method, path, value, service=service, region=region)
        assert status < 300, answer
        return answer

    good("POST", "/v1/queues", {"name": "orders"})
    good("POST", "/v1/queues/orders/messages", {"body": {"ü": 1}})
    (message,) = good("POST", "/v1/queues/orders/messages:receive", {})["messages"]
    good("POST", f"/v1/queues/orders/messages/{message['receiptHandle']}:ack")
    assert good("GET", "/v1/queues?prefix=o&limit=5")["queues"][0]["name"] == "orders"
    good("PATCH", "/v1/queues/orders", {"slaSeconds": 5})


@pytest.mark.parametrize(
    ("method", "path", "value"),
    [
        ("POST", "/v1/queues", {"name": "curled"}),
        ("POST", "/v1/queues/curled/messages:batch", {"messages": [{"body": 1}]}),
        ("GET", "/v1/queues?prefix=curled&limit=3", None),
    ],
)
def test_what_curl_signs(secured: TestServer, method: str, path: str, value: Any) -> None:
    """Some of its versions leave paths and queries as they are, and do not sort the latter."""
    command = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-X", method, secured.url + path]
    command += ["--aws-sigv4", "aws:amz:us-east-1:baton", "--user", f"{KEY}:{SECRET}"]
    if value is not None:
        command += ["-H", "Content-Type: application/json", "-d", json.dumps(value)]
    if path.endswith(":batch"):
        command += ["-H", "Idempotency-Key: named-1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout in ("200", "201", "202")


@pytest.mark.parametrize("path", ["/v1/queues/other?prefix=a", "/v1/queues?prefix=b", "/v1/queues?limit=1&prefix=a"])
def test_no_part_of_the_address_can_be_changed(secured: TestServer, path: str) -> None:
    request = AWSRequest("GET", f"{secured.url}/v1/queues?prefix=a")
    SigV4Auth(Credentials(KEY, SECRET), "sqs", "us-east-1").add_auth(request)
    connection = http.client.HTTPConnection("127.0.0.1", secured.http.port, timeout=30)
    connection.request("GET", path, headers=dict(request.headers.items()))
    assert connection.getresponse().status == 403
    connection.close()


def test_a_request_is_named_by_its_signer(secured: TestServer) -> None:
    """Whoever could take a name away, or put another one in, could have the messages sent again."""
    ask(secured, "POST", "/v1/queues", {"name": "named"})

    def with_key(body: bytes, headers: dict[str, str]) -> tuple[bytes, dict[str, str]]:
        return body, {**headers, "Idempotency-Key": "k"}

    status, answer = ask(secured, "POST", "/v1/queues/named/messages", {"body": 1}, after=with_key)
    assert (status, answer["code"]) == (403, "access_denied") and "'idempotency-key'" in answer["detail"]

    def through_proxies(body: bytes, headers: dict[str, str]) -> tuple[bytes, dict[str, str]]:
        added = {"X-Forwarded-For": "10.0.0.1", "X-Amzn-Trace-Id": "Root=1-0-0", "Via": "1.1 proxy"}
        return body, {**headers, **added, "X-Amz-Cf-Id": "of CloudFront"}

    assert ask(secured, "POST", "/v1/queues/named/messages", {"body": 1}, after=through_proxies)[0] == 202
    assert ask(secured, "GET", "/v1/queues/named/stats")[1]["sent"] == 1


def test_the_account_is_the_keys(secured: TestServer) -> None:
    ask(secured, "POST", "/v1/queues", {"name": "mine"})
    status, answer = ask(secured, "GET", "/v1/queues/mine", key="BTNOTHER")
    assert (status, answer["code"]) == (404, "queue_does_not_exist")


def unsigned(body: bytes, headers: dict[str, str]) -> tuple[bytes, dict[str, str]]:
    return body, {"Content-Type": "application/json"}


def changed(body: bytes, headers: dict[str, str]) -> tuple[bytes, dict[str, str]]:
    return body.replace(b"orders", b"orderz"), headers


@pytest.mark.parametrize(
    "more",
    [{"after": unsigned}, {"after": changed}, {"secret": "wrong"}, {"key": "BTNNOBODY"}],
    ids=["unsigned", "changed", "wrong secret", "unknown key"],
)
def test_anything_else_is_refused(secured: TestServer, more: dict[str, Any]) -> None:
    status, answer = ask(secured, "POST", "/v1/queues", {"name": "orders"}, **more)
    assert (status, answer["code"]) == (403, "access_denied")


def test_the_document_is_for_everybody(secured: TestServer) -> None:
    status, answer = ask(secured, "GET", "/v1/openapi.json", after=unsigned)
    assert status == 200 and answer["openapi"].startswith("3.1")


def test_series_and_figures_are_those_of_the_account(secured: TestServer) -> None:
    assert ask(secured, "POST", "/v1/queues", {"name": "seen"})[0] in (200, 201)
    status, answer = ask(secured, "GET", "/v1/queues:stats?search=seen")
    assert status == 200 and [queue["name"] for queue in answer["queues"]] == ["seen"]
    assert ask(secured, "GET", "/v1/queues/seen/series")[0] == 200
    assert ask(secured, "GET", "/v1/series")[0] == 200
    status, answer = ask(secured, "GET", "/v1/queues:stats", key="BTNOTHER")
    assert (status, answer["total"]) == (200, 0), "another account's queues are not counted"
    assert ask(secured, "GET", "/v1/queues/seen/series", key="BTNOTHER")[0] == 404
    status, answer = ask(secured, "GET", "/v1/series", key="BTNOTHER")
    assert status == 403 and "whole server" in answer["detail"]
