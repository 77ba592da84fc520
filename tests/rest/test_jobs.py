"""Redrive by REST: dead letters move on, as a job that can be looked at, paused, gone on with and cancelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from batonq.core.ids import message_id
from tests.api.support import wait_until
from tests.rest.support import Rest

QUEUE, DEAD = "/v1/queues/orders", "/v1/queues/dead"
STEP_S = 0.1


def kill(rest: Rest, messages: list[dict[str, Any]]) -> None:
    """Make the queue and its dead letters: each message was received once and refused."""
    if rest("GET", QUEUE).status == 404:
        rest.create("orders", deadLetterQueue="dead", maxReceiveCount=5)
    rest.good("POST", f"{QUEUE}/messages:batch", {"messages": messages})
    dead = rest.stats(DEAD)["visible"] + len(messages)
    die(rest, len(messages))
    wait_until(lambda: rest.stats(DEAD)["visible"] == dead)  # they may go from shard to shard


def die(rest: Rest, count: int) -> None:
    for message in rest.receive(QUEUE, count):
        number = message["body"]["n"] if isinstance(message["body"], dict) else 0
        failure = {"deadLetter": True, "errorClass": "Odd" if number % 2 else "Even", "reason": f"because of {number}"}
        rest.good("POST", f"{QUEUE}/messages/{message['receiptHandle']}:nack", failure)


def redrive(rest: Rest, **spec: Any) -> dict[str, Any]:
    job: dict[str, Any] = rest.good(
        "POST", f"{DEAD}:redrive", {"maxMessagesPerSecond": 10_000, "rampSeconds": 0, **spec}
    )
    return job


def state(rest: Rest, job: dict[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = rest.good("GET", f"/v1/jobs/{job['jobId']}")
    return shown


def until(rest: Rest, job: dict[str, Any], condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Let time pass for the job until something holds of it."""

    def look() -> bool:
        rest.server.advance(STEP_S)
        return condition(state(rest, job))

    wait_until(look)
    return state(rest, job)


def ended(rest: Rest, job: dict[str, Any]) -> dict[str, Any]:
    return until(rest, job, lambda shown: shown["state"] in ("COMPLETED", "CANCELLED", "FAILED"))


def bodies(rest: Rest, queue: str) -> list[Any]:
    return [message["body"] for message in rest.receive(queue, 100)]


def test_dead_letters_go_back_to_where_they_came_from(rest: Rest) -> None:
    kill(rest, [{"body": {"n": number}} for number in range(20)])
    answer = rest("POST", f"{DEAD}:redrive", {"maxMessagesPerSecond": 10_000})
    assert answer.status == 202
    job = answer.value
    assert answer.headers["location"] == f"/v1/jobs/{job['jobId']}"
    done = ended(rest, job)
    expected = {"state": "COMPLETED", "examined": 20, "matched": 20, "moved": 20, "remaining": 0, "diedAgain": 0}
    assert {name: done[name] for name in expected} == expected
    assert done["endedAtMs"] >= done["startedAtMs"]
    assert "targetQueue" not in done
    assert bodies(rest, QUEUE) == [{"n": number} for number in range(20)]
    assert [shown["jobId"] for shown in rest.good("GET", f"{DEAD}/jobs")["jobs"]] == [job["jobId"]]


def test_a_target_may_be_named(rest: Rest, packed: Rest) -> None:
    kill(rest, [{"body": {"n": 1}}])
    rest.create("elsewhere")
    job = redrive(packed, targetQueue="elsewhere")
    assert job["targetQueue"] == "elsewhere"
    ended(packed, job)
    assert bodies(rest, "/v1/queues/elsewhere") == [{"n": 1}]


