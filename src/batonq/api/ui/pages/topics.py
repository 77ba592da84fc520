"""Topics: the list, a topic's subscriptions, and the forms that create and change them."""

from __future__ import annotations

import json
from typing import Any

from batonq.api.ui import formats
from batonq.api.ui.backend import Problem, path_of, segment
from batonq.api.ui.routes import Route
from batonq.api.ui.view import Level, Mistake, Page, Redirect, View
from batonq.quantities import read_duration_s

SHOWN_MAX = 1_000  # subscriptions of a topic on its page
WAITING = 25  # copies on a page
SCOPES = {"MessageAttributes": "attributes", "MessageBody": "body"}
FILTER_HINT = '{"kind": ["created"], "total": [{"numeric": [">=", 100]}]}'
_LABELS = {
    "name": "Name",
    "queue": "Queue",
    "filterPolicy": "Filter",
    "deadLetterQueue": "Dead-letter queue",
    "displayName": "Display name",
    "retentionSeconds": "Copies wait for",
    "confirm": "Confirmation",
}


def address(topic: str, *more: str) -> str:
    return "/".join((f"/ui/topics/{segment(topic)}", *map(segment, more)))


async def show_topics(view: View) -> Page:
    found = await view.backend.get(path_of("topics"), cursor=view.query.get("cursor"))
    topics = found["topics"]
    more = "" if not found.get("nextCursor") else view.url(cursor=found["nextCursor"])
    values = {"topics": topics, "more": more}
    return Page("Topics", "topics.html", topics_sentence(topics, bool(more)), values=values)


def topics_sentence(topics: list[dict[str, Any]], more: bool) -> str:
    if not topics:
        return "There are no topics yet."
    words = f"{formats.plural(len(topics), 'topic')}{' on this page' if more else ''}"
    silent = [topic["name"] for topic in topics if not topic["subscriptions"]]
    if not silent:
        return words + "."
    names = ", ".join(silent[:3]) + (f" and {len(silent) - 3} more" if len(silent) > 3 else "")
    return f"{words}; {names} {'has' if len(silent) == 1 else 'have'} no subscriptions."


# --- a new topic


async def show_create(view: View) -> Page:
    return _create_page({}, {})


def _create_page(form: dict[str, str], wrong: dict[str, str]) -> Page:
    return _with_mistakes(
        Page(
            "Create a topic",
            "create_topic.html",
            "A message that is published to a topic is copied to every subscribed queue whose filter matches.",
            values={"form": form, "wrong": wrong},
        ),
        wrong,
    )


async def create(view: View) -> Page | Redirect:
    form = view.form
    name = form.get("name", "").strip()
    wrong: dict[str, str] = {} if name else {"name": "Give the topic a name."}
    if not wrong:
        body: dict[str, Any] = {"name": name, "mode": form.get("mode", "STANDARD")}
        if form.get("contentBased") == "true":
            body["contentBasedDeduplication"] = True
        try:
            await view.backend.change("POST", path_of("topics"), body)
        except Problem as problem:
            wrong["name"] = _correctable(problem)
    return _create_page(form, wrong) if wrong else Redirect(address(name), f"Topic {name} is created.")


# --- one topic


async def show_topic(view: View) -> Page:
    return await _topic_page(view)


async def _top(view: View) -> dict[str, Any]:
    topic: dict[str, Any] = await view.backend.get(path_of("topics", view.names["topic"]))
    return topic


async def _topic_page(view: View, form: dict[str, str] | None = None, wrong: dict[str, str] | None = None) -> Page:
    topic = await _top(view)
    found = await view.backend.get(path_of("topics", topic["name"], "subscriptions"), limit=SHOWN_MAX)
    subscriptions = found["subscriptions"]
    sentence, level = topic_sentence(topic, subscriptions)
    values = {
        "topic": topic,
        "subscriptions": subscriptions,
        "more": bool(found.get("nextCursor")),
        "form": form or {"raw": "true"},
        "wrong": wrong or {},
        "scopes": SCOPES,
        "hint": FILTER_HINT,
        "topic_tab": "",
    }
    page = Page(topic["name"], "topic.html", sentence, level, values)
    page.links = {one["queue"]: f"/ui/queues/{segment(one['queue'])}" for one in subscriptions[:3]}
    return _with_mistakes(page, wrong or {})


