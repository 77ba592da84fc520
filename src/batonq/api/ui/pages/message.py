"""One message: where it is, why it is not delivered, what happened to it, its content, and what can be done with it."""

from __future__ import annotations

import json
from typing import Any

from batonq.api.ui import formats
from batonq.api.ui.backend import Problem, path_of, segment
from batonq.api.ui.routes import Route
from batonq.api.ui.view import Page, Redirect, View

CAUSE_LENGTH_MAX = 160
BODY_BYTES_EDITED_MAX = 256 * 1024  # a longer body is not edited in a browser
# What each event of a message's history looks like: a shape, and a class for its colour.
_FAILED = ("nacked", "leaseExpired", "dead", "expired", "deleted", "purged", "moveRefused")
_DONE = ("acknowledged", "acknowledgedLate")


async def show(view: View) -> Page | Redirect:
    queue, message_id = view.names["queue"], view.names["message"]
    message = await view.backend.get(path_of("queues", queue, "messages", message_id))
    if message["currentId"] != message_id:
        return Redirect(address(queue, message["currentId"]))
    explained = None
    if message.get("state") == "VISIBLE":
        explained = await view.optional(path_of("queues", queue) + ":explain")
    return page_of(view, queue, message, explained)


def page_of(view: View, queue: str, message: dict[str, Any], explained: Any = None) -> Page:
    return Page(
        f"Message {short(message['currentId'])}",
        "message.html",
        headline(message),
        "warning" if message.get("state") == "DEAD" or dead_letter(message) else "plain",
        {
            "queue": queue,
            "message": message,
            "address": address(queue, message["currentId"]),
            "retry": retry_label(message),
            "timeline": [event_row(event) for event in message.get("history", ())],
            "facts": facts(message, view.now_ms),
            "text": editable(message),
            "explained": explained,
        },
    )


async def act(view: View) -> Redirect | Page:
    """One address for the page and its forms, so that a form with a mistake is shown at the page's own address."""
    verb = view.form.get("verb")
    return await (edit(view) if verb == "edit" else delete(view) if verb == "delete" else retry(view))


async def retry(view: View) -> Redirect:
    queue, message_id = view.names["queue"], view.names["message"]
    message = await view.backend.change("POST", path_of("queues", queue, "messages", message_id) + ":retry")
    source = next((event["toQueue"] for event in reversed(message.get("history", ())) if event.get("toQueue")), "")
    if message["state"] == "DELETED" and source and message.get("movedAs"):
        return Redirect(address(source, message["movedAs"]), f"The message is redriven: it is in {source} again.")
    here = address(queue, message["currentId"])
    if message["state"] == "VISIBLE" and dead_letter(message) is None:
        return Redirect(here, "The message is visible now: a consumer can receive it.")
    return Redirect(here, message.get("why") or message.get("where", ""))


async def delete(view: View) -> Redirect:
    queue, message_id = view.names["queue"], view.names["message"]
    await view.backend.change("DELETE", path_of("queues", queue, "messages", message_id))
    return Redirect(f"/ui/queues/{segment(queue)}", f"Message {message_id} is deleted.")


async def edit(view: View) -> Redirect | Page:
    queue, message_id = view.names["queue"], view.names["message"]
    try:
        changes = changes_of(view.form)
        changed = await view.backend.change("PATCH", path_of("queues", queue, "messages", message_id), changes)
    except Problem as problem:
        if problem.status in (403, 404):
            raise
        message = await view.backend.get(path_of("queues", queue, "messages", message_id))
        page = page_of(view, queue, message)
        page.values |= {"problem": problem, "text": view.form}
        page.status = problem.status
        return page
    return Redirect(address(queue, changed["currentId"]), "The message is changed.")


def dead_letter(message: dict[str, Any]) -> dict[str, Any] | None:
    """Where a dead letter comes from; None for other messages, also for a redriven one, which still has its failure."""
    letter: dict[str, Any] | None = message.get("deadLetter")
    arrivals = [event.get("reason") for event in message.get("history", ()) if event.get("event") == "arrived"]
    redriven = bool(arrivals) and arrivals[-1] == "redrive"
    return None if not letter or redriven or letter.get("queue", "") == message.get("queue") else letter


def headline(message: dict[str, Any]) -> str:
    """Where the message is, or for a dead letter, where it comes from and why."""
    why: str = message.get("why") or message.get("where", "")
    letter = dead_letter(message)
    if letter is None:
        return why
    cause = " ".join(letter[name] for name in ("errorClass", "reason") if letter.get(name))[:CAUSE_LENGTH_MAX]
    attempts = formats.plural(letter.get("attempts", 0), "attempt")
    said = f"Dead letter of {letter.get('queue') or 'a deleted queue'}: {cause or 'no error was reported'}, {attempts}."
    return said if message.get("state") == "VISIBLE" else f"{said} {why}"


