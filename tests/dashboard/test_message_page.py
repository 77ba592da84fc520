"""The page of one message: its headline, its id, and the button that delivers it again."""

from __future__ import annotations

from typing import Any

import pytest

from batonq.api.ui.pages.message import headline, retry_label
from tests.dashboard import samples
from tests.dashboard.pages import Browser, FakeRest, header, text_of

SENT_AS, CURRENT = "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"
MOVED_AS = "00000000-0000-0000-0000-000000000003"
LETTER = {"queue": "orders", "messageId": SENT_AS, "errorClass": "KeyError", "reason": "'customer'", "attempts": 2}
QUEUE = "/v1/queues/orders-dead/messages"
PAGE = f"/ui/queues/orders-dead/messages/{CURRENT}"


def dead_letter(**changes: Any) -> dict[str, Any]:
    place = {"queue": "orders-dead", "shard": 0, "where": "In queue orders-dead, on shard 0.", "history": []}
    return {**samples.peeked(2), **place, "messageId": SENT_AS, "currentId": CURRENT, "deadLetter": LETTER, **changes}


@pytest.fixture
def rest() -> FakeRest:
    return FakeRest({"GET /v1/status": samples.status(), f"GET {QUEUE}/{CURRENT}": dead_letter()})


def test_a_dead_letter_says_where_it_comes_from_and_offers_to_return_it(rest: FakeRest) -> None:
    page = Browser(rest).get(PAGE)
    text = text_of(page)
    assert "Dead letter of orders: KeyError 'customer', 2 attempts." in text
    assert "Redrive to orders" in text and "Make visible now" not in text


def test_the_current_id_is_the_heading_and_the_other_a_property(rest: FakeRest) -> None:
    browser = Browser(rest)
    text = text_of(browser.get(PAGE))
    assert f"Message {CURRENT} in" in text and f"sent as {SENT_AS}" in text
    rest.answers[f"GET {QUEUE}/{CURRENT}"] = dead_letter(messageId=CURRENT)
    assert "sent as" not in text_of(browser.get(PAGE))


def test_the_id_with_which_it_was_sent_leads_to_the_page_of_its_current_id(rest: FakeRest) -> None:
    rest.answers[f"GET {QUEUE}/{SENT_AS}"] = dead_letter()
    response = Browser(rest).send("GET", f"/ui/queues/orders-dead/messages/{SENT_AS}")
    assert (response.status, header(response, "Location")) == (303, PAGE)


def test_a_redriven_dead_letter_is_shown_in_its_source(rest: FakeRest) -> None:
    moves = [{"atMs": 1, "event": "moving", "toQueue": "orders"}, {"atMs": 2, "event": "moved"}]
    rest.answers[f"POST {QUEUE}/{CURRENT}:retry"] = dead_letter(state="DELETED", movedAs=MOVED_AS, history=moves)
    there = dead_letter(currentId=MOVED_AS, queue="orders", why="Waiting to be received.")  # it keeps its failure
    rest.answers[f"GET /v1/queues/orders/messages/{MOVED_AS}"] = there
    browser = Browser(rest)
    target = header(browser.post(PAGE, verb="retry"), "Location")
    assert target == f"/ui/queues/orders/messages/{MOVED_AS}"
    text = text_of(browser.get(target))
    assert "The message is redriven: it is in orders again." in text and "Waiting to be received." in text
    assert "Dead letter of" not in text and "Redrive to" not in text


def test_a_moved_message_links_to_where_it_is_now(rest: FakeRest) -> None:
    rest.answers[f"GET {QUEUE}/{CURRENT}"] = dead_letter(state="DELETED", movedTo="orders", movedAs=MOVED_AS)
    assert f'href="/ui/queues/orders/messages/{MOVED_AS}"' in Browser(rest).get(PAGE)


def test_a_redrive_that_was_refused_says_why(rest: FakeRest) -> None:
    refused = dead_letter(why="orders is full.")
    rest.answers[f"POST {QUEUE}/{CURRENT}:retry"] = refused
    browser = Browser(rest)
    assert header(browser.post(PAGE, verb="retry"), "Location") == PAGE
    assert "orders is full." in text_of(browser.get(PAGE))


@pytest.mark.parametrize(
    ("message", "label"),
    [
        ({"state": "VISIBLE"}, ""),
        ({"state": "DELAYED"}, "Make visible now"),
        ({"state": "DEAD"}, "Make visible now"),
        ({"state": "IN_FLIGHT"}, ""),
        ({"state": "VISIBLE", "deadLetter": LETTER}, "Redrive to orders"),
        ({"state": "DELAYED", "deadLetter": LETTER}, "Redrive to orders"),
        ({"state": "IN_FLIGHT", "deadLetter": LETTER}, ""),
        ({"state": "VISIBLE", "deadLetter": LETTER, "queue": "orders"}, ""),  # redriven
        ({"state": "VISIBLE", "deadLetter": LETTER, "history": [{"event": "arrived", "reason": "redrive"}]}, ""),
        ({"state": "VISIBLE", "deadLetter": {"attempts": 2}}, ""),  # its source was deleted
    ],
)
def test_what_the_button_says(message: dict[str, Any], label: str) -> None:
    assert retry_label(message) == label


def test_headlines() -> None:
    assert headline({"state": "VISIBLE", "why": "Waiting."}) == "Waiting."
    held = {"state": "IN_FLIGHT", "why": "Held by web-7.", "deadLetter": {"attempts": 1}}
    assert headline(held) == "Dead letter of a deleted queue: no error was reported, 1 attempt. Held by web-7."
