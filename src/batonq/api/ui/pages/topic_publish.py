"""Publish a test message to a topic, or only ask which subscriptions would get it."""

from __future__ import annotations

from typing import Any

from batonq.api.ui import formats
from batonq.api.ui.backend import Problem, path_of
from batonq.api.ui.pages.messages import message_of
from batonq.api.ui.routes import Route
from batonq.api.ui.view import Level, Page, View


async def show(view: View) -> Page:
    return await _page(view)


async def act(view: View) -> Page:
    """With `action=match` nothing is published."""
    form, name = view.form, view.names["topic"]
    message, wrong = message_of(form)
    if form.get("subject", "").strip():
        message["subject"] = form["subject"].strip()
    matched = sent = None
    if not wrong:
        path = path_of("topics", name)
        try:
            if form.get("action") == "publish":
                sent = await view.backend.change("POST", path + "/messages", message)
            else:
                asked = {key: message[key] for key in ("body", "attributes") if key in message}
                matched = await view.backend.change("POST", path + ":match", asked)
        except Problem as problem:
            if problem.status in (401, 403, 404):
                raise
            wrong["body"] = problem.detail
    return await _page(view, form=form, wrong=wrong, matched=matched, sent=sent)


async def _page(view: View, **given: Any) -> Page:
    topic = await view.backend.get(path_of("topics", view.names["topic"]))
    values: dict[str, Any] = {"form": {}, "wrong": {}, "matched": None, "left_out": 0, "sent": None, **given}
    if values["matched"] is not None:
        sentence, level = match_sentence(values["matched"])
        values |= {"matched": values["matched"]["subscriptions"], "left_out": values["matched"].get("leftOut", 0)}
    else:
        sentence, level = _sentence(values, topic)
    page = Page(topic["name"], "topic_publish.html", sentence, level)
    page.values = {"topic": topic, "topic_tab": "/publish", **values}
    page.status = 422 if values["wrong"] else 200
    return page


def _sentence(values: dict[str, Any], topic: dict[str, Any]) -> tuple[str, Level]:
    if values["wrong"]:
        return "Nothing was published.", "warning"
    if values["sent"]:
        return "Published: every matching queue gets its copy.", "ok"
    return f"{formats.plural(topic['subscriptions'], 'subscription')} may get what is published here.", "plain"


def match_sentence(result: dict[str, Any]) -> tuple[str, Level]:
    matched = result["matched"]
    getting = [one["queue"] for one in result["subscriptions"] if one["matches"]]
    if not matched:
        return "No subscription would get this message. Nothing was published.", "warning"
    names = ", ".join(getting[:3]) + (f" and {matched - 3:,} more" if matched > 3 else "")
    total = formats.plural(len(result["subscriptions"]) + result.get("leftOut", 0), "subscription")
    return f"{matched:,} of {total} would get this message: {names}. Nothing was published.", "ok"


ROUTES = (Route("/ui/topics/{topic}/publish", show, act, tab="topics"),)
