"""The retained history of a queue, and the reader groups that read it."""

from __future__ import annotations

from typing import Any

from batonq.api.ui import formats
from batonq.api.ui.backend import Problem, path_of, segment
from batonq.api.ui.moments import HELP, read_moment
from batonq.api.ui.pages import queue as queue_page
from batonq.api.ui.routes import Route
from batonq.api.ui.view import Level, Mistake, Page, Redirect, View
from batonq.quantities import read_duration_s

PAGE = 25
LATE_S = 60.0  # a group that is further behind is marked
NAMED = ("start", "end")
_LABELS = {
    "name": "Name",
    "from": "Start",
    "deadLetterQueue": "Dead-letter queue",
    "maxFailures": "Maximum failures",
    "sessionSeconds": "Session",
    "to": "Continue at",
}


def address(queue: str, *more: str) -> str:
    return "/".join((f"/ui/queues/{segment(queue)}", *map(segment, more)))


async def show(view: View) -> Page:
    return await _history_page(view)


async def _history_page(view: View, form: dict[str, str] | None = None, wrong: dict[str, str] | None = None) -> Page:
    name = view.names["queue"]
    head = await queue_page.top(view)
    retained_s = head["queue"].get("retainSeconds", 0)
    readers: Any = {"readers": []}
    found: Any = None
    if retained_s:
        readers = await view.optional(path_of("queues", name, "readers"))
        since = view.query.get("from", "").strip()
        mistaken = dict(wrong or {})
        asked = {"cursor": view.query.get("cursor"), "limit": PAGE}
        if since and since not in NAMED:
            try:
                asked["from"] = since if ":" in since and since.replace(":", "").isdecimal() else None
                asked["from"] = asked["from"] or read_moment(since, view.now_ms)
            except ValueError as problem:
                mistaken["since"] = str(problem)
        if "since" not in mistaken:
            found = await view.optional(path_of("queues", name, "history"), **asked)
        wrong = mistaken
    page = queue_page.page(
        "queue_history.html",
        head,
        readers=readers,
        found=found,
        since=view.query.get("from", ""),
        retained_s=retained_s,
        form=form or {},
        wrong=wrong or {},
        help=HELP,
    )
    page.sentence, page.level = history_sentence(retained_s, readers)
    return _with_mistakes(page, wrong or {})


def history_sentence(retained_s: float, readers: Any) -> tuple[str, Level]:
    if not retained_s:
        return "This queue keeps no history: a deleted message is gone.", "plain"
    kept = f"Every message is kept for {formats.duration(retained_s)}, deleted or not"
    if isinstance(readers, Problem) or not readers["readers"]:
        return f"{kept}; no reader group reads it.", "plain"
    late = [one for one in readers["readers"] if one["lagSeconds"] >= LATE_S and one["lagMessages"]]
    if late:
        worst = max(late, key=lambda one: float(one["lagSeconds"]))
        lag = f"{formats.plural(worst['lagMessages'], 'message')} and {formats.duration(worst['lagSeconds'])}"
        return f"{kept}; the lag of reader group {worst['name']} is {lag}.", "warning"
    count = formats.plural(len(readers["readers"]), "reader group")
    slowest_s = max(float(one["lagSeconds"]) for one in readers["readers"])
    if any(one["lagMessages"] for one in readers["readers"]):
        return f"{kept}; {count}, with a lag of at most {formats.duration(slowest_s)}.", "ok"
    return f"{kept}; {count} in step.", "ok"


# --- reader groups


async def create(view: View) -> Page | Redirect:
    form, queue = view.form, view.names["queue"]
    body: dict[str, Any] = {"name": form.get("name", "").strip()}
    wrong: dict[str, str] = {} if body["name"] else {"name": "Give the group a name."}
    _put_moment(body, wrong, "from", form.get("from", "") or "start", view.now_ms)
    if form.get("deadLetterQueue", "").strip():
        body["deadLetterQueue"] = form["deadLetterQueue"].strip()
    failures = form.get("maxFailures", "").strip()
    if failures:
        if failures.isascii() and failures.isdecimal() and len(failures) < 6:
            body["maxFailures"] = int(failures)
        else:
            wrong["maxFailures"] = "Write a whole number."
    if form.get("sessionSeconds", "").strip():
        try:
            body["sessionSeconds"] = read_duration_s(form["sessionSeconds"].strip())
        except ValueError:
            wrong["sessionSeconds"] = "Write a number of seconds, such as 30."
    if not wrong:
        try:
            await view.backend.change("POST", path_of("queues", queue, "readers"), body)
        except Problem as problem:
            wrong[_blamed(problem, "name")] = _correctable(problem)
    if wrong:
        return await _history_page(view, form, wrong)
    return Redirect(address(queue, "readers", body["name"]), f"Reader group {body['name']} is created.")


