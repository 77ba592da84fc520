"""Requests of many connections that arrive in one turn of the event loop: each gets its own answer, whatever the others
are.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec
import pytest

from batonq.api.http.connection import Connection
from batonq.core.commands import Leases
from batonq.errors import QueueDoesNotExist
from tests.api.support import json_request, wait_until
from tests.support.server import ACCOUNT, TestServer

_names = count(1)


class Asked(NamedTuple):
    """One request: its path, headers and body."""

    path: str
    headers: dict[str, str]
    body: bytes

    def data(self) -> bytes:
        lines = [f"POST {self.path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(self.body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + self.body


def sqs(operation: str, url: str, headers: dict[str, str] | None = None, **fields: Any) -> Asked:
    body = json.dumps({"QueueUrl": url, **fields}, separators=(",", ":"), ensure_ascii=False).encode()
    return Asked("/", {"X-Amz-Target": f"AmazonSQS.{operation}", **(headers or {})}, body)


def query(action: str, url: str, **fields: Any) -> Asked:
    body = urlencode({"Action": action, "QueueUrl": url, **fields}).encode()
    return Asked("/", {"Content-Type": "application/x-www-form-urlencoded"}, body)


def rest(url: str, verb: str, packed: bool = False, headers: dict[str, str] | None = None, **fields: Any) -> Asked:
    """Of the same queue; `verb` is what follows `messages` in the path."""
    form = "application/msgpack" if packed else "application/json"
    body = msgspec.msgpack.encode(fields) if packed else msgspec.json.encode(fields)
    path = f"/v1/queues/{url.rpartition('/')[2]}/messages{verb}"
    return Asked(path, {"Content-Type": form, **(headers or {})}, body)


class Wire(asyncio.Transport):
    """The server's side of a connection whose client is the test."""

    def __init__(self, port: int) -> None:
        super().__init__({"peername": ("127.0.0.1", port)})
        self.written = b""
        self.gone = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.gone, "nobody is there to read this"
        self.written += data

    def is_closing(self) -> bool:
        return self.gone

    def close(self) -> None:
        self.gone = True

    def abort(self) -> None:
        self.gone = True

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...

    @property
    def is_answered(self) -> bool:
        return self.gone or b"\r\n\r\n" in self.written

    def answer(self) -> tuple[int, Any]:
        """Status and value of the one answer."""
        assert self.written.count(b"HTTP/1.1 ") == 1, "one request has one answer"
        head, _, body = self.written.partition(b"\r\n\r\n")
        if b"msgpack" in head:
            return int(head.split(b" ")[1]), msgspec.msgpack.decode(body)
        return int(head.split(b" ")[1]), body.decode() if body.startswith(b"<") else json.loads(body or b"null")


class Turn:
    """Some requests, each on a connection of its own, that the server reads in one turn. Those at the places in
    `leaving` go in the same turn, without waiting for an answer.
    """

    def __init__(self, server: TestServer, requests: list[Asked], leaving: tuple[int, ...] = ()) -> None:
        self.server = server
        self.wires = [Wire(50_000 + at) for at in range(len(requests))]
        self.connections: list[Connection] = []
        server.run(lambda: self._arrive(requests, leaving))

    async def _arrive(self, requests: list[Asked], leaving: tuple[int, ...]) -> None:
        for wire, request in zip(self.wires, requests, strict=True):
            connection = Connection(self.server.http)
            connection.connection_made(wire)
            self.connections.append(connection)
            connection.data_received(request.data())
        for at in leaving:
            self.leave(at)

    def leave(self, at: int) -> None:
        """On the server's loop: the client at this place goes."""
        self.wires[at].gone = True
        self.connections[at].connection_lost(None)

    def answers(self) -> list[tuple[int, Any]]:
        """Status and value of each answer, once all are there; the connections end then."""
        wait_until(lambda: all(wire.is_answered for wire in self.wires))
        self.server.run(self._end)
        return [wire.answer() for wire in self.wires]

    async def _end(self) -> None:
        for at, wire in enumerate(self.wires):
            if not wire.gone:
                self.leave(at)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    with TestServer(str(tmp_path_factory.mktemp("grouping"))) as running:
        yield running


