"""Sending and receiving by REST, in both forms."""

from __future__ import annotations

import threading
from base64 import b64decode, b64encode
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from tests.api.support import wait_until
from tests.rest.support import MSGPACK, Rest

MIB = 1024 * 1024


@pytest.fixture(params=["json", "msgpack"])
def any_rest(request: pytest.FixtureRequest, rest: Rest, packed: Rest) -> Rest:
    return rest if request.param == "json" else packed


def batch(rest: Rest, queue: str, messages: list[Any], **more: Any) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = rest.good("POST", f"{queue}/messages:batch", {"messages": messages, **more})[
        "results"
    ]
    return results


# --- one message ------------------------------------------------------------------------------


def test_a_message_with_everything(any_rest: Rest) -> None:
    queue = any_rest.create(defaultVisibilityTimeoutSeconds=12)
    sent = any_rest.send(
        queue,
        {"n": 1},
        deduplicationKey="k",
        messageGroupId="g",
        delaySeconds=0,
        ttlSeconds=100,
        maxReceiveCount=3,
        priority=7,
        attributes={"a": "x", "n": 5},
    )
    (message,) = any_rest.receive(queue, consumer="me")
    expected = {
        "messageId": sent["messageId"],
        "sequence": sent["sequence"],
        "queue": "queue",
        "body": {"n": 1},
        "receiveCount": 1,
        "messageGroupId": "g",
        "deduplicationKey": "k",
        "priority": 7,
        "attributes": {"a": "x", "n": 5},
    }
    assert {name: message[name] for name in expected} == expected
    assert message["deadlineMs"] - message["firstReceivedAtMs"] == 12_000
    assert message["sentAtMs"] <= message["firstReceivedAtMs"]


def test_what_says_nothing_is_left_out(rest: Rest) -> None:
    queue = rest.create()
    rest.send(queue, None)
    (message,) = rest.receive(queue)
    assert message["body"] is None
    assert set(message) == {
        "messageId",
        "receiptHandle",
        "receiveCount",
        "body",
        "sequence",
        "queue",
        "sentAtMs",
        "firstReceivedAtMs",
        "deadlineMs",
    }


@pytest.mark.parametrize(("level", "number"), [("lowest", 0), ("low", 64), ("normal", 128), ("high", 192), (255, 255)])
def test_levels_of_priority(rest: Rest, level: Any, number: int) -> None:
    queue = rest.create()
    rest.send(queue, "x", priority=level)
    assert rest.receive(queue)[0].get("priority", 128) == number


def test_higher_priority_comes_first(rest: Rest) -> None:
    queue = rest.create()
    for level in ("low", "highest", "normal"):
        rest.send(queue, level, priority=level)
    assert [rest.receive(queue, 1)[0]["body"] for _ in range(3)] == ["highest", "normal", "low"]


def test_a_message_without_a_priority_is_normal_and_that_is_left_out(rest: Rest) -> None:
    queue = rest.create()
    rest.send(queue, "lowest", priority="lowest")
    rest.send(queue, "none")
    rest.good("POST", f"{queue}/messages:batch", {"messages": [{"body": "none, in a batch"}]})
    rest.send(queue, "normal", priority="normal")
    rest.send(queue, "high", priority="high")
    peeked = rest.good("GET", f"{queue}/messages")["messages"]
    received = [message for _ in range(5) for message in rest.receive(queue, 1)]
    for messages in (peeked, received):
        assert {message["body"]: message.get("priority") for message in messages} == {
            "lowest": 0,
            "none": None,
            "none, in a batch": None,
            "normal": None,
            "high": 192,
        }


def test_fractions_of_seconds_count(rest: Rest) -> None:
    queue = rest.create()
    rest.send(queue, "x", delaySeconds=30.5)
    rest.server.advance(30.4)
    assert rest.receive(queue) == []
    rest.server.advance(0.2)
    (message,) = rest.receive(queue, visibilityTimeoutSeconds=1.25)
    assert message["deadlineMs"] - message["firstReceivedAtMs"] == 1250