@pytest.mark.parametrize(
    ("chosen", "numbers"),
    [
        ({"errorClass": "Odd"}, [1, 3, 5]),
        ({"reasonContains": "of 4"}, [4]),
        ({"attributes": {"kind": "a"}}, [0, 1, 2]),
        ({"attributes": {"size": 3}}, [3]),
        ({"bodyContains": '"n": 2'}, [2]),
        ({"minAgeSeconds": 3600}, []),
        ({"maxAgeSeconds": 3600, "errorClass": "Even"}, [0, 2, 4]),
    ],
    ids=repr,
)
def test_a_filter_chooses(rest: Rest, chosen: dict[str, Any], numbers: list[int]) -> None:
    kill(
        rest,
        [
            {"body": {"n": number}, "attributes": {"kind": "a" if number < 3 else "b", "size": number}}
            for number in range(6)
        ],
    )
    look = rest("POST", f"{DEAD}:redrive", {"filter": chosen, "dryRun": True})
    assert look.status == 200
    assert (look.value["matched"], look.value["examined"], look.value["moved"]) == (len(numbers), 6, 0)
    assert look.value["dryRun"] is True
    assert [message["body"]["n"] for message in look.value["sample"]] == numbers
    assert rest.stats(DEAD)["visible"] == 6
    assert rest.good("GET", f"{DEAD}/jobs") == {"jobs": []}
    done = ended(rest, redrive(rest, filter=chosen))
    assert (done["matched"], done["moved"]) == (len(numbers), len(numbers))
    assert sorted(body["n"] for body in bodies(rest, QUEUE)) == numbers
    assert rest.stats(DEAD)["visible"] == 6 - len(numbers)


def test_messages_may_be_named(rest: Rest, packed: Rest) -> None:
    kill(rest, [{"body": {"n": number}} for number in range(6)])
    messages = rest.good("GET", f"{DEAD}/messages")["messages"]
    ids = {message["body"]["n"]: message["currentId"] for message in messages}
    assert not set(ids.values()) & {message["messageId"] for message in messages}
    gone = message_id(0, 1)
    chosen = {"messageIds": [ids[4], ids[1], gone]}
    look = packed.good("POST", f"{DEAD}:redrive", {"filter": chosen, "dryRun": True})
    assert [(one["body"]["n"], one["currentId"]) for one in look["sample"]] == [(1, ids[1]), (4, ids[4])]
    done = ended(rest, redrive(rest, filter=chosen))
    assert (done["examined"], done["matched"], done["moved"], done["notFound"]) == (3, 2, 2, 1)
    again = ended(rest, redrive(rest, filter=chosen))
    assert (again["examined"], again["moved"], again["notFound"]) == (3, 0, 3)
    assert [body["n"] for body in bodies(rest, QUEUE)] == [1, 4]


def test_an_edit_changes_what_moves(rest: Rest) -> None:
    kill(rest, [{"body": {"n": 1, "host": "old.example"}, "attributes": {"a": "1", "b": "2"}}])
    edit = {
        "setAttributes": {"a": "changed", "c": 5, "d": {"base64": "AAE="}},
        "removeAttributes": ["b"],
        "replaceText": [{"find": "old.", "with": "new."}],
    }
    sample = rest.good("POST", f"{DEAD}:redrive", {"edit": edit, "dryRun": True})["sample"]
    ended(rest, redrive(rest, edit=edit))
    (message,) = rest.receive(QUEUE)
    assert message["body"] == sample[0]["body"] == {"n": 1, "host": "new.example"}
    assert message["attributes"] == sample[0]["attributes"] == {"a": "changed", "c": 5, "d": {"base64": "AAE="}}


@pytest.mark.parametrize("body", [{"whole": "new"}, "text", None, [1]], ids=repr)
def test_a_body_may_be_replaced(rest: Rest, packed: Rest, body: Any) -> None:
    kill(rest, [{"body": {"n": 1}}])
    ended(rest, redrive(rest, edit={"replaceBody": body}))
    (message,) = rest.receive(QUEUE)
    assert message["body"] == body


def test_a_body_may_be_replaced_by_bytes(packed: Rest) -> None:
    kill(packed, [{"body": {"n": 1}}])
    ended(packed, redrive(packed, edit={"replaceBody": b"\x00\x01"}))
    assert bodies(packed, QUEUE) == [b"\x00\x01"]


