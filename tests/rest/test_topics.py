"""Topics and subscriptions by REST: made, found again, changed, listed, deleted; and which of them match a message."""

from __future__ import annotations

import json
import time
from threading import Thread
from typing import Any

import pytest

from batonq.api.rest import subscriptions
from batonq.core.topics.filters import Filter, parse_filter
from tests.rest.support import Rest


def topic_of(rest: Rest, name: str = "orders", **more: Any) -> Any:
    answer = rest("POST", "/v1/topics", {"name": name, **more})
    assert answer.status == 201, answer
    return answer.value


def subscribed(rest: Rest, queue: str, topic: str = "orders", **more: Any) -> Any:
    rest("POST", "/v1/queues", {"name": queue})
    answer = rest("POST", f"/v1/topics/{topic}/subscriptions", {"queue": queue, **more})
    assert answer.status == 201, answer
    return answer.value


def test_a_topic_is_made_once_and_found_after_that(rest: Rest, account: str) -> None:
    first = rest("POST", "/v1/topics", {"name": "orders", "retentionSeconds": 600, "tags": {"team": "shop"}})
    again = rest("POST", "/v1/topics", {"name": "orders", "retentionSeconds": 600})
    named = rest("POST", "/v1/topics", {"name": "orders"})
    assert (first.status, again.status, named.status) == (201, 200, 200)
    assert first.value == again.value == named.value
    assert first.headers["location"] == "/v1/topics/orders"
    shown = rest("GET", "/v1/topics/orders").value
    assert shown == first.value
    assert shown.pop("createdAtMs") == shown.pop("modifiedAtMs") > 0
    assert shown == {
        "name": "orders",
        "mode": "STANDARD",
        "fifo": False,
        "arn": f"arn:aws:sns:us-east-1:{account}:orders",
        "retentionSeconds": 600,
        "tags": {"team": "shop"},
        "subscriptions": 0,
    }


@pytest.mark.parametrize(("field", "value"), [("retentionSeconds", 601), ("mode", "FIFO"), ("displayName", "Orders")])
def test_another_value_is_a_conflict_that_names_the_field(rest: Rest, field: str, value: Any) -> None:
    topic_of(rest, retentionSeconds=600)
    answer = rest("POST", "/v1/topics", {"name": "orders", field: value})
    assert (answer.status, answer.code) == (409, "topic_exists")
    assert field in answer.value["detail"]


def test_a_topic_is_changed_and_deleted(rest: Rest) -> None:
    topic_of(rest, displayName="Orders", retentionSeconds=600, tags={"a": "1", "b": "2"})
    changed = rest("PATCH", "/v1/topics/orders", {"retentionSeconds": None, "tags": {"b": "3"}})
    assert changed.status == 200
    assert changed.value["retentionSeconds"] == 345_600
    assert changed.value["displayName"] == "Orders"
    assert changed.value["tags"] == {"b": "3"}
    assert rest("PATCH", "/v1/topics/orders").value == changed.value
    assert "displayName" not in rest("PATCH", "/v1/topics/orders", {"displayName": None}).value
    assert rest("DELETE", "/v1/topics/orders").status == 204
    for method in ("GET", "PATCH", "DELETE"):
        answer = rest(method, "/v1/topics/orders")
        assert (answer.status, answer.code) == (404, "topic_does_not_exist")


def test_a_topic_counts_the_copies_that_wait(rest: Rest) -> None:
    topic_of(rest)
    rest("POST", "/v1/queues", {"name": "small", "maxMessages": 1})
    assert rest("POST", "/v1/topics/orders/subscriptions", {"queue": "small"}).status == 201
    for number in range(3):
        assert rest("POST", "/v1/topics/orders/messages", {"body": number}).status == 202
    shown = rest("GET", "/v1/topics/orders").value
    assert shown["waitingCopies"] == 2 and 0 <= shown["oldestWaitingSeconds"] < 600
    assert "waitingCopies" not in rest("GET", "/v1/topics").value["topics"][0]
    page = rest("GET", "/v1/topics/orders/messages?limit=1").value
    assert [message["body"] for message in page["messages"]] == [1] and "small" in page["messages"][0]["why"]
    rest_of_them = rest("GET", f"/v1/topics/orders/messages?after={page['nextAfter']}").value
    assert [message["body"] for message in rest_of_them["messages"]] == [2] and rest_of_them["complete"]
    assert rest("GET", "/v1/topics/nowhere/messages").code == "topic_does_not_exist"
    assert rest("GET", "/v1/topics/orders/messages?state=DEAD").status == 400


