"""The table of docs/reference/rest-api.md, row by row: what one door takes in, as the other shows it."""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import md5
from typing import Any

import pytest

from batonq.api.sqs.contents import BASE64, BYTES_TYPE, JSON_TYPE, TEXT_TYPE
from tests.rest.support import Rest

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def base64(data: bytes) -> str:
    return b64encode(data).decode()


def url(sqs: Any) -> str:
    return str(sqs.get_queue_url(QueueName="queue")["QueueUrl"])


def by_sqs(sqs: Any, **more: Any) -> dict[str, Any]:
    """The one message of the queue, with everything that SQS tells of it."""
    (message,) = sqs.receive_message(
        QueueUrl=url(sqs), MessageAttributeNames=["All"], MessageSystemAttributeNames=["All", "Baton.All"], **more
    )["Messages"]
    assert message["MD5OfBody"] == md5(message["Body"].encode()).hexdigest()
    assert isinstance(message, dict)
    return message


def told(message: dict[str, Any]) -> tuple[str | None, str | None]:
    """Type and encoding that the message's attributes tell."""
    attributes = message.get("MessageAttributes", {})
    found = [attributes.get(f"Baton.Content{name}", {}).get("StringValue") for name in ("Type", "Encoding")]
    return found[0], found[1]


# --- REST → SQS: bodies -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ('{"b": 1, "a":[true,null, 1.50]}', '{"b": 1, "a":[true,null, 1.50]}'),
        ("[1,2]", "[1,2]"),
        ("12345678901234567890123", "12345678901234567890123"),
        ("1e999", "1e999"),
        ("null", "null"),
        ("false", "false"),
        ('{"t":"line\\nend\\u0000"}', '{"t":"line\\nend\\u0000"}'),
        ('{"t":"ü\uffff"}', '{"t":"ü\\uffff"}'),
    ],
)
def test_a_json_value_is_its_text(rest: Rest, sqs: Any, written: str, shown: str) -> None:
    queue = rest.create()
    rest.good("POST", f"{queue}/messages", raw=f'{{"body":{written}}}'.encode())
    message = by_sqs(sqs)
    assert message["Body"] == shown
    assert told(message) == (JSON_TYPE, None)


@pytest.mark.parametrize("text", ["plain", 'with "quotes" and \\', "ünï\U0001f600", "tab\tand\nend", "{}"])
def test_a_json_string_is_the_text_itself(rest: Rest, sqs: Any, text: str) -> None:
    rest.send(rest.create(), text)
    message = by_sqs(sqs)
    assert message["Body"] == text
    assert told(message) == (None, None)


@pytest.mark.parametrize("text", ["nul\0", "bell\a", "not a character \uffff", "\ufffe"])
def test_text_that_sqs_forbids_is_base64(rest: Rest, sqs: Any, text: str) -> None:
    rest.send(rest.create(), text)
    message = by_sqs(sqs)
    assert message["Body"] == base64(text.encode())
    assert told(message) == (TEXT_TYPE, BASE64)


def test_text_that_sqs_forbids_is_base64_with_a_deduplication_key_too(rest: Rest, sqs: Any) -> None:
    """Such a message is stored with the digest of its body, like a text that was sent over SQS."""
    queue = rest.create()
    given = [{"body": "fine", "deduplicationKey": "a"}, {"body": "bell \u0007", "deduplicationKey": "b"}]
    rest.good("POST", f"{queue}/messages:batch", {"messages": given})
    messages = sqs.receive_message(QueueUrl=url(sqs), MaxNumberOfMessages=10)["Messages"]
    assert [message["Body"] for message in messages] == ["fine", base64(b"bell \x07")]
    for message in messages:
        assert message["MD5OfBody"] == md5(message["Body"].encode()).hexdigest()


def test_bytes_are_base64(packed: Rest, sqs: Any) -> None:
    packed.send(packed.create(), b"\x00\xff bytes")
    message = by_sqs(sqs)
    assert message["Body"] == base64(b"\x00\xff bytes")
    assert told(message) == (BYTES_TYPE, BASE64)


def test_bytes_from_json_are_the_same(rest: Rest, sqs: Any) -> None:
    rest.good("POST", f"{rest.create()}/messages", {"bodyBase64": base64(b"\x00\xff")})
    assert by_sqs(sqs)["Body"] == base64(b"\x00\xff")


def test_what_is_told_is_in_the_digest_of_the_attributes(packed: Rest, sqs: Any) -> None:
    """As a client that checks MD5OfMessageAttributes computes it: over what it was given."""
    packed.send(packed.create(), b"\x00", attributes={"own": "x"})
    message = by_sqs(sqs)
    encoded = b""
    for name, value in sorted(message["MessageAttributes"].items()):
        for part in (name, value["DataType"]):
            encoded += len(part).to_bytes(4, "big") + part.encode()
        encoded += b"\x01" + len(value["StringValue"]).to_bytes(4, "big") + value["StringValue"].encode()
    assert message["MD5OfMessageAttributes"] == md5(encoded).hexdigest()
    assert set(message["MessageAttributes"]) == {"own", "Baton.ContentType", "Baton.ContentEncoding"}


