"""What a developer does on the pages of topics, retained history and schedules, in a real browser."""

from __future__ import annotations

import json
import re
from itertools import count

import pytest
from playwright.sync_api import expect

from tests.ui.conftest import WAIT_MS, Opened
from tests.ui.page_list import fill_history
from tests.ui.servers import Rest, wait_for

expect.set_options(timeout=WAIT_MS)
_names = count(1)


@pytest.fixture
def name(rest: Rest) -> str:
    """A name of its own for the queue and the topic of a test. The queue exists."""
    name = f"fanout-{next(_names)}"
    rest("POST", "/v1/queues", {"name": name})
    return name


# --- topics


def test_from_nothing_to_a_copy_in_a_queue(opened: Opened, rest: Rest, name: str) -> None:
    page = opened.go("/ui/create-topic")
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("button", name="Create the topic").click()
    expect(page.locator(".notice")).to_have_text(f"Topic {name} is created.")
    expect(page.locator("#verdict")).to_contain_text("goes nowhere")

    page.get_by_label("Queue", exact=True).fill(name)
    page.get_by_label("Filter", exact=False).first.fill('{"kind": ["created"]}')
    page.get_by_role("button", name="Subscribe").click()
    expect(page.locator(".notice")).to_have_text(f"Queue {name} is subscribed to {name}.")
    expect(page.locator("tbody")).to_contain_text('{"kind": ["created"]}')

    page.get_by_role("link", name="Publish and try").click()
    page.get_by_label("Attributes").fill('{"kind": "deleted"}')
    page.get_by_role("button", name="Which queues would get it?").click()
    expect(page.locator("#verdict")).to_contain_text("No subscription would get this message.")
    page.get_by_label("Attributes").fill('{"kind": "created"}')
    page.get_by_role("button", name="Which queues would get it?").click()
    expect(page.locator("#verdict")).to_contain_text("1 of 1 subscription would get this message")
    assert rest("GET", f"/v1/queues/{name}/stats")["sent"] == 0, "trying publishes nothing"

    page.get_by_label("Body").fill('{"order": 7}')
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.locator(".notice")).to_contain_text("Published as")
    wait_for(lambda: rest("GET", f"/v1/queues/{name}/stats")["visible"] == 1)
    (message,) = rest("GET", f"/v1/queues/{name}/messages")["messages"]
    body = message["body"]
    assert (json.loads(body) if isinstance(body, str) else body) == {"order": 7}


def test_a_wrong_filter_is_explained_and_then_corrected(opened: Opened, rest: Rest, name: str) -> None:
    rest("POST", "/v1/topics", {"name": name})
    made = rest("POST", f"/v1/topics/{name}/subscriptions", {"queue": name})["subscriptionId"]
    page = opened.go(f"/ui/topics/{name}/subscriptions/{made}")
    editor = page.locator("#f-filterPolicy")
    for text in ('{"kind": [{"numeric": [">"]}]}', "{broken"):
        with opened.watch.expecting("status of 422"):
            editor.fill(text)
            page.get_by_role("button", name="Save").click()
            expect(page.locator("#mistakes")).to_contain_text("Filter")
        expect(editor).to_have_value(text)
    editor.fill('{"kind": [{"numeric": [">", 5]}]}')
    page.get_by_label("Raw delivery").uncheck()
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".notice")).to_have_text("The subscription is changed.")
    found = rest("GET", f"/v1/topics/{name}/subscriptions/{made}")
    assert found["filterPolicy"] == {"kind": [{"numeric": [">", 5]}]} and found["rawDelivery"] is False
    page.get_by_text("Unsubscribe", exact=True).click()
    page.get_by_role("button", name=f"Unsubscribe {name}").click()
    expect(page.locator(".notice")).to_contain_text("gets no more copies")
    assert rest("GET", f"/v1/topics/{name}/subscriptions")["subscriptions"] == []


