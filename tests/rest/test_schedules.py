"""Schedules by REST: definitions, firings, changes, previews and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.rest.support import Rest

SCHEDULES = "/v1/schedules"


@pytest.fixture(params=["json", "msgpack"])
def any_rest(request: pytest.FixtureRequest, rest: Rest, packed: Rest) -> Rest:
    return rest if request.param == "json" else packed


def spec(**fields: Any) -> dict[str, Any]:
    return {"name": "often", "queue": "queue", "rateSeconds": 60, "message": {"body": {"n": 1}}, **fields}


def now(rest: Rest, queue: str) -> datetime:
    """By the server's clock, which tests move."""
    return datetime.fromtimestamp(rest.stats(queue)["atMs"] / 1000, UTC)


def test_a_schedule_with_everything(any_rest: Rest) -> None:
    rest, queue = any_rest, any_rest.create()
    end = (now(rest, queue) + timedelta(days=400)).replace(microsecond=0)
    message = {
        "body": [1, None, "é"],
        "attributes": {"colour": "red", "size": 5},
        "messageGroupId": "g",
        "ttlSeconds": 90.5,
        "maxReceiveCount": 3,
        "priority": 200,
    }
    given = spec(name="nightly", cron="0 3 * * *", timeZone="Europe/Berlin", missed="all", message=message)
    given |= {"endAt": end.isoformat()}
    del given["rateSeconds"]
    answer = rest("POST", SCHEDULES, given)
    assert answer.status == 201 and answer.headers["location"] == "/v1/schedules/nightly@queue"
    made = answer.value
    assert made["scheduleId"] == "nightly@queue" and made["message"] == message
    assert (made["cron"], made["timeZone"], made["missed"]) == ("0 3 * * *", "Europe/Berlin", "all")
    assert (made["state"], made["enabled"], made["firings"]) == ("ACTIVE", True, 0)
    assert made["endAt"] == end.isoformat().replace("+00:00", "Z")
    assert rest("POST", SCHEDULES, given).status == 200, "the same again is not another schedule"
    assert rest("POST", SCHEDULES, {**given, "missed": "none"}).code == "schedule_exists"
    assert rest.good("GET", f"{SCHEDULES}/nightly@queue") == made
    (listed,) = rest.good("GET", SCHEDULES)["schedules"]
    assert listed == {name: value for name, value in made.items() if name != "message"}
    assert rest.good("GET", f"{SCHEDULES}?queue=queue")["schedules"] == [listed]
    rest.create("other")
    assert rest.good("GET", f"{SCHEDULES}?queue=other")["schedules"] == []
    assert rest("DELETE", f"{SCHEDULES}/nightly@queue").status == 204
    assert rest("GET", f"{SCHEDULES}/nightly@queue").code == "schedule_not_found"


def test_a_schedule_fires(rest: Rest) -> None:
    queue = rest.create()
    made = rest.good("POST", SCHEDULES, spec(missed="all", message={"body": "tick", "attributes": {"a": "b"}}))
    assert made["nextAtMs"] == made["createdAtMs"] + 60_000
    rest.server.advance(200)
    messages = rest.receive(queue)
    assert [message["body"] for message in messages] == ["tick"] * 3
    assert messages[0]["attributes"]["a"] == "b" and messages[0]["attributes"]["scheduleName"] == "often"
    times = [datetime.fromisoformat(message["attributes"]["scheduledTime"]) for message in messages]
    assert [round(time.timestamp() * 1000) - made["nextAtMs"] for time in times] == [0, 60_000, 120_000]
    shown = rest.good("GET", f"{SCHEDULES}/often@queue")
    assert (shown["firings"], shown["lateFirings"], shown["skippedFirings"]) == (3, 3, 0)
    assert shown["lastMessageId"] == messages[-1]["messageId"] and shown["lastDueAtMs"] == made["nextAtMs"] + 120_000
    fired = rest("POST", f"{SCHEDULES}/often@queue:fire")
    assert fired.status == 202
    (extra,) = rest.receive(queue)
    assert extra["messageId"] == fired.value["messageId"] and extra["body"] == "tick"
    after = rest.good("GET", f"{SCHEDULES}/often@queue")
    assert (after["firings"], after["nextAtMs"]) == (3, shown["nextAtMs"])