def test_a_message_expires_by_its_own_time(rest: Rest) -> None:
    queue = rest.create()
    rest.send(queue, "x", ttlSeconds=2)
    rest.server.advance(4)
    assert rest.receive(queue) == []
    assert rest.stats(queue)["expired"] == 1


def test_a_message_has_its_own_number_of_receives(rest: Rest) -> None:
    queue = rest.create(deadLetterQueue="dead", maxReceiveCount=10)
    rest.send(queue, "x", maxReceiveCount=1)
    (message,) = rest.receive(queue)
    assert rest("POST", f"{queue}/messages/{message['receiptHandle']}:nack", {"delaySeconds": 0}).status == 204
    assert rest.receive(queue) == []
    assert rest.receive("/v1/queues/dead", waitSeconds=20)[0]["body"] == "x"


# --- deduplication ----------------------------------------------------------------------------


def test_the_same_key_is_the_same_message(any_rest: Rest) -> None:
    queue = any_rest.create()
    first = any_rest.send(queue, {"n": 1}, deduplicationKey="k")
    again = any_rest.send(queue, {"n": 1}, deduplicationKey="k")
    assert again == {**first, "duplicate": True}
    assert any_rest.stats(queue)["visible"] == 1


@pytest.mark.parametrize("change", [{"body": {"n": 2}}, {"attributes": {"a": "b"}}])
def test_the_same_key_with_other_content_is_a_conflict(rest: Rest, change: dict[str, Any]) -> None:
    queue = rest.create()
    rest.send(queue, {"n": 1}, deduplicationKey="k")
    answer = rest("POST", f"{queue}/messages", {"body": {"n": 1}, "deduplicationKey": "k", **change})
    assert (answer.status, answer.code) == (409, "deduplication_conflict")
    (result,) = batch(rest, queue, [{"body": {"n": 1}, "deduplicationKey": "k", **change}])
    assert result["error"]["code"] == "deduplication_conflict"


def test_the_body_stands_in_for_a_key_where_the_queue_says_so(rest: Rest) -> None:
    queue = rest.create(mode="FIFO", deduplication={"contentBased": True})
    rest.send(queue, [1], messageGroupId="g")
    assert rest.send(queue, [1], messageGroupId="g")["duplicate"]
    assert "duplicate" not in rest.send(queue, [2], messageGroupId="g")


# --- Idempotency-Key --------------------------------------------------------------------------

KEY = {"Idempotency-Key": "one"}


def test_the_same_request_is_answered_as_the_first_time(any_rest: Rest) -> None:
    queue = any_rest.create()
    value = {"body": {"n": 1}}
    first = any_rest("POST", f"{queue}/messages", value, KEY)
    again = any_rest("POST", f"{queue}/messages", value, KEY)
    assert first.status == again.status == 202
    assert first.value == again.value
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    any_rest.server.advance(23 * 3600)
    assert any_rest("POST", f"{queue}/messages", value, KEY).value == first.value
    assert any_rest.stats(queue)["sent"] == 1


def test_the_same_name_for_another_request_is_a_conflict(rest: Rest) -> None:
    queue = rest.create()
    rest("POST", f"{queue}/messages", {"body": 1}, KEY)
    for path, value in (("messages", {"body": 2}), ("messages:batch", {"messages": [{"body": 1}]})):
        answer = rest("POST", f"{queue}/{path}", value, KEY)
        assert (answer.status, answer.code) == (409, "idempotency_conflict")
    assert rest.stats(queue)["sent"] == 1


def test_keys_are_of_one_queue(rest: Rest) -> None:
    for name in ("a", "b"):
        assert rest("POST", f"{rest.create(name)}/messages", {"body": 1}, KEY).status == 202
    assert rest.stats("/v1/queues/b")["sent"] == 1


def test_a_batch_has_a_key_too_and_sends_only_what_is_missing(rest: Rest) -> None:
    queue = rest.create(maxMessages=2)
    value = {"messages": [{"body": number} for number in range(3)]}
    first = rest("POST", f"{queue}/messages:batch", value, KEY)
    assert first.status == 200
    assert [result.get("error", {}).get("code") for result in first.value["results"]] == [None, None, "over_limit"]
    rest.good("PATCH", queue, {"maxMessages": 10})
    again = rest("POST", f"{queue}/messages:batch", value, KEY)
    assert again.status == 202
    assert again.value["results"][:2] == first.value["results"][:2]
    assert rest.stats(queue)["sent"] == 3
    assert rest("POST", f"{queue}/messages:batch", value, KEY).value == again.value


