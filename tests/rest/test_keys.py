"""Access keys through REST, what each role may do, and the admin token: on a secured server, and in development."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from batonq.api.rest.operations import OPERATIONS
from batonq.api.sqs.operations import table as sqs_table
from batonq.core.catalog.machine import Catalog
from tests.api.conftest import client
from tests.api.support import refused
from tests.rest.support import Rest
from tests.rest.test_secured import ask
from tests.support.server import ACCOUNT, TestServer

SECRET = "a-secret-of-rest"
OTHER = "123456789012"
# Requests that a test can send for each operation that changes nothing and has a path of its own.
READABLE = ("/v1/queues", "/v1/queues/roles", "/v1/queues/roles/stats", "/v1/queues/roles/messages", "/v1/caller")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    with TestServer(str(tmp_path_factory.mktemp("secured")), secure=True) as running:
        put = running.node.catalog.change

        async def make() -> None:
            await put(Catalog.put_key, "BTNADMIN", SECRET, ACCOUNT, name="operations", role="admin")
            await put(Catalog.put_key, "BTNWRITE", SECRET, ACCOUNT)
            await put(Catalog.put_key, "BTNREAD", SECRET, ACCOUNT, role="read")
            await put(Catalog.put_key, "BTNOTHER", SECRET, OTHER)

        running.run(make)
        yield running


def say(server: TestServer, key: str, method: str, path: str, value: Any = None) -> tuple[int, Any]:
    return ask(server, method, path, value, key=key, secret=SECRET)


def with_token(server: TestServer, token: str, method: str, path: str, value: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.http.port, timeout=30)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    try:
        connection.request(method, path, None if value is None else json.dumps(value), headers)
        response = connection.getresponse()
        text = response.read()
        return response.status, json.loads(text) if text else None
    finally:
        connection.close()


# --- roles ---------------------------------------------------------------------------------------


def test_a_key_that_may_only_read(secured: TestServer) -> None:
    say(secured, "BTNWRITE", "POST", "/v1/queues", {"name": "roles"})
    say(secured, "BTNWRITE", "POST", "/v1/queues/roles/messages", {"body": 1})
    for path in READABLE:
        assert say(secured, "BTNREAD", "GET", path)[0] == 200, path
    for method, path, value in (
        ("POST", "/v1/queues", {"name": "no"}),
        ("PATCH", "/v1/queues/roles", {"slaSeconds": 5}),
        ("DELETE", "/v1/queues/roles", None),
        ("POST", "/v1/queues/roles:purge", None),
        ("POST", "/v1/queues/roles/messages", {"body": 1}),
        ("POST", "/v1/queues/roles/messages:receive", {}),
        ("POST", "/v1/messages:receive", {"queues": ["roles"]}),
        ("POST", "/v1/queues/roles:redrive", {}),
    ):
        status, answer = say(secured, "BTNREAD", method, path, value)
        assert (status, answer["code"]) == (403, "access_denied"), path
        assert "BTNREAD has the role read" in answer["detail"]
    assert say(secured, "BTNREAD", "GET", "/v1/queues/roles/stats")[1]["visible"] == 1


def test_a_producer_cancels_and_changes_what_it_sent(secured: TestServer) -> None:
    """The role write is enough for one message by its id; a message that is held is left alone."""
    path = "/v1/queues/cancelled/messages"
    say(secured, "BTNWRITE", "POST", "/v1/queues", {"name": "cancelled"})
    ids = [say(secured, "BTNWRITE", "POST", path, {"body": 1, "delaySeconds": 3600})[1]["messageId"] for _ in range(2)]
    held = say(secured, "BTNWRITE", "POST", path, {"body": 2})[1]["messageId"]
    assert say(secured, "BTNWRITE", "POST", f"{path}:receive", {})[1]["messages"]
    assert say(secured, "BTNREAD", "DELETE", f"{path}/{ids[0]}")[0] == 403
    assert say(secured, "BTNWRITE", "DELETE", f"{path}/{ids[0]}")[0] == 204
    assert say(secured, "BTNWRITE", "DELETE", f"{path}/{ids[0]}")[1]["code"] == "message_not_found"
    assert say(secured, "BTNWRITE", "PATCH", f"{path}/{ids[1]}", {"body": 3})[1]["body"] == 3
    for method, value in (("DELETE", None), ("PATCH", {"body": 4})):
        status, answer = say(secured, "BTNWRITE", method, f"{path}/{held}", value)
        assert (status, answer["code"]) == (409, "message_held") and "holds the message" in answer["detail"]


def test_a_key_that_may_only_read_with_boto3(secured: TestServer) -> None:
    writer = client("sqs", secured.url, "BTNWRITE", SECRET)
    reader = client("sqs", secured.url, "BTNREAD", SECRET)
    url = writer.create_queue(QueueName="roles-sqs")["QueueUrl"]
    writer.send_message(QueueUrl=url, MessageBody="x")
    assert reader.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert url in reader.list_queues()["QueueUrls"] and reader.get_queue_url(QueueName="roles-sqs")["QueueUrl"] == url
    calls: list[Callable[[], Any]] = [
        lambda: reader.send_message(QueueUrl=url, MessageBody="x"),
        lambda: reader.receive_message(QueueUrl=url),
        lambda: reader.purge_queue(QueueUrl=url),
        lambda: reader.tag_queue(QueueUrl=url, Tags={"a": "b"}),
    ]
    for call in calls:
        with refused("AccessDenied", status=403):
            call()
    [message] = writer.receive_message(QueueUrl=url)["Messages"]
    with refused("AccessDenied", status=403):
        reader.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    reader.close()
    writer.close()


def test_what_changes_nothing_is_declared() -> None:
    """Whoever adds an operation decides: a GET of REST changes nothing, and these operations of SQS do not."""
    assert {operation.name for operation in OPERATIONS if operation.method == "GET" and operation.changes} == set()
    unchanging = {operation.name for operation in OPERATIONS if operation.method != "GET" and not operation.changes}
    assert unchanging == {"matchTopic", "previewSchedule"}
    unchanging = {name for name in sqs_table.OPERATIONS if name.startswith(("Get", "List"))}
    assert {name for name, row in sqs_table.OPERATIONS.items() if not row.changes} == unchanging == sqs_table.READS


def test_the_whole_server_is_for_operators(secured: TestServer) -> None:
    for path in ("/v1/keys", "/v1/history"):
        assert say(secured, "BTNREAD", "GET", path)[0] == 200
        assert say(secured, "BTNWRITE", "GET", path)[0] == 200
        status, answer = say(secured, "BTNOTHER", "GET", path)
        assert (status, answer["code"]) == (403, "access_denied") and ACCOUNT in answer["detail"]
    for key in ("BTNREAD", "BTNWRITE", "BTNOTHER"):
        assert say(secured, key, "POST", "/v1/keys", {})[0] == 403
        assert say(secured, key, "POST", "/v1/keys/BTNREAD:disable")[0] == 403
    assert "role write" in say(secured, "BTNWRITE", "POST", "/v1/keys", {})[1]["detail"]


# --- keys ----------------------------------------------------------------------------------------


def test_a_key_from_its_creation_to_its_end(secured: TestServer) -> None:
    status, made = say(
        secured, "BTNADMIN", "POST", "/v1/keys", {"name": "Zoë's laptop", "role": "read", "expiresInSeconds": 100}
    )
    assert status == 201 and made["name"] == "Zoë's laptop" and made["role"] == "read"
    assert made["expiresAtMs"] - made["createdAtMs"] == 100_000
    new, secret = made["keyId"], made.pop("secret")
    listed = say(secured, "BTNADMIN", "GET", "/v1/keys")[1]["keys"]
    assert made in listed and all("secret" not in key for key in listed)
    assert ask(secured, "GET", "/v1/caller", key=new, secret=secret) == (
        200,
        {"account": ACCOUNT, "key": new, "name": "Zoë's laptop", "role": "read", "operator": True},
    )
    assert say(secured, "BTNADMIN", "POST", f"/v1/keys/{new}:disable")[1]["disabled"] is True
    assert ask(secured, "GET", "/v1/queues", key=new, secret=secret)[0] == 403
    assert say(secured, "BTNADMIN", "POST", f"/v1/keys/{new}:enable")[1]["disabled"] is False
    assert ask(secured, "GET", "/v1/queues", key=new, secret=secret)[0] == 200

    async def later() -> None:
        secured.node.clock.advance(101_000)

    secured.run(later)
    status, answer = ask(secured, "GET", "/v1/queues", key=new, secret=secret)
    assert status == 403 and f"Access key {new} expired on 2" in answer["detail"]
    assert "expired" not in ask(secured, "GET", "/v1/queues", key=new, secret="wrong")[1]["detail"]
    sqs = client("sqs", secured.url, new, secret)
    with refused("InvalidClientTokenId", status=403):
        sqs.list_queues()
    sqs.close()
    assert {**made, "expired": True} in say(secured, "BTNADMIN", "GET", "/v1/keys")[1]["keys"]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"role": "owner"}, "role"),
        ({"name": "a\u0007b"}, "printable"),
        ({"name": "right\u202eleft"}, "printable"),
        ({"name": "x" * 65}, "name"),
        ({"expiresInSeconds": 0}, "expiresInSeconds"),
        ({"account": "12"}, "account"),
        ({"account": OTHER, "role": "admin"}, "only for keys of the server's own account"),
        ({"title": "x"}, "title"),
    ],
)
def test_keys_that_cannot_be_created(secured: TestServer, spec: dict[str, Any], said: str) -> None:
    before = say(secured, "BTNADMIN", "GET", "/v1/keys")[1]
    status, answer = say(secured, "BTNADMIN", "POST", "/v1/keys", spec)
    assert status == 400 and said in answer["detail"]
    assert say(secured, "BTNADMIN", "GET", "/v1/keys")[1] == before


def test_a_key_that_does_not_exist(secured: TestServer) -> None:
    status, answer = say(secured, "BTNADMIN", "POST", "/v1/keys/BATONNONE:disable")
    assert (status, answer["code"]) == (404, "not_found") and "'BATONNONE'" in answer["detail"]


def test_a_key_of_another_account(secured: TestServer) -> None:
    made = say(secured, "BTNADMIN", "POST", "/v1/keys", {"account": OTHER})[1]
    who = ask(secured, "GET", "/v1/caller", key=made["keyId"], secret=made["secret"])[1]
    assert (who["account"], who["role"], who["operator"]) == (OTHER, "write", False)


# --- the admin token -----------------------------------------------------------------------------


def test_the_admin_token_operates_the_server(secured: TestServer) -> None:
    token = secured.node.admin_token()
    who = {"account": ACCOUNT, "key": "", "name": "admin token", "role": "admin", "operator": True}
    assert with_token(secured, token, "GET", "/v1/caller") == (200, who)
    assert with_token(secured, token, "POST", "/v1/keys", {"name": "by token"})[0] == 201
    assert with_token(secured, token, "POST", "/v1/queues", {"name": "by-token"})[0] == 201
    assert say(secured, "BTNREAD", "GET", "/v1/queues/by-token")[0] == 200
    for wrong in ("", "x", token[:-1], token + "0", "\xe9"):
        status, answer = with_token(secured, wrong, "GET", "/v1/caller")
        assert (status, answer["code"]) == (403, "access_denied")


def test_sqs_does_not_take_the_token(secured: TestServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", secured.http.port, timeout=30)
    headers = {
        "Authorization": f"Bearer {secured.node.admin_token()}",
        "X-Amz-Target": "AmazonSQS.ListQueues",
        "Content-Type": "application/x-amz-json-1.0",
    }
    connection.request("POST", "/", "{}", headers)
    assert connection.getresponse().status == 400
    connection.close()


def test_in_development_everybody_is_an_operator(rest: Rest) -> None:
    who = rest.good("GET", "/v1/caller")
    assert (who["account"], who["role"], who["operator"]) == (rest.account, "admin", True)
    made = rest.good("POST", "/v1/keys", {"name": "dev"})
    assert made["keyId"] in [key["keyId"] for key in rest.good("GET", "/v1/keys")["keys"]]


# --- the configuration ---------------------------------------------------------------------------


def test_the_configuration_is_for_operators_and_has_no_secrets(tmp_path_factory: pytest.TempPathFactory) -> None:
    origins = {"archive": "environment"}
    where = tmp_path_factory.mktemp("configured")
    with TestServer(str(where), archive=f"file://{where}/archive", origins=origins) as server:
        rest = Rest(server, ACCOUNT)
        settings = {one["name"]: one for one in rest.good("GET", "/v1/config")["settings"]}
        rest.close()
    assert settings["archive"]["origin"] == "environment" and settings["archive"]["variable"] == "BATON_ARCHIVE"
    assert (settings["port"]["value"], settings["port"]["default"], settings["port"]["flag"]) == (0, 9324, "--port")
    assert settings["data"]["value"] == str(where) and settings["secure"]["value"] is False


def test_the_configuration_of_a_secured_server(secured: TestServer) -> None:
    assert say(secured, "BTNREAD", "GET", "/v1/config")[0] == 200
    assert say(secured, "BTNOTHER", "GET", "/v1/config")[0] == 403
