"""Paused, paced and explained queues by REST and SQS: whoever looks sees it."""

from __future__ import annotations

import time
from threading import Thread
from typing import Any

import pytest

from tests.api.support import wait_until
from tests.rest.support import Answer, Rest


def pause(rest: Rest, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = rest.good("PATCH", "/v1/queues/orders", changes)
    return found


def send(rest: Rest, body: str = "x", **more: Any) -> Answer:
    return rest("POST", "/v1/queues/orders/messages", {"body": body, **more})


def receive(rest: Rest, wait: int = 0) -> list[Any]:
    path = "/v1/queues/orders/messages:receive"
    found: list[Any] = rest.good("POST", path, {"maxMessages": 10, "waitSeconds": wait})["messages"]
    return found


def test_a_queue_is_paused_paced_and_resumed(rest: Rest) -> None:
    rest.create("orders")
    queue = rest.good("GET", "/v1/queues/orders")
    assert (queue["paused"], queue["deliveriesPerSecond"], queue["minimumPriority"]) == ("none", 0, 0)
    assert "onlyGroup" not in queue
    queue = pause(rest, paused="both", deliveriesPerSecond=5, onlyGroup="vip", minimumPriority=200)
    assert (queue["paused"], queue["deliveriesPerSecond"]) == ("both", 5)
    assert (queue["onlyGroup"], queue["minimumPriority"]) == ("vip", 200)
    queue = pause(rest, paused=None, deliveriesPerSecond=None, onlyGroup=None, minimumPriority=None)
    assert (queue["paused"], queue["deliveriesPerSecond"], queue["minimumPriority"]) == ("none", 0, 0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"paused": "all"}, "paused"),
        ({"deliveriesPerSecond": -1}, "deliveriesPerSecond"),
        ({"deliveriesPerSecond": 10_000_000}, "deliveriesPerSecond"),
        ({"onlyGroup": "g" * 129}, "onlyGroup"),
        ({"minimumPriority": 256}, "minimumPriority"),
    ],
)
def test_wrong_settings_name_the_field(rest: Rest, changes: dict[str, Any], said: str) -> None:
    rest.create("orders")
    answer = rest("PATCH", "/v1/queues/orders", changes)
    assert answer.status == 400 and said in answer.value["detail"]


def test_sends_to_a_paused_queue_are_refused(rest: Rest) -> None:
    rest.create("orders")
    pause(rest, paused="sends")
    answer = send(rest)
    assert (answer.status, answer.code) == (409, "queue_paused")
    assert "orders are paused" in answer.value["detail"]
    batch = rest.good("POST", "/v1/queues/orders/messages:batch", {"messages": [{"body": 1}, {"body": 2}]})
    assert [one["error"]["code"] for one in batch["results"]] == ["queue_paused"] * 2
    pause(rest, paused="none")
    assert send(rest).status == 202
    assert len(receive(rest)) == 1


def test_a_long_poll_waits_for_the_resume(rest: Rest) -> None:
    rest.create("orders")
    pause(rest, paused="delivery")
    assert send(rest).status == 202
    assert receive(rest) == []
    found: list[Any] = []
    other = Rest(rest.server, rest.account)
    poll = Thread(target=lambda: found.extend(receive(other, wait=20)))
    poll.start()
    deadline = time.monotonic() + 60
    while rest.good("GET", "/v1/queues/orders/stats")["waitingReceives"] != 1:
        assert time.monotonic() < deadline, "the poll does not wait"
        time.sleep(0.01)
    pause(rest, paused="none")
    poll.join(60)
    other.connection.close()
    assert len(found) == 1


