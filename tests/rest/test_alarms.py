"""Alarms, status and cluster over REST: a real server whose clock is moved, restarts, and bad questions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from batonq.node.alarms.kinds import KINDS
from tests.rest.support import Rest
from tests.support.server import ACCOUNT, TestServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TestServer]:
    # The machine's own disk must not decide what these tests see.
    with TestServer(str(tmp_path), alarm_disk_share=0.9999) as server:
        yield server


@pytest.fixture
def rest(server: TestServer) -> Iterator[Rest]:
    """Time passes only when a test says so: see `held_clock`."""
    made = Rest(server, ACCOUNT)
    yield made
    made.close()


def look(server: TestServer, seconds: float = 0) -> None:
    """Let time pass, and evaluate the rules."""
    server.run(server.node.alarm_desk.evaluate)
    if seconds:
        server.advance(seconds)
        server.run(server.node.alarm_desk.evaluate)


def alarms(rest: Rest) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = rest.good("GET", "/v1/alarms")["alarms"]
    return listed


def dead_letter(rest: Rest) -> None:
    """A queue with a dead letter."""
    rest.create("orders-dead")
    orders = rest.create("orders", deadLetterQueue="orders-dead", maxReceiveCount=1)
    rest.send(orders, "poison")
    (message,) = rest.receive(orders)
    rest.good("POST", f"{orders}/messages/{message['receiptHandle']}:nack", {"deadLetter": True})


def test_a_dead_letter_raises_an_alarm_after_a_minute_that_ends_when_it_is_gone(server: TestServer, rest: Rest) -> None:
    dead_letter(rest)
    look(server, 59)
    assert alarms(rest) == []
    look(server, 1)
    (alarm,) = alarms(rest)
    assert alarm["alarm"] == "dead-letters.orders-dead" and alarm["severity"] == "warning"
    assert alarm["text"] == "orders-dead has 1 dead letter." and "orders-dead" in alarm["remedy"]
    assert alarm["runbook"] == "docs/how-to/runbook.md#dead-letters"
    assert (alarm["queue"], alarm["account"], alarm["value"], alarm["threshold"]) == ("orders-dead", ACCOUNT, 1, 0)
    rest.good("POST", "/v1/queues/orders-dead:purge")
    look(server, 30)
    assert alarms(rest) == []
    answer = rest.good("GET", "/v1/alarms?history=true")
    (ended,) = answer["history"]
    assert ended["alarm"] == alarm["alarm"] and alarm["raisedAtMs"] < ended["endedAtMs"] == answer["atMs"]


def test_messages_that_nobody_receives_raise_an_alarm(server: TestServer, rest: Rest) -> None:
    orders = rest.create("orders", alarmSeverity="critical")
    for _ in range(3):
        rest.send(orders, "x")
    look(server, 300)
    (alarm,) = alarms(rest)
    assert (alarm["alarm"], alarm["severity"]) == ("no-consumer.orders", "critical")
    status = rest.good("GET", "/v1/status")
    assert status["verdict"]["sentence"] == "1 queue needs you: orders has 3 waiting messages and no consumer."
    assert status["verdict"]["problems"][0]["alarm"] == "no-consumer.orders"
    rest.receive(orders, 1)
    look(server, 10)
    assert alarms(rest) == []


@pytest.mark.parametrize(
    ("spec", "seconds", "kind"),
    [
        ({"slaSeconds": 100}, 81, "sla-age"),
        ({"retentionSeconds": 1_000}, 850, "retention-age"),
        ({"alarmDepth": 2}, 0, "depth"),
    ],
)
def test_the_settings_of_a_queue_decide(
    server: TestServer, rest: Rest, spec: dict[str, int], seconds: int, kind: str
) -> None:
    orders = rest.create("orders", **spec)
    for _ in range(3):
        rest.send(orders, "x")
    rest.receive(orders, 1, visibilityTimeoutSeconds=2_000)  # it has a consumer
    rest.send(orders, "y")
    server.advance(seconds)
    look(server, KINDS[kind].raise_after_s - 1)
    assert alarms(rest) == []
    look(server, 2)
    assert [alarm["kind"] for alarm in alarms(rest)] == [kind]


def test_an_alarm_is_acknowledged_and_that_survives_a_restart(tmp_path: Path) -> None:
    with (
        TestServer(str(tmp_path), alarm_disk_share=0.9999) as server,
        server.clock.held(),
        closing(Rest(server, ACCOUNT)) as rest,
    ):
        dead_letter(rest)
        look(server, 60)
        assert rest.good("GET", "/v1/status")["alarms"] == {"active": 1, "unacknowledged": 1}
        path = "/v1/alarms/dead-letters.orders-dead:acknowledge"
        answer = rest.good("POST", path, {"note": "I am on it"})
        assert answer["note"] == "I am on it" and answer["acknowledgedBy"] and answer["acknowledgedAtMs"]
        status = rest.good("GET", "/v1/status")
        assert status["alarms"] == {"active": 1, "unacknowledged": 0} and status["verdict"]["level"] == "ok"
        assert status["verdict"]["sentence"].endswith("1 acknowledged alarm is still active.")
        refused = rest("POST", "/v1/alarms/depth.orders:acknowledge")
        assert refused.code == "not_found" and "List the active alarms" in refused.value["detail"]
        assert rest("POST", path, {"note": "x" * 501}).code == "invalid_input"
        assert rest("POST", path, {"reason": "x"}).code == "invalid_input"

    with TestServer(str(tmp_path), alarm_disk_share=0.9999) as server, closing(Rest(server, ACCOUNT)) as rest:
        look(server)
        (alarm,) = alarms(rest)
        assert (alarm["alarm"], alarm["note"]) == ("dead-letters.orders-dead", "I am on it")


def test_bad_questions_are_refused(rest: Rest) -> None:
    assert "history must be true or false" in rest("GET", "/v1/alarms?history=1").value["detail"]
    assert "no parameters" in rest("GET", "/v1/status?x=1").value["detail"]
    refused = rest("POST", "/v1/alarms:test")
    assert refused.code == "invalid_input" and "--alarm-webhooks" in refused.value["detail"]


def test_the_status_counts_everything(server: TestServer, rest: Rest) -> None:
    dead_letter(rest)
    orders = "/v1/queues/orders"
    rest.send(orders, "a")
    rest.send(orders, "b", delaySeconds=100)
    rest.receive(orders, 1)
    rest.send(orders, "c")
    server.advance(7)
    status = rest.good("GET", "/v1/status")
    assert status["profile"] == "development" and status["version"] and status["node"] and not status["readOnly"]
    counts = {
        name: status[name] for name in ("queues", "visible", "inFlight", "delayed", "deadLetters", "dead", "owed")
    }
    assert counts == {
        "queues": 2,
        "visible": 2,
        "inFlight": 1,
        "delayed": 1,
        "deadLetters": 1,
        "dead": 0,
        "owed": 0,
    }
    assert status["oldestAgeSeconds"] == status["oldestVisibleAgeSeconds"] == 7
    assert status["oldestQueue"] in ("orders", "orders-dead")
    assert status["verdict"]["level"] == "warning" and status["verdict"]["problems"][0]["queue"] == "orders-dead"
    assert status["connections"] >= 0 and status["bytes"] > 0 and status["waitingReceives"] == 0
    (shard,) = status["shards"]
    assert shard["state"] == "serving" and shard["owner"] == status["node"] and shard["room"] == "plenty"
    assert [node["name"] for node in status["nodes"]] == [status["node"]]
    assert 0 < status["disk"]["freeBytes"] < status["disk"]["totalBytes"] and status["disk"]["usedBytes"] > 0
    assert status["memory"]["residentBytes"] > 1e6 and status["startedAtMs"] <= status["atMs"]


def test_a_single_server_is_a_cluster_of_one(rest: Rest) -> None:
    cluster = rest.good("GET", "/v1/cluster")
    (node,), (shard,) = cluster["nodes"], cluster["shards"]
    assert cluster["clustered"] is False and cluster["moves"] == []
    assert node["state"] == "up" and node["shards"] == 1 and node["version"] and node["residentBytes"]
    assert shard["owner"] == node["name"] == cluster["catalogOwner"] and shard["followers"] == []


def test_the_metrics_name_the_alarms(server: TestServer, rest: Rest) -> None:
    dead_letter(rest)
    look(server, 60)
    text = server.run(server.node.metrics.text).decode()
    assert 'baton_alarm_active{kind="dead-letters",severity="warning",queue="orders-dead"} 1' in text.splitlines()