@pytest.mark.parametrize("key", ["", "x" * 256, "ü"])
def test_keys_that_are_refused(rest: Rest, key: str) -> None:
    answer = rest("POST", f"{rest.create()}/messages", {"body": 1}, {"Idempotency-Key": key})
    assert (answer.status, answer.code) == (400, "invalid_input")


def test_without_a_key_every_request_is_another(rest: Rest) -> None:
    queue = rest.create()
    assert rest.send(queue, 1)["messageId"] != rest.send(queue, 1)["messageId"]


# --- batches ----------------------------------------------------------------------------------


def test_a_thousand_at_once(any_rest: Rest) -> None:
    queue = any_rest.create()
    answer = any_rest(
        "POST",
        f"{queue}/messages:batch",
        {"messages": [{"body": number, "clientMessageId": f"m{number}"} for number in range(1000)]},
    )
    assert answer.status == 202
    results = answer.value["results"]
    assert [result["clientMessageId"] for result in results] == [f"m{number}" for number in range(1000)]
    assert len({result["messageId"] for result in results}) == 1000
    got = any_rest.receive(queue, 1000)
    assert [message["body"] for message in got] == list(range(1000))
    assert [message["messageId"] for message in got] == [result["messageId"] for result in results]
    handles = [message["receiptHandle"] for message in got]
    assert any_rest.good("POST", f"{queue}/messages:ack", {"receiptHandles": handles}) == {"results": [{}] * 1000}
    assert any_rest.stats(queue)["deleted"] == 1000


def test_bodies_of_all_kinds_in_one_batch(packed: Rest) -> None:
    queue = packed.create()
    values: list[Any] = ["text", b"bytes", {"a": 1}, None, [], 5]
    batch(packed, queue, [{"body": value} for value in values])
    assert [message["body"] for message in packed.receive(queue)] == values


def test_each_entry_has_its_own_result(any_rest: Rest) -> None:
    queue = any_rest.create(maxMessageBytes=1024)
    entries = [
        {"body": "good", "clientMessageId": "a"},
        {"body": "x" * 2000, "clientMessageId": "b"},
        {"clientMessageId": "c"},
        {"body": 1, "priority": 256, "clientMessageId": "e"},
        {"body": 1, "unknown": 1},
        5,
        {"body": "good", "clientMessageId": "d"},
    ]
    answer = any_rest("POST", f"{queue}/messages:batch", {"messages": entries})
    assert answer.status == 200
    results = answer.value["results"]
    errors = [result.get("error", {}).get("status") for result in results]
    assert errors == [None, 413, 400, 400, 400, 400, None]
    assert [result.get("clientMessageId") for result in results] == ["a", "b", "c", "e", None, None, "d"]
    assert "priority" in results[3]["error"]["detail"]
    assert "unknown" in results[4]["error"]["detail"]
    assert all(set(result["error"]) == {"code", "detail", "status", "retryable"} for result in results[1:6])
    assert any_rest.stats(queue)["visible"] == 2


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
# What a message may bring beside its body. Delays are left out: messages come back in the order of their priorities.
FIELDS: list[dict[str, Any]] = [
    {},
    {"attributes": {"k": "v", "n": 5}},
    {"messageGroupId": "g1"},
    {"priority": 200},
    {"ttlSeconds": 600},
    {"maxReceiveCount": 9},
    {"traceparent": TRACE, "tracestate": "a=b"},
    {"attributes": {"a": "\u00e9" * 40}, "messageGroupId": "g2", "priority": 200, "traceparent": TRACE},
]


def some_bodies(binary: bool) -> list[Any]:
    """Values and texts, and bytes where the form has them."""
    bodies: list[Any] = ["a", "\u00fc" * 40, "", "x" * 300, "y" * 3_000, 'q"uo\\te', "\x00 control", "\ufffe", 0, -1.5]
    bodies += [True, None, [], {"n": 1, "text": "\u4e16\U0001f600"}, [1, 2.5, None], {"a": {"b": ["\u00fc" * 50]}}]
    return [*bodies, b"", b"\x00\xff" * 40, b"c" * 300] if binary else bodies