def test_deleting_a_topic_asks_for_its_name(opened: Opened, rest: Rest, name: str) -> None:
    rest("POST", "/v1/topics", {"name": name})
    page = opened.go(f"/ui/topics/{name}/settings")
    page.get_by_label("Copies wait for at most").fill("2h")
    page.get_by_role("button", name="Save settings").click()
    expect(page.locator(".notice")).to_have_text("The settings are changed.")
    assert rest("GET", f"/v1/topics/{name}")["retentionSeconds"] == 7_200
    with opened.watch.expecting("status of 422"):
        page.get_by_role("button", name=f"Delete {name}").click()
        expect(page.locator(".wrong")).to_contain_text("Type the topic's name")
    page.locator("#f-confirm").fill(name)
    page.get_by_role("button", name=f"Delete {name}").click()
    expect(page.locator(".notice")).to_have_text(f"Topic {name} is deleted, with 0 subscriptions.")


def test_copies_for_a_full_queue_are_shown_until_it_takes_them(opened: Opened, rest: Rest, name: str) -> None:
    rest("PATCH", f"/v1/queues/{name}", {"maxMessages": 1})
    rest("POST", "/v1/topics", {"name": name})
    rest("POST", f"/v1/topics/{name}/subscriptions", {"queue": name})
    for number in range(3):
        rest("POST", f"/v1/topics/{name}/messages", {"body": {"number": number}})
    page = opened.go(f"/ui/topics/{name}")
    expect(page.locator("#verdict")).to_contain_text("2 copies wait for a queue that is full")
    page.get_by_role("link", name="Waiting copies").click()
    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page.locator("tbody")).to_contain_text(f"Refused by the subscribed queue {name}")
    rest("PATCH", f"/v1/queues/{name}", {"maxMessages": 10})
    expect(page.locator("#verdict")).to_contain_text("No copy waits")
    assert rest("GET", f"/v1/queues/{name}/stats")["visible"] == 3


def test_the_list_of_topics_updates_itself(opened: Opened, rest: Rest, name: str) -> None:
    page = opened.go("/ui/topics")
    page.evaluate("() => { window.sameDocument = true; }")
    rest("POST", "/v1/topics", {"name": name})
    expect(page.locator("#main")).to_contain_text(name)
    assert page.evaluate("() => window.sameDocument") is True


# --- history


def test_a_reader_group_is_created_seen_and_sought(opened: Opened, rest: Rest, name: str) -> None:
    journal = f"{name}-journal"
    fill_history(rest, journal, "analytics")
    page = opened.go(f"/ui/queues/{journal}/history")
    expect(page.locator("tbody").first).to_contain_text("analytics")
    page.get_by_text("Create a reader group", exact=True).click()
    page.get_by_label("Name", exact=True).fill("backup")
    page.get_by_label("Start start, end", exact=False).fill("end")
    page.get_by_role("button", name="Create the group").click()
    expect(page.locator("#verdict")).to_contain_text("In step: it has read everything.")
    with opened.watch.expecting("status of 422"):
        page.get_by_label("Continue at").fill("soon")
        page.get_by_role("button", name="Seek").click()
        expect(page.locator("#mistakes")).to_contain_text("Write start, end, or a time.")
    page.get_by_label("Continue at").fill("start")
    page.get_by_role("button", name="Seek").click()
    expect(page.locator("#verdict")).to_contain_text("The lag is 30 messages")
    assert rest("GET", f"/v1/queues/{journal}/readers/backup")["lagMessages"] == 30
    page.get_by_role("button", name="Delete backup").click()
    expect(page.locator(".notice")).to_contain_text("Reader group backup is deleted")


def test_history_is_turned_on_in_the_settings(opened: Opened, rest: Rest, name: str) -> None:
    page = opened.go(f"/ui/queues/{name}/history")
    expect(page.locator("#verdict")).to_have_text("This queue keeps no history: a deleted message is gone.")
    page.get_by_role("link", name="how long messages are retained").click()
    page.get_by_label("Keep history for").fill("7d")
    page.get_by_role("button", name="Save settings").click()
    expect(page.locator(".notice")).to_have_text("Changed: keep history for.")
    assert rest("GET", f"/v1/queues/{name}")["retainSeconds"] == 604_800


def test_retained_messages_are_replayed(opened: Opened, rest: Rest, name: str) -> None:
    journal = f"{name}-journal"
    fill_history(rest, journal, "analytics")
    page = opened.go(f"/ui/queues/{journal}/history")
    page.get_by_role("link", name="Replay messages").click()
    page.get_by_label("To queue").fill(name)
    page.get_by_label("Messages per second").fill("1000")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#verdict")).to_contain_text(f"This would send 30 messages to {name} again.")
    assert rest("GET", f"/v1/queues/{name}/stats")["visible"] == 0, "a preview sends nothing"
    page.get_by_role("button", name=re.compile("^Replay 30 messages to")).click()
    expect(page.locator("#verdict")).to_contain_text("Done: 30 messages sent again")
    assert rest("GET", f"/v1/queues/{name}/stats")["visible"] == 30