def test_one_job_a_source(rest: Rest) -> None:
    kill(rest, [{"body": {"n": number}} for number in range(5)])
    job = redrive(rest, maxMessagesPerSecond=1)
    answer = rest("POST", f"{DEAD}:redrive", {})
    assert (answer.status, answer.code) == (409, "job_conflict")
    assert rest.good("POST", f"/v1/jobs/{job['jobId']}:pause")["state"] == "PAUSED"
    assert rest("POST", f"{DEAD}:redrive", {}).code == "job_conflict"
    assert rest.good("POST", f"/v1/jobs/{job['jobId']}:resume")["state"] == "RUNNING"
    cancelled = rest.good("POST", f"/v1/jobs/{job['jobId']}:cancel")
    assert cancelled["state"] in ("CANCELLING", "CANCELLED")
    done = ended(rest, job)
    assert done["state"] == "CANCELLED"
    assert done["moved"] < 5
    assert rest("POST", f"{DEAD}:redrive", {}).status == 202


def test_a_redrive_pauses_itself_when_what_it_moved_dies_again(rest: Rest) -> None:
    kill(rest, [{"body": {"n": number}} for number in range(40)])
    job = redrive(rest, maxMessagesPerSecond=20, pauseWhenDyingShare=0.3)
    until(rest, job, lambda shown: shown["moved"] >= 10)
    rest.good("POST", f"/v1/jobs/{job['jobId']}:pause")
    moved = state(rest, job)["moved"]
    rest.good("POST", f"/v1/jobs/{job['jobId']}:resume")
    until(rest, job, lambda shown: shown["moved"] >= moved + 10)
    die(rest, 40)
    paused = until(rest, job, lambda shown: shown["state"] == "PAUSED")
    assert paused["diedAgain"] > 0
    assert paused["why"]
    rest.good("POST", f"/v1/jobs/{job['jobId']}:cancel")


def test_it_moves_no_more_than_it_is_told(rest: Rest) -> None:
    kill(rest, [{"body": {"n": number}} for number in range(6)])
    assert ended(rest, redrive(rest, maxMessages=4))["moved"] == 4
    assert rest.stats(DEAD)["visible"] == 2


@pytest.mark.parametrize(
    "spec",
    [
        {"maxMessagesPerSecond": 0},
        {"maxMessagesPerSecond": 10_001},
        {"pauseWhenDyingShare": 2},
        {"filter": {"unknown": 1}},
        {"filter": {"minAgeSeconds": -1}},
        {"edit": {"replaceText": [{"find": ""}]}},
        {"edit": {"replaceText": [{"find": "a", "with": "b"}], "replaceBody": 1}},
        {"edit": {"setAttributes": {"Baton.Priority": 1}}},
        {"targetQueue": "dead"},
        {"filter": {"messageIds": []}},
        {"filter": {"messageIds": ["x" * 36]}},
        {"filter": {"messageIds": ["x"]}},
        {"filter": {"messageIds": ["x" * 36] * 10_001}},
        {"edit": {"replaceBody": "x" * 65_536}},
        {"edit": {"replaceBody": [{}] * 90_000}},
        {"edit": {"replaceText": [{"find": "a", "with": "b" * 16_384}] * 5}},
    ],
    ids=lambda spec: repr(spec)[:60],
)
def test_redrives_that_are_refused(rest: Rest, spec: dict[str, Any]) -> None:
    kill(rest, [{"body": {"n": 1}}])
    answer = rest("POST", f"{DEAD}:redrive", spec)
    assert (answer.status, answer.code) == (400, "invalid_input")


def test_what_is_not_there(rest: Rest) -> None:
    kill(rest, [{"body": {"n": 1}}])
    answer = rest("POST", f"{DEAD}:redrive", {"targetQueue": "missing"})
    assert answer.code == "invalid_input" and "targetQueue" in answer.value["detail"]
    assert rest("POST", "/v1/queues/missing:redrive").code == "queue_does_not_exist"
    assert rest("GET", "/v1/jobs/missing").code == "job_not_found"
    for verb in ("cancel", "pause", "resume"):
        assert rest("POST", f"/v1/jobs/missing:{verb}").code == "job_not_found"
    plain = rest.create("plain")
    assert rest("POST", f"{plain}:redrive").code == "invalid_input"


def test_jobs_are_of_one_account(rest: Rest, packed: Rest) -> None:
    kill(rest, [{"body": {"n": 1}}])
    job = redrive(rest, maxMessagesPerSecond=1)
    packed.account = "999999999998"
    assert packed("GET", f"/v1/jobs/{job['jobId']}").code == "job_not_found"
    assert packed("POST", f"/v1/jobs/{job['jobId']}:cancel").code == "job_not_found"
