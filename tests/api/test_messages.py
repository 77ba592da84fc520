"""Messages on a standard queue, with boto3: what SQS promises, and the words it uses when it refuses."""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import nullcontext
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from batonq.api.http import Request
from batonq.api.sqs.operations.sending import is_first_try
from batonq.errors import Unavailable
from tests.api.support import bodies, counts, http_request, json_request, query_request, receive, refused
from tests.support.server import TestServer

MIB = 1_048_576


# --- send -------------------------------------------------------------------------------------


def test_send_and_receive(sqs: Any, queue: str, account: str) -> None:
    text = 'quotes " and \\ and \u00e9\U0001f600\t\r\n<xml>&amp;'
    sent = sqs.send_message(
        QueueUrl=queue,
        MessageBody=text,
        MessageAttributes={
            "text": {"DataType": "String.label", "StringValue": "v\u00e4lue"},
            "number": {"DataType": "Number", "StringValue": "-1.50"},
            "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        },
        MessageSystemAttributes={"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-2-3"}},
    )
    assert sent["MD5OfMessageBody"] == hashlib.md5(text.encode()).hexdigest()
    assert len(sent["MessageId"]) == 36
    assert "SequenceNumber" not in sent
    [message] = receive(sqs, queue, MessageAttributeNames=["All"], MessageSystemAttributeNames=["All"])
    assert message["Body"] == text
    assert message["MessageId"] == sent["MessageId"]
    assert message["MD5OfBody"] == sent["MD5OfMessageBody"]
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert message["MessageAttributes"] == {
        "text": {"DataType": "String.label", "StringValue": "v\u00e4lue"},
        "number": {"DataType": "Number", "StringValue": "-1.50"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    system = message["Attributes"]
    assert set(system) == {
        "SenderId",
        "SentTimestamp",
        "ApproximateReceiveCount",
        "ApproximateFirstReceiveTimestamp",
        "AWSTraceHeader",
    }
    assert system["SenderId"] == account and system["AWSTraceHeader"] == "Root=1-2-3"
    assert system["ApproximateReceiveCount"] == "1"
    assert len(system["SentTimestamp"]) == 13
    assert int(system["SentTimestamp"]) <= int(system["ApproximateFirstReceiveTimestamp"])
    # as SQS gave them for the same values
    trace = sqs.send_message(
        QueueUrl=queue,
        MessageBody="Test Message",
        MessageSystemAttributes={"AWSTraceHeader": {"DataType": "String", "StringValue": "some-trace-id"}},
    )
    assert trace["MD5OfMessageSystemAttributes"] == "fdce4f2818803f2f73becc09a54792c0"


# Texts that have to be written differently in JSON, in XML and in the log; none has a character that SQS forbids.
TEXTS = (
    "plain",
    "DEL \x7f and a/slash",
    'quotes " and \\ backslashes \\\\',
    "tab\tand\r\nlines\n",
    '{"json": ["a", {"b": "\\u00e9 \\n"}]}',
    "<xml>&amp;</xml>",
    "h\u00e9llo",
    "\u4e16\u754c \U0001f600",
    " ",
    "\\u0000 is text",
)


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("one_by_one", [True, False])
def test_bodies_come_back_as_they_were(server: TestServer, queue: str, ascii_only: bool, one_by_one: bool) -> None:
    """Whatever is beside them in their request, by each protocol and however much is asked for."""
    entries = [{"Id": str(at), "MessageBody": text} for at, text in enumerate(TEXTS)]
    for some in [[entry] for entry in entries] if one_by_one else [entries]:
        given = json.dumps({"QueueUrl": queue, "Entries": some}, ensure_ascii=ascii_only)
        answer = json_request(server, "SendMessageBatch", given.encode())
        assert [(entry["Id"], entry["MD5OfMessageBody"]) for entry in answer.json["Successful"]] == [
            (entry["Id"], hashlib.md5(entry["MessageBody"].encode()).hexdigest()) for entry in some
        ]
    for more in ({}, {"AttributeNames": ["All"]}, {"MessageAttributeNames": ["All"]}):
        asked = {"QueueUrl": queue, "MaxNumberOfMessages": 10, "VisibilityTimeout": 1, **more}
        got = json_request(server, "ReceiveMessage", asked).json["Messages"]
        assert [message["Body"] for message in got] == [*TEXTS]
        assert [message["MD5OfBody"] for message in got] == [hashlib.md5(text.encode()).hexdigest() for text in TEXTS]
        server.advance(2)
    form = {"Action": "ReceiveMessage", "QueueUrl": queue, "MaxNumberOfMessages": "10"}
    root = ET.fromstring(query_request(server, form).body)
    assert [element.text for element in root.iter() if element.tag.endswith("}Body")] == [*TEXTS]


@pytest.mark.parametrize(
    "text",
    [
        '{"QueueUrl":"$url","Entries":[{"Id":"a","MessageBody":"x"}]} x',
        '{"QueueUrl":"$url","Entries":[{"Id":"a","MessageBody":"x\x01"}]}',
        '{"QueueUrl":"$url","Entries":[{"Id":"a","MessageBody":"x"},7]}',
        '{"QueueUrl":"$url","Entries":[{"Id":1,"MessageBody":"x"}]}',
        '{"QueueUrl":"$url","Entries":{"Id":"a","MessageBody":"x"}}',
    ],
)
def test_requests_that_cannot_be_read(server: TestServer, sqs: Any, queue: str, text: str) -> None:
    answer = json_request(server, "SendMessageBatch", text.replace("$url", queue))
    assert answer.status == 400 and answer.json["__type"].endswith("#SerializationException")
    assert counts(sqs, queue) == (0, 0, 0)


def test_a_receive_from_an_empty_queue(server: TestServer, queue: str) -> None:
    answer = json_request(server, "ReceiveMessage", {"QueueUrl": queue, "MaxNumberOfMessages": 10})
    assert (answer.status, answer.body) == (200, b"{}")
    form = {"Action": "ReceiveMessage", "QueueUrl": queue}
    assert "<ReceiveMessageResult/>" in query_request(server, form).text


@pytest.mark.parametrize(
    ("problem", "status"), [(Unavailable("The catalog does not answer."), 503), (RuntimeError("planted"), 500)]
)
def test_a_catalog_that_does_not_answer(
    server: TestServer, queue: str, monkeypatch: pytest.MonkeyPatch, problem: Exception, status: int
) -> None:
    """Before a queue is said not to exist, the node asks whether it is up to date; the client hears if it cannot."""

    async def refresh() -> bool:
        raise problem

    monkeypatch.setattr(server.broker, "refresh", refresh)
    url = f"{queue}-none"
    assert json_request(server, "SendMessage", {"QueueUrl": url, "MessageBody": "x"}).status == status
    assert json_request(server, "ReceiveMessage", {"QueueUrl": url, "WaitTimeSeconds": 20}).status == status
    assert query_request(server, {"Action": "ReceiveMessage", "QueueUrl": url}).status == status
    assert json_request(server, "GetQueueAttributes", {"QueueUrl": url}).status == status
    assert http_request(server, "POST", "/v1/queues/none/messages:receive").status == status
    assert http_request(server, "POST", "/v1/queues/none/messages", b'{"body":1}').status == status


def test_a_message_of_a_mebibyte(sqs: Any, queue: str) -> None:
    text = "\u00e9" * (MIB // 2)
    sqs.send_message(QueueUrl=queue, MessageBody=text)
    assert bodies(receive(sqs, queue)) == [text]
    with refused(
        "InvalidParameterValue",
        "One or more parameters are invalid. Reason: Message must be shorter than 1048576 bytes.",
    ):
        sqs.send_message(QueueUrl=queue, MessageBody=text + "x")


def test_attributes_count_for_the_size_and_the_trace_does_not(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="small", Attributes={"MaximumMessageSize": "1024"})["QueueUrl"]
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "x" * 500}}
    attributes = {"name": {"DataType": "String", "StringValue": "v" * 14}}  # 4 + 6 + 14 bytes
    sqs.send_message(QueueUrl=url, MessageBody="b" * 1000, MessageAttributes=attributes, MessageSystemAttributes=trace)
    too_long = "One or more parameters are invalid. Reason: Message must be shorter than 1024 bytes."
    with refused("InvalidParameterValue", too_long):
        sqs.send_message(QueueUrl=url, MessageBody="b" * 1001, MessageAttributes=attributes)
    answer = sqs.send_message_batch(
        QueueUrl=url, Entries=[{"Id": "a", "MessageBody": "b" * 1025}, {"Id": "b", "MessageBody": "b" * 1024}]
    )
    assert [entry["Id"] for entry in answer["Successful"]] == ["b"]
    assert answer["Failed"] == [{"Id": "a", "Code": "InvalidParameterValue", "SenderFault": True, "Message": too_long}]


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        ({"MessageBody": ""}, "MissingParameter", "The request must contain the parameter MessageBody."),
        (
            {"MessageBody": "\x00"},
            "InvalidMessageContents",
            (
                "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | "
                "#xE000 to #xFFFD | #x10000 to #x10FFFF"
            ),
        ),
        (
            {"MessageBody": "x", "DelaySeconds": 901},
            "InvalidParameterValue",
            "Value 901 for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 and <= 900.",
        ),
        (
            {"MessageBody": "x", "DelaySeconds": -1},
            "InvalidParameterValue",
            "Value -1 for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 and <= 900.",
        ),
        (
            {"MessageBody": "x", "MessageDeduplicationId": "d"},
            "InvalidParameterValue",
            (
                "Value d for parameter MessageDeduplicationId is invalid. "
                "Reason: The request include parameter that is not valid for this queue type."
            ),
        ),
        (
            {"MessageBody": "x", "MessageGroupId": "a b"},
            "InvalidParameterValue",
            (
                "Value a b for parameter MessageGroupId is invalid. Reason: MessageGroupId can only include "
                "alphanumeric and punctuation characters. 1 to 128 in length."
            ),
        ),
        (
            {"MessageBody": "x", "MessageGroupId": ""},
            "InvalidParameterValue",
            (
                "Value  for parameter MessageGroupId is invalid. Reason: MessageGroupId can only include "
                "alphanumeric and punctuation characters. 1 to 128 in length."
            ),
        ),
        (
            {"MessageBody": "x", "MessageAttributes": {"a": {"DataType": "String", "StringValue": ""}}},
            "InvalidParameterValue",
            "Message (user) attribute 'a' must contain a non-empty value of type 'String'.",
        ),
        (
            {"MessageBody": "x", "MessageSystemAttributes": {"Other": {"DataType": "String", "StringValue": "x"}}},
            "InvalidParameterValue",
            "Message system attribute name 'Other' is invalid.",
        ),
    ],
)
def test_messages_that_are_refused(sqs: Any, queue: str, more: dict[str, Any], code: str, message: str) -> None:
    with refused(code, message):
        sqs.send_message(QueueUrl=queue, **more)
    named = message.replace("parameter MessageBody", "parameter SendMessageBatchRequestEntry.1.MessageBody")
    answer = sqs.send_message_batch(QueueUrl=queue, Entries=[{"Id": "one", **more}])
    assert answer["Failed"] == [{"Id": "one", "Code": code, "SenderFault": True, "Message": named}]
    assert "Successful" not in answer
    assert counts(sqs, queue) == (0, 0, 0)


