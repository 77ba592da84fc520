"""Bodies that clients have put into the server's payload store: the server deletes them when no message needs them, and
refuses pointers to what it may delete too early.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest

from batonq import sync
from batonq.client import Deduplication, Outgoing, Sent
from batonq.client.payloads import OLD_POINTER, OLD_SIZE, POINTER, SIZE, Payloads
from batonq.core.payload import Payload
from batonq.errors import BatonError, InvalidInput, PayloadDamaged
from batonq.node.jobs.redrive_filter import EditImpossible, decode_pick, encode_pick
from batonq.payload_store import CLIENT, OWNER, PayloadStore, hour_of
from tests.api.conftest import client
from tests.rest.support import Answer, Rest
from tests.support.server import TestServer

LARGE = "größer " * 1024
THRESHOLD = 2048
SERVER_THRESHOLD = 256 * 1024  # the server stores nothing itself in these tests
HOUR_S = 3600
CLIENT_BODY = json.dumps([POINTER, {"s3BucketName": "b", "s3Key": f"{CLIENT}/1/2020010100/{'ab' * 32}"}])

Connect = Callable[[TestServer], sync.Baton]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def server(tmp_path: Path, folder: Path) -> Iterator[TestServer]:
    with TestServer(
        str(tmp_path / "data"), shards=2, payload_store=f"file://{folder}", payload_threshold=SERVER_THRESHOLD
    ) as running:
        yield running


@pytest.fixture
def connect(account: str, folder: Path) -> Iterator[Connect]:
    """Connects clients that store large bodies, by the server's clock."""
    made: list[sync.Baton] = []

    def connect(server: TestServer) -> sync.Baton:
        baton = sync.Baton(server.url, account=account)
        baton._payloads = Payloads(f"file://{folder}", THRESHOLD, lambda: server.node.clock.now_ms() / 1000)
        made.append(baton)
        return baton

    yield connect
    for baton in made:
        baton.close()


@pytest.fixture
def baton(server: TestServer, connect: Connect) -> sync.Baton:
    return connect(server)


@pytest.fixture
def plain(server: TestServer, account: str) -> Iterator[sync.Baton]:
    """A client that knows nothing of the store."""
    with sync.Baton(server.url, account=account) as made:
        yield made


def objects(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != OWNER)


def sweep(server: TestServer) -> int:
    assert server.node.sweeper is not None
    return server.run(server.node.sweeper.sweep)


def settle(server: TestServer) -> int:
    """Sweep when everything that is stored now may be looked at."""
    server.advance(3 * HOUR_S)
    return sweep(server)


def pointer(server: TestServer, folder: Path, key: str) -> Outgoing:
    body = json.dumps([POINTER, {"s3BucketName": f"file://{folder}", "s3Key": key}])
    return Outgoing(body, attributes={SIZE: len(LARGE.encode())})


def now_s(server: TestServer) -> float:
    return server.node.clock.now_ms() / 1000


def own_key(server: TestServer, hour: str = "", cluster: str = "", digest: str = "ab" * 32) -> str:
    cluster = cluster or f"{server.node._logs.cluster:x}"
    return f"{CLIENT}/{cluster}/{hour or hour_of(now_s(server))}/{digest}"


def test_an_object_is_deleted_when_the_last_of_its_messages_is_gone(
    server: TestServer, baton: sync.Baton, folder: Path
) -> None:
    first, second = (baton.create_queue(name, retention=14 * 86_400) for name in ("first", "second"))
    first.send(LARGE)
    first.send({"other": LARGE})
    second.send(LARGE)
    assert len(objects(folder)) == 2, "messages with the same body share an object"
    held = first.receive(wait=0, visibility=40_000)
    assert [one.body for one in held] == [LARGE, {"other": LARGE}]
    assert settle(server) == 0
    held[0].ack()
    assert settle(server) == 0, "the other queue needs it"
    held[1].ack()
    assert sweep(server) == 1
    (last,) = second.receive(wait=0)
    assert last.body == LARGE
    last.ack()
    assert sweep(server) == 1 and objects(folder) == []
    second.send(LARGE)
    assert second.receive(wait=0)[0].body == LARGE, "in another hour it is stored again"


