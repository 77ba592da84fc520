"""Schedules: the list, one schedule with its next firings, and the form that creates or changes one."""

from __future__ import annotations

from typing import Any

from batonq.api.ui import formats
from batonq.api.ui.backend import Problem, path_of, segment
from batonq.api.ui.moments import read_moment
from batonq.api.ui.pages.messages import message_of
from batonq.api.ui.routes import Route
from batonq.api.ui.view import Level, Mistake, Page, Redirect, View
from batonq.quantities import read_duration_s

PREVIEWED = 5
MISSED = {
    "last": "fire once, for the last one",
    "all": "fire for every one of them",
    "none": "leave them out",
}
_FIELDS = {
    "name": "Name",
    "queue": "Queue",
    "cron": "Cron expression",
    "timeZone": "Time zone",
    "rate": "Every",
    "startAt": "Not before",
    "endAt": "Not after",
    "body": "Body",
    "attributes": "Attributes",
    "group": "Message group",
}
# The fields that REST names in its problems, in the order in which they are looked for.
_BLAMED = {"rateSeconds": "rate", "timeZone": "timeZone", "time zone": "timeZone", "messageGroupId": "group"}
_LEVELS: dict[str, Level] = {"ACTIVE": "ok", "WAITING": "warning", "PAUSED": "plain", "ENDED": "plain"}


def address(schedule_id: str) -> str:
    return f"/ui/schedules/{segment(schedule_id)}"


async def show_schedules(view: View) -> Page:
    queue = view.query.get("queue", "").strip()
    found = await view.backend.get(path_of("schedules"), queue=queue)
    sentence, level = schedules_sentence(found["schedules"], view.now_ms)
    values = {"schedules": [_row(one) for one in found["schedules"]], "complete": found.get("complete", True)}
    return Page("Schedules", "schedules.html", sentence, level, {**values, "queue": queue})


def schedules_sentence(schedules: list[dict[str, Any]], now_ms: int) -> tuple[str, Level]:
    if not schedules:
        return "There are no schedules yet.", "plain"
    waiting = [one for one in schedules if one["state"] == "WAITING"]
    if waiting:
        more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
        return f"Schedule {waiting[0]['name']}{more} cannot fire: {waiting[0]['why']}", "warning"
    upcoming = [one for one in schedules if one["state"] == "ACTIVE" and one.get("nextAtMs")]
    words = formats.plural(len(schedules), "schedule")
    if not upcoming:
        return f"{words}, none of them active.", "plain"
    first = min(upcoming, key=lambda one: int(one["nextAtMs"]))
    return f"{words}; {first['name']} fires next, {formats.distance(first['nextAtMs'], now_ms)}.", "ok"


def _row(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "when": when_words(one), "level": _LEVELS[one["state"]], "address": address(one["scheduleId"])}


def when_words(one: dict[str, Any]) -> str:
    """30 8 * * MON-FRI in Europe/Berlin; every 5 min"""
    if one.get("cron"):
        zone = one.get("timeZone", "UTC")
        return f"{one['cron']} in {zone}"
    return f"every {formats.duration(one['rateSeconds'])}"


# --- a new schedule


async def show_create(view: View) -> Page:
    return _form_page({"queue": view.query.get("queue", "")}, {})


async def create(view: View) -> Page | Redirect:
    """With `step=preview`, only the next firings are shown."""
    form = view.form
    body, wrong = schedule_of(form, view.now_ms)
    for name in ("name", "queue"):
        body[name] = form.get(name, "").strip()
        if not body[name] and form.get("step") != "preview":
            wrong[name] = f"Give the {name} of the {'schedule' if name == 'name' else 'queue that gets the messages'}."
    times: list[str] = []
    if not wrong:
        try:
            if form.get("step") != "preview":
                made = await view.backend.change("POST", path_of("schedules"), body)
                return Redirect(address(made["scheduleId"]), f"Schedule {made['name']} is created.")
            times = await _times(view, body)
        except Problem as problem:
            wrong[_blamed(problem)] = _correctable(problem)
    return _form_page(form, wrong, times)


def _form_page(form: dict[str, str], wrong: dict[str, str], times: list[str] | None = None) -> Page:
    sentence = "A schedule sends the same message to a queue again and again."
    if times:
        sentence = f"It would fire next at {times[0]}. Nothing was created yet."
    values = {"form": form, "wrong": wrong, "times": times or [], "missed": MISSED, "schedule": None}
    return _with_mistakes(Page("Create a schedule", "create_schedule.html", sentence, values=values), wrong)


def schedule_of(form: dict[str, str], now_ms: int) -> tuple[dict[str, Any], dict[str, str]]:
    """The timing and the message that a form describes, and what is wrong with the form, by field."""
    wrong: dict[str, str] = {}
    body: dict[str, Any] = {"missed": form["missed"] if form.get("missed") in MISSED else "last"}
    cron, rate = form.get("cron", "").strip(), form.get("rate", "").strip()
    if bool(cron) == bool(rate):
        wrong["cron"] = "Write either a cron expression, or how often it fires."
    elif cron:
        body["cron"] = cron
        body["timeZone"] = form.get("timeZone", "").strip() or "UTC"
    else:
        try:
            body["rateSeconds"] = read_duration_s(rate)
        except ValueError:
            wrong["rate"] = "Write how often it fires as 30s, 5m, 2h or 1d."
    for name in ("startAt", "endAt"):
        text = form.get(name, "").strip()
        if text:
            try:
                body[name] = read_moment(text, now_ms)
            except ValueError:
                wrong[name] = "Write a time such as 2026-11-17T08:30Z."
    message, mistaken = message_of(form)
    wrong |= mistaken
    kept = ("body", "attributes", "messageGroupId", "priority")
    body["message"] = {name: message[name] for name in kept if name in message}
    return body, wrong