def test_a_full_queue_makes_a_schedule_wait_and_say_so(rest: Rest) -> None:
    queue = rest.create("small", maxMessages=1)
    rest.send(queue, "in the way")
    rest.good("POST", SCHEDULES, spec(queue="small"))
    rest.server.advance(61)
    shown = rest.good("GET", f"{SCHEDULES}/often@small")
    assert shown["state"] == "WAITING" and "Queue small is full" in shown["why"]
    assert rest("POST", f"{SCHEDULES}/often@small:fire").code == "over_limit"


def test_changes(rest: Rest) -> None:
    queue = rest.create()
    made = rest.good("POST", SCHEDULES, spec())
    address = f"{SCHEDULES}/often@queue"
    assert rest.good("PATCH", address, {}) == made
    paused = rest.good("PATCH", address, {"enabled": False})
    assert (paused["state"], paused["enabled"]) == ("PAUSED", False)
    rest.server.advance(600)
    assert rest.stats(queue)["sent"] == 0
    resumed = rest.good("PATCH", address, {"enabled": True, "message": {"bodyBase64": "AAEC", "priority": "high"}})
    assert resumed["nextAtMs"] == made["nextAtMs"] + 600_000 and resumed["skippedFirings"] == 0
    assert resumed["message"] == {"bodyBase64": "AAEC", "priority": 192}
    by_cron = rest.good("PATCH", address, {"cron": "0 12 * * *", "timeZone": "Asia/Tokyo"})
    assert "rateSeconds" not in by_cron and by_cron["timeZone"] == "Asia/Tokyo"
    assert by_cron["nextAtMs"] % 86_400_000 == 3 * 3_600_000
    moved = rest.good("PATCH", address, {"timeZone": "UTC", "missed": "none"})
    assert (moved["cron"], moved["timeZone"], moved["missed"]) == ("0 12 * * *", "UTC", "none")
    start = (now(rest, queue) + timedelta(days=30)).replace(microsecond=0)
    later = rest.good("PATCH", address, {"startAt": start.isoformat()})
    assert later["nextAtMs"] >= start.timestamp() * 1000 and later["startAt"]
    assert "startAt" not in rest.good("PATCH", address, {"startAt": None})
    rate = rest.good("PATCH", address, {"rateSeconds": 5})
    assert rate["rateSeconds"] == 5 and "cron" not in rate and "timeZone" not in rate
    assert rest.good("PATCH", address, {"rateSeconds": 6})["rateSeconds"] == 6


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"cron": "61 * * * *", "rateSeconds": None}, "field 1 (minute) is '61'"),
    ({"cron": "* * *", "rateSeconds": None}, "has 3 fields"),
    ({"cron": "0 0 31 2 *", "rateSeconds": None}, "never due"),
    ({"cron": "* * * * *"}, "either cron or rateSeconds"),
    ({"rateSeconds": None}, "either cron or rateSeconds"),
    ({"rateSeconds": 0.5}, "rateSeconds must be a number, 1 or more"),
    ({"timeZone": "UTC"}, "timeZone is for cron"),
    ({"cron": "* * * * *", "rateSeconds": None, "timeZone": "Europe/Berln"}, "Did you mean Europe/Berlin?"),
    ({"startAt": "2027-01-31T09:00:00"}, "startAt must be a time with a time zone"),
    ({"endAt": "soon"}, "endAt is not a time in RFC 3339"),
    ({"endAt": "2001-01-01T00:00:00Z"}, "never due"),
    ({"startAt": "2031-01-01T00:00:00Z", "endAt": "2030-01-01T00:00:00Z"}, "endAt must be after startAt"),
    ({"missed": "some"}, "missed"),
    ({"name": "with space"}, "name"),
    ({"name": "a@b"}, "name"),
    ({"queue": "nowhere"}, "queue: Queue 'nowhere' does not exist"),
    ({"message": {}}, "no body"),
    ({"message": {"body": 1, "bodyBase64": "AA=="}}, "both set"),
    ({"message": {"body": 1, "bodyBase64": None, "delaySeconds": 5}}, "delaySeconds"),
    ({"message": {"body": "x" * 200_000}}, "bytes"),
]


