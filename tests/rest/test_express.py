"""Batches in MessagePack are answered without a task; whoever asks cannot tell, but for the time it takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from batonq.api.http import Request
from batonq.api.http.messages import Express, Reply
from tests.rest.support import Answer, Rest
from tests.support.server import TestServer


class Counting:
    """Counts the requests that were taken, or takes none."""

    def __init__(self, express: Express | None) -> None:
        self._express = express
        self.on = True
        self.taken = 0

    def __call__(self, request: Request, reply: Reply) -> bool:
        taken = self.on and self._express is not None and self._express(request, reply)
        self.taken += taken
        return taken


@pytest.fixture
def ways(server: TestServer) -> Iterator[Counting]:
    """The server's express, which can be turned off."""
    express = server.http.express
    counting = Counting(express)
    server.http.express = counting
    yield counting
    server.http.express = express


def ask_both(rest: Rest, ways: Counting, queues: tuple[str, str], verb: str, values: tuple[Any, Any]) -> list[Answer]:
    """The same request about one queue with express, and about an equal queue without; express took the first one."""
    answers = []
    for queue, value, on in zip(queues, values, (True, False), strict=True):
        ways.on = on
        before = ways.taken
        answers.append(rest("POST", f"{queue}/messages:{verb}", value))
        assert ways.taken - before == on
    ways.on = True
    return answers


def shape(value: Any) -> Any:
    """What an answer says, but for the numbers and names that are another queue's; keys keep their order."""
    if isinstance(value, dict):
        blank = {"messageId", "receiptHandle", "sequence", "queue", "sentAtMs", "firstReceivedAtMs", "deadlineMs"}
        return [(key, type(member) if key in blank else shape(member)) for key, member in value.items()]
    return [shape(member) for member in value] if isinstance(value, list) else value


def assert_alike(answers: list[Answer]) -> None:
    express, general = answers
    assert express.status == general.status
    assert shape(express.value) == shape(general.value)
    assert msgspec.msgpack.encode(express.value) == express.body, "laid out by hand as the encoder would"
    names = [[(name, re.sub("[0-9]", "", text)) for name, text in answer.headers.items()] for answer in answers]
    assert names[0] == names[1], "but for the length, because sequences grow"


BODIES: dict[str, list[Any]] = {
    "texts": ["a", "ü" * 40, "", "x" * 300, "y" * 70_000],
    "bytes": [b"", b"\x00" * 40, b"b" * 300, b"c" * 70_000],
    "values": [{"n": 1}, [1, 2.5, None], 7, True, {"a": {"b": ["ü" * 50]}}],
    "many": [f"message {number}" for number in range(1_000)],
}


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("ids", [False, True])
def test_a_batch_lives_alike_both_ways(packed: Rest, ways: Counting, kind: str, ids: bool) -> None:
    queues = packed.create("expres1"), packed.create("general")
    messages: list[Any] = [{"body": body} for body in BODIES[kind]]
    if ids:
        messages = [{**message, "clientMessageId": f"m{at}"} for at, message in enumerate(messages)]
    for producer in ({}, {"producer": {"id": "p", "sequence": 1}}):
        batch = {"messages": messages, **producer}
        assert_alike(ask_both(packed, ways, queues, "batch", (batch, batch)))
        wanted = {"maxMessages": 1_000, "visibilityTimeoutSeconds": 600, "consumer": "me"}
        received = ask_both(packed, ways, queues, "receive", (wanted, wanted))
        assert_alike(received)
        found = [answer.value["messages"] for answer in received]
        assert [message["body"] for message in found[0]] == BODIES[kind]
        assert [message["sequence"] for message in found[0]] == sorted(message["sequence"] for message in found[0])
        receipts = [{"receiptHandles": [message["receiptHandle"] for message in some]} for some in found]
        assert_alike(ask_both(packed, ways, queues, "ack", (receipts[0], receipts[1])))
    assert packed.good("GET", f"{queues[0]}/stats")["deleted"] == 2 * len(messages)