def test_five_hundred_of_all_kinds(any_rest: Rest) -> None:
    """Bodies and fields of all kinds side by side, with entries between them that are refused."""
    queue = any_rest.create(maxMessageBytes=4_096)
    bodies = some_bodies(any_rest.packed)
    entries: list[dict[str, Any]] = []
    for at in range(500):
        entry = {"clientMessageId": f"m{at}", "body": bodies[at % len(bodies)], **FIELDS[at % 8]}
        if at % 11 == 5:
            entry["deduplicationKey"] = f"k{at}"
        if at % 50 == 49:
            entry.update(body=f"other {at}", deduplicationKey="k5")  # the key of another content
        if at % 100 == 30:
            entry["body"] = "z" * 4_097
        if at % 100 == 60:
            entry["priority"] = 256
        entries.append(entry)
    answer = any_rest("POST", f"{queue}/messages:batch", {"messages": entries})
    assert answer.status == 200
    results = answer.value["results"]
    assert [result["clientMessageId"] for result in results] == [entry["clientMessageId"] for entry in entries]
    statuses = [result.get("error", {}).get("status") for result in results]
    wrong = {30: 413, 60: 400}
    assert statuses == [409 if at % 50 == 49 else wrong.get(at % 100) for at in range(500)]
    taken = [at for at, status in enumerate(statuses) if status is None]
    sequences = [results[at]["sequence"] for at in taken]
    assert sequences == sorted(sequences) and len({*sequences}) == len(taken) == 480
    got = {message["messageId"]: message for message in any_rest.receive(queue, 1000)}
    assert len(got) == len(taken)
    for at in taken:
        message, entry = got[results[at]["messageId"]], entries[at]
        assert message["sequence"] == results[at]["sequence"] and message["receiveCount"] == 1
        for name in ("body", "attributes", "messageGroupId", "priority", "traceparent", "tracestate"):
            assert message.get(name) == entry.get(name), at
        assert message.get("deduplicationKey") == entry.get("deduplicationKey")
    receipts = [message["receiptHandle"] for message in got.values()]
    acked = any_rest.good("POST", f"{queue}/messages:ack", {"receiptHandles": [*receipts, receipts[0], "garbage"]})
    codes = [result.get("error", {}).get("code") for result in acked["results"]]
    assert codes == [None] * len(receipts) + ["message_gone", "receipt_invalid"]


@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("kind", ["texts", "bytes", "values", "many"])
def test_a_batch_of_one_kind(any_rest: Rest, kind: str, with_ids: bool) -> None:
    """Bodies that are alike, with and without the numbers of a producer."""
    kinds: dict[str, list[Any]] = {
        "texts": ["a", "\u00fc" * 40, "", "x" * 300, "y" * 70_000],
        "bytes": [b"", b"\x00" * 40, b"b" * 300, b"c" * 70_000],
        "values": [{"n": 1}, [1, 2.5, None], 7, True, {"a": {"b": ["\u00fc" * 50]}}],
        "many": [f"message {number}" for number in range(500)],
    }
    bodies = kinds[kind]
    queue = any_rest.create()
    messages: list[dict[str, Any]] = [_with_body(any_rest, body) for body in bodies]
    if with_ids:
        messages = [{**message, "clientMessageId": f"m{at}"} for at, message in enumerate(messages)]
    for producer in ({}, {"producer": {"id": "p", "sequence": 1}}):
        results = batch(any_rest, queue, messages, **producer)
        if with_ids:
            assert [result["clientMessageId"] for result in results] == [f"m{at}" for at in range(len(bodies))]
        got = any_rest.receive(queue, 1000, visibilityTimeoutSeconds=600, consumer="me")
        assert [message["messageId"] for message in got] == [result["messageId"] for result in results]
        assert [message["sequence"] for message in got] == [result["sequence"] for result in results]
        assert [_body_of(message) for message in got] == bodies
        receipts = [message["receiptHandle"] for message in got]
        acked = any_rest.good("POST", f"{queue}/messages:ack", {"receiptHandles": receipts})
        assert acked == {"results": [{}] * len(bodies)}
    again = batch(any_rest, queue, messages, producer={"id": "p", "sequence": 1})
    assert [result["duplicate"] for result in again] == [True] * len(bodies)
    assert [result["messageId"] for result in again] == [result["messageId"] for result in results]
    assert any_rest.stats(queue)["deleted"] == 2 * len(bodies)