async def _times(view: View, body: dict[str, Any]) -> list[str]:
    """The next firings of a timing."""
    asked = {name: body[name] for name in ("cron", "timeZone", "rateSeconds", "startAt", "endAt") if body.get(name)}
    found = await view.backend.change("POST", path_of("schedules") + ":preview", {**asked, "count": PREVIEWED})
    times: list[str] = found["times"]
    return times


# --- one schedule


async def show_schedule(view: View) -> Page:
    return await _schedule_page(view)


async def _schedule_page(view: View, form: dict[str, str] | None = None, wrong: dict[str, str] | None = None) -> Page:
    one = await view.backend.get(path_of("schedules", view.names["schedule"]))
    times: list[str] = []
    if view.can_write and one["state"] in ("ACTIVE", "WAITING"):
        times = await _times(view, one)
    sentence, level = schedule_sentence(one, view.now_ms)
    values = {
        "schedule": _row(one),
        "times": times,
        "form": {**_shown(one), **(form or {})},
        "wrong": wrong or {},
        "missed": MISSED,
    }
    page = Page(f"{one['name']} of {one['queue']}", "schedule.html", sentence, level, values)
    page.links = {one["queue"]: f"/ui/queues/{segment(one['queue'])}"}
    return _with_mistakes(page, wrong or {})


def schedule_sentence(one: dict[str, Any], now_ms: int) -> tuple[str, Level]:
    sent = f"{formats.plural(one['firings'], 'firing')} so far"
    match one["state"]:
        case "WAITING":
            return f"A firing is due and waits: {one['why']}", "warning"
        case "PAUSED":
            return f"Paused: it does not fire. {sent}.", "plain"
        case "ENDED":
            return f"Over: it fires no more. {sent}.", "plain"
    next_at = formats.distance(one["nextAtMs"], now_ms) if one.get("nextAtMs") else "soon"
    return f"Fires {next_at} into {one['queue']}, {when_words(one)}. {sent}.", "ok"


def _shown(one: dict[str, Any]) -> dict[str, str]:
    """The fields of the form with the values of a schedule."""
    message = one.get("message", {})
    body = message.get("body", "")
    rate = one.get("rateSeconds")
    return {
        "cron": one.get("cron", ""),
        "timeZone": one.get("timeZone", ""),
        "rate": "" if rate is None else f"{rate:g}s",
        "startAt": one.get("startAt", ""),
        "endAt": one.get("endAt", ""),
        "missed": one["missed"],
        "kind": "text" if isinstance(body, str) else "json",
        "body": formats.raw(body),
        "attributes": formats.raw(message["attributes"]) if message.get("attributes") else "",
        "group": message.get("messageGroupId", ""),
    }


async def change_schedule(view: View) -> Page | Redirect:
    """Pause, resume, fire, delete or change a schedule."""
    form, path = view.form, path_of("schedules", view.names["schedule"])
    verb, here = form.get("verb", ""), view.request.path
    if verb in ("pause", "resume"):
        await view.backend.change("PATCH", path, {"enabled": verb == "resume"})
        words = "The schedule fires again." if verb == "resume" else "The schedule is paused: it does not fire."
        return Redirect(form["back"] if form.get("back") == "/ui/schedules" else here, words)
    if verb == "fire":
        fired = await view.backend.change("POST", path + ":fire")
        return Redirect(here, f"Sent now, as message {fired['messageId']}. Its own times stay as they are.")
    if verb == "delete":
        await view.backend.change("DELETE", path)
        return Redirect("/ui/schedules", f"Schedule {view.names['schedule']} is deleted. What it has sent stays.")
    body, wrong = schedule_of(form, view.now_ms)
    for name in ("startAt", "endAt"):
        body.setdefault(name, None)
    if not wrong:
        try:
            await view.backend.change("PATCH", path, body)
        except Problem as problem:
            wrong[_blamed(problem)] = _correctable(problem)
    return await _schedule_page(view, form, wrong) if wrong else Redirect(here, "The schedule is changed.")


# --- shared


def _correctable(problem: Problem) -> str:
    """What a form says about a problem. Raises the problem if correcting the form would not help."""
    if problem.status in (401, 403, 404) or problem.status >= 500:
        raise problem
    return problem.detail


def _blamed(problem: Problem) -> str:
    detail = problem.detail
    found = next((field for name, field in _BLAMED.items() if name.lower() in detail.lower()), "")
    return found or next((name for name in _FIELDS if detail.startswith((name, f"message.{name}"))), "cron")


def _with_mistakes(page: Page, wrong: dict[str, str]) -> Page:
    page.mistakes = [Mistake(f"f-{name}", _FIELDS.get(name, name), text) for name, text in wrong.items()]
    page.status = 422 if wrong else 200
    return page


ROUTES = (
    Route("/ui/schedules", show_schedules, tab="schedules"),
    Route("/ui/create-schedule", show_create, create, tab="schedules"),
    Route("/ui/schedules/{schedule}", show_schedule, change_schedule, tab="schedules"),
)
