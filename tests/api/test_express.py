"""The hot calls are answered without a task; whoever asks cannot tell, but for the time it takes."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from batonq.api.http import Request
from batonq.api.http.messages import Express, Reply
from tests.api.support import Answer, counts, json_request, receive, wait_until
from tests.support.server import TestServer

MIB = 1_048_576


class Counting:
    """Counts the requests that were taken, or takes none."""

    def __init__(self, express: Express | None, *, on: bool) -> None:
        self._express = express
        self.on = on
        self.taken = 0

    def __call__(self, request: Request, reply: Reply) -> bool:
        taken = self.on and self._express is not None and self._express(request, reply)
        self.taken += taken
        return taken


@pytest.fixture
def ways(server: TestServer) -> Iterator[Counting]:
    """The server's express, which can be turned off."""
    express = server.http.express
    counting = Counting(express, on=True)
    server.http.express = counting
    yield counting
    server.http.express = express


class Both(NamedTuple):
    express: Answer
    general: Answer


def ask_both(server: TestServer, ways: Counting, operation: str, given: Any, urls: tuple[str, str]) -> Both:
    """The same request about one queue with express, and about an equal queue without."""
    answers = []
    for url, on in zip(urls, (True, False), strict=True):
        ways.on = on
        filled = json.loads(json.dumps(given).replace("$url", url))
        answers.append(json_request(server, operation, filled))
    ways.on = True
    return Both(*answers)


def shape(answer: Answer) -> tuple[int, list[str], str]:
    """Status, names of headers and body, without what differs from one call to the next."""
    body = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "ID", answer.text)
    body = re.sub(r"http://127.0.0.1:\d+/\d+/\w+", "URL", body)
    body = re.sub(r'"ReceiptHandle":"[^"]*"', '"ReceiptHandle":"R"', body)
    return answer.status, list(answer.headers), re.sub(r'receipt handle \\"[^"]*\\"', "receipt handle", body)


@pytest.fixture
def urls(sqs: Any) -> tuple[str, str]:
    one, two = (sqs.create_queue(QueueName=name)["QueueUrl"] for name in ("one", "two"))
    return one, two


def test_plain_calls_are_taken(tmp_path_factory: pytest.TempPathFactory) -> None:
    """On a server that nobody else uses: elsewhere it depends on what is in the shard."""
    with TestServer(str(tmp_path_factory.mktemp("express"))) as fresh:
        counting = Counting(fresh.http.express, on=True)
        fresh.http.express = counting
        url = json_request(fresh, "CreateQueue", {"QueueName": "q"}).json["QueueUrl"]
        json_request(fresh, "SendMessageBatch", {"QueueUrl": url, "Entries": entries(*"abcdefghij")})
        assert counting.taken == 1
        received = json_request(fresh, "ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": 10}).json["Messages"]
        assert counting.taken == 2 and [message["Body"] for message in received] == [*"abcdefghij"]
        rows = [{"Id": message["Body"], "ReceiptHandle": message["ReceiptHandle"]} for message in received]
        deleted = json_request(fresh, "DeleteMessageBatch", {"QueueUrl": url, "Entries": rows}).json
        assert counting.taken == 3 and deleted == {"Successful": [{"Id": letter} for letter in "abcdefghij"]}
        json_request(fresh, "SendMessage", {"QueueUrl": url, "MessageBody": "k"})
        assert counting.taken == 4
        (message,) = json_request(fresh, "ReceiveMessage", {"QueueUrl": url}).json["Messages"]
        json_request(fresh, "DeleteMessage", {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]})
        assert counting.taken == 6


