"""Looking at messages by REST: why each waits, filters, and one message with its history."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.rest.support import Rest


def test_peek_says_why_each_message_waits(rest: Rest) -> None:
    queue = rest.create()
    rest.send(queue, "held")
    rest.receive(queue, consumer="ann", visibilityTimeoutSeconds=60)
    rest.send(queue, "waiting")
    page = rest.good("GET", f"{queue}/messages")
    held, waiting = page["messages"]
    assert held["why"].startswith("Held by ann until ") and waiting["why"] == "Waiting to be received."
    assert (page["examined"], page["complete"]) == (2, True) and "nextAfter" not in page


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("text=pp", ["apple"]),
        ("text=" + quote("ö & +"), ["ö & +"]),
        ("group=g", ["grouped"]),
        ("errorClass=Timeout", ["failed"]),
        ("holder=ann", ["held"]),
        ("state=DELAYED", ["failed"]),
        ("state=VISIBLE&text=e", ["apple", "grouped"]),
        ("text=nothing", []),
    ],
)
def test_peek_with_a_filter(rest: Rest, query: str, expected: list[str]) -> None:
    queue = rest.create()
    rest.send(queue, "failed")
    (message,) = rest.receive(queue, 1)
    rest.good(
        "POST",
        f"{queue}/messages/{quote(message['receiptHandle'], safe='')}:nack",
        {"delaySeconds": 600, "errorClass": "Timeout"},
    )
    rest.send(queue, "held")
    rest.receive(queue, 1, consumer="ann")
    for body in ("apple", "ö & +"):
        rest.send(queue, body)
    rest.send(queue, "grouped", messageGroupId="g")
    page = rest.good("GET", f"{queue}/messages?{query}")
    assert [message["body"] for message in page["messages"]] == expected
    assert page["examined"] == 5 and page["complete"]


def test_peek_refuses_a_text_that_is_too_long(rest: Rest) -> None:
    answer = rest("GET", f"{rest.create()}/messages?text={'x' * 1_025}")
    assert answer.code == "invalid_input" and "text must have at most 1024" in answer.value["detail"]


def test_one_message_with_its_history(rest: Rest, packed: Rest) -> None:
    queue = rest.create()
    sent = rest.send(queue, {"n": 1}, attributes={"colour": "red"})
    (message,) = rest.receive(queue, consumer="ann")
    for client in (rest, packed):
        detail = client.good("GET", f"{queue}/messages/{sent['messageId']}")
        assert (detail["body"], detail["attributes"], detail["state"]) == ({"n": 1}, {"colour": "red"}, "IN_FLIGHT")
        assert (detail["queue"], detail["shard"], detail["holder"]) == ("queue", 0, "ann")
        assert detail["where"] == "In queue queue, on shard 0." and detail["why"].startswith("Held by ann until ")
        first, second = detail["history"]
        assert (first["event"], first["atMs"], first["queue"]) == ("sent", detail["sentAtMs"], "queue")
        assert (second["event"], second["holder"], second["untilMs"]) == ("leased", "ann", detail["untilMs"])
        assert detail["historyComplete"] and "historyNote" not in detail
    rest.good("POST", f"{queue}/messages/{quote(message['receiptHandle'], safe='')}:ack")
    gone = rest.good("GET", f"{queue}/messages/{sent['messageId']}")
    assert (gone["state"], gone["body"]) == ("DELETED", {"n": 1})
    assert [event["event"] for event in gone["history"]] == ["sent", "leased", "acknowledged"]
    assert gone["where"].startswith("It was acknowledged by its consumer at ")


@pytest.mark.parametrize("name", ["nonsense", "4ada0000-8b91-88a6-8885-9e3779b97f4c"])
def test_a_message_that_does_not_exist(rest: Rest, name: str) -> None:
    answer = rest("GET", f"{rest.create()}/messages/{name}")
    assert (answer.status, answer.code) == (404, "message_not_found")
    assert name in answer.value["detail"] and "queue" in answer.value["detail"]
    assert rest("GET", f"/v1/queues/nowhere/messages/{name}").code == "queue_does_not_exist"


def test_methods_and_verbs_of_a_message(rest: Rest) -> None:
    queue = rest.create()
    answer = rest("PUT", f"{queue}/messages/abc")
    assert answer.code == "method_not_allowed" and "GET" in answer.headers["allow"]
    assert rest("POST", f"{queue}/messages/abc:dance").code == "not_found"