def retry_label(message: dict[str, Any]) -> str:
    """What REST's retry would do with this message, as the text of a button; empty if it would do nothing."""
    state, letter = message.get("state"), dead_letter(message)
    if letter is not None:
        movable = state in ("VISIBLE", "DELAYED", "DEAD") and letter.get("queue")
        return f"Redrive to {letter['queue']}" if movable else ""
    return "Make visible now" if state in ("DELAYED", "DEAD") else ""


def changes_of(form: dict[str, str]) -> dict[str, Any]:
    """The changes of a message that a form asks for. Raises Problem if a field is not JSON."""
    changes: dict[str, Any] = {}
    if "body" in form:
        text = form["body"].replace("\r\n", "\n")
        changes["body"] = _json(text, "The body") if form.get("kind") == "json" else text
    if "attributes" in form:
        attributes = _json(form["attributes"] or "{}", "The attributes")
        if not isinstance(attributes, dict):
            raise Problem(400, "invalid_input", 'The attributes must be a JSON object, such as {"source": "web"}.')
        changes["attributes"] = attributes
    return changes


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise Problem(400, "invalid_input", f"{what}: not valid JSON: {problem}.") from None


def address(queue: str, message_id: str) -> str:
    """The path of a message's page."""
    return f"/ui/queues/{segment(queue)}/messages/{segment(message_id)}"


def short(message_id: str) -> str:
    """The end of an id: messages of one shard have the same beginning."""
    return "…" + message_id[-12:] if len(message_id) > 13 else message_id


def editable(message: dict[str, Any]) -> dict[str, str] | None:
    """The fields of the form to edit a message; None if its body is binary or too long for a form."""
    if "bodyBase64" in message or message.get("bodyBytes", 0) > BODY_BYTES_EDITED_MAX:
        return None
    body = message.get("body")
    kind = "text" if isinstance(body, str) else "json"
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, indent=2)
    attributes = message.get("attributes") or {}
    return {"kind": kind, "body": text, "attributes": json.dumps(attributes, ensure_ascii=False, indent=2)}


def event_row(event: dict[str, Any]) -> dict[str, Any]:
    """An event of a message's history as the timeline shows it."""
    name = event.get("event", "")
    level = "critical" if name in _FAILED else "ok" if name in _DONE else "plain"
    detail = [event[field] for field in ("errorClass", "reason") if event.get(field)]
    return {
        "at_ms": event.get("atMs"),
        "text": words(name),
        "level": level,
        "holder": event.get("holder", ""),
        "to": event.get("toQueue", ""),
        "until": formats.exact(event["untilMs"])[11:19] if event.get("untilMs") else "",
        "receive_count": event.get("receiveCount"),
        "detail": ": ".join(dict.fromkeys(detail)),
    }


def words(name: str) -> str:
    """leaseExpired → lease expired; IN_FLIGHT → in flight."""
    if name.isupper():
        return name.replace("_", " ").lower()
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).replace("_", " ").strip()


def facts(message: dict[str, Any], now_ms: int) -> list[tuple[str, Any]]:
    """Label and value of each property that this message has."""
    given: list[tuple[str, Any]] = [
        ("state", words(message.get("state", ""))),
        ("sent as", message["messageId"] if message.get("messageId") != message.get("currentId") else None),
        ("receives", formats.number(message.get("receiveCount", 0))),
        ("sent", formats.when(message.get("sentAtMs"), now_ms)),
        ("first received", message.get("firstReceivedAtMs") and formats.when(message["firstReceivedAtMs"], now_ms)),
        ("expires", formats.when(message.get("expiresAtMs"), now_ms)),
        ("size", formats.size(message.get("bodyBytes"))),
        ("priority", message.get("priority", 128)),
        ("sequence", message.get("sequence")),
        ("group", message.get("messageGroupId")),
        ("deduplication key", message.get("deduplicationKey")),
        ("shard", message.get("shard")),
        ("trace", message.get("traceparent")),
        ("trace state", message.get("tracestate")),
    ]
    return [(label, value) for label, value in given if value not in (None, "", 0) or label in ("receives", "shard")]


ROUTES = (Route("/ui/queues/{queue}/messages/{message}", show, act, tab="queues"),)