def test_the_trace_of_a_request_is_its_messages(sqs: Any, queue: str) -> None:
    """Instrumented SDKs name the trace in a header; a trace in the message itself wins."""
    header, own = "Root=1-0a;Parent=0b;Sampled=1", "Root=1-0c;Parent=0d;Sampled=0"
    system = {"AWSTraceHeader": {"DataType": "String", "StringValue": own}}

    def instrument(request: Any, **_: Any) -> None:
        request.headers["X-Amzn-Trace-Id"] = header

    sqs.meta.events.register("before-send.sqs", instrument)
    try:
        sqs.send_message(QueueUrl=queue, MessageBody="a")
        sqs.send_message(QueueUrl=queue, MessageBody="b", MessageSystemAttributes=system)
        sqs.send_message_batch(QueueUrl=queue, Entries=[{"Id": "c", "MessageBody": "c"}])
    finally:
        sqs.meta.events.unregister("before-send.sqs", instrument)
    answer = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, MessageSystemAttributeNames=["AWSTraceHeader"])
    traces = {message["Body"]: message["Attributes"]["AWSTraceHeader"] for message in answer["Messages"]}
    assert traces == {"a": header, "b": own, "c": header}


def test_a_batch(sqs: Any, queue: str) -> None:
    entries = [{"Id": f"id_{number}-x", "MessageBody": f"body {number}"} for number in range(10)]
    answer = sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    assert "Failed" not in answer
    assert [entry["Id"] for entry in answer["Successful"]] == [entry["Id"] for entry in entries]
    for entry, sent in zip(entries, answer["Successful"], strict=True):
        assert sent["MD5OfMessageBody"] == hashlib.md5(entry["MessageBody"].encode()).hexdigest()
    received = receive(sqs, queue)
    assert sorted(message["MessageId"] for message in received) == sorted(
        sent["MessageId"] for sent in answer["Successful"]
    )


