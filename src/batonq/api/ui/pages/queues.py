"""The list of queues, and the page that creates one."""

from __future__ import annotations

from typing import Any

from batonq.api.ui import formats, queue_fields
from batonq.api.ui.backend import Problem, segment
from batonq.api.ui.routes import Route
from batonq.api.ui.view import Level, Mistake, Page, Redirect, View

PAGE = 50
SEARCH_MAX = 80  # the length of a queue's name
SORTS = ("name", "visible", "inFlight", "delayed", "oldest", "sent", "received", "acked", "dead", "depth")
ORDERS = ("asc", "desc")


async def show(view: View) -> Page:
    search, sort = view.query.get("search", "").strip()[:SEARCH_MAX], view.choice("sort", SORTS)
    order = view.choice("order", ORDERS if sort == "name" else ORDERS[::-1])
    offset = view.whole("offset", 0, 0, 1_000_000)
    found = await view.backend.get(
        "/v1/queues:stats", search=search, sort=sort, order=order, offset=offset or None, limit=PAGE
    )
    sentence, level = _sentence(found, search)
    values = {"found": found, "search": search, "sort": sort, "order": order, "offset": offset, "limit": PAGE}
    return Page("Queues", "queues.html", sentence, level, values)


def _sentence(found: dict[str, Any], search: str) -> tuple[str, Level]:
    total = found["total"]
    if not total:
        return (f"No queue has “{search[:80]}” in its name." if search else "There are no queues yet."), "plain"
    needing = [queue for queue in found["queues"] if queue.get("level", "ok") != "ok"]
    words = formats.plural(total, "queue") + (f" with “{search[:80]}” in the name" if search else "")
    if not needing:
        return words + ".", "plain"
    names = ", ".join(queue["name"] for queue in needing[:3])
    more = f" and {len(needing) - 3} more" if len(needing) > 3 else ""
    return f"{words}; on this page {names}{more} need{'s' if len(needing) == 1 else ''} attention.", "warning"


# --- a new queue


async def show_create(view: View) -> Page:
    return _create_page({}, {})


def _create_page(form: dict[str, str], wrong: dict[str, str]) -> Page:
    groups = queue_fields.groups(fifo=True)
    first = [field for field in queue_fields.FIELDS if _snake(field) in queue_fields.FIRST]
    others = {name: [field for field in fields if field not in first] for name, fields in groups.items()}
    opened = any(field.name in wrong for fields in others.values() for field in fields)
    values = {
        "form": form,
        "wrong": wrong,
        "first": sorted(first, key=lambda field: queue_fields.FIRST.index(_snake(field))),
        "groups": {name: fields for name, fields in others.items() if fields},
        "opened": opened,
    }
    sentence = "A new queue needs only a name; everything else can be changed later."
    named = [Mistake("name", "Name", wrong["name"])] if "name" in wrong else []
    mistakes = named + queue_fields.mistakes(wrong)
    status = 422 if wrong else 200
    return Page("Create a queue", "create_queue.html", sentence, values=values, status=status, mistakes=mistakes)


def _snake(field: queue_fields.Field) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in field.name)


async def create(view: View) -> Page | Redirect:
    form = view.form
    name, mode = form.get("name", "").strip(), form.get("mode", "STANDARD")
    body, wrong = queue_fields.changes(form, {}, fifo=True)
    if not name:
        wrong["name"] = "Give the queue a name."
    if not wrong:
        try:
            await view.backend.change("POST", "/v1/queues", {"name": name, "mode": mode, **body})
        except Problem as problem:
            if problem.status in (401, 403):
                raise
            field = queue_fields.blamed(problem.detail)
            if field:
                wrong[field] = problem.detail
            else:
                wrong["name"] = problem.detail
    if wrong:
        return _create_page(form, wrong)
    return Redirect(f"/ui/queues/{segment(name)}", f"Queue {name} is created.")


ROUTES = (
    Route("/ui/queues", show, tab="queues"),
    Route("/ui/create-queue", show_create, create, tab="queues"),
)
