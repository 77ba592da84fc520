"""Bodies that are hard to carry, sent by every way: each is refused with 4xx, or can be received by every way."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from html import unescape
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batonq.core.payload import Content
from tests.api.support import json_request, query_request
from tests.rest.support import JSON, MSGPACK, Rest
from tests.support import brokers
from tests.support.ask import Message
from tests.support.server import TestServer

QUEUE = "/v1/queues/q"


class Ways(NamedTuple):
    rest: Rest
    packed: Rest

    @property
    def url(self) -> str:
        return f"http://h/{self.rest.account}/q"

    @property
    def server(self) -> TestServer:
        return self.rest.server


@pytest.fixture(scope="module")
def ways(server: TestServer) -> Iterator[Ways]:
    account = "399999999999"
    made = Ways(Rest(server, account), Rest(server, account, packed=True))
    made.rest.create("q", defaultVisibilityTimeoutSeconds=0)
    yield made
    made.rest.close()
    made.packed.close()


# --- bodies -----------------------------------------------------------------------------------

digits = st.sampled_from([1, 18, 19, 20, 21, 30, 308, 309, 400, 4_299, 4_300, 4_301, 5_000, 20_000])
numbers = st.one_of(
    digits.map(lambda count: "9" * count),
    digits.map(lambda count: "-1" + "0" * (count - 1)),
    digits.map(lambda count: "0." + "1" * count),
    st.sampled_from(
        ["0", "-0", "-0.0", "1e308", "1e309", "-1e999", "1E-400", "NaN", "Infinity", "-Infinity", "01", "1."]
    ),
    st.sampled_from([str(2**63 - 1), str(2**63), str(-(2**63)), str(-(2**63) - 1), str(2**64 - 1), str(2**64)]),
)
characters = st.one_of(
    st.text(max_size=5).map(json.dumps),
    st.sampled_from(
        [
            r'"\ud800"',
            r'"\udc00\ud800"',
            r'"\ud83d\ude00"',
            r'"\u0000"',
            r'"\ufffe\uffff"',
            '"\ufffe"',
            r'"\""',
            r'"\\"',
        ]
    ),
    st.sampled_from(
        ['"[[[["', r'"\\\"]]"', '"' + "1" * 5_000 + '"', '"\x7f\x85"', '"', r'"\x"', '"\t"', "null", "true"]
    ),
)
plain_json = st.recursive(
    st.one_of(numbers, characters),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda texts: "[" + ", ".join(texts) + "]"),
        st.lists(st.tuples(st.sampled_from(['"a"', '"a"', '"ü"', '"["', '""']), inner), max_size=3).map(
            lambda pairs: "{" + ",".join(f"{key} : {value}" for key, value in pairs) + "}"
        ),
    ),
    max_leaves=6,
)
deep_json = st.builds(
    lambda depth, kind, inner: (kind[0] * depth) + inner + (kind[1] * depth),
    st.sampled_from([1, 198, 199, 200, 201, 900, 2_000]),
    st.sampled_from([("[", "]"), ('{"a":', "}"), ('["}",', "]")]),
    plain_json,
)
written = st.one_of(plain_json, deep_json)


# --- sending ----------------------------------------------------------------------------------


def by_sqs(ways: Ways, text: str, **more: Any) -> int:
    fields = {"QueueUrl": ways.url, "MessageBody": text, **more}
    return json_request(ways.server, "SendMessage", json.dumps(fields, ensure_ascii=not text.isprintable())).status


def by_sqs_batch(ways: Ways, text: str) -> int:
    fields = {"QueueUrl": ways.url, "Entries": [{"Id": "a", "MessageBody": text}]}
    answer = json_request(ways.server, "SendMessageBatch", json.dumps(fields, separators=(",", ":")))
    return 400 if answer.status == 200 and "Failed" in answer.json else answer.status


def by_sqs_as_json(ways: Ways, text: str) -> int:
    kind = {"DataType": "String", "StringValue": "application/json"}
    return by_sqs(ways, text, MessageAttributes={"Baton.ContentType": kind})


def by_sqs_as_base64(ways: Ways, text: str) -> int:
    kind = {"DataType": "String", "StringValue": "application/json"}
    encoding = {"DataType": "String", "StringValue": "base64"}
    encoded = b64encode(text.encode("utf-8", "surrogatepass")).decode()
    return by_sqs(ways, encoded, MessageAttributes={"Baton.ContentType": kind, "Baton.ContentEncoding": encoding})


def by_sqs_query(ways: Ways, text: str) -> int:
    try:
        return query_request(ways.server, {"Action": "SendMessage", "QueueUrl": ways.url, "MessageBody": text}).status
    except UnicodeEncodeError:  # urlencode cannot write it
        return 400


def by_rest(ways: Ways, text: str) -> int:
    body = f'{{"body":{text}}}'.encode("utf-8", "surrogatepass")
    return ways.rest("POST", f"{QUEUE}/messages", raw=body).status


def by_rest_batch(ways: Ways, text: str) -> int:
    body = f'{{"messages":[{{"body":{text}}}]}}'.encode("utf-8", "surrogatepass")
    return of_batch(ways.rest("POST", f"{QUEUE}/messages:batch", raw=body))


def by_rest_text(ways: Ways, text: str) -> int:
    return ways.rest("POST", f"{QUEUE}/messages", {"body": text}).status


def by_messagepack(ways: Ways, text: str, batch: bool = False) -> int:
    """The value that the text stands for, as far as MessagePack has it; else the text itself."""
    try:
        value = json.loads(text)
        message = msgspec.msgpack.encode({"body": value})
    except (ValueError, OverflowError, RecursionError):
        message = b"\x81\xa4body" + msgspec.msgpack.encode(text.encode("utf-8", "replace").decode())
    if batch:
        return of_batch(ways.packed("POST", f"{QUEUE}/messages:batch", raw=b"\x81\xa8messages\x91" + message))
    return ways.packed("POST", f"{QUEUE}/messages", raw=message).status


def by_messagepack_batch(ways: Ways, text: str) -> int:
    return by_messagepack(ways, text, batch=True)


def by_messagepack_bytes(ways: Ways, text: str) -> int:
    return ways.packed("POST", f"{QUEUE}/messages", {"body": text.encode("utf-8", "replace")}).status


def of_batch(answer: Any) -> int:
    if answer.status not in (200, 202):
        return int(answer.status)
    (result,) = answer.value["results"]
    return int(result.get("error", {}).get("status", answer.status))


SENDERS: list[Callable[[Ways, str], int]] = [
    by_sqs,
    by_sqs_batch,
    by_sqs_as_json,
    by_sqs_as_base64,
    by_sqs_query,
    by_rest,
    by_rest_batch,
    by_rest_text,
    by_messagepack,
    by_messagepack_batch,
    by_messagepack_bytes,
]


# --- receiving --------------------------------------------------------------------------------


def seen_by_sqs(ways: Ways, **more: Any) -> tuple[str, dict[str, Any]]:
    answer = json_request(ways.server, "ReceiveMessage", {"QueueUrl": ways.url, **more})
    assert answer.status == 200, answer
    (message,) = answer.json["Messages"]
    return message["Body"], message.get("MessageAttributes", {})


def seen_by_query(ways: Ways) -> str:
    answer = query_request(ways.server, {"Action": "ReceiveMessage", "QueueUrl": ways.url})
    assert answer.status == 200, answer
    return unescape(answer.text.partition("<Body>")[2].partition("</Body>")[0])


def seen_by_rest(ways: Ways, packed: bool, **headers: str) -> Any:
    """Of the receive, and of a look at the queue."""
    asker = ways.packed if packed else ways.rest
    answer = asker("POST", f"{QUEUE}/messages:receive", {"maxMessages": 1}, headers)
    assert answer.status == 200, answer
    (message,) = answer.value["messages"]
    peeked = asker("GET", f"{QUEUE}/messages", headers={"Accept": answer.headers["content-type"]})
    assert peeked.status == 200, peeked
    (other,) = peeked.value["messages"]
    assert same(body_of(other), body_of(message))
    return body_of(message)


def body_of(message: dict[str, Any]) -> Any:
    return b64decode(message["bodyBase64"]) if "bodyBase64" in message else message["body"]


def same(one: Any, other: Any) -> bool:
    return bool(repr(fitting(one)) == repr(fitting(other)))


def fitting(value: Any) -> Any:
    """As MessagePack has it: larger integers as doubles."""
    if type(value) is int and not -(1 << 63) <= value < 1 << 64:
        return float(str(value))
    if isinstance(value, list):
        return [fitting(member) for member in value]
    return {key: fitting(member) for key, member in value.items()} if isinstance(value, dict) else value


def check_every_way(ways: Ways) -> Any:
    """The one message of the queue, by every way that there is. Returns it as REST shows it in JSON."""
    value = seen_by_rest(ways, packed=False)
    assert same(seen_by_rest(ways, packed=True), value)
    assert same(seen_by_rest(ways, packed=False, Accept=MSGPACK), value)
    assert same(seen_by_rest(ways, packed=True, Accept=JSON), value)
    text, attributes = seen_by_sqs(ways, MessageAttributeNames=["All"], MessageSystemAttributeNames=["All"])
    assert seen_by_sqs(ways)[0] == text
    assert seen_by_query(ways) == text
    encoded = "Baton.ContentEncoding" in attributes
    if attributes.get("Baton.ContentType", {}).get("StringValue", "").startswith(JSON):
        assert same(json.loads(b64decode(text) if encoded else text), value)
    elif encoded:
        assert b64decode(text) == (value.encode() if isinstance(value, str) else value)
    else:
        assert text == value
    return value


@pytest.mark.parametrize("sender", SENDERS, ids=lambda sender: sender.__name__)
@settings(max_examples=settings().max_examples // 2)
@given(text=written)
@example(text="9" * 4_301)
@example(text="[" * 201 + "]" * 201)
@example(text='{"a": 1e400, "b": ' + "1" * 4_300 + "}")
@example(text=r'{"a":"\ud800"}')
@example(text='["' + "1" * 5_000 + '"]')
def test_what_is_taken_can_be_received_by_every_way(ways: Ways, sender: Callable[[Ways, str], int], text: str) -> None:
    status = sender(ways, text)
    assert status in (200, 202) or 400 <= status < 500, (status, text[:100])
    try:
        if status < 300:
            check_every_way(ways)
    finally:
        ways.rest.good("POST", f"{QUEUE}:purge")


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"9" * 5_000, float("inf")),
        (b"[-" + b"9" * 5_000 + b"]", [float("-inf")]),
        (b'{"a":1e999,"b":[' + b"1" * 10_000 + b"]}", {"a": float("inf"), "b": [float("inf")]}),
    ],
)
def test_numbers_that_older_releases_took(ways: Ways, body: bytes, value: Any) -> None:
    """They are refused now, and those that are in a queue can be received."""
    broker = ways.server.broker

    async def put() -> None:
        queue = broker.queue(ways.rest.account, "q")
        await brokers.send(broker, queue, [Message(body, sender="x", content=int(Content.JSON))])

    ways.server.run(put)
    assert seen_by_rest(ways, packed=True) == value
    answer = ways.rest("POST", f"{QUEUE}/messages:receive", {})
    assert answer.status == 200 and body in answer.body
    assert seen_by_sqs(ways)[0] == body.decode()
    assert seen_by_query(ways) == body.decode()
    ways.rest.good("POST", f"{QUEUE}:purge")


@pytest.mark.parametrize(
    ("text", "said"),
    [("1" * 4_301, "more than 4300 digits"), ("[" * 201 + "]" * 201, "more than 200 levels deep")],
)
def test_what_is_refused_is_told_why(ways: Ways, text: str, said: str) -> None:
    answer = ways.rest("POST", f"{QUEUE}/messages", raw=f'{{"body":{text}}}'.encode())
    assert (answer.status, answer.code) == (400, "invalid_input") and said in answer.value["detail"]
    kind = {"Baton.ContentType": {"DataType": "String", "StringValue": "application/json"}}
    fields = {"QueueUrl": ways.url, "MessageBody": text, "MessageAttributes": kind}
    refused = json_request(ways.server, "SendMessage", fields)
    assert refused.status == 400 and said in refused.json["message"]
    assert "InvalidMessageContents" in refused.json["__type"]


def test_text_that_sqs_cannot_show_is_encoded_also_beside_a_message_with_a_key(ways: Ways) -> None:
    entries = [{"body": "a\x01\ufffe"}, {"body": "b", "deduplicationKey": "k"}]
    ways.rest.good("POST", f"{QUEUE}/messages:batch", {"messages": entries})
    assert seen_by_sqs(ways)[0] == b64encode("a\x01\ufffe".encode()).decode()
    ways.rest.good("POST", f"{QUEUE}:purge")
