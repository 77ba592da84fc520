"""Bodies in a payload store, as clients of REST and SQS see them: transparent, checked, and deleted when nothing needs
them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batonq.core.payload import STORED
from batonq.errors import InvalidInput, PayloadStoreUnavailable, Unavailable
from batonq.node.messages.large_payloads import AT_ONCE_MAX
from batonq.node.messages.peek import ANY_MESSAGE
from batonq.node.node import Node
from batonq.node.settings import MIB, Settings
from batonq.payload_store import PayloadStore
from tests.api.conftest import client
from tests.rest.support import WAIT_S, Rest
from tests.support.server import TestServer

KIB = 1024
THRESHOLD = 4 * KIB
LARGE = "größer " * KIB  # 9 KiB of UTF-8, above the threshold
HOUR_S = 3600


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def server(tmp_path: Path, folder: Path) -> Iterator[TestServer]:
    with TestServer(
        str(tmp_path / "data"), shards=2, payload_store=f"file://{folder}", payload_threshold=THRESHOLD
    ) as running:
        yield running


def objects(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*/*") if path.is_file())


def sweep(server: TestServer) -> int:
    assert server.node.sweeper is not None
    return server.run(server.node.sweeper.sweep)


def in_log(server: TestServer) -> int:
    """The bytes of all messages in the log."""
    return sum(queue.bytes for keeper in server.node.shards for queue in keeper.host().shard.queues.values())


def test_a_large_body_goes_to_the_store_and_comes_back(server: TestServer, rest: Rest, folder: Path) -> None:
    queue = rest.create()
    bodies: list[Any] = [LARGE, {"text": LARGE, "number": 1.5}, "small", ["list", LARGE]]
    for body in bodies:
        rest.send(queue, body, attributes={"kind": "test"})
    assert len(objects(folder)) == 3 and in_log(server) < 2 * KIB
    assert objects(folder)[0].name == hashlib.sha256(objects(folder)[0].read_bytes()).hexdigest()
    peeked = rest.good("GET", f"{queue}/messages")["messages"]
    assert [one["body"] for one in peeked] == bodies
    assert rest.good("GET", f"{queue}/messages/{peeked[0]['messageId']}")["body"] == LARGE
    received = rest.receive(queue)
    assert [one["body"] for one in received] == bodies
    assert all(one["attributes"] == {"kind": "test"} for one in received)


def test_bytes_and_batches_and_several_shards(server: TestServer, packed: Rest, folder: Path) -> None:
    queue = packed.create(spread=2)
    raw = os.urandom(3 * THRESHOLD)
    messages: list[dict[str, Any]] = [{"body": raw}, {"body": b"small"}, {"body": LARGE}, {"body": {"a": LARGE}}] * 2
    packed.good("POST", f"{queue}/messages:batch", {"messages": messages})
    assert len(objects(folder)) == 3, "equal bodies are stored once"
    found = [one["body"] for one in packed.receive(queue)]
    while len(found) < 8:
        found += [one["body"] for one in packed.receive(queue)]
    assert sorted(map(repr, found)) == sorted(repr(message["body"]) for message in messages)


def test_sqs_clients_see_nothing_of_it(server: TestServer, account: str, folder: Path) -> None:
    sqs = client("sqs", server.url, account)
    url = sqs.create_queue(QueueName="q")["QueueUrl"]
    sent = sqs.send_message(QueueUrl=url, MessageBody=LARGE)  # boto3 checks the digests
    assert sent["MD5OfMessageBody"] == hashlib.md5(LARGE.encode()).hexdigest()
    entries = [{"Id": str(at), "MessageBody": f"{at}{LARGE}"} for at in range(3)]
    assert len(sqs.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == 3
    messages = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"])["Messages"]
    assert [one["Body"] for one in messages] == [LARGE, *(f"{at}{LARGE}" for at in range(3))]
    assert messages[0]["MD5OfBody"] == sent["MD5OfMessageBody"]
    assert len(objects(folder)) == 4
    sqs.close()


def test_a_body_of_8_mib_is_accepted_up_to_the_limit(server: TestServer, packed: Rest, account: str) -> None:
    queue = packed.create()
    body = os.urandom(8 * MIB)
    packed.send(queue, body)
    assert packed.receive(queue)[0]["body"] == body
    answer = packed("POST", f"{queue}/messages", {"body": bytes(16 * MIB + 1)})
    assert answer.status == 413 and str(16 * MIB) in answer.value["detail"]
    own = packed.create("own", maxMessageBytes=2048)
    assert packed("POST", f"{own}/messages", {"body": bytes(4096)}).status == 413, "a queue's own limit stays"
    sqs = client("sqs", server.url, account)
    url = sqs.get_queue_url(QueueName="queue")["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="x" * 8 * MIB)
    assert len(sqs.receive_message(QueueUrl=url)["Messages"][0]["Body"]) == 8 * MIB
    sqs.close()


def test_what_does_not_fit_into_one_answer_is_received_by_the_next_request(server: TestServer, packed: Rest) -> None:
    queue = packed.create()
    for at in range(3):
        packed.send(queue, bytes([at]) * 7 * MIB)
    first = packed.receive(queue)
    assert [one["body"][0] for one in first] == [0]
    again = packed.receive(queue) + packed.receive(queue)
    assert [(one["body"][0], one["receiveCount"]) for one in again] == [(1, 1), (2, 1)], "giving back is not a receive"


def test_an_object_is_deleted_when_its_last_message_is_gone(server: TestServer, rest: Rest, folder: Path) -> None:
    queue = rest.create()
    rest.send(queue, LARGE)
    rest.send(queue, LARGE)
    rest.send(queue, LARGE + "other")
    assert len(objects(folder)) == 2
    first, second, third = rest.receive(queue, visibilityTimeoutSeconds=40_000)

    def ack(message: dict[str, Any]) -> None:
        rest.good("POST", f"{queue}/messages:ack", {"receiptHandles": [message["receiptHandle"]]})

    ack(first)
    ack(third)
    assert sweep(server) == 0, "nothing of the last hours is touched"
    server.advance(2 * HOUR_S)
    assert sweep(server) == 1
    assert [path.read_text() for path in objects(folder)] == [LARGE]
    assert rest.good("GET", f"{queue}/messages")["messages"][0]["body"] == LARGE
    ack(second)
    assert sweep(server) == 1
    assert objects(folder) == [] and [path.name for path in folder.iterdir()] == ["baton-store"]


def test_a_dead_letter_keeps_its_body_also_on_another_shard(server: TestServer, rest: Rest, folder: Path) -> None:
    for name in ("a", "b", "c", "d"):
        rest.create(name)
    numbers = {name: server.broker.queue(rest.account, name).shard for name in ("a", "b", "c", "d")}
    source = "a"
    target = next(name for name, shard in numbers.items() if shard != numbers["a"])
    rest.good("PATCH", f"/v1/queues/{source}", {"deadLetterQueue": target, "maxReceiveCount": 1})
    rest.send(f"/v1/queues/{source}", LARGE)
    (message,) = rest.receive(f"/v1/queues/{source}")
    rest.good("POST", f"/v1/queues/{source}/messages:nack", {"messages": [{"receiptHandle": message["receiptHandle"]}]})
    server.advance(3 * HOUR_S)
    assert sweep(server) == 0
    (dead,) = rest.receive(f"/v1/queues/{target}")
    assert dead["body"] == LARGE and dead["deadLetter"]["queue"] == source


def test_a_changed_object_is_refused_and_a_missing_one_told(server: TestServer, rest: Rest, folder: Path) -> None:
    queue = rest.create(maxReceiveCount=2, deadLetterQueue="dead")
    rest.send(queue, LARGE)
    rest.send(queue, "small")
    (path,) = objects(folder)
    path.write_text(LARGE.replace("g", "k", 1))
    assert [one["body"] for one in rest.receive(queue, visibilityTimeoutSeconds=1)] == ["small"]
    peeked = rest.good("GET", f"{queue}/messages")["messages"][0]
    assert "was changed or damaged" in peeked["problem"] and not peeked.get("body")
    assert any(alarm.kind == "message-unreadable" for alarm in server.node.alarms.active())
    path.unlink()
    assert "is not in the payload store" in rest.good("GET", f"{queue}/messages")["messages"][0]["problem"]
    path.write_text(LARGE)
    server.advance(2)
    assert LARGE in [one["body"] for one in rest.receive(queue)], "an object that was brought back is delivered"


def test_a_store_that_cannot_be_reached_loses_nothing(server: TestServer, rest: Rest, folder: Path) -> None:
    queue = rest.create()
    rest.send(queue, LARGE)
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.write_text("a file, not a directory")
    refused = rest("POST", f"{queue}/messages", {"body": LARGE})
    assert (refused.status, refused.code) == (503, "payload_store_unavailable")
    assert "Cannot write to the payload store file://" in refused.value["detail"]
    assert rest.stats(queue)["visible"] == 1, "what is not stored is not sent"
    failed = rest("POST", f"{queue}/messages:receive", {})
    assert (failed.status, failed.code) == (503, "payload_store_unavailable")
    assert any(alarm.kind == "payload-store" for alarm in server.node.alarms.active())
    rest.send(queue, "small")  # small messages go on
    assert rest.stats(queue)["visible"] == 2, "the lease was given back"
    folder.unlink()
    aside.rename(folder)
    got = rest.receive(queue)
    assert [(one["body"], one["receiveCount"]) for one in got] == [(LARGE, 1), ("small", 1)]
    assert not any(alarm.kind == "payload-store" for alarm in server.node.alarms.active())


def test_if_a_shard_does_not_answer_nothing_is_deleted(
    server: TestServer, rest: Rest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = rest.create()
    rest.send(queue, LARGE)
    rest.good("POST", f"{queue}:purge", {})
    server.advance(3 * HOUR_S)

    async def fail(prefix: str) -> list[str]:
        raise Unavailable("This shard has no owner.")

    monkeypatch.setattr(server.broker.port(1), "needed_payloads", fail)
    with pytest.raises(Unavailable):
        sweep(server)
    assert len(objects(folder)) == 1
    monkeypatch.undo()
    assert sweep(server) == 1


def test_messages_survive_a_kill_with_their_bodies(tmp_path: Path, folder: Path, account: str) -> None:
    settings: dict[str, Any] = {"payload_store": f"file://{folder}", "payload_threshold": THRESHOLD}
    data = tmp_path / "data"
    with TestServer(str(data), **settings) as server:
        rest = Rest(server, account)
        queue = rest.create()
        rest.send(queue, LARGE)
        assert len(rest.receive(queue, visibilityTimeoutSeconds=1)) == 1
        copied = tmp_path / "copy"
        shutil.copytree(data, copied)  # what a killed process leaves: no snapshot of a clean stop
        rest.close()
    (copied / "lock").unlink(missing_ok=True)
    with TestServer(str(copied), **settings) as again:
        rest = Rest(again, account)
        again.advance(3 * HOUR_S)
        assert sweep(again) == 0
        assert [one["body"] for one in rest.receive(queue)] == [LARGE]
        rest.close()


def test_without_the_store_a_pointer_is_an_error_and_not_a_body(tmp_path: Path, folder: Path, account: str) -> None:
    data = str(tmp_path / "data")
    with TestServer(data, payload_store=f"file://{folder}", payload_threshold=THRESHOLD) as server:
        rest = Rest(server, account)
        queue = rest.create()
        rest.send(queue, LARGE)
        rest.close()
    with TestServer(data) as server:
        rest = Rest(server, account)
        answer = rest("POST", f"{queue}/messages:receive", {})
        assert answer.status == 503 and "same --payload-store" in answer.value["detail"]
        assert "this server has none" in rest.good("GET", f"{queue}/messages")["messages"][0]["problem"]
        assert rest("POST", f"{queue}/messages", {"body": "x" * 2 * MIB}).status == 413
        rest.close()


def test_a_store_belongs_to_one_server(server: TestServer, rest: Rest, tmp_path: Path, folder: Path) -> None:
    queue = rest.create()
    rest.send(queue, LARGE)
    with TestServer(str(tmp_path / "other"), payload_store=f"file://{folder}", payload_threshold=THRESHOLD) as other:
        second = Rest(other, rest.account)
        queue = second.create()
        answer = second("POST", f"{queue}/messages", {"body": LARGE})
        assert answer.status == 400 and "belongs to another server or cluster" in answer.value["detail"]
        with pytest.raises(InvalidInput):
            sweep(other)
        second.close()
    assert len(objects(folder)) == 1
    rest.good("POST", "/v1/queues/queue:purge", {})
    server.advance(3 * HOUR_S)
    owner = (folder / "baton-store").read_text()
    (folder / "baton-store").write_text("cluster of somebody else")
    with pytest.raises(InvalidInput):
        sweep(server)
    (folder / "baton-store").write_text(owner)
    assert sweep(server) == 1


def test_a_repeated_attempt_gets_its_large_messages_again(server: TestServer, rest: Rest, folder: Path) -> None:
    queue = rest.create("line", mode="FIFO")
    rest.send(queue, LARGE, messageGroupId="g", deduplicationKey="k")
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.write_text("a file, not a directory")
    assert rest("POST", f"{queue}/messages:receive", {"attemptId": "try-1", "maxMessages": 1}).status == 503
    folder.unlink()
    aside.rename(folder)
    (message,) = rest.receive(queue, 1, attemptId="try-1")
    assert (message["body"], message["receiveCount"]) == (LARGE, 1)


def test_a_body_that_cannot_be_read_holds_up_the_rest_of_its_fifo_group(
    server: TestServer, rest: Rest, folder: Path
) -> None:
    queue = rest.create("line", mode="FIFO")
    rest.send(queue, LARGE, messageGroupId="g", deduplicationKey="1")
    rest.send(queue, "second", messageGroupId="g", deduplicationKey="2")
    rest.send(queue, "apart", messageGroupId="h", deduplicationKey="3")
    (path,) = objects(folder)
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.write_text("a file, not a directory")
    (message,) = rest.receive(queue)
    assert message["body"] == "apart", "the second message of a group is not delivered without its first"
    rest.good("POST", f"{queue}/messages:ack", {"receiptHandles": [message["receiptHandle"]]})
    folder.unlink()
    aside.rename(folder)
    path.write_text(LARGE.replace("g", "k", 1))
    assert rest.receive(queue, visibilityTimeoutSeconds=1) == [], "nor if the body is damaged"
    path.write_text(LARGE)
    server.advance(2)
    got = rest.receive(queue)
    assert [(one["body"], one["receiveCount"]) for one in got] == [(LARGE, 2), ("second", 1)]


def test_edits_and_redrives_of_large_bodies(server: TestServer, rest: Rest, folder: Path) -> None:
    queue = rest.create()
    sent = rest.send(queue, LARGE)
    rest.good("PATCH", f"{queue}/messages/{sent['messageId']}", {"setAttributes": {"seen": "yes"}})
    (peeked,) = rest.good("GET", f"{queue}/messages")["messages"]
    assert (peeked["body"], peeked["attributes"]) == (LARGE, {"seen": "yes"})
    rest.good("PATCH", f"{queue}/messages/{sent['messageId']}", {"body": "short"})
    assert rest.receive(queue)[0]["body"] == "short"
    server.advance(3 * HOUR_S)
    assert sweep(server) == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"payload_store": "/srv/payloads"}, "--payload-store: The URL of a payload store must be file:///directory"),
        ({"payload_store": "file://host/x"}, "must be file:///directory"),
        ({"payload_store": "file:///x", "payload_threshold": 10}, "--payload-threshold must be 1024 to 1048576 bytes"),
        ({"payload_store": "file:///x", "payload_bytes_max": 10}, "--payload-bytes-max must be 262144 (the threshold)"),
        ({"payload_store": "file:///x", "payload_sweep_s": 0.0}, "--payload-sweep-s must be greater than 0"),
    ],
)
def test_wrong_settings_are_told(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput) as told:
        Node(Settings(data=str(tmp_path), **settings))
    assert said in told.value.message


def test_the_log_has_the_pointer(server: TestServer, rest: Rest) -> None:
    queue = rest.create()
    rest.send(queue, {"text": LARGE})
    keeper = server.node.shards[server.broker.queue(rest.account, "queue").shard]

    async def peeked() -> Any:
        number = server.broker.queue(rest.account, "queue").number
        return await server.broker.port(keeper.number).peek(number, 0, 1, ANY_MESSAGE, 1)

    (one,) = server.run(peeked).messages
    assert one.content & STORED
    size = len(json.dumps({"text": LARGE}))
    assert one.body.decode().endswith(f" {size}") and len(one.body) < 100


def test_retained_history_has_its_bodies_until_the_retention_is_over(
    server: TestServer, rest: Rest, folder: Path
) -> None:
    queue = rest.create(retainSeconds=6 * HOUR_S)
    for at in range(3):
        rest.send(queue, f"{at}{LARGE}")
    rest.send(queue, "small")
    handles = [one["receiptHandle"] for one in rest.receive(queue)]
    rest.good("POST", f"{queue}/messages:ack", {"receiptHandles": handles})
    rest.good("POST", f"{queue}/readers", {"name": "g"})
    server.advance(4 * HOUR_S)
    assert sweep(server) == 0, "the history still needs them"
    wanted = [*(f"{at}{LARGE}" for at in range(3)), "small"]
    assert [one["body"] for one in rest.good("GET", f"{queue}/history?from=start")["messages"]] == wanted
    joined = rest.good("POST", f"{queue}/readers/g:join", {"member": "m"})
    fetched = rest.good("POST", f"{queue}/readers/g:fetch", {"member": "m", "epoch": joined["epoch"]})
    assert [one["body"] for one in fetched["messages"]] == wanted
    server.advance(2 * HOUR_S)
    assert sweep(server) == 0, "what was read at the last moment may be on its way into another queue"
    server.advance(2 * HOUR_S)
    assert sweep(server) == 3 and objects(folder) == []


def test_a_page_of_history_has_as_many_bodies_as_fit(server: TestServer, packed: Rest) -> None:
    queue = packed.create(retainSeconds=HOUR_S)
    for at in range(3):
        packed.send(queue, bytes([at]) * 7 * MIB)
    page = packed.good("GET", f"{queue}/history?from=start")
    seen = [one["body"][0] for one in page["messages"]]
    while page.get("nextCursor"):
        page = packed.good("GET", f"{queue}/history?cursor={page['nextCursor']}")
        assert len(page["messages"]) <= 1
        seen += [one["body"][0] for one in page["messages"]]
    assert seen == [0, 1, 2]


def test_a_replayed_message_keeps_its_body(server: TestServer, rest: Rest, folder: Path) -> None:
    queue = rest.create(retainSeconds=2 * HOUR_S)
    rest.create("other")
    rest.send(queue, LARGE)
    rest.good("POST", f"{queue}:purge", {})
    rest.good("POST", f"{queue}:replay", {"targetQueue": "other"})
    server.advance(10)
    for _ in range(100):
        if rest.stats("/v1/queues/other")["visible"]:
            break
        server.advance(1)
    server.advance(6 * HOUR_S)
    assert sweep(server) == 0
    assert [one["body"] for one in rest.receive("/v1/queues/other")] == [LARGE]


def test_a_store_that_hangs_holds_up_only_large_bodies(
    server: TestServer, rest: Rest, account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = rest.create()
    answers = threading.Event()
    hanging: list[int] = []

    def hang(store: PayloadStore, body: bytes) -> str:
        hanging.append(len(body))
        answers.wait(WAIT_S)
        raise PayloadStoreUnavailable("too late")

    monkeypatch.setattr(PayloadStore, "put", hang)
    monkeypatch.setattr("batonq.node.messages.large_payloads.CALL_S", 2.0)
    problems: list[tuple[int, str]] = []

    def send_large() -> None:
        own = Rest(server, account)
        answer = own("POST", f"{queue}/messages", {"body": LARGE})
        own.connection.close()
        problems.append((answer.status, answer.code))

    senders = [threading.Thread(target=send_large) for _ in range(4 * AT_ONCE_MAX)]
    try:
        for sender in senders:
            sender.start()
        deadline_s = time.monotonic() + 20
        while len(hanging) < AT_ONCE_MAX and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert server.run(lambda: asyncio.wait_for(asyncio.to_thread(len, "read"), 10)) == 4, "the disk is read"
        for sender in senders:
            sender.join(30)
        assert problems == [(503, "payload_store_unavailable")] * len(senders), "everybody gets an answer"
    finally:
        answers.set()
        for sender in senders:
            sender.join()
