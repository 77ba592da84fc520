"""The pages of schedules: what they show, what they ask of REST, and how they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from batonq.api.http import Response
from tests.dashboard import samples
from tests.dashboard.pages import Browser, FakeRest, Refusal, header, text_of

PATH = "/v1/schedules/nightly%40reports"
PAGE = "/ui/schedules/nightly%40reports"
TIMES = ["2026-09-22T02:30:00+02:00", "2026-09-23T02:30:00+02:00"]
GOOD = {"name": "nightly", "queue": "reports", "cron": "30 2 * * *", "timeZone": "Europe/Berlin", "body": "{}"}


@pytest.fixture
def rest() -> FakeRest:
    return FakeRest(
        {
            "GET /v1/schedules": {"schedules": [samples.schedule()], "complete": True},
            "POST /v1/schedules": samples.schedule(),
            "POST /v1/schedules:preview": {"times": TIMES},
            f"GET {PATH}": samples.schedule(),
            f"PATCH {PATH}": samples.schedule(),
            f"DELETE {PATH}": None,
            f"POST {PATH}:fire": {"messageId": "m-10", "sequence": 10},
        }
    )


@pytest.fixture
def browser(rest: FakeRest) -> Browser:
    return Browser(rest)


def submit(browser: Browser, path: str, **form: str) -> Response:
    return browser.send("POST", path, {"form_token": browser.form_token(), **form})


def changed(rest: FakeRest) -> list[tuple[str, Any]]:
    asked = [(name, body) for name, _, body in rest.asked if not name.startswith("GET")]
    return [(name, body) for name, body in asked if not name.endswith(":preview")]


# --- the list


def test_the_list_says_what_fires_next(browser: Browser) -> None:
    page = browser.get("/ui/schedules")
    text = text_of(page)
    assert "1 schedule; nightly fires next, in 1 h." in text and "30 2 * * * in Europe/Berlin" in text
    assert f'<a href="{PAGE}">nightly</a>' in page


@pytest.mark.parametrize(
    ("schedules", "said"),
    [
        ([], "There are no schedules yet."),
        ([samples.schedule(state="PAUSED", enabled=False)], "1 schedule, none of them active."),
        (
            [samples.schedule(), samples.schedule("late", state="WAITING", why="Queue reports is full.")],
            "Schedule late cannot fire: Queue reports is full.",
        ),
    ],
)
def test_the_list_says_how_things_are(browser: Browser, rest: FakeRest, schedules: list[Any], said: str) -> None:
    rest.answers["GET /v1/schedules"] = {"schedules": schedules}
    assert said in text_of(browser.get("/ui/schedules"))


def test_the_list_of_one_queue_and_of_shards_that_are_missing(browser: Browser, rest: FakeRest) -> None:
    rest.answers["GET /v1/schedules"] = {"schedules": [samples.schedule()], "complete": False}
    page = browser.get("/ui/schedules?queue=reports")
    assert rest.asked[-1][1] == {"queue": "reports"} and "/ui/create-schedule?queue=reports" in page
    assert "Some shards did not answer" in text_of(page)


def test_a_rate_is_written_as_a_duration(browser: Browser, rest: FakeRest) -> None:
    every = samples.schedule(cron="", rateSeconds=300.0)
    rest.answers["GET /v1/schedules"] = {"schedules": [every]}
    assert "every 5 min" in text_of(browser.get("/ui/schedules"))


# --- a new one


def test_a_schedule_is_previewed_then_created(browser: Browser, rest: FakeRest) -> None:
    assert 'value="reports"' in browser.get("/ui/create-schedule?queue=reports")
    page = submit(browser, "/ui/create-schedule", step="preview", **{**GOOD, "name": ""}).body.decode()
    assert f"It would fire next at {TIMES[0]}. Nothing was created yet." in text_of(page) and TIMES[1] in page
    asked = {"cron": "30 2 * * *", "timeZone": "Europe/Berlin", "count": 5}
    assert rest.asked[-1][0::2] == ("POST /v1/schedules:preview", asked) and changed(rest) == []
    more = {"missed": "all", "startAt": "2027-01-01", "attributes": '{"a": "b"}', "group": "g"}
    response = submit(browser, "/ui/create-schedule", step="create", **GOOD, **more)
    assert header(response, "Location") == PAGE
    wanted = {
        "name": "nightly",
        "queue": "reports",
        "cron": "30 2 * * *",
        "timeZone": "Europe/Berlin",
        "missed": "all",
        "startAt": "2027-01-01T00:00:00Z",
        "message": {"body": {}, "attributes": {"a": "b"}, "messageGroupId": "g"},
    }
    assert changed(rest) == [("POST /v1/schedules", wanted)]


def test_a_rate_is_created(browser: Browser, rest: FakeRest) -> None:
    browser.get("/ui/create-schedule")
    form = {"name": "often", "queue": "reports", "rate": "5m", "body": "hello", "kind": "text"}
    assert submit(browser, "/ui/create-schedule", step="create", **form).status == 303
    wanted = {"name": "often", "queue": "reports", "rateSeconds": 300.0, "missed": "last", "message": {"body": "hello"}}
    assert changed(rest) == [("POST /v1/schedules", wanted)]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ""}, "name"),
        ({"queue": " "}, "queue"),
        ({"cron": ""}, "cron"),
        ({"rate": "5m"}, "cron"),
        ({"cron": "", "rate": "often"}, "rate"),
        ({"endAt": "never"}, "endAt"),
        ({"body": "{"}, "body"),
        ({"attributes": "x"}, "attributes"),
    ],
)
def test_a_wrong_schedule_is_not_sent(browser: Browser, rest: FakeRest, changes: dict[str, str], field: str) -> None:
    browser.get("/ui/create-schedule")
    response = submit(browser, "/ui/create-schedule", step="create", **{**GOOD, **changes})
    page = response.body.decode()
    assert response.status == 422 and f'href="#f-{field}"' in page and f'id="f-{field}"' in page
    assert changed(rest) == []


@pytest.mark.parametrize(
    ("detail", "field"),
    [
        ("cron: the minute '61' must be 0 to 59.", "cron"),
        ("There is no time zone 'Mars'.", "timeZone"),
        ("rateSeconds must be at least 1.", "rate"),
        ("queue: Queue 'x' does not exist.", "queue"),
        ("messageGroupId is required for a FIFO queue.", "group"),
        ("name must match a pattern.", "name"),
    ],
)
def test_what_the_server_refuses_is_explained_at_its_field(
    browser: Browser, rest: FakeRest, detail: str, field: str
) -> None:
    rest.answers["POST /v1/schedules"] = Refusal(400, "invalid_input", detail)
    browser.get("/ui/create-schedule")
    page = submit(browser, "/ui/create-schedule", step="create", **GOOD).body.decode()
    assert f'<a href="#f-{field}">' in page and detail.split()[0] in page


# --- one schedule


def test_a_schedule_shows_its_times_its_message_and_what_it_did(browser: Browser) -> None:
    page = browser.get(PAGE)
    text = text_of(page)
    assert "Fires in 1 h into reports , 30 2 * * * in Europe/Berlin. 7 firings so far." in text
    assert TIMES[0] in text and 'report : "daily"' in text and "7, of which 1 late; 0 skipped" in text
    assert '<a href="/ui/queues/reports/messages/m-9">' in page
    assert 'value="30 2 * * *"' in page, "in the form"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"state": "WAITING", "why": "Queue reports is paused."},
            "A firing is due and waits: Queue reports is paused.",
        ),
        ({"state": "PAUSED", "enabled": False}, "Paused: it does not fire. 7 firings so far."),
        ({"state": "ENDED"}, "Over: it fires no more. 7 firings so far."),
    ],
)
def test_a_schedule_says_how_it_is(browser: Browser, rest: FakeRest, changes: dict[str, Any], said: str) -> None:
    rest.answers[f"GET {PATH}"] = samples.schedule(**changes)
    assert said in text_of(browser.get(PAGE))


def test_a_schedule_is_paused_resumed_fired_and_deleted(browser: Browser, rest: FakeRest) -> None:
    browser.get(PAGE)
    assert header(submit(browser, PAGE, verb="pause"), "Location") == PAGE
    assert header(submit(browser, PAGE, verb="resume", back="/ui/schedules"), "Location") == "/ui/schedules"
    assert header(submit(browser, PAGE, verb="resume", back="https://elsewhere"), "Location") == PAGE
    assert header(submit(browser, PAGE, verb="fire"), "Location") == PAGE
    assert header(submit(browser, PAGE, verb="delete"), "Location") == "/ui/schedules"
    assert changed(rest) == [
        (f"PATCH {PATH}", {"enabled": False}),
        (f"PATCH {PATH}", {"enabled": True}),
        (f"PATCH {PATH}", {"enabled": True}),
        (f"POST {PATH}:fire", None),
        (f"DELETE {PATH}", None),
    ]


def test_a_schedule_is_changed(browser: Browser, rest: FakeRest) -> None:
    browser.get(PAGE)
    form = {"rate": "2h", "missed": "none", "endAt": "2027-01-01", "body": "[1]"}
    assert submit(browser, PAGE, verb="save", **form).status == 303
    wanted = {
        "rateSeconds": 7_200.0,
        "missed": "none",
        "startAt": None,
        "endAt": "2027-01-01T00:00:00Z",
        "message": {"body": [1]},
    }
    assert changed(rest) == [(f"PATCH {PATH}", wanted)]
    response = submit(browser, PAGE, verb="save", cron="", body="1")
    assert response.status == 422 and "either a cron expression" in text_of(response.body.decode())


def test_hostile_text_is_escaped(browser: Browser, rest: FakeRest) -> None:
    hostile = '"><script>alert(1)</script>'
    message = {"body": {hostile: hostile}, "attributes": {hostile: hostile}, "messageGroupId": hostile}
    names = ("name", "queue", "cron", "timeZone", "why", "lastMessageId", "scheduleId", "startAt", "endAt")
    one = samples.schedule(**dict.fromkeys(names, hostile), message=message, state="WAITING")
    rest.answers["GET /v1/schedules"] = {"schedules": [one]}
    rest.answers[f"GET {PATH}"] = one
    rest.answers["POST /v1/schedules:preview"] = {"times": [hostile]}
    form = dict.fromkeys(("name", "queue", "cron", "timeZone", "body", "group"), hostile)
    pages = [
        browser.get("/ui/schedules"),
        browser.get(PAGE),
        submit(browser, "/ui/create-schedule", step="preview", kind="text", **form).body.decode(),
    ]
    for page in pages:
        assert "<script>alert" not in page and "alert(1)" in page


def test_a_reader_sees_no_forms_and_asks_for_no_preview(rest: FakeRest) -> None:
    browser = Browser(rest, read_only=True)
    for path in ("/ui/schedules", PAGE, "/ui/create-schedule"):
        assert 'method="post"' not in browser.get(path).partition("<main")[2], path
    assert not [name for name, _, _ in rest.asked if not name.startswith("GET")]