def _with_body(rest: Rest, body: Any) -> dict[str, Any]:
    if isinstance(body, bytes) and not rest.packed:
        return {"bodyBase64": b64encode(body).decode()}
    return {"body": body}


def _body_of(message: dict[str, Any]) -> Any:
    return b64decode(message["bodyBase64"]) if "bodyBase64" in message else message["body"]


def test_acks_a_second_time(any_rest: Rest) -> None:
    queue = any_rest.create()
    batch(any_rest, queue, [{"body": "a"}, {"body": "b"}, {"body": "c"}])
    first, second, third = [message["receiptHandle"] for message in any_rest.receive(queue)]
    for receipts, problems in (
        ([second, second, third], [False, True, False]),
        ([second, second, third], [True, True, True]),
        ([first, third], [False, True]),
    ):
        results = any_rest.good("POST", f"{queue}/messages:ack", {"receiptHandles": receipts})["results"]
        assert [result.get("error", {}).get("code") for result in results] == [
            "message_gone" if problem else None for problem in problems
        ]
    assert any_rest.stats(queue)["deleted"] == 3


def test_priorities_of_a_batch_are_told(any_rest: Rest) -> None:
    queue = any_rest.create()
    batch(any_rest, queue, [{"body": "x", "priority": 200}] * 5)
    assert [message["priority"] for message in any_rest.receive(queue)] == [200] * 5


def test_what_sqs_cannot_show_is_told_beside_any_neighbour(any_rest: Rest, sqs: Any) -> None:
    """A text with characters that SQS forbids, in a batch with messages that bring more than a body."""
    queue = any_rest.create()
    for more in ({}, {"deduplicationKey": "k"}, {"messageGroupId": "g"}, {"attributes": {"a": "b"}}, {"priority": 3}):
        batch(any_rest, queue, [{"body": "bell \x07"}, {"body": "neighbour", **more}, {"body": {"json": "\x07"}}])
        url = sqs.get_queue_url(QueueName="queue")["QueueUrl"]
        for names in ([], ["All"]):
            given = {"QueueUrl": url, "MaxNumberOfMessages": 10, "VisibilityTimeout": 0}
            got = sqs.receive_message(**given, MessageAttributeNames=names)["Messages"]
            texts = {message["Body"].replace(" ", "") for message in got}
            assert texts == {b64encode(b"bell \x07").decode(), "neighbour", '{"json":"\\u0007"}'}
        any_rest.good("POST", f"{queue}:purge")


@pytest.mark.parametrize("count", [0, 1001])
def test_a_batch_has_1_to_1000(rest: Rest, count: int) -> None:
    answer = rest("POST", f"{rest.create()}/messages:batch", {"messages": [{"body": 1}] * count})
    assert (answer.status, answer.code) == (400, "invalid_input")


def test_a_producers_numbers_make_a_retry_harmless(any_rest: Rest) -> None:
    queue = any_rest.create()
    producer = {"id": "p", "sequence": 1}
    first = batch(any_rest, queue, [{"body": 1}, {"body": 2}], producer=producer)
    again = batch(any_rest, queue, [{"body": 1}, {"body": 2}], producer=producer)
    assert [result["duplicate"] for result in again] == [True, True]
    assert [result["messageId"] for result in again] == [result["messageId"] for result in first]
    more = batch(any_rest, queue, [{"body": 2}, {"body": 3}], producer={"id": "p", "sequence": 2})
    assert [result.get("duplicate", False) for result in more] == [True, False]
    assert any_rest.stats(queue)["sent"] == 3


