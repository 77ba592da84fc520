"""Pausing and explaining on the pages of a queue and of a message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.dashboard import samples
from tests.dashboard.pages import Browser, FakeRest, text_of
from tests.dashboard.test_live import _first as first_update

QUEUE = "/v1/queues/orders"
EXPLAINED = {
    "queue": "orders",
    "atMs": samples.NOW_MS,
    "text": "Delivery is paused: 3 messages wait, and receives get nothing.",
    "findings": [
        {
            "cause": "paused",
            "kind": "cause",
            "text": "Delivery is paused: 3 messages wait, and receives get nothing.",
            "action": "Resume it: `baton queue resume orders`.",
            "figures": {"visible": 3},
        },
        {"cause": "shrinking", "kind": "note", "text": "It shrinks.", "action": "Wait.", "figures": {}},
    ],
    "groups": [{"messageGroupId": "<b>&", "share": 0.75, "waiting": 9}],
}


@pytest.fixture
def rest() -> FakeRest:
    return FakeRest(
        {
            "GET /v1/status": samples.status(),
            f"GET {QUEUE}": samples.queue(),
            f"GET {QUEUE}/stats": samples.stats(),
            f"GET {QUEUE}/series": samples.series(queue="orders"),
            f"GET {QUEUE}:explain": EXPLAINED,
            f"PATCH {QUEUE}": samples.queue(),
        }
    )


def changes(rest: FakeRest) -> list[Any]:
    return [body for name, _, body in rest.asked if name.startswith("PATCH")]


def test_the_page_of_a_queue_explains_why_messages_wait(rest: FakeRest) -> None:
    page = Browser(rest).get("/ui/queues/orders")
    assert "Why messages wait" in page and "<code>baton queue resume orders</code>" in page
    assert "Delivery is paused: 3 messages wait" in text_of(page) and "75 %" in text_of(page)
    assert "<b>&" not in page and "&lt;b&gt;&amp;" in page, "names are escaped"


def test_a_queue_that_cannot_be_explained_is_shown_all_the_same(rest: FakeRest) -> None:
    del rest.answers[f"GET {QUEUE}:explain"]
    page = Browser(rest).get("/ui/queues/orders")
    assert "does not exist" in text_of(page) and 'data-plot="rates"' in page


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"paused": "delivery"}, "Delivery is paused: receives get nothing, and long polls wait."),
        ({"paused": "sends"}, "Sends are paused: new messages are refused. Deliveries go on."),
        ({"paused": "both"}, "Delivery and sends are paused."),
        ({"onlyGroup": "vip"}, "Only messages of the group vip are delivered."),
        ({"minimumPriority": 200}, "Only messages of priority 200 or above are delivered."),
    ],
)
def test_every_page_of_a_queue_says_what_is_held_back(rest: FakeRest, own: dict[str, Any], said: str) -> None:
    rest.answers[f"GET {QUEUE}"] = samples.queue(**own)
    for path in ("/ui/queues/orders", "/ui/queues/orders/settings", "/ui/queues/orders/consumers"):
        page = Browser(rest).get(path)
        assert said in text_of(page) and 'value="resume"' in page, path
        assert ('<span class="badge">paused</span>' in page) == ("paused" in own)


def test_a_cap_is_shown_and_needs_no_resume(rest: FakeRest) -> None:
    rest.answers[f"GET {QUEUE}"] = samples.queue(paused="none", deliveriesPerSecond=5)
    page = Browser(rest).get("/ui/queues/orders")
    assert "Deliveries are capped at 5 messages per second." in text_of(page) and 'value="resume"' not in page


@pytest.mark.parametrize(
    ("verb", "change"),
    [
        ("delivery", {"paused": "delivery"}),
        ("sends", {"paused": "sends"}),
        ("both", {"paused": "both"}),
        ("resume", {"paused": None, "onlyGroup": None, "minimumPriority": None}),
    ],
)
def test_the_buttons_pause_and_resume(rest: FakeRest, verb: str, change: dict[str, Any]) -> None:
    browser = Browser(rest)
    page = browser.get("/ui/queues/orders")
    assert "Pause delivery" in page
    browser.post("/ui/queues/orders/pause", verb=verb)
    assert changes(rest) == [change]


def test_an_unknown_button_changes_nothing(rest: FakeRest) -> None:
    browser = Browser(rest)
    browser.get("/ui/queues/orders")
    browser.post("/ui/queues/orders/pause", status=400, verb="everything")
    assert changes(rest) == []


def test_a_dashboard_that_cannot_change_anything_has_no_buttons(rest: FakeRest) -> None:
    rest.answers[f"GET {QUEUE}"] = samples.queue(paused="both")
    page = Browser(rest, read_only=True).get("/ui/queues/orders")
    assert "Delivery and sends are paused." in text_of(page)
    assert "Pause delivery" not in page and 'value="resume"' not in page


def test_the_list_of_queues_has_a_badge(rest: FakeRest) -> None:
    rows = [samples.summary("a", paused="sends"), samples.summary("b", paused="both"), samples.summary("c")]
    rest.answers["GET /v1/queues:stats"] = samples.queue_stats(*rows)
    page = Browser(rest).get("/ui/queues")
    assert page.count('<span class="badge">sends paused</span>') == 1
    assert page.count('<span class="badge">paused</span>') == 1


def test_a_waiting_message_shows_why_messages_of_its_queue_wait(rest: FakeRest) -> None:
    message = {"messageId": "m", "currentId": "m", "queue": "orders", "state": "VISIBLE", "why": "Waiting: paused."}
    rest.answers[f"GET {QUEUE}/messages/m"] = message
    page = Browser(rest).get("/ui/queues/orders/messages/m")
    assert "Waiting: paused." in text_of(page) and "Delivery is paused: 3 messages wait" in text_of(page)
    rest.answers[f"GET {QUEUE}/messages/m"] = {**message, "state": "IN_FLIGHT"}
    assert "Delivery is paused" not in text_of(Browser(rest).get("/ui/queues/orders/messages/m"))


def test_an_open_page_shows_a_pause_that_somebody_else_makes(rest: FakeRest) -> None:
    browser = Browser(rest)
    browser.get("/ui/queues/orders")
    rest.answers[f"GET {QUEUE}"] = samples.queue(paused="delivery")
    ((_, blocks),) = asyncio.run(first_update(browser, "/ui/queues/orders"))
    assert "Delivery is paused" in blocks["live_held_back"] and 'value="resume"' in blocks["live_held_back"]
    assert "Why" not in blocks["live_explain"] and "Resume it" in blocks["live_explain"]
    assert blocks["verdict"].endswith("left.")
