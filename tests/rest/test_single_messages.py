"""Looking at messages by REST: why each waits, filters, and one message with its history."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from tests.api.support import wait_until
from tests.rest.support import Rest


def test_peek_says_why_each_message_waits(rest: Rest) -> None:
    queue = rest.create()
    rest.send(queue, "held")
    rest.receive(queue, consumer="ann", visibilityTimeoutSeconds=60)
    rest.send(queue, "waiting")
    page = rest.good("GET", f"{queue}/messages")
    held, waiting = sorted(page["messages"], key=lambda message: message["body"])
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
    assert sorted(message["body"] for message in page["messages"]) == sorted(expected)
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
        assert (detail["queue"], detail["holder"]) == ("queue", "ann")
        assert detail["where"] == f"In queue queue, on shard {detail['shard']}."
        assert detail["why"].startswith("Held by ann until ")
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


# --- what an operator does ------------------------------------------------------------------------


def dead(rest: Rest, *bodies: object, error: str = "ValueError", reason: str = "bad") -> tuple[str, str]:
    """A queue and its dead-letter queue, with dead letters."""
    morgue = rest.create("morgue")
    queue = rest.create("orders", deadLetterQueue="morgue", maxReceiveCount=5)
    for body in bodies:
        rest.send(queue, body)
        kill(rest, queue, error, reason)
    return queue, morgue


def kill(rest: Rest, queue: str, error: str, reason: str) -> None:
    """Dead-letter the only message of a queue."""
    (message,) = rest.receive(queue, 1, waitSeconds=20)
    rest.good(
        "POST",
        f"{queue}/messages/{quote(message['receiptHandle'], safe='')}:nack",
        {"reason": reason, "errorClass": error, "deadLetter": True},
    )
    wait_until(lambda: not any(rest.stats(queue)[state] for state in ("visible", "inFlight", "delayed", "owed")))


def bodies(rest: Rest, queue: str) -> list[Any]:
    return [message["body"] for message in rest.good("GET", f"{queue}/messages?limit=100")["messages"]]


def test_delete_one_message(rest: Rest) -> None:
    queue = rest.create()
    first = rest.send(queue, "a")
    rest.receive(queue, 1, consumer="ann")
    second = rest.send(queue, "b")
    answer = rest("DELETE", f"{queue}/messages/{first['messageId']}")
    assert (answer.status, answer.code) == (409, "message_held") and "ann holds" in answer.value["detail"]
    assert rest("DELETE", f"{queue}/messages/{second['messageId']}").status == 204
    assert rest("DELETE", f"{queue}/messages/{second['messageId']}").code == "message_not_found"
    assert bodies(rest, queue) == ["a"]
    gone = rest.good("GET", f"{queue}/messages/{second['messageId']}")
    assert gone["where"].startswith("It was deleted by an operator at ")


@pytest.mark.parametrize(
    ("change", "body", "attributes"),
    [
        ({"body": {"n": 2}}, {"n": 2}, {"a": "x", "b": 1}),
        ({"body": "text"}, "text", {"a": "x", "b": 1}),
        ({"body": None}, None, {"a": "x", "b": 1}),
        ({"setAttributes": {"c": 2}, "removeAttributes": ["b", "none"]}, {"n": 1}, {"a": "x", "c": 2}),
        ({"body": [1], "setAttributes": {"a": "y"}}, [1], {"a": "y", "b": 1}),
        ({"attributes": {"c": 2}}, {"n": 1}, {"c": 2}),
    ],
)
def test_edit_one_message(rest: Rest, packed: Rest, change: object, body: object, attributes: object) -> None:
    queue = rest.create()
    for client in (rest, packed):
        sent = client.send(queue, {"n": 1}, attributes={"a": "x", "b": 1}, delaySeconds=600)
        detail = client.good("PATCH", f"{queue}/messages/{sent['messageId']}", change)
        assert (detail["body"], detail["attributes"], detail["state"]) == (body, attributes, "DELAYED")
        assert [event["event"] for event in detail["history"]] == ["sent", "edited"]


def test_edit_bytes(rest: Rest) -> None:
    queue = rest.create()
    sent = rest.send(queue, "a")
    detail = rest.good("PATCH", f"{queue}/messages/{sent['messageId']}", {"bodyBase64": "AAEC"})
    assert detail["bodyBase64"] == "AAEC"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, "changes nothing"),
        ({"body": "a", "bodyBase64": "AAEC"}, "not both"),
        ({"bodyBase64": "!"}, "base64"),
        ({"body": ""}, "empty"),
        ({"body": "x" * 1_100_000}, "larger than"),
        ({"attributes": {"": "x"}}, "name"),
        ({"attributes": {"a": True}}, "attributes"),
        ({"attributes": {}, "setAttributes": {"a": 1}}, "attributes alone"),
        ({"other": 1}, "other"),
    ],
)
def test_edits_that_are_refused(rest: Rest, change: object, says: str) -> None:
    queue = rest.create()
    sent = rest.send(queue, "a")
    answer = rest("PATCH", f"{queue}/messages/{sent['messageId']}", change)
    assert answer.status in (400, 413) and says in answer.value["detail"], answer
    assert bodies(rest, queue) == ["a"]


def test_retry_ends_a_delay(rest: Rest) -> None:
    queue = rest.create()
    sent = rest.send(queue, "later", delaySeconds=600)
    detail = rest.good("POST", f"{queue}/messages/{sent['messageId']}:retry")
    assert detail["state"] == "VISIBLE" and [event["event"] for event in detail["history"]] == ["sent", "retried"]
    (message,) = rest.receive(queue)
    assert message["body"] == "later"
    assert rest("POST", f"{queue}/messages/{sent['messageId']}:retry").code == "message_held"


def test_retry_returns_a_dead_letter(rest: Rest) -> None:
    queue, morgue = dead(rest, {"n": 1}, {"n": 2})
    letters = sorted(rest.good("GET", f"{morgue}/messages")["messages"], key=lambda letter: letter["body"]["n"])
    rest.good("PATCH", f"{morgue}/messages/{letters[0]['messageId']}", {"body": {"n": "corrected"}})
    rest.good("POST", f"{morgue}/messages/{letters[0]['currentId']}:retry")
    (message,) = rest.receive(queue, 1, waitSeconds=20)
    assert (message["body"], message["receiveCount"]) == ({"n": "corrected"}, 1)
    wait_until(lambda: bodies(rest, morgue) == [{"n": 2}])
    detail = rest.good("GET", f"{morgue}/messages/{letters[0]['currentId']}")
    assert detail["state"] == "DELETED" and "was moved to queue orders at " in detail["where"]
    assert (detail["movedTo"], detail["movedAs"]) == ("orders", message["messageId"])
    assert detail["body"] == {"n": "corrected"} and "problem" not in detail and detail["historyComplete"]
    happened = [event["event"] for event in detail["history"] if event["queue"] == "morgue"]
    assert happened == ["arrived", "edited", "moving", "moved"] and detail["history"][0]["event"] == "sent"
    rest.good("DELETE", queue)
    answer = rest("POST", f"{morgue}/messages/{letters[1]['messageId']}:retry")
    assert answer.code == "invalid_input" and "was deleted" in answer.value["detail"]


# --- dead letters in groups -------------------------------------------------------------------------


def test_dead_letters_in_groups(rest: Rest, packed: Rest) -> None:
    queue, morgue = dead(rest, {"n": 1, "s": "a"}, {"n": 2, "s": "b"}, error="KeyError", reason="order 17 'x' missing")
    rest.send(queue, {"n": 3, "s": "c"})
    kill(rest, queue, "KeyError", "order 18 'y' missing")
    rest.send(queue, "text")
    kill(rest, queue, "KeyError", "order 19 'z' missing")
    rest.send(queue, {"n": 4, "s": "d"})
    kill(rest, queue, "Timeout", "slow")
    for client in (rest, packed):
        found = client.good("GET", f"{morgue}/dead-letters")
        assert (found["queue"], found["total"], found["examined"], found["complete"]) == ("morgue", 5, 5, True)
        assert found["sources"] == ["orders"] and "groupsOmitted" not in found
        first, *others = found["groups"]
        assert (first["count"], first["errorClass"], first["sourceQueue"]) == (3, "KeyError", "orders")
        assert first["shape"] == "object<n: number, s: string>"
        assert first["reason"] in ("order 17 'x' missing", "order 18 'y' missing")
        assert sorted(example["body"]["n"] for example in first["examples"]) == [1, 2, 3]
        assert first["firstAtMs"] <= first["lastAtMs"]
        assert {(group["errorClass"], group["count"], group["shape"]) for group in others} == {
            ("KeyError", 1, "text"),
            ("Timeout", 1, "object<n: number, s: string>"),
        }
    key = found["groups"][0]["group"]
    looked = rest.good("POST", f"{morgue}:redrive", {"filter": {"group": key}, "dryRun": True})
    assert (looked["matched"], looked["examined"]) == (3, 5)
    job = rest.good("POST", f"{morgue}:redrive", {"filter": {"group": key}, "maxMessagesPerSecond": 1000})
    wait_for(rest, job)
    wait_until(lambda: len(bodies(rest, queue)) == 3)
    assert len(bodies(rest, morgue)) == 2


def test_a_long_example_is_cut(rest: Rest) -> None:
    _, morgue = dead(rest, {"text": "x" * 5_000}, "short")
    groups = rest.good("GET", f"{morgue}/dead-letters")["groups"]
    examples = {example["bodyBytes"]: example for group in groups for example in group["examples"]}
    assert sorted(examples) == [5, 5_012]
    long = examples[5_012]
    assert long["bodyCut"] and long["body"].startswith('{"text": "xxx') and len(long["body"]) == 2_048


def test_dead_messages_without_a_dead_letter_queue(rest: Rest) -> None:
    queue = rest.create(maxReceiveCount=5)
    rest.send(queue, "dies")
    kill(rest, queue, "ValueError", "bad")
    rest.send(queue, "lives")
    found = rest.good("GET", f"{queue}/dead-letters")
    assert (found["total"], found["examined"], found["sources"]) == (1, 2, [])
    (group,) = found["groups"]
    assert (group["count"], group["sourceQueue"]) == (1, "queue")


# --- delete jobs ----------------------------------------------------------------------------------


def wait_for(rest: Rest, job: dict[str, object]) -> dict[str, object]:
    ended: dict[str, object] = {}

    def has_ended() -> bool:
        rest.server.advance(0.1)
        ended.update(rest.good("GET", f"/v1/jobs/{job['jobId']}"))
        return ended["state"] in ("COMPLETED", "CANCELLED", "FAILED")

    wait_until(has_ended)
    return ended


def test_a_job_deletes_messages(rest: Rest) -> None:
    queue = rest.create()
    for number in range(20):
        rest.send(queue, {"n": number, "kind": "odd" if number % 2 else "even"}, delaySeconds=600 if number > 15 else 0)
    held = sorted(message["body"]["n"] for message in (*rest.receive(queue, 1), *rest.receive(queue, 1)))
    even = [number for number in range(0, 20, 2) if number not in held]
    chosen = {"bodyContains": "even"}
    looked = rest.good("POST", f"{queue}:delete-messages", {"filter": chosen, "dryRun": True})
    assert (looked["kind"], looked["matched"], looked["dryRun"]) == ("delete", len(even), True)
    assert len(bodies(rest, queue)) == 20
    answer = rest("POST", f"{queue}:delete-messages", {"filter": chosen})
    assert answer.status == 202 and answer.headers["location"] == f"/v1/jobs/{answer.value['jobId']}"
    done = wait_for(rest, answer.value)
    assert (done["kind"], done["state"], done["moved"]) == ("delete", "COMPLETED", len(even))
    left = {body["n"] for body in bodies(rest, queue)}
    assert left == {*held, *range(1, 20, 2)}, "what is held stays"
    ids = [message["currentId"] for message in rest.good("GET", f"{queue}/messages?state=VISIBLE")["messages"][:2]]
    done = wait_for(rest, rest.good("POST", f"{queue}:delete-messages", {"filter": {"messageIds": ids}}))
    assert done["moved"] == 2
    done = wait_for(rest, rest.good("POST", f"{queue}:delete-messages", {"maxMessages": 3}))
    assert done["moved"] == 3
    refused = rest("POST", f"{queue}:delete-messages")
    assert refused.code == "invalid_input" and "no body" in refused.value["detail"]  # it could mean all messages
    done = wait_for(rest, rest.good("POST", f"{queue}:delete-messages", {}))
    assert len(bodies(rest, queue)) == 2 and rest.stats(queue)["inFlight"] == 2
    listed = rest.good("GET", f"{queue}/jobs")["jobs"]
    assert [job["kind"] for job in listed] == ["delete"] * 4


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"filter": {"nothing": 1}}, "nothing"),
        ({"maxMessagesPerSecond": 0}, "maxMessagesPerSecond"),
        ({"maxMessages": 0}, "maxMessages"),
    ],
)
def test_delete_jobs_that_are_refused(rest: Rest, spec: object, says: str) -> None:
    answer = rest("POST", f"{rest.create()}:delete-messages", spec)
    assert answer.code == "invalid_input" and says in answer.value["detail"]


def test_a_deletion_without_a_body_is_refused(rest: Rest) -> None:
    answer = rest("POST", f"{rest.create()}:delete-messages")
    assert answer.code == "invalid_input" and "no body" in answer.value["detail"]


def test_the_jobs_of_all_queues(rest: Rest) -> None:
    one, two = rest.create("one"), rest.create("two")
    for queue in (one, two):
        for number in range(5):
            rest.send(queue, number)
    first = rest.good("POST", f"{one}:delete-messages", {})
    wait_for(rest, first)
    second = rest.good("POST", f"{two}:delete-messages", {"maxMessagesPerSecond": 1})
    rest.good("POST", f"/v1/jobs/{second['jobId']}:pause")
    both = rest.good("GET", "/v1/jobs")
    assert [job["jobId"] for job in both["jobs"]] == [second["jobId"], first["jobId"]]
    assert [job["sourceQueue"] for job in both["jobs"]] == ["two", "one"]
    assert [job["jobId"] for job in rest.good("GET", "/v1/jobs?state=active")["jobs"]] == [second["jobId"]]
    rest.good("POST", f"/v1/jobs/{second['jobId']}:cancel")
    assert rest("GET", "/v1/jobs?state=some").code == "invalid_input"
    other = Rest(rest.server, "999999999999")
    assert other.good("GET", "/v1/jobs")["jobs"] == [], "of another account"
    other.close()