def test_counters_are_exact(opened: Opened, rest: Rest, name: str) -> None:
    rest("POST", f"/v1/queues/{name}/messages", {"body": 1})
    page = opened.go(f"/ui/queues/{name}")
    page.get_by_role("link", name="Exact counters of each shard").click()
    expect(page.locator("#verdict")).to_contain_text("Everything is accounted for: 1 message came in")


# --- schedules


def test_a_schedule_is_previewed_created_fired_paused_and_deleted(opened: Opened, rest: Rest, name: str) -> None:
    page = opened.go(f"/ui/queues/{name}/try")
    page.get_by_role("link", name="Send a message again and again").click()
    expect(page.get_by_label("Queue", exact=True)).to_have_value(name)
    page.get_by_label("Name", exact=True).fill(name)
    with opened.watch.expecting("status of 422"):
        page.get_by_label("Cron expression").fill("61 8 * * *")
        page.get_by_role("button", name="Show the next firings").click()
        expect(page.locator("#mistakes")).to_contain_text("Cron expression")
    page.get_by_label("Cron expression").fill("30 8 * * MON-FRI")
    page.get_by_label("Time zone").fill("Europe/Berlin")
    page.get_by_role("button", name="Show the next firings").click()
    expect(page.locator("#verdict")).to_contain_text(re.compile(r"It would fire next at 2\d\d\d-.*T08:30:00\+0[12]:00"))
    expect(page.locator("ol.list li")).to_have_count(5)
    assert rest("GET", f"/v1/schedules?queue={name}")["schedules"] == [], "a preview creates nothing"

    page.get_by_label("Body").fill('{"report": 1}')
    page.get_by_role("button", name="Create the schedule").click()
    expect(page.locator(".notice")).to_have_text(f"Schedule {name} is created.")
    page.get_by_role("button", name="Send now").click()
    expect(page.locator(".notice")).to_contain_text("Sent now, as message")
    assert rest("GET", f"/v1/queues/{name}/stats")["visible"] == 1
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#verdict")).to_contain_text("Paused: it does not fire.")
    page.get_by_role("link", name="Schedules", exact=True).last.click()
    page.get_by_role("button", name=f"Resume {name}").click()
    expect(page.locator(".notice")).to_have_text("The schedule fires again.")

    page.get_by_role("row", name=name).get_by_role("link", name=name).first.click()
    page.get_by_text("Change the times and the message", exact=True).click()
    page.get_by_label("Cron expression").fill("")
    page.get_by_label("Or every").fill("2h")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".notice")).to_have_text("The schedule is changed.")
    (found,) = rest("GET", f"/v1/schedules?queue={name}")["schedules"]
    assert found["rateSeconds"] == 7_200 and found["enabled"] is True
    page.get_by_text("Delete", exact=True).click()
    page.get_by_role("button", name=f"Delete {name}").click()
    expect(page.locator(".notice")).to_contain_text("What it has sent stays.")
    assert rest("GET", f"/v1/schedules?queue={name}")["schedules"] == []


@pytest.mark.parametrize("where", ["list", "own page"])
def test_a_phone_shows_a_whole_cron_expression(opened: Opened, rest: Rest, name: str, where: str) -> None:
    cron = "0,10,20,30,40,50 6-20/2 1,15 JAN,MAR,MAY,JUL,SEP,NOV MON-FRI"
    timing = {"cron": cron, "timeZone": "America/Argentina/Buenos_Aires"}
    made = rest("POST", "/v1/schedules", {"name": name, "queue": name, **timing, "message": {"body": 1}})
    path = f"/ui/schedules?queue={name}" if where == "list" else f"/ui/schedules/{made['scheduleId']}"
    page = opened.go(path)
    page.set_viewport_size({"width": 390, "height": 844})
    cell = page.locator("td, dd", has=page.get_by_text(cron)).first
    expect(cell).to_contain_text("Buenos_Aires")
    assert cell.evaluate("cell => cell.scrollWidth <= cell.clientWidth"), "the expression is cut"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
