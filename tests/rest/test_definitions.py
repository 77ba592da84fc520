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


# --- schedules ----------------------------------------------------------------------------------


def test_schedules_are_exported_and_imported(rest: Rest, other: Rest) -> None:
    rest.create("reports")
    rest.create("line", mode="FIFO")
    attributes = {"colour": "red", "raw": {"base64": "AAE="}}
    nightly = {
        "name": "nightly",
        "queue": "reports",
        "cron": "0 3 * * *",
        "timeZone": "Europe/Berlin",
        "endAt": "2097-01-31T09:00:00Z",
        "missed": "all",
        "enabled": False,
        "message": {"body": {"a": [1, None]}, "attributes": attributes, "priority": 9},
    }
    often: dict[str, Any] = {"name": "often", "queue": "line", "rateSeconds": 90.5, "missed": "last", "enabled": True}
    often["message"] = {"bodyBase64": "AP8=", "messageGroupId": "g", "ttlSeconds": 60.0, "maxReceiveCount": 2}
    for schedule in (nightly, often):
        rest.good("POST", "/v1/schedules", schedule)
    exported = rest.good("GET", PATH)
    assert exported["schedules"] == [often, nightly]
    dry = other.good("PUT", f"{PATH}?dryRun=true", exported)
    assert dry["schedulesCreated"] == ["often@line", "nightly@reports"] and not dry["applied"]
    assert other.good("GET", "/v1/schedules")["schedules"] == []
    done = other.good("PUT", PATH, exported)
    assert done["applied"] and done["schedulesCreated"] == ["often@line", "nightly@reports"]
    assert other.good("GET", PATH)["schedules"] == exported["schedules"]
    again = other.good("PUT", PATH, exported)
    assert not again["applied"] and "schedulesCreated" not in again and "schedulesChanged" not in again
    exported["schedules"][1]["enabled"] = True
    changed = other.good("PUT", PATH, exported)
    assert changed["schedulesChanged"] == ["nightly@reports"]
    assert other.good("GET", "/v1/schedules/nightly@reports")["state"] == "ACTIVE"


def test_wrong_schedules_change_nothing(rest: Rest) -> None:
    message = {"body": 1}
    schedules = [
        {"name": "a", "queue": "here", "cron": "99 * * * *", "message": message},
        {"name": "b", "queue": "nowhere", "rateSeconds": 5, "message": message},
        {"name": "c", "queue": "line", "rateSeconds": 5, "message": message},
        {"name": "d", "queue": "here", "rateSeconds": 5, "message": {"body": "x" * 2_000}},
        {"name": "e", "queue": "here", "rateSeconds": 5, "message": message},
        {"name": "e", "queue": "here", "rateSeconds": 6, "message": message},
    ]
    queues = [{"name": "here", "maxMessageBytes": 1024}, {"name": "line", "mode": "FIFO"}]
    answer = rest.good("PUT", PATH, {"version": 1, "queues": queues, "schedules": schedules})
    assert not answer["applied"] and rest.good("GET", "/v1/queues")["queues"] == []
    said = [
        ("a@here", "field 1 (minute)"),
        ("b@nowhere", "neither exists nor is defined"),
        ("c@line", "messageGroupId"),
        ("d@here", "at most 1024"),
        ("e@here", "defined twice"),
    ]
    assert len(answer["problems"]) == len(said)
    for problem, (name, text) in zip(answer["problems"], said, strict=True):
        assert name in problem and text in problem


# --- topics -------------------------------------------------------------------------------------


def make_topics(rest: Rest, foreign: str) -> None:
    for name in ("all", "red", "dead"):
        rest.create(name)
    rest.create("line", mode="FIFO")
    rest.good("POST", "/v1/topics", {"name": "news", "displayName": "News", "tags": {"team": "red"}})
    rest.good("POST", "/v1/topics", {"name": "events", "mode": "FIFO", "contentBasedDeduplication": True})
    red = {"filterPolicy": {"colour": ["red", {"prefix": "dark"}]}, "rawDelivery": False, "deadLetterQueue": "dead"}
    body = {"filterPolicy": {"size": [{"numeric": [">", 5]}]}, "filterPolicyScope": "MessageBody"}
    subscriptions: list[tuple[str, dict[str, Any]]] = [
        ("news", {"queue": "all"}),
        ("news", {"queue": "red", **red}),
        ("events", {"queue": "line", **body}),
    ]
    for topic, spec in subscriptions:
        rest.good("POST", f"/v1/topics/{topic}/subscriptions", spec)

    async def as_sns_does() -> None:
        broker = rest.server.broker
        await broker.create_queue(foreign, "far", {}, {})
        news = broker.topic(rest.account, "news")
        await broker.set_topic_attributes(news, {"Policy": '{"Statement": []}'})
        arn = f"arn:aws:sqs:us-east-1:{foreign}:far"
        attributes = {"FilterPolicy": ' { "a" : [ "ü" ] }', "DeliveryPolicy": "{}", "RawMessageDelivery": "false"}
        await broker.subscribe(news, arn, attributes, str(uuid4()))

    rest.server.run(as_sns_does)