def test_fifo_messages_need_a_group(rest: Rest) -> None:
    queue = rest.create(mode="FIFO")
    results = batch(
        rest,
        queue,
        [{"body": 1}, {"body": 2, "messageGroupId": "g"}],
    )
    assert ["error" in result for result in results] == [True, False]


def test_a_delayed_message_holds_up_its_fifo_group(rest: Rest, packed: Rest) -> None:
    queue = rest.create(mode="FIFO")
    results = batch(
        packed,
        queue,
        [
            {"body": 1, "messageGroupId": "held", "delaySeconds": 3600},
            {"body": 2, "messageGroupId": "held"},
            {"body": 3, "messageGroupId": "free"},
            {"body": 4, "messageGroupId": "free", "delaySeconds": 3600},
        ],
    )
    assert not any("error" in result for result in results)
    assert [one["body"] for one in rest.receive(queue)] == [3]
    stats = rest.stats(queue)
    assert (stats["visible"], stats["inFlight"], stats["delayed"]) == (1, 1, 2)


# --- when a message is delivered --------------------------------------------------------------


def in_future(rest: Rest, queue: str, **span: float) -> datetime:
    """A time after now, by the server's clock, which other tests move."""
    return datetime.fromtimestamp(rest.stats(queue)["atMs"] / 1000, UTC) + timedelta(**span)


def test_a_message_is_delivered_at_its_time(any_rest: Rest) -> None:
    queue = any_rest.create()
    any_rest.send(queue, 1, deliverAt=in_future(any_rest, queue, days=365).isoformat())
    soon = in_future(any_rest, queue, hours=1).astimezone(ZoneInfo("Asia/Tokyo"))
    any_rest.send(queue, 1, deliverAt=soon.isoformat())
    any_rest.send(queue, 2, deliverAt=in_future(any_rest, queue, seconds=-5).isoformat())
    any_rest.send(queue, 3, delaySeconds=366 * 86_400)
    stats = any_rest.stats(queue)
    assert (stats["visible"], stats["delayed"]) == (1, 3)
    assert [one["body"] for one in any_rest.receive(queue)] == [2]
    peeked = any_rest.good("GET", f"{queue}/messages?state=DELAYED")["messages"]
    spans_h = [round((one["untilMs"] - stats["atMs"]) / 3_600_000, 1) for one in peeked]
    assert sorted(spans_h) == [1, 365 * 24, 366 * 24]


def test_a_wrong_time_of_delivery_is_refused(rest: Rest) -> None:
    queue = rest.create()
    wrong: list[dict[str, Any]] = [
        {"deliverAt": "2027-01-31T09:00:00"},
        {"deliverAt": "tomorrow"},
        {"deliverAt": "2027-02-31T09:00:00Z"},
        {"deliverAt": in_future(rest, queue, days=367).isoformat()},
        {"deliverAt": in_future(rest, queue, days=1).isoformat(), "delaySeconds": 5},
        {"delaySeconds": 366 * 86_400 + 1},
    ]
    results = batch(rest, queue, [{"body": 1, **fields} for fields in wrong])
    texts = [result["error"]["detail"] for result in results]
    assert all("deliverAt" in text for text in texts[:5]) and "delaySeconds" in texts[5], texts
    assert "time zone" in texts[0] and "RFC 3339" in texts[1] and "RFC 3339" in texts[2]
    assert "more than 366 days" in texts[3] and "not both" in texts[4]


# --- receiving --------------------------------------------------------------------------------


def test_a_long_poll_gets_what_comes(rest: Rest, packed: Rest) -> None:
    queue = rest.create()
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.extend(packed.receive(queue, waitSeconds=20)))
    waiting.start()
    wait_until(lambda: rest.stats(queue)["waitingReceives"] == 1)
    rest.send(queue, "came")
    waiting.join(20)
    assert [message["body"] for message in got] == ["came"]


def test_the_queue_says_how_long_to_wait(rest: Rest, packed: Rest) -> None:
    queue = rest.create(receiveWaitSeconds=20)
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.extend(packed.receive(queue)))
    waiting.start()
    wait_until(lambda: rest.stats(queue)["waitingReceives"] == 1)
    assert rest.receive(queue, waitSeconds=0) == []
    rest.send(queue, 1)
    waiting.join(20)
    assert len(got) == 1


