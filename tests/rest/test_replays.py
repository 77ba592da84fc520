"""Replay by REST: retained messages are sent again, as a job."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.rest.support import Rest
from tests.rest.test_jobs import ended, state, until

QUEUE, AGAIN = "/v1/queues/orders", "/v1/queues/again"


def with_history(rest: Rest, count: int) -> None:
    rest.create("orders", retainSeconds=86_400)
    rest.create("again")
    messages = [{"body": {"n": n}, "attributes": {"tier": "paid" if n % 2 else "free"}} for n in range(count)]
    rest.good("POST", f"{QUEUE}/messages:batch", {"messages": messages})
    while got := rest.receive(QUEUE, 10):
        for message in got:
            rest.good("POST", f"{QUEUE}/messages/{message['receiptHandle']}:ack")


def replay(rest: Rest, **spec: Any) -> dict[str, Any]:
    job: dict[str, Any] = rest.good("POST", f"{QUEUE}:replay", {"maxMessagesPerSecond": 10_000, **spec})
    return job


def bodies(rest: Rest, queue: str) -> list[int]:
    return sorted(message["body"]["n"] for message in rest.good("GET", f"{queue}/messages?limit=100")["messages"])


def test_deleted_messages_are_delivered_again(rest: Rest) -> None:
    with_history(rest, 10)
    job = replay(rest, targetQueue="again")
    assert (job["kind"], job["sourceQueue"], job["targetQueue"]) == ("replay", "orders", "again")
    done = ended(rest, job)
    assert (done["state"], done["moved"], done["examined"], done["remaining"]) == ("COMPLETED", 10, 10, 0)
    assert bodies(rest, AGAIN) == [*range(10)]
    shown = rest.good("GET", f"{AGAIN}/messages?limit=1")["messages"][0]
    assert shown["replayOf"] != shown["messageId"] == shown["currentId"] and "deadLetter" not in shown
    assert rest.receive(AGAIN, 1)[0].get("deadLetter") is None
    assert [each["jobId"] for each in rest.good("GET", f"{QUEUE}/jobs")["jobs"]] == [job["jobId"]]
    done = ended(rest, rest.good("POST", f"{QUEUE}:replay"))  # without a body: everything, to the same queue
    assert (done["targetQueue"], done["moved"]) == ("orders", 10)
    assert bodies(rest, QUEUE) == [*range(10)]


def test_a_filter_and_a_dry_run(rest: Rest) -> None:
    with_history(rest, 10)
    chosen = {"attributes": {"tier": "paid"}}
    found = replay(rest, dryRun=True, filter=chosen)
    assert (found["dryRun"], found["examined"], found["matched"]) == (True, 10, 5)
    assert {message["body"]["n"] % 2 for message in found["sample"]} == {1}
    done = ended(rest, replay(rest, targetQueue="again", filter=chosen))
    assert done["moved"] == 5 and bodies(rest, AGAIN) == [1, 3, 5, 7, 9]


def test_times_and_positions(rest: Rest) -> None:
    with_history(rest, 3)
    cut = rest.good("GET", f"{QUEUE}/counters")
    rest.server.advance(5)
    moment = datetime.fromtimestamp((cut["atMs"] + 3_000) / 1000, UTC).isoformat()
    rest.send(QUEUE, {"n": 3})
    ended(rest, replay(rest, targetQueue="again", **{"from": moment}))
    assert bodies(rest, AGAIN) == [3]
    rest.good("POST", f"{AGAIN}:purge")
    ended(rest, replay(rest, targetQueue="again", until=moment))
    assert bodies(rest, AGAIN) == [0, 1, 2]
    rest.good("POST", f"{AGAIN}:purge")
    ended(rest, replay(rest, targetQueue="again", untilPositions=cut["positions"]))
    assert bodies(rest, AGAIN) == [0, 1, 2]
    rest.good("POST", f"{AGAIN}:purge")
    ended(rest, replay(rest, targetQueue="again", fromPositions=cut["positions"]))
    assert bodies(rest, AGAIN) == [3]


def test_it_waits_for_a_target_that_is_full_or_paused(rest: Rest) -> None:
    with_history(rest, 4)
    rest.good("PATCH", AGAIN, {"paused": "sends"})
    job = replay(rest, targetQueue="again")
    waiting = until(rest, job, lambda shown: bool(shown["why"]))
    assert waiting["state"] == "RUNNING" and "paused" in waiting["why"]
    assert bodies(rest, AGAIN) == []
    rest.good("PATCH", AGAIN, {"paused": "none"})
    done = ended(rest, job)
    assert (done["state"], done["moved"], done["why"]) == ("COMPLETED", 4, "")
    rest.good("PATCH", AGAIN, {"maxMessages": 3})
    job = replay(rest, targetQueue="again")
    assert "again is full" in until(rest, job, lambda shown: bool(shown["why"]))["why"]
    rest.good("POST", f"/v1/jobs/{job['jobId']}:pause")
    assert state(rest, job)["state"] == "PAUSED"
    rest.good("PATCH", AGAIN, {"maxMessages": 0})
    rest.good("POST", f"/v1/jobs/{job['jobId']}:resume")
    assert ended(rest, job)["moved"] == 4
    assert bodies(rest, AGAIN) == sorted([*range(4)] * 2)


@pytest.mark.parametrize(
    ("spec", "code", "said"),
    [
        ({"from": "yesterday"}, "invalid_input", "from"),
        ({"from": "2026-01-01T00:00:00"}, "invalid_input", "from"),
        ({"until": "1969-01-01T00:00:00Z"}, "invalid_input", "until"),
        ({"from": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}, "invalid_input", "until"),
        ({"fromPositions": ["here"]}, "invalid_input", "fromPositions"),
        ({"fromPositions": ["900:1"]}, "position_invalid", "shard 900"),
        ({"untilPositions": ["0:1", "0:2"]}, "position_invalid", "two positions of shard 0"),
        ({"targetQueue": "missing"}, "invalid_input", "targetQueue"),
        ({"maxMessagesPerSecond": 0}, "invalid_input", "maxMessagesPerSecond"),
        ({"color": "red"}, "invalid_input", "color"),
    ],
)
def test_what_is_refused_says_where(rest: Rest, spec: dict[str, Any], code: str, said: str) -> None:
    rest.create("orders", retainSeconds=60)
    answer = rest("POST", f"{QUEUE}:replay", spec)
    assert (answer.status, answer.code) == (400, code)
    assert said in answer.value["detail"]


def test_a_queue_that_retains_nothing(rest: Rest) -> None:
    rest.create("orders")
    answer = rest("POST", f"{QUEUE}:replay")
    assert (answer.status, answer.code) == (409, "not_retained")
    assert "retainSeconds" in answer.value["detail"]
    assert rest("POST", "/v1/queues/missing:replay").code == "queue_does_not_exist"
