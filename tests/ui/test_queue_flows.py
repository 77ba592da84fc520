"""What a developer does on the pages of queues, in a real browser: create, send, browse, receive, change, purge."""

from __future__ import annotations

import re
from itertools import count

import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import WAIT_MS, Open, Opened
from tests.ui.servers import Rest, UiServer, wait_for

expect.set_options(timeout=WAIT_MS)
_names = count(1)


@pytest.fixture
def queue(rest: Rest) -> str:
    name = f"page-{next(_names)}"
    rest("POST", "/v1/queues", {"name": name, "deadLetterQueue": f"{name}-dead", "maxReceiveCount": 2})
    return name


def verdict(page: Page) -> str:
    return page.locator("#verdict").inner_text()


def test_from_nothing_to_an_acknowledged_message(opened: Opened, rest: Rest) -> None:
    name = f"made-{next(_names)}"
    page = opened.go("/ui/create-queue")
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Dead-letter queue").fill(f"{name}-dead")
    page.get_by_label("Maximum receives").fill("3")
    page.get_by_role("button", name="Create the queue").click()
    expect(page.locator(".notice")).to_have_text(f"Queue {name} is created.")
    assert rest("GET", f"/v1/queues/{name}")["maxReceiveCount"] == 3

    page.get_by_role("link", name="Send and receive").click()
    page.get_by_label("Body").fill('{"order": {"number": 7}}')
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator(".notice")).to_contain_text("Stored as")

    page.get_by_role("link", name="Messages", exact=True).click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody")).to_contain_text('"number": 7')

    page.get_by_role("link", name="Send and receive").click()
    page.get_by_role("button", name="Receive", exact=True).click()
    expect(page.locator(".received .json")).to_contain_text("number: 7")
    page.get_by_role("button", name="Acknowledge selected").click()
    expect(page.locator(".notice")).to_have_text("1 message acknowledged.")
    stats = rest("GET", f"/v1/queues/{name}/stats")
    assert (stats["deleted"], stats["visible"], stats["inFlight"]) == (1, 0, 0)


def test_a_wrong_setting_is_explained_next_to_its_field(opened: Opened, rest: Rest, queue: str) -> None:
    page = opened.go(f"/ui/queues/{queue}/settings")
    with opened.watch.expecting("status of 422"):
        page.get_by_label("Retention").fill("1")
        page.get_by_role("button", name="Save settings").click()
        expect(page.locator(".wrong")).to_have_text("Use 60 to 1,209,600.")
    expect(page.get_by_label("Retention")).to_have_value("1")
    page.get_by_label("Retention").fill("120")
    page.get_by_label("Tags").fill("team=shop")
    page.get_by_role("button", name="Save settings").click()
    expect(page.locator(".notice")).to_have_text("Changed: retention, tags.")
    found = rest("GET", f"/v1/queues/{queue}")
    assert (found["retentionSeconds"], found["tags"]) == (120, {"team": "shop"})


def test_purging_and_deleting_ask_for_the_name(opened: Opened, rest: Rest, queue: str) -> None:
    for number in range(3):
        rest("POST", f"/v1/queues/{queue}/messages", {"body": number})
    page = opened.go(f"/ui/queues/{queue}/settings")
    with opened.watch.expecting("status of 422"):
        page.get_by_role("button", name="Purge 3 messages").click()
        expect(page.locator(".wrong")).to_contain_text(f"Type the queue's name, {queue}")
    assert rest("GET", f"/v1/queues/{queue}/stats")["visible"] == 3
    page.locator("#confirm-purge").fill(queue)
    page.get_by_role("button", name="Purge 3 messages").click()
    expect(page.locator(".notice")).to_have_text(f"Purged: 3 messages deleted from {queue}.")
    assert rest("GET", f"/v1/queues/{queue}/stats")["visible"] == 0
    page.get_by_role("link", name="Settings").click()
    page.locator("#confirm-delete").fill(queue)
    page.get_by_role("button", name="Delete the queue and 0 messages").click()
    expect(page.locator(".notice")).to_have_text(f"Queue {queue} is deleted, with 0 messages.")


def test_browsing_filters_in_the_address(opened: Opened, rest: Rest, queue: str) -> None:
    for number in range(30):
        rest("POST", f"/v1/queues/{queue}/messages", {"body": {"number": number, "name": f"item-{number}"}})
    page = opened.go(f"/ui/queues/{queue}/messages")
    expect(page.locator("tbody tr")).to_have_count(25)
    page.get_by_role("link", name="Next page").click()
    expect(page.locator("tbody tr")).to_have_count(5)
    page.goto(f"{opened.url}/ui/queues/{queue}/messages")
    page.keyboard.press("/")
    page.keyboard.type("item-17")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("text=item-17"))
    expect(page.locator("tbody tr")).to_have_count(1)
    page.goto(f"{opened.url}/ui/queues/{queue}/messages?state=IN_FLIGHT")
    expect(page.locator(".empty")).to_contain_text("No message matches")