def test_the_quick_way_of_sqs_shows_the_same(rest: Rest, sqs: Any) -> None:
    """A receive that asks for nothing goes another way through the server."""
    queue = rest.create()
    rest.send(queue, {"a": 1})
    rest.send(queue, "text")
    got = sqs.receive_message(QueueUrl=url(sqs), MaxNumberOfMessages=10)["Messages"]
    assert [message["Body"] for message in got] == ['{"a": 1}', "text"]
    assert [message["MD5OfBody"] for message in got] == [md5(message["Body"].encode()).hexdigest() for message in got]


# --- REST → SQS: the rest ---------------------------------------------------------------------


def test_attributes_become_sqs_types(packed: Rest, sqs: Any) -> None:
    values = {"text": "ü", "empty": "", "whole": -5, "number": 1.5, "bytes": b"\x00\x01"}
    packed.send(packed.create(), "x", attributes=values)
    assert by_sqs(sqs)["MessageAttributes"] == {
        "text": {"DataType": "String", "StringValue": "ü"},
        "empty": {"DataType": "String", "StringValue": ""},
        "whole": {"DataType": "Number", "StringValue": "-5"},
        "number": {"DataType": "Number", "StringValue": "1.5"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\x01"},
    }


def test_fields_become_system_attributes(rest: Rest, sqs: Any) -> None:
    queue = rest.create(mode="FIFO")
    more = {"messageGroupId": "g", "deduplicationKey": "k", "priority": "high", "traceparent": TRACEPARENT}
    sent = rest.send(queue, "x", **more)
    system = by_sqs(sqs)["Attributes"]
    assert system["MessageGroupId"] == "g"
    assert system["MessageDeduplicationId"] == "k"
    assert system["Baton.Priority"] == "192"
    assert system["AWSTraceHeader"] == TRACEPARENT
    assert int(system["SequenceNumber"]) == sent["sequence"]


# --- SQS → REST -------------------------------------------------------------------------------


def string(value: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": value}


def by_rest(rest: Rest) -> dict[str, Any]:
    (message,) = rest.receive("/v1/queues/queue")
    return message


@pytest.mark.parametrize("text", ["plain", '{"a":1}', "5", "ü\t\U0001f600"])
def test_text_is_a_json_string(rest: Rest, packed: Rest, sqs: Any, text: str) -> None:
    rest.create()
    sqs.send_message(QueueUrl=url(sqs), MessageBody=text)
    assert by_rest(rest)["body"] == text
    sqs.send_message(QueueUrl=url(sqs), MessageBody=text)
    assert by_rest(packed)["body"] == text


def test_text_that_says_it_is_json_is_a_value(rest: Rest, sqs: Any) -> None:
    rest.create()
    sent = sqs.send_message(
        QueueUrl=url(sqs), MessageBody='{"a": [1]}', MessageAttributes={"Baton.ContentType": string(JSON_TYPE)}
    )
    assert sent["MD5OfMessageBody"] == md5(b'{"a": [1]}').hexdigest()
    message = by_rest(rest)
    assert message["body"] == {"a": [1]}
    assert "attributes" not in message


@pytest.mark.parametrize(
    ("content_type", "data", "shown"),
    [
        (BYTES_TYPE, b"\x00\xff", {"bodyBase64": base64(b"\x00\xff")}),
        ("image/png", b"png", {"bodyBase64": base64(b"png")}),
        (TEXT_TYPE, "nul\0ü".encode(), {"body": "nul\0ü"}),
        ("text/csv", b"\xff", {"bodyBase64": base64(b"\xff")}),
        (JSON_TYPE, b'{"a":1}', {"body": {"a": 1}}),
    ],
)
def test_base64_that_says_so_is_what_it_stands_for(
    rest: Rest, sqs: Any, content_type: str, data: bytes, shown: dict[str, Any]
) -> None:
    rest.create(defaultVisibilityTimeoutSeconds=0)
    attributes = {"Baton.ContentType": string(content_type), "Baton.ContentEncoding": string(BASE64)}
    sent = sqs.send_message(QueueUrl=url(sqs), MessageBody=base64(data), MessageAttributes=attributes)
    assert sent["MD5OfMessageBody"] == md5(base64(data).encode()).hexdigest()
    assert by_rest(rest).items() >= shown.items()
    again = by_sqs(sqs)
    assert again["Body"] == base64(data)
    assert again["MessageAttributes"] == attributes


@pytest.mark.parametrize(
    ("attributes", "body"),
    [
        ({"Baton.ContentEncoding": string("gzip")}, "eA=="),
        ({"Baton.ContentEncoding": string(BASE64)}, "not base64!"),
        ({"Baton.ContentType": string(JSON_TYPE)}, "{"),
        ({"Baton.ContentType": string(JSON_TYPE)}, "[" * 300 + "]" * 300),
    ],
)
def test_what_does_not_hold_is_refused(rest: Rest, sqs: Any, attributes: dict[str, Any], body: str) -> None:
    rest.create()
    with pytest.raises(sqs.exceptions.ClientError) as caught:
        sqs.send_message(QueueUrl=url(sqs), MessageBody=body, MessageAttributes=attributes)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400


def test_a_batch_says_the_digest_of_what_it_got(rest: Rest, sqs: Any) -> None:
    rest.create()
    attributes = {"Baton.ContentEncoding": string(BASE64)}
    entry = {"Id": "one", "MessageBody": "AAE=", "MessageAttributes": attributes}
    (sent,) = sqs.send_message_batch(QueueUrl=url(sqs), Entries=[entry])["Successful"]
    assert sent["MD5OfMessageBody"] == md5(b"AAE=").hexdigest()
    assert by_rest(rest)["bodyBase64"] == "AAE="


def test_attributes_become_values(rest: Rest, packed: Rest, sqs: Any) -> None:
    rest.create(defaultVisibilityTimeoutSeconds=0)
    sqs.send_message(
        QueueUrl=url(sqs),
        MessageBody="x",
        MessageAttributes={
            "text": string("t"),
            "named": {"DataType": "String.mine", "StringValue": "t"},
            "whole": {"DataType": "Number", "StringValue": "7"},
            "digits": {"DataType": "Number.float", "StringValue": "1.10"},
            "huge": {"DataType": "Number", "StringValue": "123456789012345678901234567890"},
            "odd": {"DataType": "Number", "StringValue": "+1."},
            "bytes": {"DataType": "Binary", "BinaryValue": b"\xff"},
            "Baton.Priority": {"DataType": "Number", "StringValue": "9"},
        },
    )
    shown = by_rest(rest)
    assert shown["attributes"] == {
        "text": "t",
        "named": "t",
        "whole": 7,
        "digits": 1.1,
        "huge": 123456789012345678901234567890,
        "odd": 1.0,
        "bytes": {"base64": "/w=="},
    }
    assert shown["priority"] == 9
    assert by_rest(packed)["attributes"] == {**shown["attributes"], "huge": 1.2345678901234568e29, "bytes": b"\xff"}


def test_an_xray_header_is_a_traceparent(rest: Rest, sqs: Any) -> None:
    rest.create()
    header = "Root=1-4bf92f35-77b34da6a3ce929d0e0e4736;Parent=00f067aa0ba902b7;Sampled=1"
    sqs.send_message(
        QueueUrl=url(sqs),
        MessageBody="x",
        MessageSystemAttributes={"AWSTraceHeader": {"DataType": "String", "StringValue": header}},
    )
    assert by_rest(rest)["traceparent"] == TRACEPARENT


def test_a_trace_comes_back_as_it_was_sent(rest: Rest) -> None:
    queue = rest.create()
    rest.send(queue, "x", traceparent=TRACEPARENT, tracestate="vendor=a b,other=c")
    message = by_rest(rest)
    assert (message["traceparent"], message["tracestate"]) == (TRACEPARENT, "vendor=a b,other=c")


# --- REST ↔ REST, in the other form -----------------------------------------------------------

VALUES = [{"a": [1, None, True, 1.5, "ü"]}, [], {}, "text", "nul\0", "", 0, -1, 2**63, 1.25, None, True, [[[{}]]]]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_is_the_same_in_both_forms(rest: Rest, packed: Rest, value: Any) -> None:
    queue = rest.create(defaultVisibilityTimeoutSeconds=0)
    for sender in (rest, packed):
        sender.send(queue, value)
        for receiver in (rest, packed):
            (message,) = receiver.receive(queue)
            assert message["body"] == value
            assert type(message["body"]) is type(value)
        rest.good("POST", f"{queue}:purge")


@pytest.mark.parametrize(
    ("written", "value"), [("1" + "0" * 30, 1e30), ("1e999", float("inf")), ("-" + "9" * 400, float("-inf"))]
)
def test_numbers_that_messagepack_has_not_become_doubles(rest: Rest, packed: Rest, written: str, value: float) -> None:
    queue = rest.create()
    rest.good("POST", f"{queue}/messages", raw=f'{{"body":[{written}]}}'.encode())
    assert packed.receive(queue)[0]["body"] == [value]


def test_json_comes_back_as_it_was_written(rest: Rest) -> None:
    queue = rest.create()
    written = '{"b": 1.50, "a": 12345678901234567890123, "b": "\\u00fc"}'
    rest.good("POST", f"{queue}/messages", raw=f'{{"body":{written}}}'.encode())
    answer = rest("POST", f"{queue}/messages:receive", {})
    assert written.encode() in answer.body
    assert json.loads(answer.body)["messages"][0]["body"]["a"] == 12345678901234567890123