def test_fifo_topics(rest: Rest) -> None:
    made = topic_of(rest, mode="FIFO", contentBasedDeduplication=True)
    assert (made["fifo"], made["contentBasedDeduplication"]) == (True, True)
    changed = rest("PATCH", "/v1/topics/orders", {"contentBasedDeduplication": False})
    assert "contentBasedDeduplication" not in changed.value
    answer = rest("POST", "/v1/topics", {"name": "events", "contentBasedDeduplication": True})
    assert (answer.status, answer.code) == (400, "invalid_input")
    assert "FIFO" in answer.value["detail"]


def test_topics_are_listed_in_pages(rest: Rest, packed: Rest) -> None:
    for name in ("c", "a", "b1", "b2"):
        topic_of(rest, name)
    first = rest("GET", "/v1/topics?limit=3").value
    assert [topic["name"] for topic in first["topics"]] == ["a", "b1", "b2"]
    second = rest("GET", f"/v1/topics?limit=3&cursor={first['nextCursor']}").value
    assert [topic["name"] for topic in second["topics"]] == ["c"]
    assert "nextCursor" not in second
    assert [topic["name"] for topic in packed("GET", "/v1/topics?prefix=b").value["topics"]] == ["b1", "b2"]
    assert rest("GET", "/v1/topics?cursor=%C3%A4").code == "invalid_input"


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ({"name": "a b"}, "name"),
        ({"name": "x" * 257}, "name"),
        ({"name": "x", "retentionSeconds": 59}, "retentionSeconds"),
        ({"name": "x", "colour": "red"}, "colour"),
        ({"name": "x.fifo"}, ".fifo"),
    ],
)
def test_a_topic_that_cannot_be_made(rest: Rest, spec: dict[str, Any], where: str) -> None:
    answer = rest("POST", "/v1/topics", spec)
    assert (answer.status, answer.code) == (400, "invalid_input")
    assert where in answer.value["detail"]


# --- subscriptions ----------------------------------------------------------------------------


def test_a_queue_subscribes_and_unsubscribes(rest: Rest, account: str) -> None:
    topic = topic_of(rest)
    made = subscribed(rest, "emails")
    path = f"/v1/topics/orders/subscriptions/{made['subscriptionId']}"
    assert rest("GET", path).value == made
    assert made == {
        "subscriptionId": made["subscriptionId"],
        "topic": "orders",
        "queue": "emails",
        "arn": f"{topic['arn']}:{made['subscriptionId']}",
        "queueArn": f"arn:aws:sqs:us-east-1:{account}:emails",
        "createdAtMs": made["createdAtMs"],
        "rawDelivery": True,
    }
    again = rest("POST", "/v1/topics/orders/subscriptions", {"queue": "emails"})
    assert (again.status, again.value) == (200, made)
    assert rest("GET", "/v1/topics/orders").value["subscriptions"] == 1
    assert rest("DELETE", path).status == 204
    answer = rest("GET", path)
    assert (answer.status, answer.code) == (404, "not_found")
    assert rest("DELETE", path).code == "not_found"