def test_nothing_is_deleted_in_the_hour_in_which_it_may_still_be_sent(
    server: TestServer, baton: sync.Baton, folder: Path
) -> None:
    """An object without a message: its send failed after the upload, or is on its way."""
    assert baton._payloads is not None
    late = baton._payloads.offload(Outgoing(LARGE))
    queue = baton.create_queue("q")
    left_s = HOUR_S - now_s(server) % HOUR_S
    server.advance(left_s + HOUR_S / 2 - 60)
    assert sweep(server) == 0
    queue.send_many([late])
    server.advance(HOUR_S)
    assert sweep(server) == 0
    assert queue.receive(wait=0)[0].body == LARGE


def test_a_pointer_whose_hour_is_over_is_refused(server: TestServer, baton: sync.Baton, plain: sync.Baton) -> None:
    queue = baton.create_queue("q")
    queue.send(LARGE)
    (forwarded,) = plain.queue("q").receive(wait=0)
    copy = Outgoing(forwarded.body, attributes=forwarded.attributes)
    plain.queue("q").send_many([copy])  # in its own hour, a pointer may be sent again
    server.advance(2 * HOUR_S)
    with pytest.raises(InvalidInput, match=r"that hour \(in UTC\) is over.*send it again.*check the sender's clock"):
        plain.queue("q").send(copy.body, attributes=copy.attributes)
    assert queue.stats().depth == 2, "nothing is sent"
    message, _ = queue.receive(wait=0)
    queue.send(message.body)  # as the error says


def test_a_pointer_into_the_store_of_another_server_is_refused(
    server: TestServer, plain: sync.Baton, folder: Path
) -> None:
    queue = plain.create_queue("q")
    foreign = pointer(server, folder, own_key(server, cluster="dead"))
    with pytest.raises(InvalidInput, match="belongs to another server or cluster"):
        queue.send(foreign.body, attributes=foreign.attributes)


@pytest.mark.parametrize("spread", [1, 2])
def test_an_old_pointer_does_not_refuse_the_other_messages_of_its_batch(
    server: TestServer, baton: sync.Baton, plain: sync.Baton, account: str, spread: int
) -> None:
    queue = plain.create_queue("q", spread=spread)
    assert baton._payloads is not None
    old = baton._payloads.offload(Outgoing(LARGE))
    server.advance(2 * HOUR_S)
    first, refused, last = queue.send_many(["first", old, "last"])
    assert isinstance(refused, InvalidInput) and "is over" in refused.message
    assert not isinstance(first, BatonError) and not isinstance(last, BatonError)
    assert sorted(one.body for one in queue.receive(wait=0)) == ["first", "last"]
    sqs = client("sqs", server.url, account)
    attributes = {SIZE: {"DataType": "Number", "StringValue": "9"}}
    entries = [
        {"Id": "old", "MessageBody": old.body, "MessageAttributes": attributes},
        {"Id": "new", "MessageBody": "new"},
    ]
    answer = sqs.send_message_batch(QueueUrl=sqs.get_queue_url(QueueName="q")["QueueUrl"], Entries=entries)
    sqs.close()
    assert [one["Id"] for one in answer["Successful"]] == ["new"]
    assert [one["Id"] for one in answer["Failed"]] == ["old"] and "is over" in answer["Failed"][0]["Message"]
    topic = plain.create_topic("t")
    topic.subscribe("q", raw=True)
    with pytest.raises(InvalidInput, match="is over"):
        topic.publish(old.body, attributes=old.attributes)


@pytest.mark.parametrize("spread", [1, 2])
def test_a_retry_of_what_was_sent_is_not_refused_although_its_pointer_is_old_now(
    server: TestServer, baton: sync.Baton, plain: sync.Baton, account: str, spread: int
) -> None:
    """By the request's Idempotency-Key, or by the producer's numbers."""
    queue = plain.create_queue("q", spread=spread, retention=14 * 86_400)
    assert baton._payloads is not None
    stored = baton._payloads.offload(Outgoing(LARGE))
    rest = Rest(server, account)

    def send(key: str) -> Answer:
        message = {"body": stored.body, "attributes": stored.attributes}
        return rest("POST", "/v1/queues/q/messages", message, headers={"Idempotency-Key": key})

    once = send("once")
    assert once.status == 202
    (numbered,) = queue.send_many([stored], producer=("p", 1))
    assert isinstance(numbered, Sent)
    server.advance(2 * HOUR_S)
    again = send("once")
    assert (again.status, again.value["messageId"]) == (202, once.value["messageId"])
    duplicate, refused = queue.send_many([stored, stored], producer=("p", 1))
    assert isinstance(duplicate, Sent) and (duplicate.id, duplicate.duplicate) == (numbered.id, True)
    assert isinstance(refused, InvalidInput) and "is over" in refused.message
    assert send("other").status == 400
    rest.close()
    assert queue.stats().depth == 2