def entries(*texts: str) -> list[dict[str, str]]:
    return [{"Id": f"id-{number}_x", "MessageBody": text} for number, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"QueueUrl": "$url", "Entries": entries("one")}, True),
        ({"QueueUrl": "$url", "Entries": entries(*(f"body {number}" for number in range(10)))}, True),
        ({"QueueUrl": "$url", "Entries": entries("x" * MIB)}, True),
        ({"Entries": entries("one"), "QueueUrl": "$url"}, True),
        # not plain: these go the general way, to an answer or to SQS's own words for what is wrong
        ({"QueueUrl": "$url", "Entries": entries('"quoted"')}, False),
        ({"QueueUrl": "$url", "Entries": entries("\u00e9")}, False),
        ({"QueueUrl": "$url", "Entries": entries("\x00")}, False),
        ({"QueueUrl": "$url", "Entries": entries("")}, False),
        ({"QueueUrl": "$url", "Entries": []}, False),
        ({"QueueUrl": "$url"}, False),
        ({"QueueUrl": "$url", "Entries": entries(*"abcdefghijk")}, False),
        ({"QueueUrl": "$url", "Entries": entries("x" * MIB, "y")}, False),
        ({"QueueUrl": "$url", "Entries": entries("x" * (MIB + 1))}, False),
        ({"QueueUrl": "$url", "Entries": [{"Id": "a", "MessageBody": "x", "DelaySeconds": 5}]}, False),
        ({"QueueUrl": "$url", "Entries": [{"Id": "a", "MessageBody": "x", "MessageGroupId": "g"}]}, False),
        ({"QueueUrl": "$url", "Entries": [{"Id": "a", "MessageBody": "x"}, {"Id": "a", "MessageBody": "y"}]}, False),
        ({"QueueUrl": "$url", "Entries": [{"Id": "a:b", "MessageBody": "x"}]}, False),
        ({"QueueUrl": "$url", "Entries": [{"Id": "", "MessageBody": "x"}]}, False),
        ({"QueueUrl": "$url", "Entries": [{"Id": "x" * 81, "MessageBody": "x"}]}, False),
        ({"QueueUrl": "$url", "Entries": [{"Id": "--", "MessageBody": "x"}]}, False),  # allowed, and looked at closely
        ({"QueueUrl": "$url", "Entries": [{"Id": 1, "MessageBody": "x"}]}, False),
        ({"QueueUrl": "$url/none", "Entries": entries("x")}, False),
        ({"QueueUrl": "http://h/1/nothing", "Entries": entries("x")}, False),
    ],
)
def test_send_batches(
    server: TestServer, sqs: Any, ways: Counting, urls: tuple[str, str], given: Any, taken: bool
) -> None:
    both = ask_both(server, ways, "SendMessageBatch", given, urls)
    assert ways.taken == taken
    assert shape(both.express) == shape(both.general)
    assert counts(sqs, urls[0]) == counts(sqs, urls[1])
    bodies = [sorted(message["Body"] for message in receive(sqs, url)) for url in urls]
    assert bodies[0] == bodies[1]


@pytest.mark.parametrize(
    "text",
    [
        '{"QueueUrl":"$url","Entries":[{"Id":"a","MessageBody":"x","MessageBody":"y"}]}',
        '{"QueueUrl":"$url","Entries":[{"Id":"a","Id":"b","MessageBody":"x"}]}',
        '{"QueueUrl":"$url","QueueUrl" : "$url","Entries":[{"Id":"a","MessageBody":"x"}]}',
        '{"QueueUrl":"$url","Entries":[],"Entries":[{"Id":"a","MessageBody":"x"}]}',
        '{"QueueUrl":"$url","Entries":[{"Id":"a","MessageBody":"x"}]} x',
        '{"QueueUrl":"$url","Entries":[{"Id":"a","MessageBody":"x\x01"}]}',
    ],
)
def test_texts_that_are_refused(server: TestServer, sqs: Any, ways: Counting, urls: tuple[str, str], text: str) -> None:
    for url, on in zip(urls, (True, False), strict=True):
        ways.on = on
        answer = json_request(server, "SendMessageBatch", text.replace("$url", url))
        assert answer.status == 400 and answer.json["__type"].endswith("#SerializationException")
        assert counts(sqs, url) == (0, 0, 0)
    assert ways.taken == 0


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"QueueUrl": "$url"}, True),
        ({"QueueUrl": "$url", "MaxNumberOfMessages": 10}, True),
        ({"QueueUrl": "$url", "MaxNumberOfMessages": 2, "VisibilityTimeout": 5, "WaitTimeSeconds": 20}, True),
        ({"QueueUrl": "$url", "MaxNumberOfMessages": 10, "AttributeNames": ["All"]}, False),
        ({"QueueUrl": "$url", "MaxNumberOfMessages": 11}, False),
        ({"QueueUrl": "$url", "MaxNumberOfMessages": 0}, False),
        ({"QueueUrl": "$url", "VisibilityTimeout": 43201}, False),
        ({"QueueUrl": "$url", "WaitTimeSeconds": -1}, False),
        ({"QueueUrl": "$url", "MaxNumberOfMessages": None}, False),
        ({"QueueUrl": "$url", "MaxNumberOfMessages": "1"}, False),
    ],
)
def test_receives(server: TestServer, sqs: Any, ways: Counting, urls: tuple[str, str], given: Any, taken: bool) -> None:
    for url in urls:
        sqs.send_message_batch(QueueUrl=url, Entries=entries("a", "b", "c"))
    ways.taken = 0
    both = ask_both(server, ways, "ReceiveMessage", given, urls)
    assert ways.taken == taken
    if "AttributeNames" not in given:  # those have times in them
        assert shape(both.express) == shape(both.general)
    assert counts(sqs, urls[0]) == counts(sqs, urls[1])


