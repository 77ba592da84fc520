"""Requests that arrive in one turn of the event loop are run together, and each is answered for itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from batonq.api.http.connection import Connection
from batonq.errors import QueueDoesNotExist
from batonq.node.host import ShardHost
from tests.api.support import json_request, wait_until
from tests.support.server import TestServer


class Wire(asyncio.Transport):
    """The server's side of a connection whose client is the test."""

    def __init__(self, port: int) -> None:
        super().__init__({"peername": ("127.0.0.1", port)})
        self.answers: list[bytes] = []
        self.gone = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.answers.append(bytes(data))

    def is_closing(self) -> bool:
        return self.gone

    def close(self) -> None:
        self.gone = True

    def abort(self) -> None:
        self.gone = True

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Turn:
    """Some requests, each on a connection of its own, that the server reads in one turn."""

    def __init__(self, server: TestServer, requests: list[tuple[str, Any]]) -> None:
        self.server = server
        self.wires = [Wire(50_000 + at) for at in range(len(requests))]
        self.connections: list[Connection] = []
        server.run(lambda: self._arrive(requests))

    async def _arrive(self, requests: list[tuple[str, Any]]) -> None:
        for wire, (operation, fields) in zip(self.wires, requests, strict=True):
            connection = Connection(self.server.http)
            connection.connection_made(wire)
            self.connections.append(connection)
            headers = dict(fields.pop("headers", {}))
            body = json.dumps(fields, separators=(",", ":")).encode()
            lines = [
                "POST / HTTP/1.1",
                "Host: localhost",
                f"X-Amz-Target: AmazonSQS.{operation}",
                f"Content-Length: {len(body)}",
                *(f"{name}: {value}" for name, value in headers.items()),
            ]
            connection.data_received("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def answers(self) -> list[tuple[int, Any]]:
        """Status and body of each answer, once all are there."""
        wait_until(lambda: all(wire.answers for wire in self.wires))
        heads_and_bodies = [b"".join(wire.answers).partition(b"\r\n\r\n") for wire in self.wires]
        found = [(int(head.split(b" ")[1]), json.loads(body)) for head, _, body in heads_and_bodies]
        self.server.run(self._leave)
        return found

    async def _leave(self) -> None:
        for connection, wire in zip(self.connections, self.wires, strict=True):
            wire.gone = True
            connection.connection_lost(None)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    """One of its own: no other test has left anything behind."""
    with TestServer(str(tmp_path_factory.mktemp("together"))) as running:
        yield running


@pytest.fixture
def url(server: TestServer, request: pytest.FixtureRequest) -> str:
    name = f"together-{abs(hash(request.node.name)) % 10**9}"
    return str(json_request(server, "CreateQueue", {"QueueName": name}).json["QueueUrl"])


def counts(server: TestServer, url: str) -> tuple[int, int, int]:
    """Visible, in flight, delayed."""
    names = [f"ApproximateNumberOfMessages{suffix}" for suffix in ("", "NotVisible", "Delayed")]
    answer = json_request(server, "GetQueueAttributes", {"QueueUrl": url, "AttributeNames": names})
    visible, in_flight, delayed = (int(answer.json["Attributes"][name]) for name in names)
    return visible, in_flight, delayed


def sends(url: str, requests: int, messages: int = 3) -> list[tuple[str, Any]]:
    return [
        ("SendMessageBatch", {"QueueUrl": url, "Entries": [_entry(at, number) for number in range(messages)]})
        for at in range(requests)
    ]


def _entry(at: int, number: int) -> dict[str, str]:
    return {"Id": f"e{number}", "MessageBody": f"request {at} message {number}"}


def receives(url: str, requests: int, **fields: Any) -> list[tuple[str, Any]]:
    return [("ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": 3, **fields}) for _ in range(requests)]