def test_topics_are_exported_and_imported(rest: Rest, other: Rest) -> None:
    foreign = str(uuid4().int)[:12]
    make_topics(rest, foreign)
    exported = rest.good("GET", PATH)
    assert [topic["name"] for topic in exported["topics"]] == ["events", "news"]
    news = exported["topics"][1]
    assert (news["displayName"], news["tags"], news["retentionSeconds"]) == ("News", {"team": "red"}, 345_600)
    assert news["attributes"] == {"Policy": '{"Statement": []}'}
    assert news["subscriptions"][1] == {
        "queue": "red",
        "rawDelivery": False,
        "filterPolicy": {"colour": ["red", {"prefix": "dark"}]},
        "filterPolicyScope": "MessageAttributes",
        "deadLetterQueue": "dead",
    }
    far = news["subscriptions"][2]
    assert (far["queueAccount"], far["attributes"]) == (foreign, {"DeliveryPolicy": "{}"})
    created = {
        "topicsCreated": ["events", "news"],
        "subscriptionsCreated": ["line@events", "all@news", "red@news", "far@news"],
    }
    dry = other.good("PUT", f"{PATH}?dryRun=true", exported)
    assert not dry["applied"] and {name: dry[name] for name in created} == created
    assert other.good("GET", "/v1/topics")["topics"] == []
    done = other.good("PUT", PATH, exported)
    assert done["applied"] and done["problems"] == [] and {name: done[name] for name in created} == created
    assert other.good("GET", PATH)["topics"] == exported["topics"]
    for who in (rest, other):
        again = who.good("PUT", PATH, exported)
        assert again == {"applied": False, "created": [], "changed": [], "unchanged": 4, "problems": []}


def test_changes_of_topics_are_named_by_their_fields(rest: Rest) -> None:
    make_topics(rest, str(uuid4().int)[:12])
    topics = [
        {
            "name": "news",
            "displayName": None,
            "tags": {"team": "blue"},
            "subscriptions": [
                {"queue": "all", "filterPolicy": {"a": ["b"]}},
                {"queue": "red", "filterPolicy": None, "deadLetterQueue": None, "rawDelivery": False},
            ],
        }
    ]
    expected = {
        "topicsChanged": [{"name": "news", "fields": ["displayName", "tags"]}],
        "subscriptionsChanged": [
            {"name": "all@news", "fields": ["filterPolicy"]},
            {"name": "red@news", "fields": ["deadLetterQueue", "filterPolicy"]},
        ],
    }
    given = {"version": 1, "queues": [], "topics": topics}
    dry = rest.good("PUT", f"{PATH}?dryRun=true", given)
    assert not dry["applied"] and {name: dry[name] for name in expected} == expected
    assert rest.good("GET", "/v1/topics/news")["displayName"] == "News"
    done = rest.good("PUT", PATH, given)
    assert done["applied"] and {name: done[name] for name in expected} == expected
    topic = rest.good("GET", "/v1/topics/news")
    assert "displayName" not in topic and topic["tags"] == {"team": "blue"} and topic["subscriptions"] == 3
    first, second = rest.good("GET", "/v1/topics/news/subscriptions")["subscriptions"][:2]
    assert first["filterPolicy"] == {"a": ["b"]} and first["rawDelivery"]
    assert "filterPolicy" not in second and "deadLetterQueue" not in second and not second["rawDelivery"]
    assert not rest.good("PUT", PATH, given)["applied"]


def test_a_subscription_without_its_queue_is_left_out_and_left_alone(rest: Rest, other: Rest) -> None:
    make_topics(rest, str(uuid4().int)[:12])
    for name in ("all", "dead"):
        rest.good("DELETE", f"/v1/queues/{name}")
    exported = rest.good("GET", PATH)
    red, _ = exported["topics"][1]["subscriptions"]
    assert red["queue"] == "red" and "deadLetterQueue" not in red
    assert not rest.good("PUT", PATH, exported)["applied"]
    assert rest.good("GET", "/v1/topics/news")["subscriptions"] == 3
    assert other.good("PUT", PATH, exported)["problems"] == []