def test_no_body_asks_for_ten_at_once(rest: Rest) -> None:
    queue = rest.create()
    batch(rest, queue, [{"body": number} for number in range(12)])
    assert len(rest.good("POST", f"{queue}/messages:receive")["messages"]) == 10


def test_one_answer_is_not_larger_than_it_may_be(packed: Rest) -> None:
    """What does not fit was never handed out: it is there for the next one, and no receive was counted."""
    queue = packed.create()
    for _ in range(20):
        packed.send(queue, bytes(MIB - 100))
    got = packed.receive(queue, 1000)
    assert 8 <= len(got) < 20
    rest = packed.receive(queue, 1000)
    assert rest[0]["receiveCount"] == 1
    assert len({message["messageId"] for message in [*got, *rest]}) == len(got) + len(rest)


def test_an_attempt_can_be_repeated_on_a_fifo_queue(rest: Rest) -> None:
    queue = rest.create(mode="FIFO")
    rest.send(queue, 1, messageGroupId="g")
    first = rest.receive(queue, attemptId="a")
    assert [message["receiptHandle"] for message in rest.receive(queue, attemptId="a")] == [first[0]["receiptHandle"]]
    answer = rest("POST", f"{rest.create('other')}/messages:receive", {"attemptId": "a"})
    assert answer.code == "invalid_input"


def test_one_receive_over_several_queues(any_rest: Rest) -> None:
    for name in ("hooks-a", "hooks-b", "other", "named"):
        any_rest.send(any_rest.create(name), name)
    value = {"queues": ["hooks-*", "named"], "maxMessages": 10}
    got = any_rest.good("POST", "/v1/messages:receive", value)["messages"]
    assert sorted((message["queue"], message["body"]) for message in got) == [
        ("hooks-a", "hooks-a"),
        ("hooks-b", "hooks-b"),
        ("named", "named"),
    ]
    message = got[0]
    assert any_rest("POST", f"/v1/queues/{message['queue']}/messages/{message['receiptHandle']}:ack").status == 204
    assert any_rest("POST", "/v1/messages:receive", {"queues": ["missing"]}).code == "queue_does_not_exist"


# --- peeking ----------------------------------------------------------------------------------


def test_peek_shows_messages_and_leases_none(any_rest: Rest) -> None:
    queue = any_rest.create()
    for number in range(25):
        any_rest.send(queue, {"n": number}, attributes={"a": 1})
    any_rest.send(queue, "later", delaySeconds=900)
    (leased,) = any_rest.receive(queue, 1, consumer="me")
    page = any_rest.good("GET", f"{queue}/messages?limit=20")
    assert [message["body"]["n"] for message in page["messages"]] == list(range(20))
    first, second = page["messages"][:2]
    assert (first["state"], first["holder"], first["untilMs"]) == ("IN_FLIGHT", "me", leased["deadlineMs"])
    assert (second["state"], second["receiveCount"], second["attributes"]) == ("VISIBLE", 0, {"a": 1})
    rest = any_rest.good("GET", f"{queue}/messages?limit=20&after={page['nextAfter']}")
    assert len(rest["messages"]) == 6
    assert "nextAfter" not in rest
    found = any_rest.good("GET", f"{queue}/messages?state=DELAYED")["messages"]
    assert [message["body"] for message in found] == ["later"]
    assert any_rest.stats(queue)["received"] == 1


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "after=-1", "state=LOST", "other=1"])
def test_peek_refuses_what_it_does_not_know(rest: Rest, query: str) -> None:
    assert rest("GET", f"{rest.create()}/messages?{query}").code == "invalid_input"


def test_the_answer_has_the_form_that_is_asked_for(rest: Rest) -> None:
    queue = rest.create()
    rest.send(queue, {"n": 1})
    answer = rest("POST", f"{queue}/messages:receive", {}, {"Accept": MSGPACK})
    assert answer.headers["content-type"] == MSGPACK
    assert answer.value["messages"][0]["body"] == {"n": 1}


# --- both forms check the same ----------------------------------------------------------------