def test_a_receive_from_an_empty_queue(server: TestServer, ways: Counting, urls: tuple[str, str]) -> None:
    both = ask_both(server, ways, "ReceiveMessage", {"QueueUrl": "$url", "MaxNumberOfMessages": 10}, urls)
    assert both.express.body == both.general.body == b"{}"


def test_messages_that_are_not_plain(server: TestServer, sqs: Any, ways: Counting, urls: tuple[str, str]) -> None:
    """Whatever is in the messages, a plain receive gives the same."""
    attribute = {"k": {"DataType": "String", "StringValue": "v"}}
    for url in urls:
        sqs.send_message(QueueUrl=url, MessageBody='h\u00e9 "llo"', MessageAttributes=attribute)
        sqs.send_message(QueueUrl=url, MessageBody="grouped", MessageGroupId="g")
        sqs.send_message(QueueUrl=url, MessageBody="plain")
    both = ask_both(server, ways, "ReceiveMessage", {"QueueUrl": "$url", "MaxNumberOfMessages": 10}, urls)
    assert shape(both.express) == shape(both.general)
    assert len(both.express.json["Messages"]) == 3


def test_deletes(server: TestServer, sqs: Any, ways: Counting, urls: tuple[str, str]) -> None:
    handles = []
    for url in urls:
        sqs.send_message_batch(QueueUrl=url, Entries=entries("a", "b", "c"))
        handles.append([message["ReceiptHandle"] for message in receive(sqs, url)])

    def delete(*places: int | str) -> Both:
        answers = []
        for url, receipts, on in zip(urls, handles, (True, False), strict=True):
            ways.on = on
            rows = [
                {"Id": f"e{number}", "ReceiptHandle": receipts[place] if isinstance(place, int) else place}
                for number, place in enumerate(places)
            ]
            answers.append(json_request(server, "DeleteMessageBatch", {"QueueUrl": url, "Entries": rows}))
        ways.on = True
        return Both(*answers)

    for places in ((0,), (0, 1), (2, "garbage"), ("",), (2, 2)):
        both = delete(*places)
        assert shape(both.express) == shape(both.general), places
    assert counts(sqs, urls[0]) == counts(sqs, urls[1]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"QueueUrl": "$url", "MessageBody": "one"}, True),
        ({"QueueUrl": "$url", "MessageBody": "x" * MIB}, True),
        ({"QueueUrl": "$url", "MessageBody": "x" * (MIB + 1)}, False),
        ({"QueueUrl": "$url", "MessageBody": ""}, False),
        ({"QueueUrl": "$url", "MessageBody": '"quoted"'}, False),
        ({"QueueUrl": "$url", "MessageBody": "x", "DelaySeconds": 3}, False),
        ({"QueueUrl": "$url", "MessageBody": 7}, False),
        ({"MessageBody": "x"}, False),
    ],
)
def test_single_sends(
    server: TestServer, sqs: Any, ways: Counting, urls: tuple[str, str], given: Any, taken: bool
) -> None:
    both = ask_both(server, ways, "SendMessage", given, urls)
    assert ways.taken == taken
    assert shape(both.express) == shape(both.general)
    assert counts(sqs, urls[0]) == counts(sqs, urls[1])


