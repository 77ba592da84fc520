"""What an operator does on the pages, in a real browser: look at a message, redrive, delete, acknowledge, make keys."""

from __future__ import annotations

import re
from itertools import count
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import WAIT_MS, Open, Opened
from tests.ui.page_list import wait_for_alarm
from tests.ui.servers import Rest, UiServer, wait_for

expect.set_options(timeout=WAIT_MS)
_names = count(1)


@pytest.fixture
def queue(rest: Rest) -> str:
    """A queue with a dead-letter queue, NAME-dead."""
    name = f"flow-{next(_names)}"
    rest("POST", "/v1/queues", {"name": name, "deadLetterQueue": f"{name}-dead", "maxReceiveCount": 2})
    return name


def send(rest: Rest, queue: str, body: Any, **more: Any) -> str:
    sent: str = rest("POST", f"/v1/queues/{queue}/messages", {"body": body, **more})["messageId"]
    return sent


def fail(rest: Rest, queue: str, error_class: str, count: int) -> None:
    """Dead letters: sent, received and dead-lettered at once."""
    for number in range(count):
        send(rest, queue, {"kind": error_class, "number": number})
    asked = {"maxMessages": count, "consumer": "failing-worker"}
    for message in rest("POST", f"/v1/queues/{queue}/messages:receive", asked)["messages"]:
        path = f"/v1/queues/{queue}/messages/{message['receiptHandle']}:nack"
        rest("POST", path, {"errorClass": error_class, "reason": f"{error_class} happened", "deadLetter": True})


def letters(rest: Rest, queue: str) -> int:
    found: int = rest("GET", f"/v1/queues/{queue}-dead/stats")["visible"]
    return found


def visible(rest: Rest, queue: str) -> int:
    found: int = rest("GET", f"/v1/queues/{queue}/stats")["visible"]
    return found


def verdict(page: Page) -> Any:
    return page.locator("#verdict")


# --- a message --------------------------------------------------------------------------------------


def test_a_message_explains_itself(opened: Opened, rest: Rest, queue: str) -> None:
    message = send(rest, queue, {"order": 7})
    asked = {"maxMessages": 1, "consumer": "web-7", "visibilityTimeoutSeconds": 600}
    rest("POST", f"/v1/queues/{queue}/messages:receive", asked)
    page = opened.go(f"/ui/queues/{queue}/messages/{message}")
    expect(verdict(page)).to_contain_text("Held by web-7 until")
    expect(page.locator(".timeline li")).to_have_count(2)
    expect(page.locator(".timeline")).to_contain_text("leased by web-7")
    expect(page.locator(".json")).to_contain_text("order: 7")


def test_the_page_of_a_message_changes_when_the_message_does(opened: Opened, rest: Rest, queue: str) -> None:
    message = send(rest, queue, "text")
    page = opened.go(f"/ui/queues/{queue}/messages/{message}")
    page.evaluate("() => { window.same = true; }")
    expect(verdict(page)).to_contain_text("Waiting")
    rest("POST", f"/v1/queues/{queue}/messages:receive", {"maxMessages": 1, "consumer": "web-1"})
    expect(verdict(page)).to_contain_text("Held by web-1")
    expect(page.locator(".timeline")).to_contain_text("leased by web-1")
    assert page.evaluate("() => window.same"), "the page was loaded again"


def test_a_message_is_edited(opened: Opened, rest: Rest, queue: str) -> None:
    message = send(rest, queue, {"amount": 1}, attributes={"source": "web"})
    page = opened.go(f"/ui/queues/{queue}/messages/{message}")
    page.get_by_text("Edit the body and the attributes").click()
    page.get_by_label("Body (JSON)").fill("{broken")
    with opened.watch.expecting("status of 400"):
        page.get_by_role("button", name="Save").click()
        expect(page.locator(".problem")).to_contain_text("The body: not valid JSON")
    expect(page.get_by_label("Body (JSON)")).to_have_value("{broken")
    page.get_by_label("Body (JSON)").fill('{"amount": 2}')
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".notice")).to_contain_text("The message is changed.")
    expect(page.locator(".json")).to_contain_text("amount: 2")
    received = rest("POST", f"/v1/queues/{queue}/messages:receive", {})["messages"]
    assert [(one["body"], one["attributes"]) for one in received] == [({"amount": 2}, {"source": "web"})]


def test_a_delayed_message_is_made_visible(opened: Opened, rest: Rest, queue: str) -> None:
    message = send(rest, queue, "later", delaySeconds=3600)
    page = opened.go(f"/ui/queues/{queue}/messages/{message}")
    page.get_by_role("button", name="Make visible now").click()
    expect(page.locator(".notice")).to_contain_text("visible now")
    assert visible(rest, queue) == 1