async def show_group(view: View) -> Page:
    return await _group_page(view)


async def _group_page(view: View, form: dict[str, str] | None = None, wrong: dict[str, str] | None = None) -> Page:
    head = await queue_page.top(view)
    group = await view.backend.get(path_of("queues", view.names["queue"], "readers", view.names["group"]))
    given = {"group": group, "form": form or {}, "wrong": wrong or {}, "help": HELP, "queue_tab": "/history"}
    page = queue_page.page("reader_group.html", head, **given)
    page.title = f"{group['name']} in {head['queue']['name']}"
    page.sentence, page.level = group_sentence(group)
    return _with_mistakes(page, wrong or {})


def group_sentence(group: dict[str, Any]) -> tuple[str, Level]:
    failing = next((one for one in group["shards"] if one.get("failures")), None)
    lag = group["lagMessages"]
    state = "In step: it has read everything" if not lag else f"The lag is {formats.plural(lag, 'message')}"
    if lag and group["lagSeconds"]:
        state += f" and {formats.duration(group['lagSeconds'])}"
    if lag and not group["members"]:
        return f"{state}, and nobody reads: the group has no members.", "warning"
    if failing is not None:
        return f"{state}. Position {failing['failedPosition']} has failed {_times(failing['failures'])}.", "warning"
    return f"{state}.", "warning" if lag and group["lagSeconds"] >= LATE_S else "ok"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


async def change_group(view: View) -> Page | Redirect:
    """Seek, or delete the group."""
    queue, group, form = view.names["queue"], view.names["group"], view.form
    path = path_of("queues", queue, "readers", group)
    if form.get("verb") == "delete":
        await view.backend.change("DELETE", path)
        return Redirect(address(queue, "history"), f"Reader group {group} is deleted, with its positions.")
    body: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    positions = form.get("positions", "").split()
    if positions:
        body["positions"] = positions
    else:
        _put_moment(body, wrong, "to", form.get("to", ""), view.now_ms)
    if not wrong:
        try:
            await view.backend.change("POST", path + ":seek", body)
        except Problem as problem:
            wrong["to"] = _correctable(problem)
    if wrong:
        return await _group_page(view, form, wrong)
    where = "the given positions" if positions else form["to"].strip()
    return Redirect(view.request.path, f"The group continues at {where}.")


# --- shared


def _put_moment(body: dict[str, Any], wrong: dict[str, str], name: str, text: str, now_ms: int) -> None:
    given = text.strip()
    if given in NAMED:
        body[name] = given
        return
    try:
        body[name] = read_moment(given, now_ms)
    except ValueError as problem:
        wrong[name] = f"Write start, end, or a time. {problem}"


def _correctable(problem: Problem) -> str:
    """What a form says about a problem. Raises the problem if correcting the form would not help."""
    if problem.status in (401, 403, 404) or problem.status >= 500:
        raise problem
    return problem.detail


def _blamed(problem: Problem, default: str) -> str:
    return next((name for name in _LABELS if name in problem.detail), default)


def _with_mistakes(page: Page, wrong: dict[str, str]) -> Page:
    page.mistakes = [Mistake(f"f-{name}", _LABELS.get(name, "Since"), text) for name, text in wrong.items()]
    page.status = 422 if wrong else 200
    return page


_PATH = "/ui/queues/{queue}"
ROUTES = (
    Route(_PATH + "/history", show, create, tab="queues"),
    Route(_PATH + "/readers/{group}", show_group, change_group, tab="queues"),
)