def test_single_deletes(server: TestServer, sqs: Any, ways: Counting, urls: tuple[str, str]) -> None:
    for url in urls:
        sqs.send_message(QueueUrl=url, MessageBody="a")
    handles = [receive(sqs, url)[0]["ReceiptHandle"] for url in urls]
    # the right one, the same again, one that is not a receipt, none
    for receipts in (handles, handles, ["garbage", "garbage"], ["", ""]):
        answers = []
        for url, receipt, on in zip(urls, receipts, (True, False), strict=True):
            ways.on = on
            answers.append(json_request(server, "DeleteMessage", {"QueueUrl": url, "ReceiptHandle": receipt}))
        assert shape(answers[0]) == shape(answers[1]), receipts
    assert counts(sqs, urls[0]) == counts(sqs, urls[1]) == (0, 0, 0)


def test_stale_and_strict_deletes(server: TestServer, sqs: Any, ways: Counting) -> None:
    for name, attributes in (("lenient", {}), ("strict", {"Baton.StrictReceipts": "true"})):
        pair = [
            sqs.create_queue(QueueName=f"{name}-{number}", Attributes=attributes)["QueueUrl"] for number in range(2)
        ]
        answers = []
        for url, on in zip(pair, (True, False), strict=True):
            sqs.send_message(QueueUrl=url, MessageBody="x")
            [message] = receive(sqs, url, VisibilityTimeout=1)
            server.advance(2)
            ways.on = on
            rows = [{"Id": "a", "ReceiptHandle": message["ReceiptHandle"]}]
            answers.append(json_request(server, "DeleteMessageBatch", {"QueueUrl": url, "Entries": rows}))
        assert shape(answers[0])[0] == shape(answers[1])[0] == 200
        assert [list(answer.json) for answer in answers] == [["Failed"] if name == "strict" else ["Successful"]] * 2
        assert counts(sqs, pair[0]) == counts(sqs, pair[1])


def test_a_retried_batch(server: TestServer, sqs: Any, ways: Counting, urls: tuple[str, str]) -> None:
    headers = {"amz-sdk-invocation-id": "aaaa"}
    given = {"QueueUrl": urls[0], "Entries": entries("a", "b")}
    ways.taken = 0
    answers = []
    for on in (True, False, True):  # both ways know a request by the same name
        ways.on = on
        answers.append(json_request(server, "SendMessageBatch", given, headers=headers).json)
    assert answers[0] == answers[1] == answers[2]
    assert counts(sqs, urls[0]) == (2, 0, 0)


def test_the_holder_of_an_express_lease(server: TestServer, sqs: Any, urls: tuple[str, str]) -> None:
    sqs.send_message(QueueUrl=urls[0], MessageBody="x")
    json_request(server, "ReceiveMessage", {"QueueUrl": urls[0]}, headers={"Baton-Consumer": "worker 7"})
    account, name = urls[0].split("/")[-2:]
    [peeked] = server.run(lambda: server.broker.peek(server.broker.queue(account, name), 0, 10))
    assert peeked.view.holder == "worker 7"


def test_whoever_leaves_before_an_express_answer_takes_no_message(
    server: TestServer, sqs: Any, urls: tuple[str, str]
) -> None:
    """Close at once after asking: the lease may have been given, and is given back then."""
    url = urls[0]
    sqs.send_message_batch(QueueUrl=url, Entries=entries("a", "b", "c"))
    body = json.dumps({"QueueUrl": url, "MaxNumberOfMessages": 1}).encode()
    target = "AmazonSQS.ReceiveMessage"
    head = f"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: {target}\r\nContent-Length: {len(body)}\r\n\r\n"
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.http.port)) as connection:
            connection.sendall(head.encode() + body)
    wait_until(lambda: server.http.usage.bytes_held == 0)
    in_flight = counts(sqs, url)[1]
    assert sum(counts(sqs, url)) == 3 and in_flight <= 3
