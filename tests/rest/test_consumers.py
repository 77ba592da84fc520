"""Consumers of a queue and workers of the server, by REST."""

from __future__ import annotations

import threading
from typing import Any
from urllib.parse import quote

from tests.api.support import wait_until
from tests.rest.support import Rest


def pollers(rest: Rest, queue: str) -> dict[str, dict[str, Any]]:
    return {one["holder"]: one for one in rest.good("GET", f"{queue}/consumers")["pollers"]}


def test_who_polls_and_who_holds(rest: Rest, sqs: Any) -> None:
    queue = rest.create()
    for number in range(5):
        rest.send(queue, number)
    rest.receive(queue, 2, consumer="ann", visibilityTimeoutSeconds=60)
    rest.good("POST", f"{queue}/messages:receive", {"maxMessages": 1}, headers={"Baton-Consumer": "ben"})
    url = sqs.get_queue_url(QueueName="queue")["QueueUrl"]
    sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)
    rest.receive(queue, 1, consumer="ann")
    found = rest.good("GET", f"{queue}/consumers")
    assert found["queue"] == "queue"
    known = pollers(rest, queue)
    ann = known["ann"]
    assert (ann["receivedPerMinute"], ann["emptyPerMinute"], ann["waiting"]) == (2, 1, 0)
    assert ann["address"].startswith("127.0.0.1:") and ann["lastPollAtMs"] > 0
    assert known["ben"]["receivedPerMinute"] == 1
    (anonymous,) = known.keys() - {"ann", "ben"}
    assert "@127.0.0.1:" in anonymous and "Boto3" in known[anonymous]["agent"]
    holders = {one["holder"]: one["inFlight"] for one in found["holders"]}
    assert holders == {"ann": 2, "ben": 1, anonymous: 2}
    first = next(one for one in found["holders"] if one["holder"] == "ann")
    assert first["nextDeadlineAtMs"] - first["oldestLeaseAtMs"] == 60_000


def test_a_receive_that_waits_is_shown_until_it_ends(rest: Rest) -> None:
    queue = rest.create()
    other = Rest(rest.server, rest.account)
    thread = threading.Thread(target=lambda: other.receive(queue, 1, consumer="waits", waitSeconds=20))
    thread.start()
    wait_until(lambda: pollers(rest, queue).get("waits", {}).get("waiting") == 1)
    rest.send(queue, "x")
    thread.join()
    other.close()
    assert pollers(rest, queue)["waits"]["waiting"] == 0
    leaver = Rest(rest.server, rest.account)
    leaver.connection.request(
        "POST",
        f"{queue}/messages:receive",
        b'{"waitSeconds": 20, "consumer": "leaves"}',
        {"Authorization": f"AWS4-HMAC-SHA256 Credential={rest.account}/x", "Content-Type": "application/json"},
    )
    wait_until(lambda: pollers(rest, queue).get("leaves", {}).get("waiting") == 1)
    leaver.close()
    wait_until(lambda: pollers(rest, queue)["leaves"]["waiting"] == 0)


def test_workers(rest: Rest) -> None:
    queue = rest.create("work")
    for number in range(4):
        rest.send(queue, number)
    name = f"worker of {rest.account}"
    named = {"Baton-Consumer": name}
    got = rest.good("POST", f"{queue}/messages:receive", {"maxMessages": 4}, headers=named)["messages"]
    receipts = [quote(message["receiptHandle"], safe="") for message in got]
    rest.good("POST", f"{queue}/messages/{receipts[0]}:ack", headers=named)
    rest.good("POST", f"{queue}/messages/{receipts[1]}:nack", {"reason": "bad"}, headers=named)
    change = {"visibilityTimeoutSeconds": 60}
    rest.good("POST", f"{queue}/messages/{receipts[2]}:change-visibility", change, headers=named)

    def worker() -> dict[str, Any]:
        (found,) = (one for one in rest.good("GET", "/v1/workers")["workers"] if one["name"] == name)
        return dict(found)

    shown = worker()
    assert (shown["queues"], shown["state"], shown["inFlight"]) == (["work"], "polling", 2)
    assert (shown["receivedPerMinute"], shown["ackedPerMinute"], shown["failedPerMinute"]) == (4, 1, 1)
    assert shown["lastHeartbeatAtMs"] <= shown["lastSeenAtMs"] and shown["node"]
    rest.server.advance(40)
    assert worker()["state"] == "holding"
    rest.server.advance(40)
    assert worker()["state"] == "idle"
    rest.server.advance(120)
    assert worker()["state"] == "gone"
    rest.server.advance(3600)
    assert name not in [one["name"] for one in rest.good("GET", "/v1/workers")["workers"]]


def test_a_receive_from_several_queues_counts_for_each(rest: Rest) -> None:
    one, two = rest.create("hooks-one"), rest.create("hooks-two")
    for queue in (one, two):
        rest.send(queue, "x")
    rest.good("POST", "/v1/messages:receive", {"queues": ["hooks-*"], "consumer": "many"})
    assert pollers(rest, one)["many"]["receivedPerMinute"] == pollers(rest, two)["many"]["receivedPerMinute"] == 1
