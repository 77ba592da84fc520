"""Ack, nack and change of visibility by REST: only the current lease's receipt counts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.support import wait_until
from tests.rest.support import Rest

FORGED = "A" * 44


@pytest.fixture(params=["json", "msgpack"])
def any_rest(request: pytest.FixtureRequest, rest: Rest, packed: Rest) -> Rest:
    return rest if request.param == "json" else packed


def lease(rest: Rest, queue: str, body: Any = "x") -> str:
    rest.send(queue, body)
    return str(rest.receive(queue, 1)[0]["receiptHandle"])


def codes(results: list[dict[str, Any]]) -> list[str | None]:
    return [result.get("error", {}).get("code") for result in results]


VERBS = [("ack", None), ("nack", {"delaySeconds": 0}), ("change-visibility", {"visibilityTimeoutSeconds": 5})]


@pytest.mark.parametrize(("verb", "value"), VERBS)
def test_a_receipt_that_is_not_the_current_leases(any_rest: Rest, verb: str, value: Any) -> None:
    queue = any_rest.create()
    receipt = lease(any_rest, queue)
    address = f"{queue}/messages/{receipt}:{verb}"
    any_rest.server.advance(31)
    answer = any_rest("POST", address, value)
    assert (answer.status, answer.code) == (409, "lease_lost")  # it ran out
    (again,) = any_rest.receive(queue)
    assert any_rest("POST", address, value).code == "lease_lost"  # and has another holder
    assert any_rest("POST", f"{queue}/messages/{again['receiptHandle']}:ack").status == 204
    answer = any_rest("POST", address, value)
    assert (answer.status, answer.code) == (409, "message_gone")


@pytest.mark.parametrize(("verb", "value"), VERBS)
def test_rest_is_strict_on_a_queue_that_sqs_made(rest: Rest, sqs: Any, verb: str, value: Any) -> None:
    sqs.create_queue(QueueName="queue")
    queue = "/v1/queues/queue"
    receipt = lease(rest, queue)
    rest.server.advance(31)
    assert rest("POST", f"{queue}/messages/{receipt}:{verb}", value).code == "lease_lost"
    many = {"receiptHandles": [receipt]} if verb == "ack" else {"messages": [{"receiptHandle": receipt, **value}]}
    assert codes(rest.good("POST", f"{queue}/messages:{verb}", many)["results"]) == ["lease_lost"]


@pytest.mark.parametrize("receipt", ["x", FORGED, "%00", "a%2Fb"])
def test_a_receipt_that_is_none(rest: Rest, receipt: str) -> None:
    answer = rest("POST", f"{rest.create()}/messages/{receipt}:ack")
    assert (answer.status, answer.code) == (400, "receipt_invalid")


def test_a_receipt_of_another_queue_is_none_here(rest: Rest) -> None:
    receipt = lease(rest, rest.create("a"))
    assert rest("POST", f"{rest.create('b')}/messages/{receipt}:ack").code == "receipt_invalid"


def test_a_changed_visibility_can_be_told(rest: Rest, packed: Rest) -> None:
    queue = rest.create()
    receipt = lease(rest, queue)
    address = f"{queue}/messages/{receipt}:change-visibility"
    silent = rest("POST", address, {"visibilityTimeoutSeconds": 100})
    assert (silent.status, silent.body) == (204, b"")
    told = rest("POST", address, {"visibilityTimeoutSeconds": 100}, {"Prefer": "return=representation"})
    assert told.status == 200
    longer = packed.good("POST", address, {"visibilityTimeoutSeconds": 200})
    assert 99_000 <= longer["deadlineMs"] - told.value["deadlineMs"] <= 130_000
    rest.server.advance(190)
    assert rest.receive(queue) == []


def test_no_visibility_gives_the_message_back(rest: Rest) -> None:
    queue = rest.create()
    receipt = lease(rest, queue)
    assert rest("POST", f"{queue}/messages/{receipt}:change-visibility", {"visibilityTimeoutSeconds": 0}).status == 204
    assert rest.receive(queue)[0]["receiveCount"] == 2


def test_a_queue_made_with_rest_backs_off_unless_told_otherwise(rest: Rest) -> None:
    shown = rest.good("GET", rest.create("plain"))
    assert shown["retry"] == {"kind": "exponential", "baseSeconds": 1, "factor": 2, "maxSeconds": 300, "jitter": 0.2}
    assert shown["retryExpiredLeases"] is False
    for name, fields, delayed in (("plain", {}, True), ("at-once", {"retry": {"kind": "none"}}, False)):
        queue = f"/v1/queues/{name}" if name == "plain" else rest.create(name, **fields)
        rest.send(queue, 1)
        (message,) = rest.receive(queue)
        assert rest("POST", f"{queue}/messages/{message['receiptHandle']}:nack").status == 204
        assert rest.stats(queue)["delayed"] == delayed
    assert "retry" not in rest.good("GET", "/v1/queues/at-once")
    rest.good("PATCH", "/v1/queues/at-once", {"retry": None})
    assert rest.good("GET", "/v1/queues/at-once")["retry"] == shown["retry"]


def test_an_expired_lease_backs_off_if_the_queue_says_so(rest: Rest) -> None:
    schedule = {"kind": "schedule", "delaysSeconds": [3600]}
    queue = rest.create("careful", retry=schedule, retryExpiredLeases=True, defaultVisibilityTimeoutSeconds=1)
    rest.send(queue, 1)
    assert rest.receive(queue)
    rest.server.advance(2)
    stats = rest.stats(queue)
    assert (stats["expiredLeases"], stats["delayed"], stats["visible"]) == (1, 1, 0)
    rest.server.advance(3600)
    assert rest.stats(queue)["visible"] == 1


def test_a_nack_without_a_delay_waits_as_the_queue_says(rest: Rest) -> None:
    queue = rest.create(retry={"kind": "schedule", "delaysSeconds": [10, 60]})
    receipt = lease(rest, queue)
    for delay in (10, 60, 60):
        assert rest("POST", f"{queue}/messages/{receipt}:nack").status == 204
        rest.server.advance(delay - 1)
        assert rest.receive(queue) == []
        rest.server.advance(1)
        receipt = rest.receive(queue)[0]["receiptHandle"]
    assert rest("POST", f"{queue}/messages/{receipt}:nack", {"delaySeconds": 0}).status == 204
    assert rest.receive(queue)[0]["lastFailure"]["lastFailureMs"] > 0


def test_a_nack_may_send_to_the_dead_letters_at_once(rest: Rest) -> None:
    queue = rest.create(deadLetterQueue="dead", maxReceiveCount=10)
    receipt = lease(rest, queue)
    value = {"deadLetter": True, "reason": "poison", "errorClass": "BadImage"}
    assert rest("POST", f"{queue}/messages/{receipt}:nack", value).status == 204
    (dead,) = rest.receive("/v1/queues/dead", waitSeconds=20)
    assert (dead["deadLetter"]["reason"], dead["deadLetter"]["errorClass"]) == ("poison", "BadImage")


def test_what_was_not_tried_does_not_count(rest: Rest) -> None:
    """A message may be given back untried for ever: it has not failed, and is no dead letter."""
    queue = rest.create(maxReceiveCount=1, deadLetterQueue="dead")
    rest.send(queue, 1)
    for _ in range(3):
        (message,) = rest.receive(queue)
        assert message["receiveCount"] == 1 and "lastFailure" not in message
        both = {"untried": True, "deadLetter": True}
        assert rest("POST", f"{queue}/messages/{message['receiptHandle']}:nack", both).status == 400
        nack = {"receiptHandle": message["receiptHandle"], "untried": True}
        assert rest("POST", f"{queue}/messages:nack", {"messages": [nack]}).value == {"results": [{}]}
    (message,) = rest.receive(queue)
    later = {"untried": True, "delaySeconds": 60}
    assert rest("POST", f"{queue}/messages/{message['receiptHandle']}:nack", later).status == 204
    stats = rest("GET", f"{queue}/stats").value
    assert (stats["visible"], stats["delayed"], stats["deadLettered"]) == (0, 1, 0)


def test_what_other_programs_printed_can_be_read_by_every_protocol(rest: Rest, sqs: Any) -> None:
    queue = rest.create()
    receipt = lease(rest, queue)
    value = {"reason": "\x1b[31mred\x1b[0m\n", "errorClass": "nul\0", "delaySeconds": 0}
    assert rest("POST", f"{queue}/messages/{receipt}:nack", value).status == 204
    url = sqs.get_queue_url(QueueName="queue")["QueueUrl"]
    (message,) = sqs.receive_message(QueueUrl=url, AttributeNames=["Baton.Reason", "Baton.ErrorClass"])["Messages"]
    assert message["Attributes"] == {"Baton.Reason": "\ufffd[31mred\ufffd[0m\n", "Baton.ErrorClass": "nul\ufffd"}


@pytest.mark.parametrize(
    "value",
    [
        {"delaySeconds": -1},
        {"reason": "x" * 501},
        {"errorClass": "x" * 101},
        {"deadLetter": 1},
        {"visibilityTimeoutSeconds": 1},
    ],
)
def test_nacks_that_are_refused(rest: Rest, value: dict[str, Any]) -> None:
    queue = rest.create()
    receipt = lease(rest, queue)
    answer = rest("POST", f"{queue}/messages/{receipt}:nack", value)
    assert answer.code == "invalid_input"
    assert next(iter(value)) in answer.value["detail"]
    assert rest("POST", f"{queue}/messages/{receipt}:ack").status == 204


# --- batches ----------------------------------------------------------------------------------


def test_a_batch_of_acks_has_a_result_for_each(any_rest: Rest) -> None:
    queue = any_rest.create()
    good, gone = lease(any_rest, queue), lease(any_rest, queue)
    any_rest.good("POST", f"{queue}/messages/{gone}:ack")
    results = any_rest.good("POST", f"{queue}/messages:ack", {"receiptHandles": [gone, good, FORGED, good]})["results"]
    assert codes(results) == ["message_gone", None, "receipt_invalid", "message_gone"]
    assert results[1] == {}
    assert results[0]["error"]["status"] == 409


def test_a_batch_of_nacks_has_a_result_for_each(any_rest: Rest) -> None:
    queue = any_rest.create(deadLetterQueue="dead")
    one, two = lease(any_rest, queue, 1), lease(any_rest, queue, 2)
    results = any_rest.good(
        "POST",
        f"{queue}/messages:nack",
        {
            "messages": [
                {"receiptHandle": one, "reason": "later", "delaySeconds": 50},
                {"receiptHandle": FORGED},
                {"receiptHandle": two, "deadLetter": True},
            ]
        },
    )["results"]
    assert codes(results) == [None, "receipt_invalid", None]
    wait_until(lambda: any_rest.stats(queue)["deadLettered"] == 1)  # it may go from shard to shard
    assert any_rest.stats(queue)["delayed"] == 1


def test_a_batch_of_changes_has_the_deadlines(any_rest: Rest) -> None:
    queue = any_rest.create()
    one, two = lease(any_rest, queue), lease(any_rest, queue)
    results = any_rest.good(
        "POST",
        f"{queue}/messages:change-visibility",
        {
            "messages": [
                {"receiptHandle": one, "visibilityTimeoutSeconds": 500},
                {"receiptHandle": two, "visibilityTimeoutSeconds": 0},
                {"receiptHandle": FORGED, "visibilityTimeoutSeconds": 5},
            ]
        },
    )["results"]
    assert codes(results) == [None, None, "receipt_invalid"]
    assert results[0]["deadlineMs"] > any_rest.stats(queue)["atMs"] + 400_000
    assert results[1]["deadlineMs"] == 0


@pytest.mark.parametrize("verb", ["ack", "nack", "change-visibility"])
@pytest.mark.parametrize("count", [0, 1001])
def test_batches_have_1_to_1000(rest: Rest, verb: str, count: int) -> None:
    entry: dict[str, Any] = {"receiptHandle": "x"}
    if verb == "change-visibility":
        entry["visibilityTimeoutSeconds"] = 5
    value = {"receiptHandles": ["x"] * count} if verb == "ack" else {"messages": [entry] * count}
    assert rest("POST", f"{rest.create()}/messages:{verb}", value).code == "invalid_input"