def create(server: TestServer, *, fifo: bool = False, attributes: dict[str, str] | None = None) -> str:
    name = f"queue-{next(_names)}{'.fifo' * fifo}"
    given = {**(attributes or {}), "FifoQueue": "true"} if fifo else attributes or {}
    answer = json_request(server, "CreateQueue", {"QueueName": name, "Attributes": given})
    return str(answer.json["QueueUrl"])


@pytest.fixture
def url(server: TestServer) -> str:
    return create(server)


def counts(server: TestServer, url: str) -> tuple[int, int, int]:
    """Visible, in flight, delayed."""
    names = [f"ApproximateNumberOfMessages{suffix}" for suffix in ("", "NotVisible", "Delayed")]
    answer = json_request(server, "GetQueueAttributes", {"QueueUrl": url, "AttributeNames": names})
    visible, in_flight, delayed = (int(answer.json["Attributes"][name]) for name in names)
    return visible, in_flight, delayed


def sends(url: str, requests: int, messages: int = 3) -> list[Asked]:
    return [
        sqs(
            "SendMessageBatch",
            url,
            Entries=[{"Id": f"e{n}", "MessageBody": f"request {at} message {n}"} for n in range(messages)],
        )
        for at in range(requests)
    ]


def receives(url: str, requests: int, **fields: Any) -> list[Asked]:
    return [sqs("ReceiveMessage", url, **{"MaxNumberOfMessages": 3, **fields}) for _ in range(requests)]


def deletes(url: str, messages: list[dict[str, str]]) -> Asked:
    return sqs("DeleteMessageBatch", url, Entries=[_receipt(message) for message in messages])


def _receipt(message: dict[str, str]) -> dict[str, str]:
    return {"Id": message["MessageId"], "ReceiptHandle": message["ReceiptHandle"]}


def wrap(
    server: TestServer,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    call: Callable[[Callable[..., Any], Any, Any], Any],
) -> None:
    """Replace a command of every shard: `call` is given the real one, the requests and the rest."""
    for keeper in server.node.shards:
        shard = keeper.host().shard
        real = getattr(shard, name)
        monkeypatch.setattr(shard, name, lambda commands, *given, real=real: call(real, commands, given))