def test_a_page_updates_itself_in_place(opened: Opened, rest: Rest, queue: str) -> None:
    page = opened.go(f"/ui/queues/{queue}")
    expect(page.locator("#verdict")).to_contain_text("Empty")
    page.evaluate("() => { window.sameDocument = true; }")
    rest("POST", f"/v1/queues/{queue}/messages", {"body": 1})
    expect(page.locator("#verdict")).to_contain_text("1 message waits")
    assert page.evaluate("() => window.sameDocument") is True


def test_an_update_keeps_the_focus(opened: Opened, rest: Rest, queue: str) -> None:
    rest("POST", f"/v1/queues/{queue}/messages", {"body": 1})
    page = opened.go(f"/ui/queues/{queue}/messages")
    page.keyboard.press("j")
    focused = page.evaluate("() => document.activeElement.href")
    assert f"/ui/queues/{queue}/messages/" in focused
    rest("POST", f"/v1/queues/{queue}/messages", {"body": 2})
    expect(page.locator("tbody tr")).to_have_count(2)
    assert page.evaluate("() => document.activeElement.href") == focused
    page.keyboard.press("Enter")
    expect(page).to_have_url(focused)


def test_a_dashboard_that_lost_its_server_says_so(
    browser: object, open_page: Open, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with UiServer(tmp_path_factory.mktemp("lost")) as server:
        server.rest("POST", "/v1/queues", {"name": "orders"})
        opened = open_page(server)
        page = opened.go("/ui/queues/orders")
        expect(page.locator("#stale")).to_be_hidden()
    with opened.watch.expecting(
        "ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_INCOMPLETE", "ERR_EMPTY_RESPONSE"
    ):
        expect(page.locator("#stale")).to_contain_text(re.compile(r"Live updates lost \d+ s ago, retrying"))


def test_the_theme_is_kept(open_page: Open, server: UiServer) -> None:
    opened = open_page(server, color_scheme="light")
    page = opened.go("/ui/start")
    light = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Dark").click()
    dark = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert dark != light
    page.reload()
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == dark
    expect(page.get_by_role("button", name="Light")).to_be_visible()


def test_the_keys_of_the_keyboard(opened: Opened) -> None:
    page = opened.go("/ui/start")
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).to_be_hidden()
    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page).to_have_url(re.compile("/ui/queues$"))


def test_the_list_is_searched_while_typing(opened: Opened, rest: Rest) -> None:
    for name in ("find-alpha", "find-beta", "find-alphabet"):
        rest("POST", "/v1/queues", {"name": name})
    page = opened.go("/ui/queues?search=find-")
    expect(page.locator("tbody tr")).to_have_count(3)
    page.get_by_label("Search queues").fill("find-alpha")
    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page).to_have_url(re.compile("search=find-alpha$"))
    page.locator("thead a").first.click()
    expect(page).to_have_url(re.compile("sort=name"))


def test_plots_are_drawn_and_share_a_crosshair(opened: Opened, rest: Rest, queue: str) -> None:
    rest("POST", f"/v1/queues/{queue}/messages", {"body": 1})
    page = opened.go(f"/ui/queues/{queue}?range=1h")
    expect(page.locator(".plot canvas")).to_have_count(6)
    expect(page.locator(".legend").first).to_contain_text("sent")
    page.locator(".plot .u-over").first.hover()
    wait_for(lambda: page.locator(".plot-time").inner_text())
    page.get_by_role("link", name="These figures as a table").click()
    expect(page.locator("table")).to_contain_text("acknowledged")


def test_a_queue_is_paused_and_resumed(opened: Opened, rest: Rest, queue: str) -> None:
    rest("POST", f"/v1/queues/{queue}/messages", {"body": "one"})
    page = opened.go(f"/ui/queues/{queue}")
    page.get_by_text("Pause or drain").click()
    page.get_by_role("button", name="Pause delivery").click()
    expect(page.locator(".notice")).to_contain_text("Delivery is paused")
    expect(page.locator(".held-back")).to_contain_text("receives get nothing")
    expect(page.locator(".findings")).to_contain_text("Delivery is paused: 1 message waits")
    assert rest("GET", f"/v1/queues/{queue}")["paused"] == "delivery"
    page.get_by_role("link", name="Settings").click()
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".notice")).to_contain_text("Resumed")
    expect(page.locator(".held-back")).to_have_count(0)
    assert rest("GET", f"/v1/queues/{queue}")["paused"] == "none"
