"""One queue: plots, consumers, settings, purge and delete."""

from __future__ import annotations

from typing import Any

from batonq.api.ui import formats, queue_fields, queue_words
from batonq.api.ui.backend import Problem, path_of, segment
from batonq.api.ui.pages import pausing
from batonq.api.ui.pages.overview import RANGES
from batonq.api.ui.routes import Route
from batonq.api.ui.view import Mistake, Page, Redirect, View


async def top(view: View) -> dict[str, Any]:
    """What every page of a queue shows above its content: settings, statistics, and the tabs."""
    name = view.names["queue"]
    queue = await view.backend.get(path_of("queues", name))
    stats = await view.backend.get(path_of("queues", name, "stats"))
    if "sentPerSecond" not in stats:  # this node was not asked before: the series know
        stats |= latest_rates(await view.optional(path_of("queues", name, "series"), range=RANGES[0]))
    dead_letters = bool(stats.get("isDeadLetterQueue"))
    sentence, level = queue_words.sentence(queue, stats, dead_letters=dead_letters)
    return {"queue": queue, "stats": stats, "dead_letters": dead_letters, "sentence": sentence, "level": level}


def latest_rates(series: Any) -> dict[str, float]:
    """The rates of the last step of a queue's series."""
    if isinstance(series, Problem):
        return {}
    names = {"sent": "sentPerSecond", "received": "receivedPerSecond", "acked": "deletedPerSecond"}
    lasts = {
        name: next((value for value in reversed(series["values"].get(short, ())) if value is not None), None)
        for short, name in names.items()
    }
    return {name: value for name, value in lasts.items() if value is not None}


def page(template: str, head: dict[str, Any], **values: Any) -> Page:
    return Page(
        head["queue"]["name"],
        template,
        head["sentence"],
        head["level"],
        {
            "queue": head["queue"],
            "stats": head["stats"],
            "dead_letters": head["dead_letters"],
            "held_back": pausing.held_back(head["queue"]),
            "capped": pausing.capped(head["queue"]),
            **values,
        },
    )


async def show(view: View) -> Page:
    head = await top(view)
    explained = await view.optional(path_of("queues", view.names["queue"]) + ":explain")
    return page("queue.html", head, range=view.choice("range", RANGES), explained=explained)


async def show_consumers(view: View) -> Page:
    head = await top(view)
    found = await view.optional(path_of("queues", view.names["queue"], "consumers"))
    return page("queue_consumers.html", head, consumers=found)


# --- settings


async def show_settings(view: View) -> Page:
    return _settings_page(view, await top(view))


def _settings_page(
    view: View, head: dict[str, Any], form: dict[str, str] | None = None, wrong: dict[str, str] | None = None
) -> Page:
    queue = head["queue"]
    groups = queue_fields.groups(fifo=bool(queue.get("fifo")))
    given = form or {}
    shown = {field.name: given.get(field.name, field.shown(queue)) for fields in groups.values() for field in fields}
    mistaken = wrong or {}
    result = page(
        "queue_settings.html",
        head,
        groups=groups,
        shown=shown,
        wrong=mistaken,
        queue_tab="/settings",
        read_view=queue_fields.read_view,
    )
    result.status = 422 if mistaken else 200
    result.mistakes = queue_fields.mistakes(mistaken) + [
        Mistake(f"confirm-{what}", label, mistaken[what])
        for what, label in (("purge", "Purge"), ("delete", "Delete the queue"))
        if what in mistaken
    ]
    return result


async def change_settings(view: View) -> Page | Redirect:
    head = await top(view)
    queue = head["queue"]
    body, wrong = queue_fields.changes(view.form, queue, fifo=bool(queue.get("fifo")))
    if not wrong and not body:
        return Redirect(view.request.path, "Nothing was changed.")
    if not wrong:
        try:
            await view.backend.change("PATCH", path_of("queues", queue["name"]), body)
        except Problem as problem:
            if problem.status in (401, 403, 404):
                raise
            wrong[queue_fields.blamed(problem.detail) or queue_fields.changed(body)[0].name] = problem.detail
    if wrong:
        return _settings_page(view, head, view.form, wrong)
    return Redirect(view.request.path, f"Changed: {', '.join(field.words for field in queue_fields.changed(body))}.")


# --- what destroys


async def purge(view: View) -> Page | Redirect:
    return await _destroy(view, "purge")


async def delete(view: View) -> Page | Redirect:
    return await _destroy(view, "delete")


async def _destroy(view: View, what: str) -> Page | Redirect:
    """Purge or delete the queue whose name was typed."""
    head = await top(view)
    name = head["queue"]["name"]
    if view.form.get("confirm", "").strip() != name:
        return _settings_page(view, head, None, {what: f"Type the queue's name, {name}, to confirm."})
    stats = head["stats"]
    count = formats.plural(sum(int(stats.get(key, 0)) for key in ("visible", "inFlight", "delayed")), "message")
    if what == "purge":
        try:
            await view.backend.change("POST", path_of("queues", name) + ":purge")
        except Problem as problem:
            if problem.status != 409:
                raise
            return _settings_page(view, head, None, {what: problem.detail})
        return Redirect(f"/ui/queues/{segment(name)}", f"Purged: {count} deleted from {name}.")
    await view.backend.change("DELETE", path_of("queues", name))
    return Redirect("/ui/queues", f"Queue {name} is deleted, with {count}.")


_PATH = "/ui/queues/{queue}"
ROUTES = (
    Route(_PATH, show, tab="queues"),
    Route(_PATH + "/consumers", show_consumers, tab="queues"),
    Route(_PATH + "/settings", show_settings, change_settings, tab="queues"),
    Route(_PATH + "/purge", act=purge, tab="queues"),
    Route(_PATH + "/delete", act=delete, tab="queues"),
)