_INVALID: list[dict[str, Any]] = [
    {"messageGroupId": "a b"},
    {"messageGroupId": ""},
    {"messageGroupId": "a\n"},
    {"messageGroupId": "a" * 129},
    {"deduplicationKey": "é"},
    {"traceparent": "00-1-2-01"},
    {"traceparent": ""},
    {"tracestate": ""},
    {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01\n"},
    {"tracestate": "a\tb"},
    {"attributes": {str(number): "x" for number in range(51)}},
    {"attributes": [1]},
    {"attributes": {"a b": "x"}},
    {"attributes": {"a": "\x07"}},
    {"attributes": {"a": {"base64": "?"}}},
    {"priority": "most"},
    {"delaySeconds": -1},
]


@pytest.mark.parametrize("wrong", _INVALID, ids=lambda wrong: ascii(wrong)[:40])
def test_an_invalid_field_is_refused_in_both_forms_with_the_same_words(
    rest: Rest, packed: Rest, wrong: dict[str, Any]
) -> None:
    queue = rest.create()
    details = []
    for client in (rest, packed):
        alone = client("POST", f"{queue}/messages", {"body": 1, **wrong})
        assert (alone.status, alone.code) == (400, "invalid_input")
        good, bad, base64 = batch(client, queue, [{"body": 1}, {"body": [2], **wrong}, {"bodyBase64": "eHg="}])
        assert "messageId" in good and "messageId" in base64
        assert bad["error"]["code"] == "invalid_input"
        details.append((alone.value["detail"], bad["error"]["detail"]))
    assert details[0] == details[1]


def test_attributes_that_are_empty_or_null_are_none(any_rest: Rest) -> None:
    queue = any_rest.create()
    batch(any_rest, queue, [{"body": 1, "attributes": given} for given in ({}, None, {"a": 1})])
    assert [message.get("attributes") for message in any_rest.receive(queue, 3)] == [None, None, {"a": 1}]


def test_many_bodies_of_all_sizes_keep_their_places(packed: Rest) -> None:
    queue = packed.create()
    kinds: list[Any] = ["é" * 9, b"\xff" * 70_000, ["x" * 30_000], {"a": [1] * 900}, "y" * 40_000, None, 1.5]
    bodies = [*kinds * 12, ["z" * 200] * 99, *kinds]
    messages = [{"body": body, "clientMessageId": str(at)} for at, body in enumerate(bodies)]
    messages[5:5] = [{"body": [{"a": b"x"}], "clientMessageId": "bad"}, {"body": msgspec.msgpack.Ext(1, b"")}]
    results = batch(packed, queue, messages)
    assert [at for at, result in enumerate(results) if "error" in result] == [5, 6]
    assert [result["error"]["code"] for result in results[5:7]] == ["invalid_input", "invalid_input"]
    assert [result.get("clientMessageId") for result in results] == [one.get("clientMessageId") for one in messages]
    assert [message["body"] for message in packed.receive(queue, 1_000)] == bodies


@pytest.mark.parametrize("count", [1, 30])
def test_the_values_of_all_bodies_of_a_request_are_limited(packed: Rest, count: int) -> None:
    queue = packed.create()
    body: list[list[Any]] = [[]] * (19_900 // count)
    messages: list[dict[str, Any]] = [{"body": body} for _ in range(count)]
    assert packed("POST", f"{queue}/messages:batch", {"messages": messages}).status == 202
    more = [*messages, {"body": "text"}, {"body": [[]] * 500}]
    assert packed("POST", f"{queue}/messages:batch", {"messages": more}).code == "too_large"


def test_a_repeated_field_counts_once(packed: Rest) -> None:
    queue = packed.create()
    entry = b"\x82\xa4body\x01\xa4body\x02"
    answer = packed("POST", f"{queue}/messages:batch", raw=b"\x81\xa8messages\x91" + entry)
    assert answer.status == 202
    many = b"\x83" + (b"\xa8messages\xdc\x03\xe8" + entry * 1_000) * 3
    assert packed("POST", f"{queue}/messages:batch", raw=many).status == 202
    assert packed("POST", f"{queue}/messages:batch", raw=b"\xde\x00\x40" + many[1:] * 22).code == "too_large"
