"""Queues by REST: made, found again, changed, listed, deleted; and where their dead letters go."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.support import wait_until
from tests.rest.support import Rest

DAYS_14_S = 1_209_600


def test_a_queue_is_made_once_and_found_after_that(rest: Rest) -> None:
    first = rest("POST", "/v1/queues", {"name": "orders", "retentionSeconds": 600})
    again = rest("POST", "/v1/queues", {"name": "orders", "retentionSeconds": 600})
    named = rest("POST", "/v1/queues", {"name": "orders"})
    assert (first.status, again.status, named.status) == (201, 200, 200)
    assert first.value == again.value == named.value
    assert first.headers["location"] == "/v1/queues/orders"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("retentionSeconds", 601),
        ("mode", "FIFO"),
        ("strictReceipts", False),
        ("deduplication", {"windowSeconds": 10}),
        ("maxReceiveCount", 7),
        ("deadLetterQueue", "elsewhere"),
        ("retry", {"kind": "exponential"}),
    ],
)
def test_another_value_is_a_conflict_that_names_the_field(rest: Rest, field: str, value: Any) -> None:
    rest.create("orders", retentionSeconds=600)
    answer = rest("POST", "/v1/queues", {"name": "orders", field: value})
    assert (answer.status, answer.code) == (409, "queue_exists")
    assert field in answer.value["detail"]
    assert rest("GET", "/v1/queues/elsewhere").status == 404


def test_everything_that_was_set_is_shown(rest: Rest) -> None:
    spec = {
        "name": "all",
        "mode": "FIFO",
        "retentionSeconds": 3600,
        "defaultVisibilityTimeoutSeconds": 45,
        "delaySeconds": 5,
        "receiveWaitSeconds": 7,
        "maxReceiveCount": 3,
        "deadLetterQueue": "all-dead",
        "deadLetterOn": "receive",
        "retry": {"kind": "exponential", "baseSeconds": 2.5, "factor": 3.0, "maxSeconds": 100.0, "jitter": 0.5},
        "maxMessageBytes": 2048,
        "strictReceipts": False,
        "deduplication": {"windowSeconds": 60, "scope": "lives", "contentBased": True, "perGroup": True},
        "expiryToDeadLetter": True,
        "priorityAgeingSeconds": 0,
        "slaSeconds": 30,
        "alarmSeverity": "critical",
        "maxInFlight": 10,
        "maxMessages": 1000,
        "maxBytes": 10_000_000,
        "tags": {"team": "ü"},
    }
    rest.good("POST", "/v1/queues", spec)
    shown = rest.good("GET", "/v1/queues/all")
    assert {name: shown[name] for name in spec} == spec
    assert shown["fifo"] is True
    assert shown["arn"] == f"arn:aws:sqs:us-east-1:{rest.account}:all"
    assert shown["createdAtMs"] == shown["modifiedAtMs"] > 0


def test_defaults_of_rest(rest: Rest, sqs: Any) -> None:
    shown = rest.good("GET", rest.create("plain"))
    assert (shown["strictReceipts"], shown["deadLetterOn"], shown["mode"]) == (True, "failure", "STANDARD")
    sqs.create_queue(QueueName="by-sqs")
    shown = rest.good("GET", "/v1/queues/by-sqs")
    assert (shown["strictReceipts"], shown["deadLetterOn"]) == (False, "receive")
    assert rest("POST", "/v1/queues", {"name": "by-sqs"}).status == 200


def test_a_change_changes_what_it_names(rest: Rest) -> None:
    queue = rest.create("orders", retentionSeconds=600, slaSeconds=9, tags={"a": "1", "b": "2"})
    shown = rest.good("PATCH", queue, {"delaySeconds": 3, "retentionSeconds": None, "tags": {"b": "3"}})
    assert shown == rest.good("GET", queue)
    assert (shown["delaySeconds"], shown["retentionSeconds"], shown["slaSeconds"]) == (3, 345_600, 9)
    assert shown["tags"] == {"b": "3"}
    shown = rest.good("PATCH", queue, {"slaSeconds": None, "strictReceipts": None, "tags": None})
    assert (shown["slaSeconds"], shown["strictReceipts"], shown["tags"]) == (0, True, {})
    shown = rest.good("PATCH", queue, {"deduplication": {"windowSeconds": 5}})
    assert shown["deduplication"]["windowSeconds"] == 5
    assert rest.good("PATCH", queue, {"deduplication": None})["deduplication"]["windowSeconds"] == 300


def test_lists_go_page_by_page(rest: Rest) -> None:
    for name in ("c", "a", "b", "x"):
        rest.create(name)
    first = rest.good("GET", "/v1/queues?limit=2")
    assert [queue["name"] for queue in first["queues"]] == ["a", "b"]
    last = rest.good("GET", f"/v1/queues?limit=2&cursor={first['nextCursor']}")
    assert [queue["name"] for queue in last["queues"]] == ["c", "x"]
    assert "nextCursor" not in last
    assert [queue["name"] for queue in rest.good("GET", "/v1/queues?prefix=x")["queues"]] == ["x"]


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "limit=1&limit=2", "page=1", "cursor=%C3%BC"])
def test_a_list_refuses_what_it_does_not_know(rest: Rest, query: str) -> None:
    answer = rest("GET", f"/v1/queues?{query}")
    assert (answer.status, answer.code) == (400, "invalid_input")
    assert query.partition("=")[0] in answer.value["detail"]


def test_accounts_do_not_see_each_other(rest: Rest, packed: Rest) -> None:
    rest.create("orders")
    packed.account = "999999999999"
    assert packed("GET", "/v1/queues/orders").code == "queue_does_not_exist"
    assert packed.good("GET", "/v1/queues") == {"queues": []}


def test_a_deleted_queue_is_gone_and_its_number_with_it(rest: Rest) -> None:
    queue = rest.create("orders")
    number = rest.good("GET", queue)["queueId"]
    rest.send(queue, "x")
    (message,) = rest.receive(queue)
    assert rest("DELETE", queue).status == 204
    assert rest("DELETE", queue).code == "queue_does_not_exist"
    rest.create("orders")
    assert rest.good("GET", queue)["queueId"] != number
    answer = rest("POST", f"{queue}/messages/{message['receiptHandle']}:ack")
    assert (answer.status, answer.code) == (400, "receipt_invalid")


def test_a_purge_empties_the_queue(rest: Rest) -> None:
    queue = rest.create()
    rest.send(queue, 1)
    assert rest("POST", f"{queue}:purge").status == 204
    assert rest.stats(queue)["visible"] == 0


def test_rates_are_known_after_a_second_look(rest: Rest) -> None:
    queue = rest.create()
    first = rest.stats(queue)
    assert "sentPerSecond" not in first
    for number in range(6):
        rest.send(queue, number)
    message = rest.receive(queue, 1)[0]
    rest.good("POST", f"{queue}/messages/{message['receiptHandle']}:ack")
    rest.server.advance(10)
    stats = rest.stats(queue)
    passed_s = (stats["atMs"] - first["atMs"]) / 1000
    assert stats["sentPerSecond"] == 6 / passed_s
    assert stats["receivedPerSecond"] == stats["deletedPerSecond"] == 1 / passed_s
    rest.server.advance(100)
    rest.stats(queue)
    rest.server.advance(10)
    assert rest.stats(queue)["sentPerSecond"] == 0


@pytest.mark.parametrize("name", ["", "a b", "a.b", "x" * 81, "ü", "a/b", "a:b", "name\n"])
def test_names_that_are_refused(rest: Rest, name: str) -> None:
    answer = rest("POST", "/v1/queues", {"name": name})
    assert (answer.status, answer.code) == (400, "invalid_input")


def test_a_fifo_queue_may_have_any_name(rest: Rest, sqs: Any) -> None:
    queue = rest.create("orders", mode="FIFO")
    for number in range(3):
        rest.send(queue, number, messageGroupId="g")
    assert [message["body"] for message in rest.receive(queue)] == [0, 1, 2]
    url = sqs.get_queue_url(QueueName="orders")["QueueUrl"]
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["FifoQueue"])["Attributes"]
    assert attributes == {"FifoQueue": "true"}


# --- dead letters -----------------------------------------------------------------------------


def test_a_missing_dead_letter_queue_is_made_with_14_days(rest: Rest) -> None:
    rest.create("orders", deadLetterQueue="dead", retentionSeconds=60)
    dead = rest.good("GET", "/v1/queues/dead")
    assert (dead["retentionSeconds"], dead["mode"]) == (DAYS_14_S, "STANDARD")
    assert rest.good("GET", "/v1/queues/orders")["maxReceiveCount"] == 10
    rest.create("ordered", mode="FIFO", deadLetterQueue="ordered-dead")
    assert rest.good("GET", "/v1/queues/ordered-dead")["mode"] == "FIFO"


def test_an_existing_one_stays_as_it_is(rest: Rest) -> None:
    rest.create("dead", retentionSeconds=600)
    rest.create("orders", deadLetterQueue="dead", maxReceiveCount=2)
    assert rest.good("GET", "/v1/queues/dead")["retentionSeconds"] == 600


def test_chains_and_circles_are_refused(rest: Rest) -> None:
    rest.create("a", deadLetterQueue="b")
    for change in (
        ("POST", "/v1/queues", {"name": "c", "deadLetterQueue": "a"}),  # c → a → b
        ("PATCH", "/v1/queues/b", {"deadLetterQueue": "a"}),  # a → b → a
        ("PATCH", "/v1/queues/b", {"deadLetterQueue": "d"}),  # a → b → d
        ("POST", "/v1/queues", {"name": "e", "deadLetterQueue": "e"}),
        ("PATCH", "/v1/queues/a", {"deadLetterQueue": "a"}),
    ):
        answer = rest(*change)
        assert (answer.status, answer.code) == (400, "dead_letter_queue_refused"), change
    assert [queue["name"] for queue in rest.good("GET", "/v1/queues")["queues"]] == ["a", "b"]
    rest.good("DELETE", "/v1/queues/b")
    rest.create("f")
    answer = rest("POST", "/v1/queues", {"name": "b", "deadLetterQueue": "f"})  # a → b → f, as soon as there is a b
    assert answer.code == "dead_letter_queue_refused"
    assert rest("POST", "/v1/queues", {"name": "b"}).status == 201


def test_sqs_may_make_chains_as_it_always_could(rest: Rest, sqs: Any) -> None:
    rest.create("a", deadLetterQueue="b")
    rest.create("c")
    policy = {"deadLetterTargetArn": rest.good("GET", "/v1/queues/c")["arn"], "maxReceiveCount": 1}
    url = sqs.get_queue_url(QueueName="b")["QueueUrl"]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": json.dumps(policy)})
    shown = rest.good("GET", "/v1/queues/b")
    assert shown["deadLetterQueue"] == "c"
    few, chain = shown["warnings"]
    assert "after 1 receive," in few and chain.startswith("Queue b is the dead-letter queue of a and has")
    assert rest.good("GET", "/v1/queues/a")["warnings"][0].startswith("The dead-letter queue b of queue a has")
    said = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Baton.Warnings"])["Attributes"]
    assert said == {"Baton.Warnings": " ".join(shown["warnings"])}
    assert rest.good("PATCH", "/v1/queues/b", {"slaSeconds": 5})["slaSeconds"] == 5


def test_a_dead_letter_queue_is_kept_for_14_days_also_when_sqs_makes_it(rest: Rest, sqs: Any) -> None:
    dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
    short = sqs.create_queue(QueueName="short", Attributes={"MessageRetentionPeriod": "3600"})["QueueUrl"]
    for target in ("dead", "short"):
        policy = {"deadLetterTargetArn": rest.good("GET", f"/v1/queues/{target}")["arn"], "maxReceiveCount": 3}
        sqs.create_queue(QueueName=f"{target}-source", Attributes={"RedrivePolicy": json.dumps(policy)})
    kept = [
        sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["MessageRetentionPeriod"])["Attributes"]
        for url in (dead, short)
    ]
    assert [attributes["MessageRetentionPeriod"] for attributes in kept] == ["1209600", "3600"]
    assert "warnings" not in rest.good("GET", "/v1/queues/dead-source")
    (told,) = rest.good("GET", "/v1/queues/short-source")["warnings"]
    assert told.startswith("The dead-letter queue short keeps messages for 3600 seconds")
    assert sqs.create_queue(QueueName="dead")["QueueUrl"] == dead, "creating it again is no conflict"


def test_a_queue_for_dead_letters_is_not_made_for_nothing(rest: Rest) -> None:
    assert rest("POST", "/v1/queues", {"name": "x", "deadLetterQueue": "dead", "retentionSeconds": 1}).status == 400
    wrong = {"deadLetterQueue": "dead", "deduplication": {"contentBased": True}}
    assert rest("POST", "/v1/queues", {"name": "x", **wrong}).status == 400
    queue = rest.create("y")
    assert rest("PATCH", queue, wrong).status == 400
    assert rest("GET", "/v1/queues/dead").status == 404


def test_modes_that_do_not_fit_are_told_in_words_of_rest(rest: Rest) -> None:
    rest.create("ordered", mode="FIFO")
    answer = rest("POST", "/v1/queues", {"name": "x", "deadLetterQueue": "ordered"})
    assert answer.code == "dead_letter_queue_refused" and "mode" in answer.value["detail"]
    answer = rest("POST", "/v1/queues", {"name": "x", "deduplication": {"perGroup": True}})
    assert answer.code == "invalid_input" and "FIFO" in answer.value["detail"]
    answer = rest("POST", "/v1/queues", {"name": "wide", "mode": "FIFO", "spread": 2})
    assert answer.code == "invalid_attribute_value"
    assert answer.value["detail"].startswith("spread above 1 needs deduplication.perGroup on a FIFO queue.")
    assert rest("POST", "/v1/queues", {"name": "x", "deduplication": {"perGroup": False}}).status == 201


def test_the_receives_and_the_target_are_changed_apart(rest: Rest) -> None:
    queue = rest.create("orders", maxReceiveCount=4)

    def rule() -> tuple[int, str | None]:
        shown = rest.good("GET", queue)
        return shown["maxReceiveCount"], shown.get("deadLetterQueue")

    assert rule() == (4, None)
    rest.good("PATCH", queue, {"deadLetterQueue": "dead"})
    assert rule() == (4, "dead")
    rest.good("PATCH", queue, {"maxReceiveCount": 2})
    assert rule() == (2, "dead")
    rest.good("PATCH", queue, {"deadLetterQueue": None})
    assert rule() == (2, None)
    rest.good("PATCH", queue, {"maxReceiveCount": 0})
    assert rule() == (0, None)


def test_a_message_that_failed_too_often_is_a_dead_letter_with_its_past(rest: Rest) -> None:
    queue = rest.create("orders", deadLetterQueue="dead", maxReceiveCount=2)
    sent = rest.send(queue, {"n": 1}, attributes={"k": "v"})
    for _ in range(2):
        (message,) = rest.receive(queue)
        failure = {"reason": "no luck", "errorClass": "ValueError", "delaySeconds": 0}
        assert rest("POST", f"{queue}/messages/{message['receiptHandle']}:nack", failure).status == 204
    assert rest.receive(queue) == []
    (dead,) = rest.receive("/v1/queues/dead", waitSeconds=20)
    assert (dead["body"], dead["attributes"]) == ({"n": 1}, {"k": "v"})
    past = dead["deadLetter"]
    assert (past["queue"], past["messageId"], past["attempts"]) == ("orders", sent["messageId"], 2)
    assert (past["reason"], past["errorClass"]) == ("no luck", "ValueError")
    assert past["lastFailureMs"] >= past["firstFailureMs"] > 0
    wait_until(lambda: rest.stats(queue)["deadLettered"] == 1)