@pytest.mark.parametrize(("fields", "said"), WRONG)
def test_wrong_schedules_are_refused(rest: Rest, fields: dict[str, Any], said: str) -> None:
    rest.create()
    answer = rest("POST", SCHEDULES, spec(**fields))
    assert answer.status in (400, 413) and said in answer.value["detail"], answer.value
    assert rest.good("GET", SCHEDULES)["schedules"] == []


def test_fifo_queues_need_a_group(rest: Rest) -> None:
    rest.create("line", mode="FIFO")
    assert "messageGroupId" in rest("POST", SCHEDULES, spec(queue="line")).value["detail"]
    rest.good("POST", SCHEDULES, spec(queue="line", message={"body": 1, "messageGroupId": "g"}))
    rest.server.advance(121)
    assert [one["messageGroupId"] for one in rest.receive("/v1/queues/line")] == ["g"]


def test_names_that_are_not_there(rest: Rest) -> None:
    rest.create()
    for address in ("often", "often@queue", "often@nowhere", "@queue", "a@b@c"):
        for method in ("GET", "DELETE", "PATCH"):
            assert (
                rest(method, f"{SCHEDULES}/{address}", {} if method == "PATCH" else None).code == "schedule_not_found"
            )
    assert rest("GET", f"{SCHEDULES}?queue=nowhere").code == "queue_does_not_exist"


def test_previews(any_rest: Rest) -> None:
    rest = any_rest
    given = {"cron": "30 2 * * *", "timeZone": "Europe/Berlin", "count": 3, "after": "2026-03-27T12:00:00Z"}
    times = rest.good("POST", f"{SCHEDULES}:preview", given)["times"]
    assert times == ["2026-03-28T02:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]
    given = {"rateSeconds": 90, "startAt": "2026-01-01T00:00:00Z", "after": "2026-01-01T00:00:00Z", "count": 2}
    assert rest.good("POST", f"{SCHEDULES}:preview", given)["times"] == ["2026-01-01T00:01:30Z", "2026-01-01T00:03:00Z"]
    assert len(rest.good("POST", f"{SCHEDULES}:preview", {"rateSeconds": 90})["times"]) == 10
    assert "field 2 (hour)" in rest("POST", f"{SCHEDULES}:preview", {"cron": "* 25 * * *"}).value["detail"]
    ended = {"rateSeconds": 90, "endAt": "2020-01-01T00:00:00Z"}
    assert rest.good("POST", f"{SCHEDULES}:preview", ended)["times"] == []


def test_times_after_the_year_9999_are_told(rest: Rest) -> None:
    rest.create()
    cron = {"cron": "0 0 * * *", "timeZone": "Asia/Tokyo"}
    last = "9999-12-31T23:59:59Z"
    for timing in ({**cron, "startAt": last}, {"rateSeconds": 60, "startAt": last}):
        given = {"name": "late", "queue": "queue", "message": {"body": 1}, **timing}
        answer = rest("POST", SCHEDULES, given)
        assert answer.status == 400 and "never due" in answer.value["detail"]
    assert rest.good("POST", f"{SCHEDULES}:preview", {**cron, "after": last})["times"] == []
    yearly = {"rateSeconds": 365 * 86_400, "startAt": "9998-12-31T00:00:00Z", "count": 3}
    assert len(rest.good("POST", f"{SCHEDULES}:preview", yearly)["times"]) == 2