def test_a_batch_that_is_too_large(sqs: Any, queue: str) -> None:
    entries: list[dict[str, Any]] = [
        {"Id": "1", "MessageBody": "a" * (MIB // 2)},
        {"Id": "2", "MessageBody": "b" * (MIB // 2 - 24)},
        {
            "Id": "3",
            "MessageBody": "c",
            "MessageAttributes": {"name": {"DataType": "String", "StringValue": "v" * 14}},
        },
    ]
    with refused(
        "AWS.SimpleQueueService.BatchRequestTooLong",
        "Batch requests cannot be longer than 1048576 bytes. You have sent 1048577 bytes.",
    ):
        sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    assert counts(sqs, queue) == (0, 0, 0)
    del entries[2]["MessageAttributes"]
    assert len(sqs.send_message_batch(QueueUrl=queue, Entries=entries)["Successful"]) == 3


def test_batches_that_are_refused_whole(sqs: Any, queue: str) -> None:
    one = {"MessageBody": "x"}
    with refused("AWS.SimpleQueueService.EmptyBatchRequest"):
        sqs.send_message_batch(QueueUrl=queue, Entries=[])
    with refused(
        "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
        "Maximum number of entries per request are 10. You have sent 20.",
    ):
        sqs.send_message_batch(QueueUrl=queue, Entries=[{"Id": str(number), **one} for number in range(20)])
    with refused("AWS.SimpleQueueService.BatchEntryIdsNotDistinct", "Id a repeated."):
        sqs.send_message_batch(QueueUrl=queue, Entries=[{"Id": "a", **one}, {"Id": "a", **one}])
    with refused("AWS.SimpleQueueService.InvalidBatchEntryId"):
        sqs.send_message_batch(QueueUrl=queue, Entries=[{"Id": "a:b", **one}])


def test_delays(server: TestServer, sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="late", DelaySeconds=60)
    assert receive(sqs, queue) == [] and counts(sqs, queue) == (0, 0, 1)
    server.advance(61)
    assert bodies(receive(sqs, queue)) == ["late"]
    slow = sqs.create_queue(QueueName="slow", Attributes={"DelaySeconds": "30"})["QueueUrl"]
    sqs.send_message(QueueUrl=slow, MessageBody="the queue's delay")
    sqs.send_message(QueueUrl=slow, MessageBody="none", DelaySeconds=0)
    (none,) = receive(sqs, slow)
    assert none["Body"] == "none"
    sqs.delete_message(QueueUrl=slow, ReceiptHandle=none["ReceiptHandle"])
    server.advance(31)
    assert bodies(receive(sqs, slow)) == ["the queue's delay"]


def test_a_retried_request_makes_no_second_message(server: TestServer, sqs: Any, queue: str) -> None:
    """SDKs send one invocation id with all tries of one request."""
    headers = {"amz-sdk-invocation-id": "11111111-2222-3333-4444-555555555555"}
    request = {"QueueUrl": queue, "MessageBody": "once"}
    first, second = (json_request(server, "SendMessage", request, headers=headers).json for _ in range(2))
    assert first == second
    batch = {"QueueUrl": queue, "Entries": [{"Id": "a", "MessageBody": "1"}, {"Id": "b", "MessageBody": "2"}]}
    headers = {"amz-sdk-invocation-id": "another"}
    answers = [json_request(server, "SendMessageBatch", batch, headers=headers).json for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    assert counts(sqs, queue) == (3, 0, 0)
    # the same id with another content is another request
    json_request(server, "SendMessage", {**request, "MessageBody": "else"}, headers=headers)
    assert counts(sqs, queue) == (4, 0, 0)


@pytest.mark.parametrize(
    ("headers", "is_first"),
    [
        ({b"amz-sdk-request": b"attempt=1; max=3"}, True),
        ({b"amz-sdk-request": b"ttl=20261116T120000Z; attempt=1"}, True),
        ({b"amz-sdk-request": b"attempt=2; max=3"}, False),
        ({b"amz-sdk-request": b"attempt=11; max=20"}, False),
        ({b"amz-sdk-retry": b"0/0/500"}, True),
        ({b"amz-sdk-retry": b"1/50/495"}, False),
        ({}, False),
    ],
)
def test_an_sdk_says_whether_it_tries_for_the_first_time(headers: dict[bytes, bytes], is_first: bool) -> None:
    assert is_first_try(Request("POST", "/", headers=headers)) is is_first


# --- receive ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"MaxNumberOfMessages": 11},
            "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided.",
        ),
        (
            {"MaxNumberOfMessages": 0},
            "Value 0 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided.",
        ),
        (
            {"WaitTimeSeconds": 21},
            "Value 21 for parameter WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20, if provided.",
        ),
        (
            {"VisibilityTimeout": 43201},
            "Value 43201 for parameter VisibilityTimeout is invalid. Reason: Must be >= 0 and <= 43200, if provided.",
        ),
        (
            {"ReceiveRequestAttemptId": "a"},
            (
                "Value a for parameter ReceiveRequestAttemptId is invalid. "
                "Reason: The request include parameter that is not valid for this queue type."
            ),
        ),
    ],
)
def test_receives_that_are_refused(sqs: Any, queue: str, more: dict[str, Any], message: str) -> None:
    with refused("InvalidParameterValue", message):
        sqs.receive_message(QueueUrl=queue, **more)


def test_attribute_names(sqs: Any, queue: str) -> None:
    sqs.send_message(
        QueueUrl=queue,
        MessageBody="x",
        MessageAttributes={
            name: {"DataType": "String", "StringValue": value}
            for name, value in (("General", "Kenobi"), ("Hello", "There"), ("Help.Me", "Me"))
        },
    )

    def attributes(**names: Any) -> dict[str, Any]:
        [message] = receive(sqs, queue, VisibilityTimeout=0, **names)
        return message

    assert "MessageAttributes" not in attributes() and "Attributes" not in attributes()
    chosen = attributes(MessageAttributeNames=["Hel.*"])
    assert list(chosen["MessageAttributes"]) == ["Hello", "Help.Me"]
    assert chosen["MD5OfMessageAttributes"] == "83fee93c1bcd8b9a5a923ffacdc636c7"
    none = attributes(MessageAttributeNames=["Foo", "AWS.x"])
    assert "MessageAttributes" not in none and "MD5OfMessageAttributes" not in none
    assert set(attributes(AttributeNames=["SenderId"])["Attributes"]) == {"SenderId"}
    assert set(attributes(MessageSystemAttributeNames=["SentTimestamp"])["Attributes"]) == {"SentTimestamp"}
    assert "Attributes" not in attributes(AttributeNames=["QueueArn"])
    with refused("InvalidAttributeName", "Unknown Attribute Nonsense."):
        attributes(MessageSystemAttributeNames=["Nonsense"])


def test_visibility(server: TestServer, sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    first = receive(sqs, queue, VisibilityTimeout=10)[0]
    assert receive(sqs, queue) == [] and counts(sqs, queue) == (0, 1, 0)
    server.advance(11)
    [second] = receive(sqs, queue, AttributeNames=["All"])
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"
    assert second["ReceiptHandle"] != first["ReceiptHandle"] and second["MessageId"] == first["MessageId"]
    server.advance(31)
    assert len(receive(sqs, queue)) == 1


def test_a_long_poll_is_answered_when_a_message_comes(sqs: Any, queue: str) -> None:
    answers: list[list[dict[str, Any]]] = []
    poll = threading.Thread(target=lambda: answers.append(receive(sqs, queue, WaitTimeSeconds=20)))
    poll.start()
    sqs.send_message(QueueUrl=queue, MessageBody="here")
    poll.join(120)
    assert not poll.is_alive() and bodies(answers[0]) == ["here"]


def test_a_long_poll_ends_without_a_message(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="waits", Attributes={"ReceiveMessageWaitTimeSeconds": "1"})["QueueUrl"]
    assert receive(sqs, url) == []
    assert receive(sqs, url, WaitTimeSeconds=0) == []


def test_an_answer_with_all_that_fits(sqs: Any, queue: str) -> None:
    """Ten messages of a mebibyte are one answer of ten."""
    for _ in range(10):
        sqs.send_message(QueueUrl=queue, MessageBody="x" * MIB)
    assert [len(body) for body in bodies(receive(sqs, queue))] == [MIB] * 10


# --- delete and change visibility ----------------------------------------------------------------


def test_delete(server: TestServer, sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [message] = receive(sqs, queue)
    for _ in range(2):  # deleting twice succeeds
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    server.advance(31)
    assert counts(sqs, queue) == (0, 0, 0)


def test_delete_after_the_lease_ran_out(server: TestServer, sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [message] = receive(sqs, queue, VisibilityTimeout=5)
    server.advance(6)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    assert receive(sqs, queue) == []


def test_a_stale_delete_leaves_the_message_with_its_new_holder(server: TestServer, sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [old] = receive(sqs, queue, VisibilityTimeout=5)
    server.advance(6)
    [new] = receive(sqs, queue, VisibilityTimeout=5)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=old["ReceiptHandle"])
    assert counts(sqs, queue) == (0, 1, 0)
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=old["ReceiptHandle"], VisibilityTimeout=0)
    assert receive(sqs, queue) == []
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=new["ReceiptHandle"])
    assert counts(sqs, queue) == (0, 0, 0)
    stale = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["Baton.StaleDeletes"])["Attributes"]
    assert stale == {"Baton.StaleDeletes": "1"}


@pytest.mark.parametrize("receipt", ["x", "AQEB" * 11, "é", "a" * 5000, "AQEAAAABAAAAAAAAAAEAAAAAAAEAAADHk-DS68BJsSPq"])
def test_receipts_that_are_none(sqs: Any, queue: str, receipt: str) -> None:
    shown = receipt if len(receipt) < 200 else None
    message = f'The input receipt handle "{shown}" is not a valid receipt handle.' if shown else None
    with refused("ReceiptHandleIsInvalid", message):
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=receipt)
    with refused("ReceiptHandleIsInvalid", message):
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=receipt, VisibilityTimeout=1)


