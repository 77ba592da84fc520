"""The messages of a queue: browse without receiving, send a test message, receive and acknowledge."""

from __future__ import annotations

import json
from typing import Any

from batonq.api.ui.backend import Problem, path_of, segment
from batonq.api.ui.pages import queue as queue_page
from batonq.api.ui.routes import Route
from batonq.api.ui.view import Mistake, Page, Redirect, View
from batonq.quantities import read_duration_s

PAGE = 25
RECEIVE_MAX = 10
STATES = ("", "VISIBLE", "IN_FLIGHT", "DELAYED", "OWED", "DEAD")
CONSUMER = "dashboard"
# The fields of the forms to send and to receive, by the ids of their elements.
_LABELS = (("body", "Body"), ("attributes", "Attributes"), ("delay", "Delay"), ("visibility", "Visibility timeout"))
BODY_BYTES_MAX = 256 * 1024  # of a test message


# --- browse


async def browse(view: View) -> Page:
    head = await queue_page.top(view)
    after = view.whole("after", 0, 0, (1 << 53) - 1)
    asked = {name: view.query.get(name, "").strip() for name in ("text", "group", "errorClass", "holder")}
    state = view.choice("state", STATES)
    found = await view.optional(
        path_of("queues", view.names["queue"], "messages"), limit=PAGE, after=after or None, state=state, **asked
    )
    filtered = bool(state) or any(asked.values())
    return queue_page.page(
        "queue_messages.html", head, found=found, asked={**asked, "state": state}, filtered=filtered, after=after
    )


# --- send and receive


async def show_try(view: View) -> Page:
    return _try_page(await queue_page.top(view))


def _try_page(head: dict[str, Any], **values: Any) -> Page:
    known = {"form": {}, "wrong": {}, "sent": None, "received": None, **values}
    page = queue_page.page("queue_try.html", head, **known)
    page.mistakes = [Mistake(name, label, known["wrong"][name]) for name, label in _LABELS if name in known["wrong"]]
    page.status = 422 if page.mistakes else 200
    return page


async def act_try(view: View) -> Page | Redirect:
    action = view.form.get("action", "")
    if action == "send":
        return await _send(view)
    if action == "receive":
        return await _receive(view)
    if action in ("ack", "nack"):
        return await _settle(view, action)
    raise Problem(400, "invalid_input", "The form says neither send, receive, ack nor nack.")


async def _send(view: View) -> Page:
    form = view.form
    message, wrong = message_of(form)
    sent = None
    if not wrong:
        try:
            path = path_of("queues", view.names["queue"], "messages")
            sent = await view.backend.change("POST", path, message)
        except Problem as problem:
            if problem.status in (401, 403, 404):
                raise
            wrong["body"] = problem.detail
    return _try_page(await queue_page.top(view), form=form, wrong=wrong, sent=sent)


def message_of(form: dict[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The message that a form describes, and what is wrong with the form, by field."""
    wrong: dict[str, str] = {}
    message: dict[str, Any] = {}
    text = form.get("body", "").replace("\r\n", "\n")
    if len(text.encode()) > BODY_BYTES_MAX:
        wrong["body"] = f"A test message may have {BODY_BYTES_MAX:,} bytes; this one has {len(text.encode()):,}."
    elif form.get("kind") == "text":
        message["body"] = text
    else:
        try:
            message["body"] = json.loads(text)
        except (ValueError, RecursionError) as problem:
            wrong["body"] = f"This is not JSON: {problem}. Send it as text, or correct it."
    if form.get("attributes", "").strip():
        try:
            message["attributes"] = json.loads(form["attributes"])
        except (ValueError, RecursionError):
            wrong["attributes"] = 'Write attributes as a JSON object, such as {"source": "test"}.'
    for name, field in (("group", "messageGroupId"), ("deduplication", "deduplicationKey")):
        if form.get(name, "").strip():
            message[field] = form[name].strip()
    if form.get("delay", "").strip():
        try:
            message["delaySeconds"] = read_duration_s(form["delay"].strip())
        except ValueError:
            wrong["delay"] = "Write the delay as a number of seconds, or as 250ms, 5m or 2h."
    if form.get("priority", "").strip():
        message["priority"] = form["priority"].strip()
    return message, wrong


async def _receive(view: View) -> Page:
    count = view.form.get("count", "1")
    spec: dict[str, Any] = {
        "maxMessages": min(RECEIVE_MAX, max(1, int(count))) if count.isdecimal() and len(count) < 4 else 1,
        "waitSeconds": 0,
        "consumer": CONSUMER,
    }
    seconds = view.form.get("visibility", "").strip()
    wrong: dict[str, str] = {}
    if seconds:
        try:
            spec["visibilityTimeoutSeconds"] = read_duration_s(seconds)
        except ValueError:
            wrong["visibility"] = "Write the visibility timeout as a number of seconds, or as 5m or 2h."
    received = None
    if not wrong:
        try:
            path = path_of("queues", view.names["queue"], "messages") + ":receive"
            received = (await view.backend.change("POST", path, spec))["messages"]
        except Problem as problem:
            if problem.status in (401, 403, 404):
                raise
            wrong["visibility"] = problem.detail
    return _try_page(await queue_page.top(view), form=view.form, wrong=wrong, received=received)


async def _settle(view: View, action: str) -> Redirect:
    """Acknowledge the received messages that were selected, or return them."""
    receipts = view.selected("receipt")
    queue = view.names["queue"]
    target = f"/ui/queues/{segment(queue)}/try"
    if not receipts:
        return Redirect(target, "No message was selected.")
    path = path_of("queues", queue, "messages") + f":{action}"
    if action == "ack":
        body: dict[str, Any] = {"receiptHandles": receipts}
    else:
        returned = {"delaySeconds": 0, "reason": "returned from the dashboard", "untried": True}
        body = {"messages": [{"receiptHandle": receipt, **returned} for receipt in receipts]}
    results = (await view.backend.change("POST", path, body))["results"]
    failed = [result["error"]["detail"] for result in results if result.get("error")]
    done = len(results) - len(failed)
    words = (
        f"{done} message{'' if done == 1 else 's'} {'acknowledged' if action == 'ack' else 'returned to the queue'}."
    )
    return Redirect(target, " ".join([words, *failed[:1]]) if done or not failed else failed[0])


_PATH = "/ui/queues/{queue}"
ROUTES = (
    Route(_PATH + "/messages", browse, tab="queues"),
    Route(_PATH + "/try", show_try, act_try, tab="queues"),
)