def topic_sentence(topic: dict[str, Any], subscriptions: list[dict[str, Any]]) -> tuple[str, Level]:
    if not subscriptions:
        return "No queue is subscribed: what is published here goes nowhere.", "warning"
    queues = [one["queue"] for one in subscriptions]
    names = ", ".join(queues[:3]) + (f" and {len(queues) - 3} more" if len(queues) > 3 else "")
    waiting = topic.get("waitingCopies", 0)
    if waiting:
        age = formats.duration(topic.get("oldestWaitingSeconds", 0))
        copies = f"{formats.plural(waiting, 'copy', 'copies')} {'waits' if waiting == 1 else 'wait'}"
        return f"{copies} for a queue that is full, paused or out of reach, the oldest for {age}.", "warning"
    missing = [one["queue"] for one in subscriptions if one.get("queueMissing")]
    if missing:
        gone = f"{formats.plural(len(missing), 'subscribed queue')} {'does' if len(missing) == 1 else 'do'} not exist"
        return f"{gone}: {', '.join(missing[:3])}. Their copies go to a dead-letter queue, or are dropped.", "warning"
    return f"{formats.plural(topic['subscriptions'], 'queue')} subscribed: {names}.", "ok"


async def subscribe(view: View) -> Page | Redirect:
    name, form = view.names["topic"], view.form
    body, wrong = subscription_of(form)
    queue = form.get("queue", "").strip()
    if not queue:
        wrong["queue"] = "Name the queue that gets the copies."
    if not wrong:
        try:
            await view.backend.change("POST", path_of("topics", name, "subscriptions"), {"queue": queue, **body})
        except Problem as problem:
            wrong[_blamed(problem, "queue")] = _correctable(problem)
    if wrong:
        return await _topic_page(view, {"raw": "", **form}, wrong)
    return Redirect(address(name), f"Queue {queue} is subscribed to {name}.")