def test_a_dead_letter_is_redriven_from_its_page(opened: Opened, rest: Rest, queue: str) -> None:
    fail(rest, queue, "KeyError", 1)
    wait_for(lambda: letters(rest, queue) == 1)
    page = opened.go(f"/ui/queues/{queue}-dead/dead-letters")
    page.locator("td.name a").click()
    expect(verdict(page)).to_contain_text(f"Dead letter of {queue}: KeyError KeyError happened, 1 attempt.")
    expect(page.get_by_role("button", name="Make visible now")).to_have_count(0)
    page.get_by_role("button", name=f"Redrive to {queue}").click()
    expect(page.locator(".notice")).to_contain_text(f"it is in {queue} again")
    expect(verdict(page)).not_to_contain_text("Dead letter")
    wait_for(lambda: visible(rest, queue) == 1)


def test_a_message_is_deleted(opened: Opened, rest: Rest, queue: str) -> None:
    message = send(rest, queue, "unwanted")
    page = opened.go(f"/ui/queues/{queue}/messages/{message}")
    page.locator("summary", has_text="Delete").click()
    page.get_by_role("button", name="Delete this message").click()
    expect(page.locator(".notice")).to_contain_text(f"Message {message} is deleted.")
    assert visible(rest, queue) == 0


def test_a_message_that_does_not_exist_says_so(opened: Opened, queue: str) -> None:
    with opened.watch.expecting("status of 404"):
        page = opened.go(f"/ui/queues/{queue}/messages/none", status=404)
    expect(verdict(page)).to_contain_text("does not have it")


# --- dead letters -----------------------------------------------------------------------------------


def test_one_group_is_redriven_with_progress_pause_and_resume(opened: Opened, rest: Rest, queue: str) -> None:
    fail(rest, queue, "TypeError", 3)
    fail(rest, queue, "TimeoutError", 40)
    wait_for(lambda: letters(rest, queue) == 43)
    page = opened.go(f"/ui/queues/{queue}-dead/dead-letters")
    expect(verdict(page)).to_contain_text(f"43 dead letters from {queue} with 2 kinds of errors")
    group = page.locator(".group", has_text="TimeoutError happened")
    group.get_by_role("button", name="Redrive 40…").click()
    expect(verdict(page)).to_contain_text(f"This would move 40 messages of {queue}-dead with the error TimeoutError")
    page.get_by_label("Messages per second").fill("fast")
    with opened.watch.expecting("status of 400"):
        page.get_by_role("button", name="Preview").click()
        expect(verdict(page)).to_contain_text("Rate: write a whole number")
    page.get_by_label("Messages per second").fill("1")
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name=f"Redrive 40 messages to {queue} at 1/s, about 40 s").click()
    expect(verdict(page)).to_contain_text("Running:")
    page.get_by_role("button", name="Pause").click()
    expect(verdict(page)).to_contain_text("Paused:")
    assert 0 < letters(rest, queue) <= 43
    page.get_by_role("button", name="Resume").click()
    page.evaluate("() => { window.same = true; }")
    expect(verdict(page)).to_contain_text("Running:")
    moved = visible(rest, queue)
    wait_for(lambda: visible(rest, queue) > moved)
    expect(verdict(page)).not_to_contain_text(f"Running: {moved} of")
    assert page.evaluate("() => window.same"), "the page was loaded again"
    page.get_by_role("button", name="Cancel").click()
    expect(verdict(page)).to_contain_text("Cancelled:")


def test_selected_messages_are_changed_and_redriven(opened: Opened, rest: Rest, queue: str) -> None:
    fail(rest, queue, "ValueError", 3)
    wait_for(lambda: letters(rest, queue) == 3)
    page = opened.go(f"/ui/queues/{queue}-dead/dead-letters")
    for box in page.get_by_role("checkbox").all()[-2:]:
        box.check()
    page.get_by_role("button", name="Redrive the selected…").click()
    expect(verdict(page)).to_contain_text("This would move 2 messages of the 2 selected")
    page.get_by_text("Change the messages on the way").click()
    page.get_by_label("Replace this text in the body").fill("ValueError")
    page.get_by_label("with", exact=True).fill("mended")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("table")).to_contain_text("mended")
    page.get_by_role("button", name=re.compile("^Redrive 2 messages")).click()
    expect(verdict(page)).to_contain_text("Done: 2 messages moved")
    received = rest("POST", f"/v1/queues/{queue}/messages:receive", {})["messages"]
    assert {one["body"]["kind"] for one in received} == {"mended"}
    assert letters(rest, queue) == 1