def test_receipts_of_another_queue(sqs: Any, queue: str) -> None:
    other = sqs.create_queue(QueueName="other")["QueueUrl"]
    sqs.send_message(QueueUrl=other, MessageBody="x")
    [message] = receive(sqs, other)
    with refused("ReceiptHandleIsInvalid"):
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    # nor of a queue that had this name before
    sqs.delete_queue(QueueUrl=other)
    sqs.create_queue(QueueName="other")
    sqs.send_message(QueueUrl=other, MessageBody="y")
    receive(sqs, other)
    with refused("ReceiptHandleIsInvalid"):
        sqs.delete_message(QueueUrl=other, ReceiptHandle=message["ReceiptHandle"])


def test_delete_batch(sqs: Any, queue: str) -> None:
    sqs.send_message_batch(QueueUrl=queue, Entries=[{"Id": str(n), "MessageBody": "x"} for n in range(3)])
    receipts = [message["ReceiptHandle"] for message in receive(sqs, queue)]
    entries = [{"Id": f"e{n}", "ReceiptHandle": receipt} for n, receipt in enumerate(receipts)]
    entries[1]["ReceiptHandle"] = "garbage"
    answer = sqs.delete_message_batch(QueueUrl=queue, Entries=entries)
    assert answer["Successful"] == [{"Id": "e0"}, {"Id": "e2"}]
    assert answer["Failed"] == [
        {
            "Id": "e1",
            "SenderFault": True,
            "Code": "ReceiptHandleIsInvalid",
            "Message": 'The input receipt handle "garbage" is not a valid receipt handle.',
        }
    ]
    assert counts(sqs, queue) == (0, 1, 0)


