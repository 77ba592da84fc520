"""Large bodies in a payload store that the client fills: transparent, checked, and understood by Amazon's libraries."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from batonq import sync
from batonq.client import Outgoing
from batonq.client.payloads import OLD_POINTER, OLD_SIZE, POINTER, SIZE, TYPE, Payloads, pointer_of
from batonq.errors import InvalidInput, PayloadDamaged, PayloadStoreUnavailable
from batonq.payload_store import HOUR_S, PayloadStore, end_of, hour_of
from batonq.worker import Worker
from tests.api.conftest import client
from tests.support.server import TestServer

LARGE = "größer " * 1024
THRESHOLD = 2048


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def baton(server: TestServer, account: str, folder: Path) -> Iterator[sync.Baton]:
    with sync.Baton(server.url, account=account, payload_store=f"file://{folder}", payload_threshold=THRESHOLD) as made:
        made.create_queue("q")
        yield made


@pytest.fixture
def plain(server: TestServer, account: str) -> Iterator[sync.Baton]:
    """A client that knows nothing of the store."""
    with sync.Baton(server.url, account=account) as made:
        yield made


def objects(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("body", [LARGE, {"text": LARGE, "n": [1, 2.5, None]}, os.urandom(9000)], ids=type)
def test_a_large_body_is_put_into_the_store_and_read_back(baton: sync.Baton, folder: Path, body: Any) -> None:
    queue = baton.queue("q")
    queue.send(body, attributes={"a": "1"})
    (path,) = objects(folder)
    assert path.name == sha256(path.read_bytes()).hexdigest()
    assert queue.stats().bytes < 1024
    (peeked,) = queue.peek()
    assert (peeked.body, peeked.attributes) == (body, {"a": "1"})
    (message,) = queue.receive(wait=0)
    assert (message.body, message.attributes) == (body, {"a": "1"})
    message.ack()


def test_small_bodies_and_other_clients_are_not_concerned(baton: sync.Baton, plain: sync.Baton, folder: Path) -> None:
    queue = baton.queue("q")
    results = queue.send_many(["small", Outgoing(LARGE, priority="high"), {"x": 1}, b"\x00"])
    assert all(hasattr(result, "id") for result in results)
    assert len(objects(folder)) == 1
    found = plain.queue("q").peek()
    assert [one.body for one in found][::2] == ["small", {"x": 1}]
    pointer = json.loads(found[1].body)
    assert pointer[0] == POINTER and pointer[1]["s3BucketName"] == f"file://{folder}"
    assert found[1].attributes == {SIZE: len(LARGE.encode()), TYPE: "text"}
    assert [one.body for one in queue.receive(wait=0)] == [LARGE, "small", {"x": 1}, b"\x00"]


def test_several_queues_and_a_worker_get_the_bodies(
    server: TestServer, account: str, baton: sync.Baton, folder: Path
) -> None:
    baton.create_queue("other")
    for name in ("q", "other"):
        baton.queue(name).send({"in": name, "text": LARGE})
    received = baton.receive(["q", "other"], wait=0)
    assert sorted(one.body["in"] for one in received) == ["other", "q"]
    for one in received:
        one.nack(untried=True)
    seen: list[Any] = []

    async def scenario() -> None:
        from batonq import Baton

        async with Baton(server.url, account=account, payload_store=f"file://{folder}") as own:
            app = Worker(baton=own)

            @app.task(queue=["q", "other"])
            async def handle(message: Any) -> None:
                seen.append(message.body["text"])
                if len(seen) == 2:
                    app.stop()

            await app.serve()

    import asyncio

    asyncio.run(scenario())
    assert seen == [LARGE, LARGE]
    assert baton.queue("q").stats().depth == baton.queue("other").stats().depth == 0


def test_a_damaged_body_is_nacked_and_the_others_are_delivered(baton: sync.Baton, folder: Path) -> None:
    queue = baton.queue("q")
    queue.update(max_receives=1, dead_letter_queue="dead")
    queue.send_many([LARGE, "small"])
    (path,) = objects(folder)
    path.write_text(LARGE.replace("g", "k", 1))
    assert [one.body for one in queue.receive(wait=0)] == ["small"]
    (dead,) = baton.queue("dead").peek()
    assert dead.dead_letter is not None and "cannot be read from the payload store" in dead.dead_letter.reason
    assert "was changed or damaged" in dead.problem and dead.body is None


def test_a_store_that_cannot_be_reached_is_told_and_nothing_is_lost(baton: sync.Baton, folder: Path) -> None:
    queue = baton.queue("q")
    queue.send(LARGE)
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.write_text("not a directory")
    with pytest.raises(PayloadStoreUnavailable):
        queue.send(LARGE)
    results = queue.send_many([LARGE, "small"])
    assert isinstance(results[0], PayloadStoreUnavailable) and not isinstance(results[1], Exception)
    assert [one.body for one in queue.receive(wait=0)] == ["small"], "what can be delivered is"
    with pytest.raises(PayloadStoreUnavailable):
        queue.receive(wait=0)
    assert queue.stats().visible == 1
    folder.unlink()
    aside.rename(folder)
    (message,) = queue.receive(wait=0)
    assert (message.body, message.receive_count) == (LARGE, 1), "the failed attempts do not count"


def test_a_body_that_cannot_be_read_holds_up_the_rest_of_its_fifo_group(baton: sync.Baton, folder: Path) -> None:
    queue = baton.create_queue("line", fifo=True)
    queue.send_many([Outgoing(LARGE, group="g"), Outgoing("second", group="g"), Outgoing("apart", group="h")])
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.write_text("not a directory")
    (message,) = queue.receive(wait=0)
    assert message.body == "apart", "the second message of a group is not delivered without its first"
    message.ack()
    folder.unlink()
    aside.rename(folder)
    got = queue.receive(wait=0)
    assert [(one.body, one.receive_count) for one in got] == [(LARGE, 1), ("second", 1)]


def test_a_pointer_to_somewhere_else_is_not_followed(baton: sync.Baton, plain: sync.Baton, tmp_path: Path) -> None:
    """Whoever can send must not choose what a consumer reads."""
    secret = tmp_path / "secret"
    secret.write_text("for nobody")
    queue = plain.queue("q")
    pointer = [POINTER, {"s3BucketName": f"file://{tmp_path}", "s3Key": "secret"}]
    queue.send(json.dumps(pointer), attributes={SIZE: 10})
    own = [POINTER, {"s3BucketName": f"file://{tmp_path / 'store'}", "s3Key": "client/../../secret"}]
    queue.send(json.dumps(own), attributes={SIZE: 10})
    (message,) = baton.queue("q").receive(wait=0)
    assert json.loads(message.body) == pointer


@pytest.mark.parametrize(
    ("body", "attributes"),
    [
        (json.dumps([POINTER, {"s3BucketName": "b", "s3Key": "k"}]), {}),
        ("text", {SIZE: 4}),
        ("[1", {SIZE: 4}),
        (json.dumps(["other", {"s3BucketName": "b", "s3Key": "k"}]), {SIZE: 4}),
        (json.dumps([POINTER, {"s3BucketName": 1, "s3Key": "k"}]), {SIZE: 4}),
        (json.dumps([POINTER, "k"]), {SIZE: 4}),
        (json.dumps([POINTER, {"s3BucketName": "b", "s3Key": "k"}]), {SIZE: "many"}),
        (json.dumps([POINTER, {"s3BucketName": "b", "s3Key": "k"}]), {SIZE: float("inf")}),
        ("[" * 4000, {SIZE: 4}),
        (None, {SIZE: 4}),
    ],
)
def test_what_is_not_a_pointer_stays_as_it_is(body: Any, attributes: dict[str, Any]) -> None:
    assert pointer_of(body, attributes) is None


def test_nested_bodies_cost_no_other_message(baton: sync.Baton, plain: sync.Baton) -> None:
    """A text that json cannot decode, and an object that is nested too deeply for msgspec."""
    assert baton._payloads is not None
    nested = baton._payloads.offload(Outgoing("[" * 100_000))
    assert nested.attributes is not None
    attributes = {**nested.attributes, TYPE: "json"}
    plain.queue("q").send_many([Outgoing("[" * 4000, attributes={SIZE: 9}), replace(nested, attributes=attributes)])
    plain.queue("q").send("other")
    assert [one.body for one in baton.queue("q").receive(wait=0)] == ["[" * 4000, "other"]


def test_pointers_of_older_libraries_are_understood() -> None:
    text = json.dumps([OLD_POINTER, {"s3BucketName": "b", "s3Key": "k"}])
    found = pointer_of(text, {OLD_SIZE: "12"})
    assert found is not None and (found.bucket, found.key, found.size, found.kind) == ("b", "k", 12, "text")


# --- S3 -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    """A client of a server that speaks S3, with a bucket."""
    moto = pytest.importorskip("moto.server")
    pytest.importorskip("pyarrow")
    service = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    service.start()
    host, port = service.get_host_and_port()
    import boto3

    names = {
        "AWS_ENDPOINT_URL_S3": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names.items():
            patch.setenv(name, value)
        made: Any = boto3.client("s3", region_name="us-east-1")
        made.create_bucket(Bucket="bucket")
        yield made
        made.close()
    service.stop()


def test_amazons_library_reads_what_the_client_stored_in_s3(server: TestServer, account: str, s3: Any) -> None:
    """As the library does it: the attribute, then the object that the body points to."""
    with sync.Baton(
        server.url, account=account, payload_store="s3://bucket/some/prefix", payload_threshold=THRESHOLD
    ) as baton:
        baton.create_queue("q").send(LARGE)
        sqs = client("sqs", server.url, account)
        url = sqs.get_queue_url(QueueName="q")["QueueUrl"]
        (message,) = sqs.receive_message(QueueUrl=url, MessageAttributeNames=[SIZE])["Messages"]
        assert message["MessageAttributes"] == {SIZE: {"DataType": "Number", "StringValue": str(len(LARGE.encode()))}}
        kind, place = json.loads(message["Body"])
        found = s3.get_object(Bucket=place["s3BucketName"], Key=place["s3Key"])["Body"].read()
        assert (kind, found.decode()) == (POINTER, LARGE)
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
        assert [one.body for one in baton.queue("q").receive(wait=0)] == [LARGE]
        sqs.close()


def test_the_client_reads_what_amazons_library_stored_in_s3(server: TestServer, account: str, s3: Any) -> None:
    sqs = client("sqs", server.url, account)
    url = sqs.create_queue(QueueName="q")["QueueUrl"]
    for kind, name, key in ((POINTER, SIZE, "8a2f-uuid"), (OLD_POINTER, OLD_SIZE, "old-uuid")):
        s3.put_object(Bucket="bucket", Key=key, Body=LARGE.encode())
        sqs.send_message(
            QueueUrl=url,
            MessageBody=json.dumps([kind, {"s3BucketName": "bucket", "s3Key": key}]),
            MessageAttributes={name: {"DataType": "Number", "StringValue": str(len(LARGE.encode()))}},
        )
    with sync.Baton(server.url, account=account, payload_store="s3://bucket/some/prefix") as baton:
        received = baton.queue("q").receive(wait=0)
        assert [(one.body, one.attributes) for one in received] == [(LARGE, {}), (LARGE, {})]
    sqs.close()


def test_the_server_uses_s3_too(tmp_path: Path, account: str, s3: Any) -> None:
    with (
        TestServer(str(tmp_path), payload_store="s3://bucket/server", payload_threshold=THRESHOLD) as server,
        sync.Baton(server.url, account=account) as baton,
    ):
        queue = baton.create_queue("q")
        queue.send(LARGE)
        (message,) = queue.receive(wait=0)
        assert message.body == LARGE
        message.ack()
        server.advance(3 * HOUR_S)
        assert server.node.sweeper is not None and server.run(server.node.sweeper.sweep) == 1
        left = s3.list_objects_v2(Bucket="bucket", Prefix="server/").get("Contents", [])
        assert [one["Key"] for one in left if one["Size"]] == ["server/baton-store"]


# --- the store ----------------------------------------------------------------------------------


def test_a_store_in_memory_keeps_and_checks_objects() -> None:
    now_s = 1_700_000_000.0
    store = PayloadStore("memory://one/store", clock=lambda: now_s)
    key = store.put(b"body")
    assert key == f"{hour_of(now_s)}/{sha256(b'body').hexdigest()}"
    assert store.get(key, 4) == b"body"
    with pytest.raises(PayloadDamaged):
        store.get(key, 3)
    for wrong in ("", "../x", f"{key}/x", key.upper(), "9999999999/" + "0" * 63):
        with pytest.raises(PayloadDamaged):
            store.get(wrong, 4)
    assert store.settled_hours() == [] and store.is_current(key)
    now_s = end_of(key[:10]) + HOUR_S / 2
    assert not store.is_current(key), "a sender has to store it again"
    now_s = end_of(key[:10]) + HOUR_S
    assert store.settled_hours() == [key[:10]] and store.keys(key[:10]) == [key]
    store.delete(key)
    store.delete(key)
    assert store.keys(key[:10]) == []
    with pytest.raises(PayloadDamaged):
        store.get(key, 4)


@pytest.mark.parametrize("url", ["", "store", "ftp://host/x", "s3://", "file://relative", "file:store"])
def test_wrong_urls_are_told(url: str) -> None:
    with pytest.raises(InvalidInput, match="file:///directory, s3://bucket/prefix"):
        PayloadStore(url)


def test_limits_of_the_client(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        Payloads(f"file://{tmp_path}", 0)