def test_content_based_deduplication_recognises_a_body_that_was_stored_in_another_hour(
    server: TestServer, baton: sync.Baton, account: str
) -> None:
    queue = baton.create_queue(
        "q.fifo", fifo=True, deduplication=Deduplication(window_seconds=7200, content_based=True)
    )
    first = queue.send(LARGE, group="g")
    server.advance(HOUR_S)
    again = queue.send(LARGE, group="g")
    assert (again.id, again.duplicate) == (first.id, True)
    assert not queue.send(LARGE + "other", group="g").duplicate
    assert baton._payloads is not None
    stored = baton._payloads.offload(Outgoing(LARGE))
    sqs = client("sqs", server.url, account)
    url = sqs.get_queue_url(QueueName="q.fifo")["QueueUrl"]
    attributes = {SIZE: {"DataType": "Number", "StringValue": "9"}}
    sent = sqs.send_message(QueueUrl=url, MessageBody=stored.body, MessageAttributes=attributes, MessageGroupId="g")
    sqs.close()
    assert sent["MessageId"] == first.id and queue.stats().depth == 2


def test_what_the_server_sends_itself_is_never_refused(
    server: TestServer, baton: sync.Baton, plain: sync.Baton, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pointers without a mark, which were sent before the server knew them: as dead letters of a reader group, and as
    replayed messages.
    """
    queue = plain.create_queue("q", retain=6 * HOUR_S)
    dead, other = (plain.create_queue(name, retention=14 * 86_400) for name in ("dead", "other"))
    assert baton._payloads is not None
    sent = [baton._payloads.offload(Outgoing(LARGE)), pointer(server, folder, own_key(server, cluster="dead"))]
    with monkeypatch.context() as patch:
        patch.setattr("batonq.node.messages.large_payloads.CLIENT_SIZE", b"of no message")
        queue.send_many(sent)
    server.advance(2 * HOUR_S)
    reader = queue.reader("g")
    reader.create(dead_letter_queue="dead", max_failures=1)
    for message in reader.fetch(wait=0):
        assert reader.fail(message, "no").skipped
    queue.replay(to="other")
    for _ in range(100):
        if other.stats().depth == 2:
            break
        server.advance(1)
    for copies in (dead, other):
        assert [one.body for one in copies.peek()] == [one.body for one in sent]


@pytest.mark.parametrize("attributes", [{SIZE: 9}, {OLD_SIZE: "9" * 40}, {}], ids=str)
@pytest.mark.parametrize(
    "key",
    [
        "2f0e4b2c-5a9b-4a3f-9a61-0c1e5a1f0b7d",  # of Amazon's libraries
        "prefix/client/2020010100/" + "ab" * 32,  # of Baton's client, in a store that belongs to no server
        "../../2020010100/" + "ab" * 32,
        "client/1/20200101/" + "ab" * 32,
        "client/1/2020010100/..",
        "",
    ],
)
def test_other_pointers_are_sent_as_they_are(
    server: TestServer, plain: sync.Baton, key: str, attributes: dict[str, Any]
) -> None:
    queue = plain.create_queue("q")
    for kind in (POINTER, OLD_POINTER):
        body = json.dumps([kind, {"s3BucketName": "elsewhere", "s3Key": key}])
        queue.send(body, attributes=attributes)
        (message,) = queue.receive(wait=0)
        assert message.body == body
        message.ack()
    assert not any(keeper.host().shard.messages.stored.of_slot for keeper in server.node.shards)


def test_a_forged_pointer_harms_nobody(server: TestServer, plain: sync.Baton, baton: sync.Baton, folder: Path) -> None:
    """One to an object that is not there, of a future hour, through another bucket, or of a huge size."""
    queue = plain.create_queue("q")
    forged = [
        pointer(server, folder, own_key(server)),
        pointer(server, folder, own_key(server, hour="9999999999")),
        pointer(server, Path("/elsewhere"), f"x/../{own_key(server)}"),
    ]
    forged.append(Outgoing(forged[0].body, attributes={SIZE: "9" * 40}))
    queue.send_many(forged)
    assert [one.body for one in queue.receive(wait=0, visibility=0)] == [one.body for one in forged]
    baton.queue("q").send(LARGE)
    assert settle(server) == 0
    received = baton.queue("q").receive(wait=0)
    assert {one.body for one in received} == {forged[2].body, LARGE}, "one that cannot be read is nacked"


def test_a_dead_letter_and_a_redrive_keep_the_body(
    server: TestServer, baton: sync.Baton, account: str, folder: Path
) -> None:
    work = baton.create_queue("work", max_receives=3)
    for number in range(20):  # until one is on another shard
        dead = baton.create_queue(f"dead{number}", retention=14 * 86_400)
        shards = [server.broker.queue(account, name).shard for name in ("work", dead.name)]
        if shards[0] != shards[1]:
            break
    work.update(dead_letter_queue=dead.name)
    work.send(LARGE)
    work.receive(wait=0)[0].nack(reason="no", dead_letter=True)
    for _ in range(100):
        if dead.stats().depth:
            break
        server.advance(1)
    assert settle(server) == 0
    assert dead.peek()[0].body == LARGE
    dead.redrive(to="work")
    for _ in range(100):
        if work.stats().depth:
            break
        server.advance(1)
    assert settle(server) == 0
    (message,) = work.receive(wait=0)
    assert message.body == LARGE
    message.ack()
    server.advance(2 * HOUR_S)
    assert sweep(server) == 1 and objects(folder) == []


def test_the_retained_history_and_a_replay_keep_the_body(
    server: TestServer, baton: sync.Baton, plain: sync.Baton, folder: Path
) -> None:
    queue, other = baton.create_queue("q", retain=6 * HOUR_S), baton.create_queue("other", retention=14 * 86_400)
    queue.send(LARGE)
    queue.receive(wait=0)[0].ack()
    assert settle(server) == 0
    queue.replay(to="other")
    for _ in range(100):
        if other.stats().depth:
            break
        server.advance(1)
    server.advance(9 * HOUR_S)
    assert sweep(server) == 0, "a message that is sent again is not refused, although its hour is over"
    (message,) = other.receive(wait=0)
    assert message.body == LARGE
    message.ack()
    assert sweep(server) == 1 and objects(folder) == []


def test_a_reader_group_skips_a_pointer_into_its_dead_letter_queue(
    server: TestServer, baton: sync.Baton, plain: sync.Baton, folder: Path
) -> None:
    queue = baton.create_queue("q", retain=6 * HOUR_S)
    dead = baton.create_queue("dead", retention=14 * 86_400)
    queue.send(LARGE)
    server.advance(3 * HOUR_S)
    reader = plain.queue("q").reader("g")
    reader.create(dead_letter_queue="dead", max_failures=1)
    (message,) = reader.fetch(wait=0)
    assert json.loads(message.body)[0] == POINTER
    assert reader.fail(message, "no").skipped
    queue.purge()
    server.advance(9 * HOUR_S)
    assert sweep(server) == 0
    assert dead.receive(wait=0)[0].body == LARGE


def test_edits_keep_the_object_unless_they_replace_the_body(
    server: TestServer, baton: sync.Baton, plain: sync.Baton, folder: Path
) -> None:
    queue = baton.create_queue("q", retention=14 * 86_400)
    queue.send(LARGE)
    (peeked,) = plain.queue("q").peek()
    server.advance(3 * HOUR_S)
    queue.edit_message(peeked.id, attributes={**peeked.attributes, "seen": "yes"})
    queue.edit_message(peeked.id, body=peeked.body)
    assert sweep(server) == 0
    assert queue.peek()[0].body == LARGE and queue.peek()[0].attributes == {"seen": "yes"}
    with pytest.raises(InvalidInput, match="would be a pointer into a payload store"):
        queue.edit_message(peeked.id, body=pointer(server, folder, own_key(server)).body)
    queue.edit_message(peeked.id, body="short", attributes={})
    assert sweep(server) == 1 and objects(folder) == []
    assert queue.receive(wait=0)[0].body == "short"


@pytest.mark.parametrize(
    "edit",
    [
        {"replaceBody": CLIENT_BODY},
        {"replaceText": [{"find": "other/", "with": f"{CLIENT}/"}]},
        {"replaceText": [{"find": "other/", "with": f"{CLIENT}/"}], "setAttributes": {SIZE: 9}},
    ],
    ids=str,
)
def test_the_edit_of_a_redrive_cannot_make_a_pointer(edit: dict[str, Any]) -> None:
    pick = decode_pick(encode_pick(None, edit, 1 << 20))
    payload = Payload(1, "", "", "", "", b"", b"", CLIENT_BODY.replace(f"{CLIENT}/", "other/").encode(), b"", 0)
    with pytest.raises(EditImpossible, match="would be a pointer into a payload store"):
        pick.changed(payload)


def test_an_edit_of_attributes_cannot_make_a_pointer(server: TestServer, plain: sync.Baton) -> None:
    queue = plain.create_queue("q")
    queue.send(CLIENT_BODY)
    (message,) = queue.peek()
    with pytest.raises(InvalidInput, match="would be a pointer into a payload store"):
        queue.edit_message(message.id, attributes={SIZE: 9})
    queue.edit_message(message.id, attributes={"other": "x"})
    assert queue.peek()[0].attributes == {"other": "x"}


def test_a_schedule_cannot_have_a_pointer(server: TestServer, plain: sync.Baton, folder: Path) -> None:
    queue = plain.create_queue("q")
    with pytest.raises(InvalidInput, match="A schedule needs the body itself"):
        queue.schedules.create("s", pointer(server, folder, own_key(server)).body, rate=3600)


def test_copies_of_a_published_pointer_keep_the_object(
    server: TestServer, baton: sync.Baton, plain: sync.Baton, folder: Path
) -> None:
    """Raw, and in SNS's envelope."""
    topic = plain.create_topic("t")
    for name, raw in (("raw", True), ("enveloped", False)):
        plain.create_queue(name, retention=14 * 86_400)
        topic.subscribe(name, raw=raw)
    assert baton._payloads is not None
    stored = baton._payloads.offload(Outgoing(LARGE))
    topic.publish(stored.body, attributes=stored.attributes)
    assert settle(server) == 0
    (message,) = baton.queue("raw").receive(wait=0)
    assert message.body == LARGE
    message.ack()
    (message,) = plain.queue("enveloped").receive(wait=0)
    assert json.loads(message.body)["Message"] == stored.body
    assert sweep(server) == 0
    message.ack()
    assert sweep(server) == 1


def test_sqs_clients_send_and_receive_pointers_as_they_are(
    server: TestServer, baton: sync.Baton, account: str, folder: Path
) -> None:
    sqs = client("sqs", server.url, account)
    url = sqs.create_queue(QueueName="q", Attributes={"MessageRetentionPeriod": "1209600"})["QueueUrl"]
    assert baton._payloads is not None
    stored = baton._payloads.offload(Outgoing(LARGE))
    attributes = {SIZE: {"DataType": "Number", "StringValue": str(stored.attributes[SIZE])}}  # type: ignore[index]
    sent = sqs.send_message(QueueUrl=url, MessageBody=stored.body, MessageAttributes=attributes)  # digests are checked
    assert sent["MD5OfMessageBody"] == md5(stored.body.encode()).hexdigest()
    assert settle(server) == 0
    (message,) = sqs.receive_message(QueueUrl=url, MessageAttributeNames=["All"])["Messages"]
    assert message["Body"] == stored.body and message["MessageAttributes"] == attributes
    with pytest.raises(sqs.exceptions.ClientError, match="is over"):
        sqs.send_message(QueueUrl=url, MessageBody=stored.body, MessageAttributes=attributes)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert sweep(server) == 1
    sqs.close()


def test_what_was_sent_before_the_store_was_the_servers_is_not_deleted(
    tmp_path: Path, connect: Connect, folder: Path
) -> None:
    """A server that has no store, and gets it later: the client's objects of before stay, and those that it stored for
    this server are known although the server was started without its store for a while.
    """
    data = str(tmp_path / "data")
    with TestServer(data) as server:
        queue = connect(server).create_queue("q", retention=14 * 86_400)
        queue.send(LARGE)
        (first,) = objects(folder)
        assert first.parent.parent.name == CLIENT
    settings: dict[str, Any] = {"payload_store": f"file://{folder}", "payload_threshold": SERVER_THRESHOLD}
    with TestServer(data, **settings) as server:
        assert settle(server) == 0 and objects(folder) == [first]
    with TestServer(data) as server:
        connect(server).queue("q").send({"second": LARGE})
    with TestServer(data, **settings) as server:
        assert settle(server) == 0
        received = connect(server).queue("q").receive(wait=0)
        assert [one.body for one in received] == [LARGE, {"second": LARGE}]
        for one in received:
            one.ack()
        assert sweep(server) == 1 and objects(folder) == [first]


def test_a_client_learns_whose_store_it_is(folder: Path) -> None:
    now = 1_900_000_000.0
    payloads = Payloads(f"file://{folder}", THRESHOLD, lambda: now)

    def stored() -> str:
        return str(json.loads(payloads.offload(Outgoing(LARGE)).body)[1]["s3Key"])

    hour = hour_of(now)
    assert stored().startswith(f"{CLIENT}/{hour}/")
    PayloadStore(f"file://{folder}").claim("c0ffee")
    now += 61
    assert stored().startswith(f"{CLIENT}/c0ffee/{hour}/")
    (folder / OWNER).write_text("somebody's own")
    now += 61
    assert stored().startswith(f"{CLIENT}/{hour}/"), "not a server of Baton's"


def test_a_lost_body_does_not_hold_up_a_reader_group(tmp_path: Path, account: str, folder: Path) -> None:
    """It fails once per fetch, and is skipped into the dead-letter queue like a message whose handler fails."""
    settings: dict[str, Any] = {"payload_store": f"file://{folder}", "payload_threshold": THRESHOLD}
    with TestServer(str(tmp_path / "data"), **settings) as server, sync.Baton(server.url, account=account) as baton:
        queue = baton.create_queue("q", retain=HOUR_S)
        baton.create_queue("dead")
        queue.send_many(["before", LARGE, "between", LARGE + "2", "after"])
        for path in objects(folder):
            path.unlink()
        reader, alone = queue.reader("g"), queue.reader("alone")
        reader.create(dead_letter_queue="dead")
        alone.create()
        seen: list[Any] = []
        failures: list[int] = []
        for _ in range(8):
            found = reader.fetch(wait=0)
            seen += [one.body for one in found]
            failures.append(reader.info().shards[0].failures)
            if found:
                assert reader.fetch(wait=0) == [], "what was fetched before the lost message is not committed"
                assert reader.info().shards[0].failures == 0
                reader.commit(found[-1])
        assert seen == ["before", "between"]
        assert failures == [0, 1, 2, 0, 0, 1, 2, 0]
        assert reader.info().lag_messages == 1, "the last one is fetched next"
        (last,) = reader.fetch(wait=0)
        assert last.body == "after"
        dead = baton.queue("dead").peek()
        assert len(dead) == 2 and all("is not in the payload store" in one.problem for one in dead)
        assert "is not in the payload store" in dead[0].attributes["reader-error"]
        assert "message-unreadable" in {alarm.kind for alarm in server.node.alarms.active()}
        (first,) = alone.fetch(wait=0)
        alone.commit(first)
        for _ in range(5):
            with pytest.raises(PayloadDamaged, match="no dead-letter queue for it"):
                alone.fetch(wait=0)
        assert alone.info().shards[0].failures == 3, "then they are no longer counted"
        alone.seek("end")
        queue.send("new")
        assert [one.body for one in alone.fetch(wait=0)] == ["new"]


def test_a_reader_group_follows_the_pointers_of_clients(server: TestServer, connect: Connect, folder: Path) -> None:
    baton = connect(server)
    queue = baton.create_queue("q", retain=HOUR_S)
    baton.create_queue("dead")
    queue.send_many(["before", LARGE, LARGE + "lost", "after", LARGE + "lost too"])
    lost = [path for path in objects(folder) if "lost" in path.read_text()]
    assert len(lost) == 2
    for path in lost:
        path.unlink()
    reader, alone = queue.reader("g"), queue.reader("alone")
    reader.create(dead_letter_queue="dead")
    alone.create()
    first = reader.fetch(wait=0)
    assert [one.body for one in first] == ["before", LARGE] and first[1].attributes == {}
    assert reader.fetch(wait=0) == [], "what was fetched before the lost message is not committed"
    seen: list[Any] = []
    reader.commit(first[-1])
    for _ in range(4):
        found = reader.fetch(wait=0)
        seen += [one.body for one in found]
        if found:
            reader.commit(found[-1])
    assert seen == ["after"] and reader.info().lag_messages == 0
    assert [one.problem != "" for one in baton.queue("dead").peek()] == [True, True]
    alone.commit(alone.fetch(wait=0)[-1])
    for _ in range(2):
        with pytest.raises(PayloadDamaged, match="no dead-letter queue for it"):
            alone.fetch(wait=0)
    history = queue.history()
    assert [next(history).body for _ in range(2)] == ["before", LARGE]
    with pytest.raises(PayloadDamaged):
        next(history)


def lose(folder: Path) -> None:
    (lost,) = (path for path in objects(folder) if "lost" in path.read_text())
    lost.unlink()


def test_a_lost_body_is_skipped_although_other_shards_have_messages(
    server: TestServer, baton: sync.Baton, folder: Path
) -> None:
    queue = baton.create_queue(
        "q.fifo", fifo=True, retain=HOUR_S, spread=2, deduplication=Deduplication(per_group=True)
    )
    baton.create_queue("dead.fifo", fifo=True)
    for number in range(20):
        queue.send(f"small {number}", group=f"g{number}", dedup_key=f"{number}")
    reader = queue.reader("g")
    reader.create(dead_letter_queue="dead.fifo")
    first = reader.fetch(wait=0)
    shards = {one.body: one.shard for one in first}
    assert len(first) == 20 and len(set(shards.values())) == 2
    reader.commit(*first)
    busy = next(body for body in shards if shards[body] != shards["small 0"])
    queue.send(LARGE + "lost", group="g0", dedup_key="lost")
    queue.send("behind", group="g0", dedup_key="behind")
    lose(folder)
    seen: list[Any] = []
    for number in range(3):
        queue.send(f"busy {number}", group=f"g{busy.split()[1]}", dedup_key=f"busy{number}")
        found = reader.fetch(wait=0)
        seen += [one.body for one in found]
        reader.commit(*found)
    assert sorted(seen) == ["behind", "busy 0", "busy 1", "busy 2"]
    assert len(baton.queue("dead.fifo").peek()) == 1


@pytest.mark.parametrize("stored_by", ["server", "client"])
def test_an_iteration_that_must_commit_before_a_lost_body_is_told_so(
    tmp_path: Path, connect: Connect, folder: Path, monkeypatch: pytest.MonkeyPatch, stored_by: str
) -> None:
    monkeypatch.setattr("batonq.client.blocking.reader.RETRY_S", 0.0)
    monkeypatch.setattr("batonq.node.messages.reader_control.RETRY_MS", 0)
    threshold = THRESHOLD if stored_by == "server" else SERVER_THRESHOLD
    with TestServer(str(tmp_path / "data"), payload_store=f"file://{folder}", payload_threshold=threshold) as server:
        baton = connect(server)
        if stored_by == "server":
            baton._payloads = None
        queue = baton.create_queue("q", retain=HOUR_S)
        baton.create_queue("dead")
        queue.send_many(["before", LARGE + "lost", "after"])
        lose(folder)
        reader = queue.reader("g")
        reader.create(dead_letter_queue="dead")
        seen: list[Any] = []
        with pytest.raises(PayloadDamaged, match="commit what you have read"):
            seen.extend(message.body for message in reader)  # commits nothing
        reader.commit()
        for message in reader:
            seen.append(message.body)
            break
        assert seen == ["before", "after"]
        assert len(baton.queue("dead").peek()) == 1