def test_a_turn_of_each_call(server: TestServer, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []
    for name in ("send_together", "receive_together", "delete_together"):
        monkeypatch.setattr(ShardHost, name, noted(runs, name, getattr(ShardHost, name)))
    sent = Turn(server, sends(url, 20)).answers()
    assert [status for status, _ in sent] == [200] * 20
    ids = [[entry["MessageId"] for entry in body["Successful"]] for _, body in sent]
    assert len({one for some in ids for one in some}) == 60
    received = [body["Messages"] for _, body in Turn(server, receives(url, 20)).answers()]
    assert [[message["MessageId"] for message in some] for some in received] == ids
    assert [message["Body"] for message in received[7]] == [f"request 7 message {number}" for number in range(3)]
    assert counts(server, url) == (0, 60, 0)
    deletes = [
        (
            "DeleteMessageBatch",
            {
                "QueueUrl": url,
                "Entries": [{"Id": m["MessageId"], "ReceiptHandle": m["ReceiptHandle"]} for m in reversed(some)],
            },
        )
        for some in reversed(received)
    ]
    deleted = Turn(server, deletes).answers()
    assert [[entry["Id"] for entry in body["Successful"]] for _, body in deleted] == [
        some[::-1] for some in reversed(ids)
    ]
    assert counts(server, url) == (0, 0, 0)
    assert runs == ["send_together", "receive_together", "delete_together"]


def noted(runs: list[str], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        runs.append(name)
        return function(*arguments)

    return call


def test_singles_and_batches_in_one_turn(server: TestServer, url: str) -> None:
    single = ("SendMessage", {"QueueUrl": url, "MessageBody": "alone"})
    answers = Turn(server, [single, *sends(url, 2), dict_copy(single)]).answers()
    assert [status for status, _ in answers] == [200] * 4
    assert "MessageId" in answers[0][1] and len(answers[1][1]["Successful"]) == 3
    (some,) = [body["Messages"] for _, body in Turn(server, receives(url, 1, MaxNumberOfMessages=10)).answers()]
    assert [message["Body"] for message in some][::7] == ["alone", "alone"]
    one_by_one = [("DeleteMessage", {"QueueUrl": url, "ReceiptHandle": m["ReceiptHandle"]}) for m in some]
    assert [status for status, _ in Turn(server, one_by_one).answers()] == [200] * 8
    assert counts(server, url) == (0, 0, 0)


def dict_copy(request: tuple[str, Any]) -> tuple[str, Any]:
    return request[0], dict(request[1])


def test_who_comes_too_late_waits_or_goes_empty(server: TestServer, url: str) -> None:
    """There are four messages for three requests: the third goes the general way, and is answered as it would be."""
    Turn(server, sends(url, 1, 4)).answers()
    answers = [body for _, body in Turn(server, receives(url, 3)).answers()]
    assert [len(body.get("Messages", [])) for body in answers] == [3, 1, 0]
    Turn(server, sends(url, 1, 1)).answers()
    turn = Turn(server, receives(url, 2, WaitTimeSeconds=20))
    wait_until(lambda: len([wire for wire in turn.wires if wire.answers]) == 1)
    Turn(server, sends(url, 1, 2)).answers()
    assert sorted(len(body["Messages"]) for _, body in turn.answers()) == [1, 2]


def test_an_sdk_that_repeats_a_request_in_the_same_turn(server: TestServer, url: str) -> None:
    (operation, fields), *_ = sends(url, 1)
    headers = {"amz-sdk-invocation-id": "11111111-2222-4333-8444-555555555555"}
    answers = Turn(server, [(operation, {**fields, "headers": headers}) for _ in range(2)]).answers()
    assert answers[0] == answers[1]
    assert counts(server, url) == (3, 0, 0)


def test_one_superseded_receipt_spoils_nothing_for_the_others(server: TestServer, url: str) -> None:
    Turn(server, sends(url, 2)).answers()
    first, second = [body["Messages"] for _, body in Turn(server, receives(url, 2)).answers()]
    deletes = [
        ("DeleteMessageBatch", {"QueueUrl": url, "Entries": [_receipt(message) for message in some]})
        for some in (first, second, first[:1])
    ]
    answers = Turn(server, deletes).answers()
    assert [len(body["Successful"]) for _, body in answers] == [3, 3, 1]
    assert counts(server, url) == (0, 0, 0)


def _receipt(message: dict[str, str]) -> dict[str, str]:
    return {"Id": message["MessageId"], "ReceiptHandle": message["ReceiptHandle"]}


def test_whoever_leaves_before_the_answer_takes_no_message_along(server: TestServer, url: str) -> None:
    Turn(server, sends(url, 2)).answers()

    turn = Turn(server, [])
    turn.wires = [Wire(60_000), Wire(60_001)]

    async def arrive_and_leave() -> None:
        await turn._arrive(receives(url, 2))
        turn.connections[0].connection_lost(None)

    server.run(arrive_and_leave)
    wait_until(lambda: bool(turn.wires[1].answers))
    wait_until(lambda: counts(server, url) == (3, 3, 0))
    assert not turn.wires[0].answers
    server.run(turn._leave)


def test_a_queue_that_goes_in_the_same_turn(server: TestServer, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not there any more when the run comes is told by the general way."""

    def gone(*_: Any) -> Any:
        raise QueueDoesNotExist

    monkeypatch.setattr(ShardHost, "send_together", gone)
    monkeypatch.setattr(ShardHost, "receive_together", gone)
    monkeypatch.setattr(ShardHost, "delete_together", gone)
    assert [status for status, _ in Turn(server, sends(url, 3)).answers()] == [200] * 3
    received = [body["Messages"] for _, body in Turn(server, receives(url, 3)).answers()]
    assert [len(some) for some in received] == [3, 3, 3]
    deletes = [
        ("DeleteMessageBatch", {"QueueUrl": url, "Entries": [_receipt(message) for message in some]})
        for some in received
    ]
    assert [len(body["Successful"]) for _, body in Turn(server, deletes).answers()] == [3, 3, 3]
    assert counts(server, url) == (0, 0, 0)


def test_many_bytes_are_not_put_into_one_run(server: TestServer, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []
    monkeypatch.setattr(ShardHost, "send_together", noted(runs, "send", ShardHost.send_together))
    large = {"QueueUrl": url, "MessageBody": "x" * 1_000_000}
    answers = Turn(server, [("SendMessage", dict(large)) for _ in range(10)]).answers()
    assert [status for status, _ in answers] == [200] * 10
    assert len(runs) == 3
    assert counts(server, url) == (10, 0, 0)