def test_a_subscription_is_changed(rest: Rest) -> None:
    topic_of(rest)
    rest("POST", "/v1/queues", {"name": "dead"})
    made = subscribed(rest, "emails", filterPolicy={"shop": ["north"]}, deadLetterQueue="dead", rawDelivery=False)
    assert made["filterPolicy"] == {"shop": ["north"]}
    assert made["filterPolicyScope"] == "MessageAttributes"
    assert made["deadLetterQueue"] == "dead"
    assert made["rawDelivery"] is False
    path = f"/v1/topics/orders/subscriptions/{made['subscriptionId']}"
    nested = {"shop": {"name": ["north"]}}
    changed = rest("PATCH", path, {"filterPolicy": nested, "filterPolicyScope": "MessageBody"}).value
    assert (changed["filterPolicy"], changed["filterPolicyScope"]) == (nested, "MessageBody")
    assert changed["deadLetterQueue"] == "dead"
    reset = rest("PATCH", path, {"filterPolicy": None, "deadLetterQueue": None, "rawDelivery": None}).value
    assert reset["rawDelivery"] is True
    assert not {"filterPolicy", "filterPolicyScope", "deadLetterQueue"} & reset.keys()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rawDelivery", False),
        ("filterPolicy", {"shop": ["south"]}),
        ("filterPolicyScope", "MessageBody"),
        ("deadLetterQueue", "dead"),
    ],
)
def test_a_second_subscription_of_a_queue_is_a_conflict(rest: Rest, field: str, value: Any) -> None:
    topic_of(rest)
    rest("POST", "/v1/queues", {"name": "dead"})
    subscribed(rest, "emails", filterPolicy={"shop": ["north"]})
    answer = rest("POST", "/v1/topics/orders/subscriptions", {"queue": "emails", field: value})
    assert (answer.status, answer.code) == (409, "subscription_exists")
    assert field in answer.value["detail"]


def test_what_cannot_be_subscribed(rest: Rest) -> None:
    answer = rest("POST", "/v1/topics/orders/subscriptions", {"queue": "emails"})
    assert answer.code == "topic_does_not_exist"
    topic_of(rest)
    answer = rest("POST", "/v1/topics/orders/subscriptions", {"queue": "emails"})
    assert (answer.status, answer.code) == (404, "queue_does_not_exist")
    rest("POST", "/v1/queues", {"name": "emails"})
    answer = rest("POST", "/v1/topics/orders/subscriptions", {"queue": "emails", "deadLetterQueue": "dead"})
    assert answer.code == "queue_does_not_exist"
    wrong = {"queue": "emails", "filterPolicy": {"shop": [{"prefix": 1}]}}
    answer = rest("POST", "/v1/topics/orders/subscriptions", wrong)
    assert (answer.status, answer.code) == (400, "invalid_input")
    assert answer.value["detail"] == "filterPolicy: at shop[0].prefix: prefix match pattern must be a string."
    made = subscribed(rest, "emails", filterPolicy={"shop": ["north"]})
    path = f"/v1/topics/orders/subscriptions/{made['subscriptionId']}"
    answer = rest("PATCH", path, {"filterPolicy": {"shop": {"name": ["a"]}}})
    assert "MessageBody" in answer.value["detail"]
    assert rest("GET", path).value == made


def test_a_queue_is_not_the_dead_letter_queue_of_its_own_subscription(rest: Rest) -> None:
    topic_of(rest)
    rest("POST", "/v1/queues", {"name": "emails"})
    answer = rest("POST", "/v1/topics/orders/subscriptions", {"queue": "emails", "deadLetterQueue": "emails"})
    assert (answer.status, answer.code) == (400, "invalid_attribute_value")
    made = subscribed(rest, "emails")
    answer = rest("PATCH", f"/v1/topics/orders/subscriptions/{made['subscriptionId']}", {"deadLetterQueue": "emails"})
    assert answer.code == "invalid_attribute_value"
    assert rest("DELETE", "/v1/topics/orders").status == 204