def subscription_of(form: dict[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings of a subscription that a form describes, and what is wrong with the form, by field."""
    wrong: dict[str, str] = {}
    text = form.get("filterPolicy", "").strip()
    policy: Any = None
    if text:
        try:
            policy = json.loads(text)
        except (ValueError, RecursionError) as problem:
            wrong["filterPolicy"] = f"This is not JSON: {problem}."
        else:
            if not isinstance(policy, dict):
                wrong["filterPolicy"] = f"A filter is a JSON object, such as {FILTER_HINT}."
    body = {
        "filterPolicy": policy,
        "filterPolicyScope": None if policy is None else form["scope"] if form.get("scope") in SCOPES else None,
        "rawDelivery": form.get("raw") == "true",
        "deadLetterQueue": form.get("deadLetterQueue", "").strip() or None,
    }
    return body, wrong


async def show_settings(view: View) -> Page:
    return _settings_page(await _top(view), {})


def _settings_page(topic: dict[str, Any], wrong: dict[str, str], form: dict[str, str] | None = None) -> Page:
    shown = {
        "displayName": topic.get("displayName", ""),
        "retentionSeconds": str(topic["retentionSeconds"]),
        "contentBased": "true" if topic.get("contentBasedDeduplication") else "",
        **(form or {}),
    }
    waits = formats.duration(topic["retentionSeconds"])
    sentence = f"A copy that its queue cannot take waits in the topic, for at most {waits}."
    values = {"topic": topic, "form": shown, "wrong": wrong, "topic_tab": "/settings"}
    return _with_mistakes(Page(topic["name"], "topic_settings.html", sentence, values=values), wrong)


async def change_settings(view: View) -> Page | Redirect:
    topic, form = await _top(view), view.form
    name = topic["name"]
    if form.get("verb") == "delete":
        if form.get("confirm", "").strip() != name:
            return _settings_page(topic, {"confirm": f"Type the topic's name, {name}, to confirm."})
        await view.backend.change("DELETE", path_of("topics", name))
        count = formats.plural(topic["subscriptions"], "subscription")
        return Redirect("/ui/topics", f"Topic {name} is deleted, with {count}.")
    body: dict[str, Any] = {"displayName": form.get("displayName", "").strip() or None}
    wrong: dict[str, str] = {}
    try:
        given = form.get("retentionSeconds", "").strip()
        body["retentionSeconds"] = int(read_duration_s(given)) if given else None
    except ValueError:
        wrong["retentionSeconds"] = "Write a number of seconds, such as 3600, or 12h or 4d."
    if topic["mode"] == "FIFO":
        body["contentBasedDeduplication"] = form.get("contentBased") == "true"
    if not wrong:
        try:
            await view.backend.change("PATCH", path_of("topics", name), body)
        except Problem as problem:
            wrong[_blamed(problem, "retentionSeconds")] = _correctable(problem)
    if wrong:
        return _settings_page(topic, wrong, {"contentBased": "", **form})
    return Redirect(view.request.path, "The settings are changed.")


# --- copies that wait


async def show_waiting(view: View) -> Page:
    topic = await _top(view)
    after = view.whole("after", 0, 0, 1 << 53)
    found = await view.backend.get(path_of("topics", topic["name"], "messages"), after=after or None, limit=WAITING)
    count = topic.get("waitingCopies", 0)
    values = {"topic": topic, "found": found, "topic_tab": "/waiting"}
    page = Page(topic["name"], "topic_waiting.html", "No copy waits: every queue took its copies.", "ok", values)
    if count or found["messages"]:
        words = "copy waits, and is" if count == 1 else "copies wait, and are"
        kept = formats.duration(topic["retentionSeconds"])
        page.sentence = f"{formats.number(count)} {words} retried for at most {kept}."
        page.level = "warning"
    return page


# --- one subscription


async def show_subscription(view: View) -> Page:
    return await _subscription_page(view)


async def _subscription_page(
    view: View, form: dict[str, str] | None = None, wrong: dict[str, str] | None = None
) -> Page:
    topic = await _top(view)
    one = await view.backend.get(path_of("topics", topic["name"], "subscriptions", view.names["subscription"]))
    policy = one.get("filterPolicy")
    shown = {
        "filterPolicy": formats.raw(policy) if policy else "",
        "scope": one.get("filterPolicyScope", ""),
        "raw": "true" if one.get("rawDelivery") else "",
        "deadLetterQueue": one.get("deadLetterQueue", ""),
        **(form or {}),
    }
    every = "every message that is published" if not policy else "the messages that its filter matches"
    page = Page(
        f"{one['queue']} in {topic['name']}",
        "subscription.html",
        f"{one['queue']} gets a copy of {every}.",
        "plain",
        {
            "topic": topic,
            "subscription": one,
            "form": shown,
            "wrong": wrong or {},
            "scopes": SCOPES,
            "hint": FILTER_HINT,
            "topic_tab": None,
        },
    )
    page.links = {one["queue"]: f"/ui/queues/{segment(one['queue'])}"}
    return _with_mistakes(page, wrong or {})


async def change_subscription(view: View) -> Page | Redirect:
    topic, subscription, form = view.names["topic"], view.names["subscription"], view.form
    path = path_of("topics", topic, "subscriptions", subscription)
    if form.get("verb") == "unsubscribe":
        queue = (await view.backend.get(path))["queue"]
        await view.backend.change("DELETE", path)
        return Redirect(address(topic), f"Queue {queue} gets no more copies of {topic}.")
    body, wrong = subscription_of({"raw": "", **form})
    if not wrong:
        try:
            await view.backend.change("PATCH", path, body)
        except Problem as problem:
            wrong[_blamed(problem, "filterPolicy")] = _correctable(problem)
    if wrong:
        return await _subscription_page(view, {"raw": "", **form}, wrong)
    return Redirect(view.request.path, "The subscription is changed.")


# --- shared


def _correctable(problem: Problem) -> str:
    """What a form says about a problem. Raises the problem if correcting the form would not help."""
    if problem.status in (401, 403, 404) or problem.status >= 500:
        raise problem
    return problem.detail


def _blamed(problem: Problem, default: str) -> str:
    """The field of a form that a problem is about."""
    return next((name for name in _LABELS if name.lower() in problem.detail.lower().replace("-", "")), default)


def _with_mistakes(page: Page, wrong: dict[str, str]) -> Page:
    page.mistakes = [Mistake(f"f-{name}", _LABELS.get(name, name), text) for name, text in wrong.items()]
    page.status = 422 if wrong else 200
    return page


_PATH = "/ui/topics/{topic}"
ROUTES = (
    Route("/ui/topics", show_topics, tab="topics"),
    Route("/ui/create-topic", show_create, create, tab="topics"),
    Route(_PATH, show_topic, subscribe, tab="topics"),
    Route(_PATH + "/settings", show_settings, change_settings, tab="topics"),
    Route(_PATH + "/waiting", show_waiting, tab="topics"),
    Route(_PATH + "/subscriptions/{subscription}", show_subscription, change_subscription, tab="topics"),
)