def test_all_are_deleted_only_with_the_name_of_the_queue(opened: Opened, rest: Rest, queue: str) -> None:
    fail(rest, queue, "KeyError", 4)
    wait_for(lambda: letters(rest, queue) == 4)
    page = opened.go(f"/ui/queues/{queue}-dead/dead-letters")
    page.get_by_role("button", name="Delete all 4…").click()
    expect(verdict(page)).to_contain_text(f"This deletes all 4 messages of {queue}-dead for good.")
    page.get_by_label("To go on, write the name of the queue").fill("something")
    with opened.watch.expecting("status of 400"):
        page.get_by_role("button", name=f"Delete 4 messages from {queue}-dead").click()
        expect(verdict(page)).to_contain_text("Nothing was deleted")
    assert letters(rest, queue) == 4
    page.get_by_label("To go on, write the name of the queue").fill(f"{queue}-dead")
    page.get_by_role("button", name=f"Delete 4 messages from {queue}-dead").click()
    expect(verdict(page)).to_contain_text("Done: 4 messages deleted")
    assert letters(rest, queue) == 0


def test_the_list_of_dead_letter_queues_counts_without_a_reload(opened: Opened, rest: Rest, queue: str) -> None:
    page = opened.go("/ui/dead-letters")
    page.evaluate("() => { window.same = true; }")
    row = page.locator("tr", has=page.get_by_role("link", name=f"{queue}-dead", exact=True))
    expect(row).to_have_count(1)
    fail(rest, queue, "OSError", 5)
    expect(row.locator("td").nth(1)).to_contain_text("5")
    assert page.evaluate("() => window.same"), "the page was loaded again"


# --- alarms, workers, keys --------------------------------------------------------------------------


def test_an_alarm_is_acknowledged_with_a_note(opened: Opened, rest: Rest, queue: str) -> None:
    fail(rest, queue, "RuntimeError", 1)
    wait_for(lambda: letters(rest, queue) == 1)
    page = opened.go("/ui/alarms")
    wait_for_alarm(rest, f"{queue}-dead")
    link = page.get_by_role("link", name=re.compile(f"{queue}-dead has")).first
    link.click()
    page.get_by_label("Note for others").fill("I am looking at it")
    page.get_by_role("button", name="Acknowledge").click()
    expect(page.locator(".notice")).to_contain_text("acknowledged")
    row = page.locator("tr", has=page.get_by_role("link", name=re.compile(f"{queue}-dead has")))
    expect(row.first).to_contain_text("I am looking at it")


def test_a_worker_is_listed_with_what_it_holds(opened: Opened, rest: Rest, queue: str) -> None:
    for number in range(3):
        send(rest, queue, number)
    page = opened.go("/ui/workers")
    asked = {"maxMessages": 3, "consumer": f"{queue}-worker", "visibilityTimeoutSeconds": 600}
    rest("POST", f"/v1/queues/{queue}/messages:receive", asked)
    row = page.locator("tr", has_text=f"{queue}-worker")
    expect(row).to_contain_text("3")
    expect(row.get_by_role("link", name=queue)).to_have_count(1)


def test_the_secret_of_a_key_is_shown_once(opened: Opened, rest: Rest) -> None:
    page = opened.go("/ui/keys")
    page.get_by_label("Name").fill("flow-service")
    page.get_by_label("Expires").select_option("30")
    page.get_by_role("button", name="Create the key").click()
    expect(verdict(page)).to_contain_text("Copy its secret now")
    shown = page.locator(".made code").inner_text()
    secret = re.search(r"BATON_SECRET_ACCESS_KEY=(\S+)", shown)
    assert secret is not None
    made = next(key for key in rest("GET", "/v1/keys")["keys"] if key["name"] == "flow-service")
    assert f"BATON_ACCESS_KEY_ID={made['keyId']}" in shown and made["expiresAtMs"]
    page = opened.go("/ui/keys")
    assert secret[1] not in page.content()
    row = page.locator("tr", has_text="flow-service")
    row.get_by_role("button", name="Disable").click()
    expect(page.locator(".notice")).to_contain_text("is disabled")
    expect(row).to_contain_text("disabled")
    row.get_by_role("button", name="Enable").click()
    expect(row).to_contain_text("active")


# --- without a script, and by keyboard --------------------------------------------------------------


def test_a_redrive_works_without_a_script(open_page: Open, server: UiServer, rest: Rest, queue: str) -> None:
    fail(rest, queue, "LookupError", 2)
    wait_for(lambda: letters(rest, queue) == 2)
    page = open_page(server, java_script_enabled=False).go(f"/ui/queues/{queue}-dead/dead-letters")
    page.get_by_role("button", name="Redrive all 2…").click()
    page.get_by_role("button", name=re.compile(f"^Redrive 2 messages to {queue}")).click()
    expect(page.locator("h1")).to_contain_text(f"Redrive of {queue}-dead")
    wait_for(lambda: visible(rest, queue) == 2)


def test_the_keyboard_moves_through_rows_and_pages(opened: Opened, rest: Rest, queue: str) -> None:
    fail(rest, queue, "IndexError", 2)
    wait_for(lambda: letters(rest, queue) == 2)
    page = opened.go(f"/ui/queues/{queue}-dead/dead-letters")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(page.locator("tr.chosen")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("Message")
    page.wait_for_load_state("load")  # the scripts have run
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("j")
    expect(page.locator("h1")).to_contain_text("Jobs")