def test_acks_that_fail_are_told_alike(packed: Rest, ways: Counting) -> None:
    queues = packed.create("expres1"), packed.create("general")
    batch = {"messages": [{"body": "a"}, {"body": "b"}, {"body": "c"}]}
    ask_both(packed, ways, queues, "batch", (batch, batch))
    found = [answer.value["messages"] for answer in ask_both(packed, ways, queues, "receive", ({}, {}))]
    receipts = [{"receiptHandles": [message["receiptHandle"] for message in some]} for some in found]
    for some in receipts:
        some["receiptHandles"][0] = some["receiptHandles"][1]
    assert_alike(ask_both(packed, ways, queues, "ack", (receipts[0], receipts[1])))
    answers = ask_both(packed, ways, queues, "ack", (receipts[0], receipts[1]))
    assert_alike(answers)
    assert [result["error"]["code"] for result in answers[0].value["results"]] == ["message_gone"] * 3


def test_priorities_of_a_run_are_told(packed: Rest, ways: Counting) -> None:
    queues = packed.create("expres1"), packed.create("general")
    for queue in queues:
        packed.good("POST", f"{queue}/messages:batch", {"messages": [{"body": b"x", "priority": 200}] * 5})
    received = ask_both(packed, ways, queues, "receive", ({}, {}))
    assert_alike(received)
    assert [message["priority"] for message in received[0].value["messages"]] == [200] * 5


@pytest.mark.parametrize(
    ("verb", "value"),
    [
        ("batch", {"messages": [{"body": "a", "priority": 1}]}),
        ("batch", {"messages": [{"body": "a"}, {"body": b"b"}]}),
        ("batch", {"messages": []}),
        ("batch", {"messages": [{"body": "a"}] * 1_001}),
        ("batch", {"messages": [{"body": "x" * 1_100_000}]}),
        ("batch", {"messages": [{"body": {"a": b"bytes"}}]}),
        ("batch", {"messages": [{"body": "a"}], "more": 1}),
        ("receive", {"maxMessages": 0}),
        ("receive", {"attemptId": "x"}),
        ("receive", {"maxMessages": 10}),  # there is nothing, so it may have to wait
        ("ack", {"receiptHandles": ["garbage"]}),
        ("ack", {"receiptHandles": []}),
        ("ack", [1]),
    ],
)
def test_what_is_not_plain_is_left_to_the_general_way(packed: Rest, ways: Counting, verb: str, value: Any) -> None:
    queue = packed.create()
    answer = packed("POST", f"{queue}/messages:{verb}", value)
    assert ways.taken == 0
    assert answer.status in (200, 202, 400, 413)


def test_queues_that_need_a_look_at_each_message(packed: Rest, ways: Counting) -> None:
    fifo = packed.create("orders.fifo", mode="FIFO")
    bounded = packed.create("bounded", maxMessages=1)
    batch = {"messages": [{"body": "a"}, {"body": "b"}]}
    results = packed.good("POST", f"{fifo}/messages:batch", batch)["results"]
    assert ["error" in result for result in results] == [True, True]
    results = packed.good("POST", f"{bounded}/messages:batch", batch)["results"]
    assert ["error" in result for result in results] == [False, True]
    assert ways.taken == 0
    assert packed("POST", "/v1/queues/nowhere/messages:batch", batch).code == "queue_does_not_exist"


def test_a_named_request_and_a_repeated_number_make_no_second_message(packed: Rest, ways: Counting) -> None:
    queue = packed.create()
    batch = {"messages": [{"body": "a"}, {"body": "b"}], "producer": {"id": "p", "sequence": 5}}
    first = packed.good("POST", f"{queue}/messages:batch", batch)["results"]
    assert ways.taken == 1
    again = packed.good("POST", f"{queue}/messages:batch", batch)["results"]
    assert ways.taken == 1
    assert [result.get("duplicate") for result in again] == [True, True]
    assert again[1]["messageId"] == first[1]["messageId"]
    for _ in range(2):
        packed.good("POST", f"{queue}/messages:batch", {"messages": [{"body": "c"}]}, headers={"Idempotency-Key": "k"})
    assert ways.taken == 1
    assert packed.good("GET", f"{queue}/stats")["sent"] == 3