def test_subscriptions_are_listed_in_pages(rest: Rest) -> None:
    topic_of(rest)
    queues = [f"q{number}" for number in range(5)]
    for queue in queues:
        subscribed(rest, queue)
    first = rest("GET", "/v1/topics/orders/subscriptions?limit=3").value
    second = rest("GET", f"/v1/topics/orders/subscriptions?limit=3&cursor={first['nextCursor']}").value
    assert [one["queue"] for one in first["subscriptions"] + second["subscriptions"]] == queues
    assert "nextCursor" not in second
    assert rest("GET", "/v1/topics/orders/subscriptions?cursor=eA==").code == "invalid_input"
    rest("DELETE", "/v1/queues/q1")
    missing = [
        one.get("queueMissing", False) for one in rest("GET", "/v1/topics/orders/subscriptions").value["subscriptions"]
    ]
    assert missing == [False, True, False, False, False]


def test_a_subscription_is_changed_after_its_queues_were_deleted(rest: Rest) -> None:
    topic_of(rest)
    rest("POST", "/v1/queues", {"name": "dead"})
    made = subscribed(rest, "emails", deadLetterQueue="dead")
    path = f"/v1/topics/orders/subscriptions/{made['subscriptionId']}"
    rest("DELETE", "/v1/queues/dead")
    assert rest.good("PATCH", path, {"filterPolicy": {"shop": ["north"]}})["filterPolicy"] == {"shop": ["north"]}
    changed = rest.good("PATCH", path, {"deadLetterQueue": "dead", "rawDelivery": False})
    assert (changed["deadLetterQueue"], changed["rawDelivery"]) == ("dead", False)
    answer = rest("PATCH", path, {"deadLetterQueue": "dead-2"})
    assert (answer.status, answer.code) == (404, "queue_does_not_exist")
    rest("DELETE", "/v1/queues/emails")
    changed = rest.good("PATCH", path, {"rawDelivery": True, "filterPolicy": None})
    assert changed["queueMissing"] and changed["rawDelivery"] and "filterPolicy" not in changed
    rest("POST", "/v1/queues", {"name": "dead-2"})
    assert rest.good("PATCH", path, {"deadLetterQueue": "dead-2"})["deadLetterQueue"] == "dead-2"
    assert "deadLetterQueue" not in rest.good("PATCH", path, {"deadLetterQueue": None})


def test_a_queue_shows_the_topics_that_it_is_subscribed_to(rest: Rest, account: str) -> None:
    for name in ("orders", "alerts"):
        topic_of(rest, name)
    subscribed(rest, "emails")
    assert rest.good("GET", "/v1/queues/emails")["subscribedTopics"] == ["orders"]
    rest("POST", "/v1/queues", {"name": "dead"})
    made = subscribed(rest, "emails", "alerts", deadLetterQueue="dead")
    foreign = f"{int(account) + 1:012d}"

    async def subscribe_to_another_account() -> None:
        broker = rest.server.broker
        topic = await broker.create_topic(foreign, "far", {}, {})
        await broker.subscribe(topic, f"arn:aws:sqs:us-east-1:{account}:emails", {}, "far-1")

    rest.server.run(subscribe_to_another_account)
    queue = rest.good("GET", "/v1/queues/emails")
    assert queue["subscriptions"] == 3
    assert queue["subscribedTopics"] == ["orders", "alerts", f"arn:aws:sns:us-east-1:{foreign}:far"]
    assert not {"subscriptions", "subscribedTopics"} & rest.good("GET", "/v1/queues/dead").keys()
    rest.good("DELETE", f"/v1/topics/alerts/subscriptions/{made['subscriptionId']}")
    rest.good("DELETE", "/v1/topics/orders")
    assert rest.good("GET", "/v1/queues/emails")["subscriptions"] == 1


# --- which subscriptions match ------------------------------------------------------------------