def test_whoever_looks_sees_the_pause(rest: Rest) -> None:
    rest.create("orders")
    sent = send(rest, messageGroupId="g", priority=100).value["messageId"]
    pause(rest, paused="delivery", deliveriesPerSecond=5)

    def listed() -> Any:
        """A node that did not make the change hears of it soon."""
        (row,) = rest.good("GET", "/v1/queues:stats?search=orders")["queues"]
        return row.get("paused"), row.get("deliveriesPerSecond"), row["level"], row["note"]

    wait_until(lambda: listed() == ("delivery", 5, "warning", "orders is paused, with 1 message waiting"))
    message = rest.good("GET", f"/v1/queues/orders/messages/{sent}")
    assert message["why"] == "Waiting: delivery of the queue is paused."
    (peeked,) = rest.good("GET", "/v1/queues/orders/messages")["messages"]
    assert peeked["why"] == message["why"]
    explained = rest.good("GET", "/v1/queues/orders:explain")
    assert explained["findings"][0]["cause"] == "paused" and explained["paused"] == "delivery"
    assert explained["text"] == explained["findings"][0]["text"]
    pause(rest, paused=None, deliveriesPerSecond=None, onlyGroup="vip")
    said = rest.good("GET", f"/v1/queues/orders/messages/{sent}")["why"]
    assert said == "Waiting: the queue delivers only messages of the group 'vip'."
    pause(rest, onlyGroup=None, minimumPriority=101)
    said = rest.good("GET", f"/v1/queues/orders/messages/{sent}")["why"]
    assert said == "Waiting: the queue delivers only messages of priority 101 or above."
    pause(rest, minimumPriority=None, deliveriesPerSecond=1)
    said = rest.good("GET", f"/v1/queues/orders/messages/{sent}")["why"]
    assert said == "Waiting its turn: the queue delivers at most 1 message per second."


def test_a_message_tells_how_many_of_higher_priority_there_are(rest: Rest) -> None:
    rest.create("orders")
    low = send(rest, priority=10).value["messageId"]
    for group in ("a", "b", "b"):
        send(rest, priority=200, messageGroupId=group)
    send(rest, priority=100)
    said = rest.good("GET", f"/v1/queues/orders/messages/{low}")["why"]
    assert said == "Waiting to be received. The queue has 4 messages of higher priority."


def test_a_moved_message_tells_where_it_went_and_why(rest: Rest) -> None:
    rest.create("orders", deadLetterQueue="dead", maxReceiveCount=1)
    sent = send(rest).value["messageId"]
    (message,) = receive(rest)
    path = f"/v1/queues/orders/messages/{message['receiptHandle']}:nack"
    rest("POST", path, {"errorClass": "BadCard", "reason": "no"})
    because = "as a dead letter, after 1 receive; its last failure was BadCard"

    def has_moved() -> bool:
        said = str(rest.good("GET", f"/v1/queues/orders/messages/{sent}")["why"])
        return "moved to queue dead" in said and because in said

    wait_until(has_moved)


def test_an_explanation_of_an_idle_queue(rest: Rest) -> None:
    rest.create("orders")
    found = rest.good("GET", "/v1/queues/orders:explain")
    assert [one["cause"] for one in found["findings"]] == ["fine"] and found["groups"] == []
    assert rest("GET", "/v1/queues/nothing:explain").status == 404
    assert rest("GET", "/v1/queues/orders:explain?x=1").status == 400


def test_the_busiest_groups_are_named(rest: Rest) -> None:
    rest.create("orders.fifo", mode="FIFO")
    for at in range(12):
        body = {"body": at, "messageGroupId": "big" if at % 4 else "small", "deduplicationKey": str(at)}
        rest.good("POST", "/v1/queues/orders.fifo/messages", body)
    found = rest.good("GET", "/v1/queues/orders.fifo:explain")
    assert found["groups"] == [
        {"messageGroupId": "big", "share": 0.75, "waiting": 9},
        {"messageGroupId": "small", "share": 0.25, "waiting": 3},
    ]


def test_the_age_of_the_oldest_visible_message_leaves_delayed_ones_out(rest: Rest) -> None:
    rest.create("orders")
    send(rest, delaySeconds=600)
    stats = rest.good("GET", "/v1/queues/orders/stats")
    assert stats["oldestVisibleAgeSeconds"] == 0 and "oldestAgeSeconds" in stats
