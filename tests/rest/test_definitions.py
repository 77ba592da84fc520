"""Definitions of queues: what is exported creates the same queues elsewhere, again and again, or says what is wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from batonq.api.rest import definitions
from batonq.errors import Unavailable
from tests.rest.support import Rest
from tests.support.server import ACCOUNT, TestServer

PATH = "/v1/definitions"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    with TestServer(str(tmp_path_factory.mktemp("definitions")), shards=3) as server:
        yield server


@pytest.fixture
def rest(running: TestServer) -> Iterator[Rest]:
    """A new account."""
    made = Rest(running, str(uuid4().int)[:12])
    yield made
    made.close()


@pytest.fixture
def other(running: TestServer) -> Iterator[Rest]:
    made = Rest(running, str(uuid4().int)[:12])
    yield made
    made.close()


def put(rest: Rest, queues: list[dict[str, Any]], **query: str) -> dict[str, Any]:
    asked = "?" + "&".join(f"{name}={value}" for name, value in query.items()) if query else ""
    answer: dict[str, Any] = rest.good("PUT", PATH + asked, {"version": 1, "queues": queues})
    return answer


def make_all_kinds(rest: Rest) -> None:
    rest.create("plain")
    rest.create(
        "full",
        deadLetterQueue="full-dead",
        maxReceiveCount=4,
        retry={"kind": "schedule", "delaysSeconds": [1, 60], "jitter": 0.1},
        slaSeconds=30,
        tags={"team": "red"},
        spread=2,
    )
    rest.create("line", mode="FIFO", deduplication={"contentBased": True})
    sqs = json.dumps({"maxReceiveCount": 2, "deadLetterTargetArn": f"arn:aws:sqs:us-east-1:{rest.account}:full"})
    allow = {"redrivePermission": "byQueue", "sourceQueueArns": [f"arn:aws:sqs:us-east-1:{rest.account}:chained"]}

    async def as_sqs_does() -> None:
        broker = rest.server.broker
        await broker.set_attributes(broker.queue(rest.account, "full"), {"RedriveAllowPolicy": json.dumps(allow)})
        await broker.create_queue(rest.account, "chained", {"RedrivePolicy": sqs, "VisibilityTimeout": "7"}, {})

    rest.server.run(as_sqs_does)


def test_what_is_exported_creates_the_same_queues_in_another_account(rest: Rest, other: Rest) -> None:
    make_all_kinds(rest)
    exported = rest.good("GET", PATH)
    assert (exported["version"], exported["account"]) == (1, rest.account)
    assert [queue["name"] for queue in exported["queues"]] == ["chained", "full", "full-dead", "line", "plain"]
    dry = other.good("PUT", PATH + "?dryRun=true", exported)
    assert not dry["applied"] and sorted(dry["created"]) == ["chained", "full", "full-dead", "line", "plain"]
    assert other.good("GET", PATH)["queues"] == []
    done = other.good("PUT", PATH, exported)
    assert (done["applied"], done["problems"], done["unchanged"]) == (True, [], 0)
    assert done["created"].index("full-dead") < done["created"].index("full") < done["created"].index("chained")
    again = other.good("GET", PATH)
    assert json.dumps(again["queues"]).replace(other.account, rest.account) == json.dumps(exported["queues"])
    for who in (rest, other):
        repeated = who.good("PUT", PATH, exported)
        expected = {"applied": False, "created": [], "changed": [], "unchanged": 5, "problems": []}
        assert repeated == expected


def test_a_change_is_named_by_its_fields_and_absent_fields_stay(rest: Rest) -> None:
    rest.create("orders", slaSeconds=9, tags={"a": "1"})
    definition = {"name": "orders", "defaultVisibilityTimeoutSeconds": 77, "tags": {"b": "2"}}
    expected = [{"name": "orders", "fields": ["defaultVisibilityTimeoutSeconds", "tags"]}]
    dry = put(rest, [definition], dryRun="true")
    assert (dry["applied"], dry["changed"]) == (False, expected)
    done = put(rest, [definition])
    assert (done["applied"], done["changed"], done["unchanged"]) == (True, expected, 0)
    shown = rest.good("GET", "/v1/queues/orders")
    assert (shown["defaultVisibilityTimeoutSeconds"], shown["tags"], shown["slaSeconds"]) == (77, {"b": "2"}, 9)
    assert put(rest, [definition])["unchanged"] == 1


def test_a_dead_letter_queue_is_given_and_taken_away(rest: Rest) -> None:
    put(rest, [{"name": "work", "deadLetterQueue": "dead", "maxReceiveCount": 3}, {"name": "dead"}])
    assert rest.good("GET", "/v1/queues/work")["deadLetterQueue"] == "dead"
    done = put(rest, [{"name": "work", "deadLetterQueue": None, "maxReceiveCount": 8}])
    assert done["changed"] == [{"name": "work", "fields": ["deadLetterQueue", "maxReceiveCount"]}]
    shown = rest.good("GET", "/v1/queues/work")
    assert shown["maxReceiveCount"] == 8 and "deadLetterQueue" not in shown
    assert put(rest, [{"name": "work", "deadLetterQueue": "dead"}])["problems"] == []
    assert rest.good("GET", "/v1/queues/work")["maxReceiveCount"] == 8


def test_queues_that_are_each_others_dead_letter_queues(rest: Rest) -> None:
    """SQS allows it, so an export can have it."""
    pair = [{"name": "a", "deadLetterQueue": "b"}, {"name": "b", "deadLetterQueue": "a"}]
    done = put(rest, pair)
    assert sorted(done["created"]) == ["a", "b"] and done["problems"] == []
    assert rest.good("GET", "/v1/queues/a")["deadLetterQueue"] == "b"
    assert rest.good("GET", "/v1/queues/b")["deadLetterQueue"] == "a"
    assert put(rest, pair)["unchanged"] == 2


def test_with_problems_nothing_is_changed_and_all_problems_are_named(rest: Rest) -> None:
    rest.create("line", mode="FIFO")
    definitions: list[dict[str, Any]] = [
        {"name": "good"},
        {"name": "work", "deadLetterQueue": "nowhere"},
        {"name": "self", "deadLetterQueue": "self"},
        {"name": "line"},
        {"name": "mixed", "deadLetterQueue": "line"},
        {"name": "good"},
        {"name": "odd", "attributes": {"RedrivePolicy": "{}"}},
        {"name": "bad", "attributes": {"RedriveAllowPolicy": "no JSON"}},
        {"name": "standard", "deduplication": {"contentBased": True}},
    ]
    for query in ({}, {"dryRun": "true"}):
        answer = put(rest, definitions, **query)
        assert not answer["applied"]
        assert sorted({problem.split(":")[0] for problem in answer["problems"]}) == [
            f"Queue {name}" for name in ("bad", "good", "line", "mixed", "odd", "self", "standard", "work")
        ]
    assert any("nowhere neither exists nor is defined here" in problem for problem in answer["problems"])
    assert [queue["name"] for queue in rest.good("GET", PATH)["queues"]] == ["line"]


def test_a_failure_in_the_middle_says_what_was_done(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = rest.server.broker
    create = broker.create_queue

    async def failing(account: str, name: str, *rest: Any, **named: Any) -> Any:
        if name == "second":
            raise Unavailable("The catalog's log failed.")
        return await create(account, name, *rest, **named)

    monkeypatch.setattr(broker, "create_queue", failing)
    definitions = [{"name": name} for name in ("first", "second", "third")]
    answer = put(rest, definitions)
    assert answer["applied"] and answer["created"] == ["first"]
    (problem,) = answer["problems"]
    assert problem.startswith("Queue second: The catalog's log failed. 2 definitions were not applied, this one")
    monkeypatch.undo()
    answer = put(rest, definitions)
    assert (answer["created"], answer["unchanged"], answer["problems"]) == (["second", "third"], 1, [])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"queues": []}, "version"),
        ({"version": 2, "queues": []}, "version"),
        ({"version": 1}, "queues"),
        ({"version": 1, "queues": [{"name": "a b"}]}, "name"),
        ({"version": 1, "queues": [{"name": "a", "colour": 1}]}, "colour"),
    ],
)
def test_what_is_no_document_of_definitions(rest: Rest, value: Any, said: str) -> None:
    answer = rest("PUT", PATH, value)
    assert answer.code == "invalid_input" and said in answer.value["detail"]
    assert rest("PUT", PATH + "?dryRun=perhaps", {"version": 1, "queues": []}).code == "invalid_input"
    assert rest("GET", PATH + "?account=5").code == "invalid_input"


def test_an_operator_exports_another_account(rest: Rest, other: Rest) -> None:
    rest.create("theirs")
    exported = other.good("GET", f"{PATH}?account={rest.account}")
    assert (exported["account"], exported["queues"][0]["name"]) == (rest.account, "theirs")
    assert other.account != ACCOUNT


def test_a_cycle_of_dead_letter_queues_is_completed_around_a_queue_that_exists(rest: Rest) -> None:
    rest.create("old")
    queues: list[dict[str, Any]] = [
        {"name": "new", "deadLetterQueue": "old"},
        {"name": "old", "deadLetterQueue": "new", "slaSeconds": 30},
    ]
    answer = put(rest, queues)
    assert answer["problems"] == [] and answer["created"] == ["new"], answer
    exported = {one["name"]: one for one in rest.good("GET", PATH)["queues"]}
    assert (exported["new"]["deadLetterQueue"], exported["old"]["deadLetterQueue"]) == ("old", "new")
    assert exported["old"]["slaSeconds"] == 30
    assert put(rest, queues)["unchanged"] == 2


def test_many_definitions_leave_time_for_other_requests() -> None:
    async def main() -> int:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        task = asyncio.create_task(others())
        assert [number async for number in definitions._in_turns(range(1_000))] == [*range(1_000)]
        task.cancel()
        return turns

    assert asyncio.run(main()) >= 1_000 // definitions.TURN_QUEUES - 1