def test_match_says_who_would_get_a_message_and_why_the_others_would_not(rest: Rest, packed: Rest) -> None:
    topic_of(rest)
    subscribed(rest, "south", filterPolicy={"shop": ["south"]})
    subscribed(rest, "large", filterPolicy={"total": [{"numeric": [">", 10]}]}, filterPolicyScope="MessageBody")
    subscribed(rest, "all")
    spec = {"body": {"total": 12}, "attributes": {"shop": "north"}}
    found = rest("POST", "/v1/topics/orders:match", spec).value
    assert found["matched"] == 2
    assert [(one["queue"], one["matches"], one.get("reason")) for one in found["subscriptions"]] == [
        ("large", True, None),
        ("all", True, None),
        ("south", False, "The attribute shop does not match."),
    ]
    found = rest("POST", "/v1/topics/orders:match", {"body": "text", "attributes": {"colour": "red"}}).value
    reasons = {one["queue"]: one.get("reason") for one in found["subscriptions"]}
    assert reasons == {
        "all": None,
        "south": "The attribute shop is missing.",
        "large": "The message body is not a JSON object.",
    }
    assert packed("POST", "/v1/topics/orders:match", {"attributes": {"shop": "south"}}).value["matched"] == 2
    assert packed("POST", "/v1/topics/orders:match", {"body": {"total": 11}}).value["matched"] == 2
    assert packed("POST", "/v1/topics/orders:match", {"body": b"bytes"}).value["matched"] == 1
    large = {"total": 11, "lines": "x" * 100_000}
    assert rest("POST", "/v1/topics/orders:match", {"body": large}).value["matched"] == 2
    assert rest("POST", "/v1/topics/orders/messages", {"body": large}).status == 202
    (message,) = rest("POST", "/v1/queues/large/messages:receive", {}).value["messages"]
    assert message["body"] == large
    assert rest("POST", "/v1/topics/others:match", {}).code == "topic_does_not_exist"


def test_the_status_counts_queues_and_not_topics(rest: Rest) -> None:
    before = rest("GET", "/v1/status").value["queues"]
    topic_of(rest)
    subscribed(rest, "south")
    assert rest("GET", "/v1/status").value["queues"] == before + 1


# --- publishing -------------------------------------------------------------------------------


def received(rest: Rest, queue: str) -> list[Any]:
    return [
        one["body"]
        for one in rest("POST", f"/v1/queues/{queue}/messages:receive", {"maxMessages": 100}).value["messages"]
    ]


def test_a_published_message_reaches_the_queues_that_match(rest: Rest, packed: Rest) -> None:
    topic_of(rest)
    subscribed(rest, "all")
    subscribed(rest, "north", filterPolicy={"shop": ["north"]})
    answer = rest("POST", "/v1/topics/orders/messages", {"body": {"n": 1}, "attributes": {"shop": "north"}})
    assert (answer.status, answer.value.keys()) == (202, {"messageId", "sequence"})
    batch = {
        "messages": [{"body": {"n": 2}, "clientMessageId": "a"}, {"body": b"\x00", "attributes": {"shop": "north"}}]
    }
    answer = packed("POST", "/v1/topics/orders/messages:batch", batch)
    assert answer.status == 202
    assert answer.value["results"][0]["clientMessageId"] == "a"
    assert rest("GET", "/v1/queues/all/stats").value["visible"] == 3
    found = rest("POST", "/v1/queues/north/messages:receive", {"maxMessages": 10}).value["messages"]
    assert found[0]["body"] == {"n": 1}
    assert found[1]["bodyBase64"] == "AA=="


def test_a_repeated_publish_with_its_key_stores_nothing_twice(rest: Rest) -> None:
    topic_of(rest)
    subscribed(rest, "all")
    headers = {"Idempotency-Key": "one"}
    first = rest("POST", "/v1/topics/orders/messages", {"body": 1}, headers)
    again = rest("POST", "/v1/topics/orders/messages", {"body": 1}, headers)
    assert first.value == again.value
    assert again.headers["idempotency-replayed"] == "true"
    assert rest("POST", "/v1/topics/orders/messages", {"body": 2}, headers).code == "idempotency_conflict"
    assert received(rest, "all") == [1]