def test_change_visibility(server: TestServer, sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [message] = receive(sqs, queue, VisibilityTimeout=5)
    receipt = message["ReceiptHandle"]
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=receipt, VisibilityTimeout=100)
    server.advance(50)
    assert receive(sqs, queue) == []
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=receipt, VisibilityTimeout=0)
    [message] = receive(sqs, queue)
    receipt = message["ReceiptHandle"]
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=receipt)
    with refused(
        "InvalidParameterValue",
        f"Value {receipt} for parameter ReceiptHandle is invalid. "
        "Reason: Message does not exist or is not available for visibility timeout change.",
    ):
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=receipt, VisibilityTimeout=100)


@pytest.mark.parametrize(
    ("name", "attributes", "is_refused"),
    [
        ("standard", {}, False),
        ("strict", {"Baton.StrictReceipts": "true"}, True),
        ("ordered.fifo", {"FifoQueue": "true", "ContentBasedDeduplication": "true"}, True),
    ],
)
@pytest.mark.parametrize("timeout_s", [0, 100])
def test_change_visibility_after_the_lease_has_expired(
    server: TestServer, sqs: Any, name: str, attributes: dict[str, str], is_refused: bool, timeout_s: int
) -> None:
    """A standard queue answers 200 and changes nothing, as SQS does; the others say that the receipt has expired."""
    url = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="x", **({"MessageGroupId": "g"} if "fifo" in name else {}))
    [message] = receive(sqs, url, VisibilityTimeout=5)
    server.advance(6)
    change = {"ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": timeout_s}
    value = f"Value {message['ReceiptHandle']} for parameter ReceiptHandle is invalid."
    reason = f"{value} Reason: The receipt handle has expired."
    with refused("InvalidParameterValue", reason) if is_refused else nullcontext():
        sqs.change_message_visibility(QueueUrl=url, **change)
    answer = sqs.change_message_visibility_batch(QueueUrl=url, Entries=[{"Id": "a", **change}])
    assert [entry["Message"] for entry in answer.get("Failed", [])] == ([reason] if is_refused else [])
    assert [entry["Id"] for entry in answer.get("Successful", [])] == ([] if is_refused else ["a"])
    assert counts(sqs, url) == (1, 0, 0)
    [again] = receive(sqs, url)
    assert again["MessageId"] == message["MessageId"]