def test_wrong_topics_change_nothing(rest: Rest) -> None:
    rest.create("line", mode="FIFO")
    rest.good("POST", "/v1/topics", {"name": "old", "mode": "FIFO"})
    subscriptions: list[dict[str, Any]] = [
        {"queue": "nowhere"},
        {"queue": "line"},
        {"queue": "here", "filterPolicy": {"a": "b"}},
        {"queue": "two", "deadLetterQueue": "two"},
        {"queue": "three", "deadLetterQueue": "line"},
        {"queue": "four", "deadLetterQueue": "gone"},
        {"queue": "four"},
        {"queue": "five", "attributes": {"FilterPolicy": "{}"}},
    ]
    queues = [{"name": name} for name in ("here", "two", "three", "four", "five")]
    topics: list[dict[str, Any]] = [
        {"name": "old"},
        {"name": "dull", "contentBasedDeduplication": True},
        {"name": "news", "subscriptions": subscriptions},
        {"name": "news"},
    ]
    said = [
        ("Topic old", "mode FIFO, which cannot change"),
        ("Topic dull", "contentBasedDeduplication is for FIFO topics"),
        ("Subscription nowhere@news", "neither exists nor is defined here"),
        ("Subscription line@news", "only FIFO topics"),
        ("Subscription here@news", "filterPolicy"),
        ("Subscription two@news", "its own dead-letter queue"),
        ("Subscription three@news", "different mode"),
        ("Subscription four@news", "dead-letter queue gone neither exists"),
        ("Subscription four@news", "defined twice"),
        ("Subscription five@news", "'FilterPolicy'"),
        ("Topic news", "defined twice"),
    ]
    answer = rest.good("PUT", PATH, {"version": 1, "queues": queues, "topics": topics})
    assert not answer["applied"] and len(answer["problems"]) == len(said)
    for problem, (name, text) in zip(answer["problems"], said, strict=True):
        assert problem.startswith(f"{name}: ") and text in problem
    assert [queue["name"] for queue in rest.good("GET", "/v1/queues")["queues"]] == ["line"]


# --- reader groups ------------------------------------------------------------------------------


def test_reader_groups_are_exported_and_imported_without_positions(rest: Rest, other: Rest) -> None:
    rest.create("events", retainSeconds=3600)
    rest.create("failed")
    rest.create("plain")
    audit = {"name": "audit", "deadLetterQueue": "failed", "maxFailures": 5, "sessionSeconds": 12.5}
    rest.good("POST", "/v1/queues/events/readers", {**audit, "from": "end"})
    rest.good("POST", "/v1/queues/events/readers", {"name": "billing"})
    exported = rest.good("GET", PATH)
    billing = {"queue": "events", "name": "billing", "deadLetterQueue": None, "maxFailures": 3, "sessionSeconds": 30.0}
    assert exported["readers"] == [{"queue": "events", **audit}, billing]
    ids = ["audit@events", "billing@events"]
    dry = other.good("PUT", f"{PATH}?dryRun=true", exported)
    assert not dry["applied"] and dry["readersCreated"] == ids
    done = other.good("PUT", PATH, exported)
    assert done["applied"] and done["problems"] == [] and done["readersCreated"] == ids
    assert other.good("GET", PATH)["readers"] == exported["readers"]
    assert not other.good("PUT", PATH, exported)["applied"] and not rest.good("PUT", PATH, exported)["applied"]
    rest.good("DELETE", "/v1/queues/failed")
    exported = rest.good("GET", PATH)
    assert "deadLetterQueue" not in exported["readers"][0]
    assert not rest.good("PUT", PATH, exported)["applied"]


def test_wrong_reader_groups_change_nothing(rest: Rest) -> None:
    rest.create("events", retainSeconds=3600)
    rest.good("POST", "/v1/queues/events/readers", {"name": "old"})
    queues: list[dict[str, Any]] = [{"name": "plain"}, {"name": "line", "mode": "FIFO", "retainSeconds": 60}]
    readers: list[dict[str, Any]] = [
        {"queue": "nowhere", "name": "a"},
        {"queue": "plain", "name": "b"},
        {"queue": "line", "name": "c", "deadLetterQueue": "plain"},
        {"queue": "line", "name": "d", "deadLetterQueue": "gone"},
        {"queue": "line", "name": "e", "from": "yesterday"},
        {"queue": "line", "name": "f"},
        {"queue": "line", "name": "f"},
        {"queue": "events", "name": "old", "maxFailures": 9},
    ]
    said = [
        ("a@nowhere", "neither exists nor is defined here"),
        ("b@plain", "retains no history"),
        ("c@line", "different mode"),
        ("d@line", "dead-letter queue gone"),
        ("e@line", "yesterday"),
        ("f@line", "defined twice"),
        ("old@events", "different maxFailures, which cannot change"),
    ]
    answer = rest.good("PUT", PATH, {"version": 1, "queues": queues, "readers": readers})
    assert not answer["applied"] and len(answer["problems"]) == len(said)
    for problem, (name, text) in zip(answer["problems"], said, strict=True):
        assert problem.startswith(f"Reader group {name}: ") and text in problem


def test_an_import_that_starts_retaining_can_create_reader_groups(rest: Rest) -> None:
    rest.create("events")
    given = {
        "version": 1,
        "queues": [{"name": "events", "retainSeconds": 600}],
        "readers": [{"queue": "events", "name": "audit"}],
    }
    done = rest.good("PUT", PATH, given)
    assert done["problems"] == [] and done["readersCreated"] == ["audit@events"]
    assert rest.good("GET", "/v1/queues/events/readers/audit")["maxFailures"] == 3