@pytest.mark.parametrize("field", [{"delaySeconds": 5}, {"ttlSeconds": 5}, {"deliverAt": "2099-01-01T00:00:00Z"}])
def test_a_published_message_has_no_times_of_its_own(rest: Rest, field: dict[str, Any]) -> None:
    topic_of(rest)
    answer = rest("POST", "/v1/topics/orders/messages", {"body": 1, **field})
    assert (answer.status, answer.code) == (400, "invalid_input")
    assert "subscribed queues" in answer.value["detail"]
    mixed = {"messages": [{"body": 1, **field}, {"body": 2}]}
    answer = rest("POST", "/v1/topics/orders/messages:batch", mixed)
    assert [result.get("error", {}).get("code") for result in answer.value["results"]] == ["invalid_input", None]


def test_a_copy_in_an_envelope_is_text_for_rest(rest: Rest) -> None:
    topic_of(rest)
    subscribed(rest, "all", rawDelivery=False)
    rest("POST", "/v1/topics/orders/messages", {"body": {"n": 1}, "attributes": {"shop": "north"}})
    [text] = received(rest, "all")
    envelope = json.loads(text)
    assert (envelope["Message"], envelope["MessageAttributes"]) == (
        '{"n": 1}',
        {"shop": {"Type": "String", "Value": "north"}},
    )


def test_a_published_message_can_have_a_subject(rest: Rest, packed: Rest) -> None:
    topic_of(rest)
    subscribed(rest, "wrapped", rawDelivery=False)
    subscribed(rest, "plain")
    for who in (rest, packed):
        assert who("POST", "/v1/topics/orders/messages", {"body": "x", "subject": "Disk full"}).status == 202
        peeked = rest.good("GET", "/v1/queues/wrapped/messages")["messages"]
        assert json.loads(peeked[0]["body"])["Subject"] == "Disk full"
        assert json.loads(received(rest, "wrapped")[0])["Subject"] == "Disk full"
        assert received(rest, "plain") == ["x"]
        mixed = [
            {"body": 1, "subject": "One"},
            {"body": 2},
            {"body": 3, "subject": "a\nb"},
            {"body": 4, "subject": "ä"},
        ]
        answer = who("POST", "/v1/topics/orders/messages:batch", {"messages": mixed})
        assert [result.get("error", {}).get("code") for result in answer.value["results"]] == [
            None,
            None,
            "invalid_input",
            "invalid_input",
        ]
        assert [json.loads(text).get("Subject") for text in received(rest, "wrapped")] == ["One", None]
        assert received(rest, "plain") == [1, 2]
        for wrong in ("", "x" * 101, "a\n", "\u001b[1m"):
            assert who("POST", "/v1/topics/orders/messages", {"body": 1, "subject": wrong}).code == "invalid_input"
        answer = who("POST", "/v1/queues/plain/messages", {"body": 1, "subject": "no topic"})
        assert answer.code == "invalid_input" and "published to a topic" in answer.value["detail"]


def test_a_message_for_a_topic_that_does_not_exist(rest: Rest) -> None:
    for path in ("messages", "messages:batch"):
        value = {"body": 1} if path == "messages" else {"messages": [{"body": 1}]}
        answer = rest("POST", f"/v1/topics/none/{path}", value)
        assert (answer.status, answer.code) == (404, "topic_does_not_exist")


def test_a_match_over_many_filters_lets_other_requests_run(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    topic_of(rest)
    for number in range(20):
        subscribed(rest, f"q{number}", filterPolicy={"shop": [str(number)]})
    times: list[float] = []

    def slow(text: str, scope: str) -> Filter:
        time.sleep(0.1)
        return parse_filter(text, scope)

    monkeypatch.setattr(subscriptions, "parse_filter", slow)
    other = Rest(rest.server, rest.account)
    asked = Thread(target=other, args=("POST", "/v1/topics/orders:match", {"attributes": {"shop": "7"}}))
    asked.start()
    while asked.is_alive():
        began = time.monotonic()
        rest("GET", "/v1/topics/orders")
        times.append(time.monotonic() - began)
    other.connection.close()
    assert len(times) > 3 and max(times) < 1