@pytest.fixture
def groups(server: TestServer, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What the shard is asked: the command's name, and how many requests it is for."""
    asked: list[tuple[str, int]] = []

    def noted(name: str) -> Callable[[Callable[..., Any], Any, Any], Any]:
        def call(real: Callable[..., Any], commands: Any, given: Any) -> Any:
            asked.append((name, len(commands)))
            return real(commands, *given)

        return call

    for name in ("send", "receive", "delete"):
        wrap(server, monkeypatch, name, noted(name))
    return asked


# --- requests of one kind ---------------------------------------------------------------------


def test_a_turn_of_each_call(server: TestServer, url: str, groups: list[tuple[str, int]]) -> None:
    sent = Turn(server, sends(url, 20)).answers()
    assert [status for status, _ in sent] == [200] * 20
    ids = [[entry["MessageId"] for entry in body["Successful"]] for _, body in sent]
    assert len({one for some in ids for one in some}) == 60
    received = [body["Messages"] for _, body in Turn(server, receives(url, 20)).answers()]
    assert [[message["MessageId"] for message in some] for some in received] == ids
    assert [message["Body"] for message in received[7]] == [f"request 7 message {number}" for number in range(3)]
    assert counts(server, url) == (0, 60, 0)
    deleted = Turn(server, [deletes(url, some[::-1]) for some in reversed(received)]).answers()
    assert [[entry["Id"] for entry in body["Successful"]] for _, body in deleted] == [
        some[::-1] for some in reversed(ids)
    ]
    assert counts(server, url) == (0, 0, 0)
    assert groups == [("send", 20), ("receive", 20), ("delete", 20)]


def test_singles_and_batches_in_one_turn(server: TestServer, url: str, groups: list[tuple[str, int]]) -> None:
    single = sqs("SendMessage", url, MessageBody="alone")
    answers = Turn(server, [single, *sends(url, 2), single]).answers()
    assert [status for status, _ in answers] == [200] * 4
    assert "MessageId" in answers[0][1] and len(answers[1][1]["Successful"]) == 3
    ((_, body),) = Turn(server, receives(url, 1, MaxNumberOfMessages=10)).answers()
    assert [message["Body"] for message in body["Messages"]][::7] == ["alone", "alone"]
    one_by_one = [sqs("DeleteMessage", url, ReceiptHandle=m["ReceiptHandle"]) for m in body["Messages"]]
    assert Turn(server, one_by_one).answers() == [(200, {})] * 8
    assert counts(server, url) == (0, 0, 0)
    assert groups == [("send", 4), ("receive", 1), ("delete", 8)]


def test_queues_and_protocols_do_not_mix_their_answers(server: TestServer, groups: list[tuple[str, int]]) -> None:
    urls = [create(server) for _ in range(3)]
    requests = []
    for at, url in enumerate(urls):
        requests += [
            sqs("SendMessage", url, MessageBody=f"{at} by SQS"),
            query("SendMessage", url, MessageBody=f"{at} by a form"),
            rest(url, "", body=f"{at} by REST"),
            rest(url, ":batch", packed=True, messages=[{"body": f"{at} packed"}]),
        ]
    answers = Turn(server, requests).answers()
    assert [status for status, _ in answers] == [200, 200, 202, 202] * 3
    for at, url in enumerate(urls):
        ours = answers[4 * at : 4 * at + 4]
        ids = [ours[0][1]["MessageId"], ours[2][1]["messageId"], ours[3][1]["results"][0]["messageId"]]
        ((_, body),) = Turn(server, receives(url, 1, MaxNumberOfMessages=10)).answers()
        found = {message["MessageId"]: message["Body"] for message in body["Messages"]}
        assert [found[one] for one in ids] == [f"{at} by SQS", f"{at} by REST", f"{at} packed"]
        (other,) = set(found) - set(ids)
        assert found[other] == f"{at} by a form" and f"<MessageId>{other}</MessageId>" in ours[1][1]
    # What needs no task goes with the others of its queue; forms have a task each, and come a turn later.
    assert groups[:6] == [("send", 3), ("send", 3), ("send", 3), ("send", 1), ("send", 1), ("send", 1)]


def test_many_bytes_are_not_executed_at_once(server: TestServer, url: str, groups: list[tuple[str, int]]) -> None:
    large = sqs("SendMessage", url, MessageBody="x" * 1_000_000)
    answers = Turn(server, [large] * 10).answers()
    assert [status for status, _ in answers] == [200] * 10
    assert groups == [("send", 4), ("send", 4), ("send", 2)]
    assert counts(server, url) == (10, 0, 0)
    received = Turn(server, receives(url, 4)).answers()
    assert [len(body.get("Messages", [])) for _, body in received] == [3, 3, 3, 1]
    assert {len(message["Body"]) for _, body in received for message in body["Messages"]} == {1_000_000}


def test_receives_of_different_lengths(server: TestServer, url: str) -> None:
    """Each lease is as long as its own request says."""
    Turn(server, sends(url, 4)).answers()
    asked = [receives(url, 1, **more)[0] for more in ({}, {"VisibilityTimeout": 5}, {"VisibilityTimeout": 500}, {})]
    answers = [body["Messages"] for _, body in Turn(server, asked).answers()]
    assert [len(some) for some in answers] == [3, 3, 3, 3]
    assert len({message["MessageId"] for some in answers for message in some}) == 12
    for seconds, visible in ((6, 3), (25, 9), (470, 12)):
        server.advance(seconds)
        assert counts(server, url) == (visible, 12 - visible, 0)


# --- each request by itself -------------------------------------------------------------------


def test_who_comes_too_late_waits_or_goes_empty(server: TestServer, url: str) -> None:
    Turn(server, sends(url, 1, 4)).answers()
    answers = [body for _, body in Turn(server, receives(url, 3)).answers()]
    assert [len(body.get("Messages", [])) for body in answers] == [3, 1, 0]
    Turn(server, sends(url, 1, 1)).answers()
    turn = Turn(server, receives(url, 2, WaitTimeSeconds=20))
    wait_until(lambda: turn.wires[0].is_answered)
    assert not turn.wires[1].is_answered
    Turn(server, sends(url, 1, 2)).answers()
    assert [len(body["Messages"]) for _, body in turn.answers()] == [1, 2]


def test_an_sdk_that_repeats_a_request_in_the_same_turn(server: TestServer, url: str) -> None:
    entries = [{"Id": f"e{number}", "MessageBody": f"message {number}"} for number in range(3)]
    named = {"amz-sdk-invocation-id": "11111111-2222-4333-8444-555555555555"}
    other = {"amz-sdk-invocation-id": "11111111-2222-4333-8444-666666666666"}
    requests = [sqs("SendMessageBatch", url, headers, Entries=entries) for headers in (named, None, named, other)]
    answers = Turn(server, requests).answers()
    assert answers[0] == answers[2]
    assert len({entry["MessageId"] for _, body in answers for entry in body["Successful"]}) == 9
    assert counts(server, url) == (9, 0, 0)


def test_an_idempotency_key_in_one_turn(server: TestServer, url: str) -> None:
    named = {"Idempotency-Key": "k"}
    requests = [
        rest(url, "", body=1),
        *[rest(url, "", headers=named, body=2)] * 3,
        rest(url, "", headers=named, body=3),
    ]
    answers = Turn(server, requests).answers()
    assert [status for status, _ in answers] == [202, 202, 202, 202, 409]
    assert answers[1] == answers[2] == answers[3] and answers[0] != answers[1]
    assert counts(server, url) == (2, 0, 0)


def test_one_superseded_receipt_spoils_nothing_for_the_others(server: TestServer, url: str) -> None:
    Turn(server, sends(url, 2)).answers()
    first, second = [body["Messages"] for _, body in Turn(server, receives(url, 2)).answers()]
    requests = [
        deletes(url, first),
        sqs("DeleteMessage", url, ReceiptHandle="garbage"),
        deletes(url, second[:2]),
        deletes(url, first[:1]),  # SQS says yes a second time, too
        rest(url, ":ack", receiptHandles=[first[1]["ReceiptHandle"], second[2]["ReceiptHandle"]]),
    ]
    answers = Turn(server, requests).answers()
    assert [status for status, _ in answers] == [200, 400, 200, 200, 200]
    assert [len(answers[at][1]["Successful"]) for at in (0, 2, 3)] == [3, 2, 1]
    assert answers[1][1]["__type"].endswith("#ReceiptHandleIsInvalid")
    assert ["error" in result for result in answers[4][1]["results"]] == [True, False]
    assert counts(server, url) == (0, 0, 0)


def test_what_is_wrong_with_one_request_is_told_to_that_one(server: TestServer, url: str) -> None:
    strange = {"Baton.Priority": {"DataType": "Number", "StringValue": "256"}}
    wrong = [
        sqs("SendMessage", url, MessageBody=""),
        sqs("SendMessage", url, MessageBody="x" * (1_048_576 + 1)),
        sqs("SendMessage", url, MessageBody="x", MessageAttributes=strange),
        sqs("SendMessage", url, MessageBody=7),
        sqs("SendMessage", f"{url}-none", MessageBody="x"),
        sqs("SendMessageBatch", url, Entries=[]),
        rest(url, "", body="x", priority=256),
        rest(f"{url}-none", "", body="x"),
        Asked("/", {"X-Amz-Target": "AmazonSQS.SendMessage"}, b"{"),
        query("SendMessage", url),
    ]
    right = sends(url, len(wrong), 1)
    answers = Turn(server, [request for pair in zip(wrong, right, strict=True) for request in pair]).answers()
    assert [status for status, _ in answers[1::2]] == [200] * len(right)
    assert [status for status, _ in answers[::2]] == [400, 400, 400, 400, 400, 400, 400, 404, 400, 400]
    assert answers[8][1]["__type"].endswith("#QueueDoesNotExist")
    assert counts(server, url) == (len(right), 0, 0)


def test_a_batch_of_which_some_entries_are_wrong(server: TestServer, url: str) -> None:
    entries = [
        {"Id": "a", "MessageBody": "first"},
        {"Id": "b", "MessageBody": "x", "DelaySeconds": 901},
        {"Id": "c", "MessageBody": "third", "DelaySeconds": 900},
        {"Id": "d", "MessageBody": ""},
        {"Id": "e", "MessageBody": "fifth", "MessageGroupId": "g"},
    ]
    mixed = sqs("SendMessageBatch", url, Entries=entries)
    answers = Turn(server, [*sends(url, 1), mixed, *sends(url, 1), mixed]).answers()
    for _, body in (answers[1], answers[3]):
        assert [entry["Id"] for entry in body["Successful"]] == ["a", "c", "e"]
        assert [entry["Id"] for entry in body["Failed"]] == ["b", "d"]
    assert [len(body["Successful"]) for _, body in answers] == [3, 3, 3, 3]
    assert counts(server, url) == (10, 0, 2)


def test_a_queue_with_room_for_some(server: TestServer) -> None:
    """What does not fit is refused message by message, and only that."""
    url = create(server, attributes={"Baton.MaximumMessages": "5"})
    batch = [rest(url, ":batch", messages=[{"body": "a"}, {"body": "b"}]) for _ in range(4)]
    answers = Turn(server, batch).answers()
    assert [["error" in result for result in body["results"]] for _, body in answers] == [
        [False, False],
        [False, False],
        [False, True],
        [True, True],
    ]
    assert [status for status, _ in answers] == [202, 202, 200, 200]
    assert counts(server, url) == (5, 0, 0)


def test_in_flight_is_limited_request_by_request(server: TestServer) -> None:
    url = create(server, attributes={"Baton.MaximumInFlight": "4"})
    Turn(server, sends(url, 3)).answers()
    answers = Turn(server, [*receives(url, 3), rest(url, ":receive"), query("ReceiveMessage", url)]).answers()
    assert [status for status, _ in answers] == [200, 200, 403, 429, 403]
    assert [len(body["Messages"]) for _, body in answers[:2]] == [3, 1]
    assert answers[2][1]["__type"].endswith("#OverLimit") and answers[3][1]["code"] == "over_limit"
    assert counts(server, url) == (5, 4, 0)


def test_a_fifo_group_in_one_turn(server: TestServer) -> None:
    """Sends keep the order in which they came; of receives, one gets the group."""
    url = create(server, fifo=True)
    requests = [
        sqs("SendMessage", url, MessageBody=f"{at}", MessageGroupId=f"g{at % 2}", MessageDeduplicationId=f"d{at % 8}")
        for at in range(10)
    ]
    sent = Turn(server, requests).answers()
    assert [body["MessageId"] for _, body in sent[:2]] == [body["MessageId"] for _, body in sent[8:]]
    numbers = [body["SequenceNumber"] for _, body in sent]
    assert numbers[:8] == sorted(numbers[:8]) and len(set(numbers)) == 8
    names = {"AttributeNames": ["MessageGroupId"], "MaxNumberOfMessages": 2}
    received = [body.get("Messages", []) for _, body in Turn(server, receives(url, 3, **names)).answers()]
    assert [[message["Body"] for message in some] for some in received] == [["0", "2"], ["1", "3"], []]
    deleted = Turn(server, [deletes(url, some) for some in received[:2]]).answers()
    assert [len(body["Successful"]) for _, body in deleted] == [2, 2]
    received = [body.get("Messages", []) for _, body in Turn(server, receives(url, 3, **names)).answers()]
    assert [[message["Body"] for message in some] for some in received] == [["4", "6"], ["5", "7"], []]


# --- all kinds of messages --------------------------------------------------------------------


def kinds(url: str, at: int) -> list[tuple[str, Asked]]:
    """Requests for one message each, of all kinds, and what SQS shows of their bodies."""
    attribute = {"k": {"DataType": "String", "StringValue": f"value {at}"}}
    own = {"Baton.Priority": {"DataType": "Number", "StringValue": str(at)}}
    document = json.dumps({"at": at, "tags": ["a", "b"], "text": 'with "quotes"\n'})
    unicode_text = f"h\u00e9llo \u4e16\u754c \U0001f600 {at}"
    return [
        (f"plain {at}", sqs("SendMessage", url, MessageBody=f"plain {at}")),
        (document, sqs("SendMessage", url, MessageBody=document)),
        (unicode_text, sqs("SendMessage", url, MessageBody=unicode_text)),
        (f"attributes {at}", sqs("SendMessage", url, MessageBody=f"attributes {at}", MessageAttributes=attribute)),
        (f"group {at}", sqs("SendMessage", url, MessageBody=f"group {at}", MessageGroupId=f"g{at}")),
        (f"priority {at}", sqs("SendMessage", url, MessageBody=f"priority {at}", MessageAttributes=own)),
        (f"form {at}", query("SendMessage", url, MessageBody=f"form {at}")),
        (f'{{"rest":{at}}}', rest(url, "", body={"rest": at})),
        (f"ttl {at}", rest(url, "", packed=True, body=f"ttl {at}", ttlSeconds=900, attributes={"k": f"value {at}"})),
        (f"key {at}", rest(url, ":batch", messages=[{"body": f"key {at}", "deduplicationKey": f"key-{at}"}])),
    ]


def test_all_kinds_of_messages_at_once(server: TestServer, url: str) -> None:
    asked = [one for at in range(6) for one in kinds(url, at)]
    delayed = [sqs("SendMessage", url, MessageBody=f"later {at}", DelaySeconds=600) for at in range(6)]
    answers = Turn(server, [*[request for _, request in asked], *delayed]).answers()
    assert {status for status, _ in answers} == {200, 202}
    bodies = Counter(body for body, _ in asked)
    assert counts(server, url) == (60, 0, 6)
    whole = {"MaxNumberOfMessages": 10, "AttributeNames": ["All", "Baton.All"], "MessageAttributeNames": ["All"]}
    bare = {"MaxNumberOfMessages": 10}
    for round_number in (1, 2):
        requests = [sqs("ReceiveMessage", url, **(whole if at % 2 else bare)) for at in range(7)]
        received = [body.get("Messages", []) for _, body in Turn(server, requests).answers()]
        messages = [message for some in received for message in some]
        assert Counter(message["Body"] for message in messages) == bodies
        assert [len(some) for some in received] == [10] * 6 + [0]
        for message in (one for some in received[1::2] for one in some):
            _check_whole(message, round_number)
        returns = [
            sqs("ChangeMessageVisibility", url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
            for message in messages
        ]
        if round_number == 1:
            assert Turn(server, returns).answers() == [(200, {})] * 60
            assert counts(server, url) == (60, 0, 6)
    assert [len(body["Successful"]) for _, body in Turn(server, [deletes(url, s) for s in received[:6]]).answers()] == [
        10
    ] * 6
    assert counts(server, url) == (0, 0, 6)


def _check_whole(message: dict[str, Any], receives: int) -> None:
    kind, _, at = message["Body"].rpartition(" ")
    attributes = message["Attributes"]
    assert attributes["ApproximateReceiveCount"] == str(receives)
    assert attributes.get("MessageGroupId") == (f"g{at}" if kind == "group" else None)
    assert attributes["Baton.Priority"] == (at if kind == "priority" else "128")
    own = message.get("MessageAttributes", {})
    if kind in ("attributes", "ttl"):
        assert own["k"]["StringValue"] == f"value {at}"
    else:
        assert "k" not in own


# --- clients that leave -----------------------------------------------------------------------


def test_whoever_leaves_before_the_answer_takes_no_message_along(server: TestServer, url: str) -> None:
    Turn(server, sends(url, 4)).answers()
    requests = [*receives(url, 2), rest(url, ":receive", maxMessages=3), rest(url, ":receive", packed=True)]
    turn = Turn(server, requests, leaving=(0, 2))
    wait_until(lambda: turn.wires[1].is_answered and turn.wires[3].is_answered)
    server.run(turn._end)
    assert not turn.wires[0].written and not turn.wires[2].written
    taken = len(turn.wires[1].answer()[1]["Messages"]) + len(turn.wires[3].answer()[1]["messages"])
    assert taken > 3
    wait_until(lambda: counts(server, url) == (12 - taken, taken, 0))
    names = {"AttributeNames": ["ApproximateReceiveCount"], "MaxNumberOfMessages": 10}
    ((_, body),) = Turn(server, receives(url, 1, **names)).answers()
    left = [message["Attributes"]["ApproximateReceiveCount"] for message in body.get("Messages", [])]
    assert left == ["1"] * (12 - taken), "a receive that was given back is not charged"


@pytest.mark.parametrize("protocol", ["sqs", "query", "rest", "packed"])
def test_whoever_leaves_while_its_lease_is_written_takes_no_message_along(
    server: TestServer, url: str, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client goes in the very moment in which the shard has leased the messages."""
    Turn(server, sends(url, 2)).answers()
    request = {
        "sqs": sqs("ReceiveMessage", url, MaxNumberOfMessages=10),
        "query": query("ReceiveMessage", url, MaxNumberOfMessages=10),
        "rest": rest(url, ":receive"),
        "packed": rest(url, ":receive", packed=True),
    }[protocol]
    leased: list[int] = []
    turn = Turn(server, [])

    def receive(real: Callable[..., Any], commands: Any, given: Any) -> Any:
        outcomes = real(commands, *given)
        leased.extend(len(outcome) for outcome in outcomes if isinstance(outcome, Leases))
        turn.leave(0)
        return outcomes

    wrap(server, monkeypatch, "receive", receive)
    turn.wires = [Wire(60_000)]
    server.run(lambda: turn._arrive([request], ()))
    wait_until(lambda: leased == [6])
    monkeypatch.undo()
    wait_until(lambda: counts(server, url) == (6, 0, 0))
    assert not turn.wires[0].written


@pytest.mark.parametrize("protocol", ["sqs", "query", "rest", "packed"])
def test_a_long_poll_whose_client_leaves_ends(server: TestServer, url: str, protocol: str) -> None:
    asked = {
        "sqs": sqs("ReceiveMessage", url, WaitTimeSeconds=20),
        "query": query("ReceiveMessage", url, WaitTimeSeconds=20),
        "rest": rest(url, ":receive", waitSeconds=20),
        "packed": rest(url, ":receive", packed=True, waitSeconds=20),
    }[protocol]
    number = server.broker.queue(ACCOUNT, url.rpartition("/")[2]).number
    polls = server.node.shards[0].host().polls
    turn = Turn(server, [asked] * 4)
    wait_until(lambda: polls.waiting(number) == 4)
    server.run(lambda: _leave(turn, 0, 2))
    wait_until(lambda: polls.waiting(number) == 2)
    for _ in range(3):
        Turn(server, [sqs("SendMessage", url, MessageBody="x")]).answers()
    wait_until(lambda: turn.wires[1].is_answered and turn.wires[3].is_answered)
    server.run(turn._end)
    assert not turn.wires[0].written and not turn.wires[2].written
    assert polls.waiting(number) == 0
    taken = [
        turn.wires[at].written.count(b"eceiptHandle>") // 2 or turn.wires[at].written.count(b"eceiptHandle")
        for at in (1, 3)
    ]
    assert min(taken) >= 1
    wait_until(lambda: counts(server, url) == (3 - sum(taken), sum(taken), 0))


async def _leave(turn: Turn, *places: int) -> None:
    for at in places:
        turn.leave(at)


def test_a_half_closed_client_gets_no_messages_that_nobody_reads(server: TestServer, url: str) -> None:
    """A client that has said all it will is answered, unless that is only a wait."""
    turn = Turn(server, receives(url, 1, WaitTimeSeconds=20))
    number = server.broker.queue(ACCOUNT, url.rpartition("/")[2]).number
    polls = server.node.shards[0].host().polls
    wait_until(lambda: polls.waiting(number) == 1)
    server.run(lambda: _half_close(turn))
    assert polls.waiting(number) == 0
    Turn(server, sends(url, 1)).answers()
    assert counts(server, url) == (3, 0, 0)
    server.run(turn._end)


async def _half_close(turn: Turn) -> None:
    turn.connections[0].eof_received()


def test_sends_of_clients_that_leave_are_kept(server: TestServer, url: str) -> None:
    turn = Turn(server, [*sends(url, 3), rest(url, "", body=1)], leaving=(0, 1, 3))
    wait_until(lambda: turn.wires[2].is_answered)
    server.run(turn._end)
    assert turn.wires[2].answer()[0] == 200
    assert counts(server, url) == (10, 0, 0)


# --- errors in the middle ---------------------------------------------------------------------


def failing(server: TestServer, monkeypatch: pytest.MonkeyPatch, name: str, queue: int, problem: Exception) -> None:
    """The shard cannot execute what is for this queue."""

    def call(real: Callable[..., Any], commands: Any, given: Any) -> Any:
        if commands[0].queue == queue:
            raise problem
        return real(commands, *given)

    wrap(server, monkeypatch, name, call)


def test_a_queue_that_goes_in_the_same_turn(server: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, other = create(server), create(server)
    number = server.broker.queue(ACCOUNT, gone.rpartition("/")[2]).number
    for name in ("send", "receive", "delete"):
        failing(server, monkeypatch, name, number, QueueDoesNotExist())
    Turn(server, sends(other, 1)).answers()
    ((_, body),) = Turn(server, receives(other, 1)).answers()
    receipt = body["Messages"][0]["ReceiptHandle"]
    requests = [
        *sends(gone, 2),
        *sends(other, 2),
        *receives(gone, 2, WaitTimeSeconds=20),
        *receives(other, 2),
        rest(gone, "", body=1),
        rest(gone, ":receive", packed=True),
        sqs("DeleteMessage", other, ReceiptHandle=receipt),
    ]
    answers = Turn(server, requests).answers()
    assert [status for status, _ in answers] == [400, 400, 200, 200, 400, 400, 200, 200, 404, 404, 200]
    for at in (0, 1, 4, 5):
        assert answers[at][1]["__type"].endswith("#QueueDoesNotExist")
    assert sum(len(body.get("Messages", [])) for _, body in answers[6:8]) == 6


def test_a_shard_that_breaks_off_answers_everybody(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the others of the turn were told is in the log; whoever cannot know is told to try again."""
    with TestServer(str(tmp_path_factory.mktemp("breaking"))) as server:
        broken, other = create(server), create(server)
        number = server.broker.queue(ACCOUNT, broken.rpartition("/")[2]).number
        failing(server, monkeypatch, "send", number, RuntimeError("planted"))
        requests = [*sends(other, 2, 1), *sends(broken, 3, 1), *sends(other, 2, 1), rest(broken, "", body=1)]
        answers = Turn(server, requests).answers()
        assert [status for status, _ in answers[2:5]] == [503] * 3 and answers[7][0] == 503
        kept = [status for status, _ in [*answers[:2], *answers[5:7]]]
        assert set(kept) <= {200, 503}
        monkeypatch.undo()
        wait_until(lambda: Turn(server, sends(broken, 1, 1)).answers()[0][0] == 200)
        assert counts(server, broken) == (1, 0, 0)
        visible, _, _ = counts(server, other)
        assert visible == kept.count(200)


def test_a_request_behind_one_that_waits_for_its_commit_waits_too(server: TestServer, url: str) -> None:
    """A body that ends where a part of what was read ends leaves the next requests to the connection's task."""

    def raw(asked: Asked) -> bytes:
        head = "".join(f"{name}: {value}\r\n" for name, value in asked.headers.items())
        return (
            f"POST {asked.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}Content-Length: {len(asked.body)}\r\n\r\n".encode()
            + asked.body
        )

    around = len(sqs("SendMessage", url, MessageBody="").body)
    for length in (8192, 8192 - around, 4096, 4096 - around):
        with socket.create_connection(("127.0.0.1", server.http.port), timeout=20) as client:
            first, second = sqs("SendMessage", url, MessageBody="x" * length), sqs("SendMessage", url, MessageBody="y")
            client.sendall(raw(first) + raw(second) + raw(sqs("ListQueueTags", url)))
            got = b""
            while got.count(b"HTTP/1.1 ") < 3 or not got.endswith(b"}"):
                more = client.recv(65_536)
                assert more, got
                got += more
        bodies = [part.partition(b"\r\n\r\n")[2] for part in got.split(b"HTTP/1.1 ")[1:]]
        assert [b"MD5OfMessageBody" in body for body in bodies] == [True, True, False]


def test_a_client_that_closes_its_side_gets_the_answer_to_a_receive_that_does_not_wait(tmp_path: Path) -> None:
    with TestServer(str(tmp_path), inline_sync_us=1) as server:
        url = create(server)
        Turn(server, sends(url, 1, 1)).answers()
        asked = sqs("ReceiveMessage", url)
        head = "".join(f"{name}: {value}\r\n" for name, value in asked.headers.items())
        start = f"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}Content-Length: {len(asked.body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.http.port), timeout=20) as client:
            client.sendall(start.encode() + asked.body)
            client.shutdown(socket.SHUT_WR)
            assert b'"ReceiptHandle"' in client.recv(65_536)