def test_visibility_reaches_no_further_than_twelve_hours(server: TestServer, sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [message] = receive(sqs, queue, VisibilityTimeout=3600)
    server.advance(60)
    change = {"QueueUrl": queue, "ReceiptHandle": message["ReceiptHandle"]}
    with refused(
        "InvalidParameterValue",
        "Value 43200 for parameter VisibilityTimeout is invalid. "
        "Reason: Total VisibilityTimeout for the message is beyond the limit [43200 seconds].",
    ):
        sqs.change_message_visibility(**change, VisibilityTimeout=43200)
    with refused(
        "InvalidParameterValue",
        "Value 43201 for parameter VisibilityTimeout is invalid. "
        "Reason: VisibilityTimeout must be an integer between 0 and 43200.",
    ):
        sqs.change_message_visibility(**change, VisibilityTimeout=43201)
    sqs.change_message_visibility(**change, VisibilityTimeout=43000)


def test_change_visibility_batch(sqs: Any, queue: str) -> None:
    sqs.send_message_batch(QueueUrl=queue, Entries=[{"Id": str(n), "MessageBody": "x"} for n in range(2)])
    first, second = (message["ReceiptHandle"] for message in receive(sqs, queue))
    answer = sqs.change_message_visibility_batch(
        QueueUrl=queue,
        Entries=[
            {"Id": "a", "ReceiptHandle": first, "VisibilityTimeout": 0},
            {"Id": "b", "ReceiptHandle": second, "VisibilityTimeout": -85},
            {"Id": "c", "ReceiptHandle": "garbage", "VisibilityTimeout": 1},
            {"Id": "d", "ReceiptHandle": second},
        ],
    )
    assert answer["Successful"] == [{"Id": "a"}]
    assert [(entry["Id"], entry["Code"], entry["SenderFault"]) for entry in answer["Failed"]] == [
        ("b", "InvalidParameterValue", True),
        ("c", "ReceiptHandleIsInvalid", True),
        ("d", "MissingParameter", True),
    ]
    assert counts(sqs, queue) == (1, 1, 0)


def test_a_message_expires(server: TestServer, sqs: Any) -> None:
    url = sqs.create_queue(QueueName="short", Attributes={"MessageRetentionPeriod": "60"})["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="x")
    server.advance(62)
    assert receive(sqs, url) == [] and counts(sqs, url) == (0, 0, 0)


def test_in_flight_is_limited(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="narrow", Attributes={"Baton.MaximumInFlight": "2"})["QueueUrl"]
    sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": str(n), "MessageBody": "x"} for n in range(4)])
    assert len(receive(sqs, url)) == 2
    with refused("OverLimit", status=403):
        receive(sqs, url)


def test_tenants_share_a_standard_queue_fairly(sqs: Any, queue: str) -> None:
    for start in range(0, 100, 10):
        sqs.send_message_batch(
            QueueUrl=queue,
            Entries=[
                {"Id": str(n), "MessageBody": "noisy", "MessageGroupId": "noisy"} for n in range(start, start + 10)
            ],
        )
    for _ in range(4):
        receive(sqs, queue)
    sqs.send_message(QueueUrl=queue, MessageBody="quiet", MessageGroupId="quiet")
    messages = receive(sqs, queue, 1, AttributeNames=["MessageGroupId"])
    assert bodies(messages) == ["quiet"] and messages[0]["Attributes"] == {"MessageGroupId": "quiet"}
