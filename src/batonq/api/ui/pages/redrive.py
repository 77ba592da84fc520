"""Move or delete dead letters: which ones, how, a preview with numbers, then a job that does it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from batonq.api.ui import formats
from batonq.api.ui.backend import Problem, path_of, segment
from batonq.api.ui.pages.jobs import address
from batonq.api.ui.routes import Route
from batonq.api.ui.view import Page, Redirect, View

RATE_DEFAULT, RATE_MAX = 10, 10_000
SELECTED_MAX = 1_000
ATTRIBUTES_HINT = '{"retried": "yes"}'


@dataclass(slots=True)
class Choice:
    """Which dead letters a form is about: all, one group, or the selected ones."""

    ids: list[str] = field(default_factory=list)
    group: str = ""
    label: str = ""

    @classmethod
    def of(cls, view: View) -> Choice:
        ids = list(dict.fromkeys(view.selected("id")))
        if len(ids) > SELECTED_MAX:
            raise Problem(400, "invalid_input", f"{len(ids)} messages are selected; the maximum is {SELECTED_MAX:,}.")
        return cls(ids, view.form.get("group", ""), view.form.get("label", ""))

    @property
    def filter(self) -> dict[str, Any]:
        if self.ids:
            return {"messageIds": self.ids}
        return {"group": self.group} if self.group else {}

    @property
    def fields(self) -> list[tuple[str, str]]:
        """The hidden fields that repeat the choice in the next form."""
        given = [("id", one) for one in self.ids]
        if self.group:
            given += [("group", self.group), ("label", self.label)]
        return given

    def words(self, count: int, queue: str) -> str:
        messages = formats.plural(count, "message")
        if self.ids:
            return f"{messages} of the {len(self.ids):,} selected in {queue}"
        return f"{messages} of {queue} with the error {self.label}" if self.group else f"all {messages} of {queue}"


# --- redrive ------------------------------------------------------------------------------------


async def redrive(view: View) -> Page | Redirect:
    """The form with a dry run's result; with `step=start`, the job is started."""
    queue, form, choice = view.names["queue"], view.form, Choice.of(view)
    path = path_of("queues", queue) + ":redrive"
    problem: Problem | None = None
    result: dict[str, Any] | None = None
    try:
        spec = redrive_spec(form, choice)
        if form.get("step") == "start":
            job = await view.backend.change("POST", path, spec)
            return Redirect(address(job["jobId"]), "The redrive has started.")
        result = await view.backend.change("POST", path, {**spec, "dryRun": True})
    except Problem as found:
        if found.status in (403, 404):
            raise
        problem = found
    sources = await _sources(view, queue)
    page = Page(f"Redrive from {queue}", "redrive.html", "", "plain")
    if problem is not None:
        page.sentence, page.level, page.status = problem.detail, "warning", problem.status
    elif result is not None:
        page.sentence = preview_sentence(result, choice, queue)
    page.values = {
        "queue": queue,
        "path": f"/ui/queues/{segment(queue)}/dead-letters",
        "choice": choice,
        "form": form,
        "result": result,
        "rate": form.get("rate", str(RATE_DEFAULT)),
        "sources": sources,
        "start": start_words(result, form, sources) if result is not None else "",
        "hint": ATTRIBUTES_HINT,
    }
    return page


def redrive_spec(form: dict[str, str], choice: Choice) -> dict[str, Any]:
    """The body of the REST operation. Raises Problem for what REST could not name in the words of the form."""
    spec: dict[str, Any] = {"maxMessagesPerSecond": rate_of(form)}
    if choice.filter:
        spec["filter"] = choice.filter
    if form.get("target"):
        spec["targetQueue"] = form["target"].strip()
    edit: dict[str, Any] = {}
    if form.get("find"):
        edit["replaceText"] = [{"find": form["find"], "with": form.get("replacement", "")}]
    if form.get("attributes", "").strip():
        try:
            attributes = json.loads(form["attributes"])
        except (ValueError, RecursionError):
            attributes = None
        if not isinstance(attributes, dict):
            raise Problem(400, "invalid_input", f"Attributes: write a JSON object, such as {ATTRIBUTES_HINT}.")
        edit["setAttributes"] = attributes
    if edit:
        spec["edit"] = edit
    return spec


def rate_of(form: dict[str, str]) -> int:
    text = form.get("rate", str(RATE_DEFAULT)).strip()
    if not (text.isascii() and text.isdecimal()) or len(text) > 6 or not 1 <= int(text) <= RATE_MAX:
        raise Problem(400, "invalid_input", f"Rate: write a whole number from 1 to {RATE_MAX:,}, not {text[:20]!r}.")
    return int(text)


def preview_sentence(result: dict[str, Any], choice: Choice, queue: str) -> str:
    if not result["matched"]:
        return f"Nothing to redrive: none of the {formats.plural(result['examined'], 'message')} in {queue} matches."
    return f"This would move {choice.words(result['matched'], queue)}. Nothing has been moved yet."


def start_words(result: dict[str, Any], form: dict[str, str], sources: list[str]) -> str:
    """Redrive 214 messages to emails at 10/s, about 21 s"""
    rate = rate_of(form)
    target = form.get("target", "").strip() or (sources[0] if len(sources) == 1 else "their source queues")
    seconds = max(1, round(result["matched"] / rate))
    takes = f"{seconds} s" if seconds < 60 else formats.duration(seconds)
    return f"Redrive {formats.plural(result['matched'], 'message')} to {target} at {rate:,}/s, about {takes}"


# --- delete -------------------------------------------------------------------------------------


async def delete(view: View) -> Page | Redirect:
    """Asks for the queue's name; with the name, a job that deletes is started."""
    queue, form, choice = view.names["queue"], view.form, Choice.of(view)
    path = path_of("queues", queue) + ":delete-messages"
    problem = ""
    if form.get("step") == "start":
        if form.get("confirm", "").strip() == queue:
            job = await view.backend.change("POST", path, delete_spec(choice))
            return Redirect(address(job["jobId"]), "The deletion has started.")
        problem = f"Nothing was deleted: the name is {queue}, not {form.get('confirm', '')[:80]!r}."
    counted = await view.backend.change("POST", path, {**delete_spec(choice), "dryRun": True})
    words = choice.words(counted["matched"], queue)
    return Page(
        f"Delete from {queue}",
        "delete_messages.html",
        problem or f"This deletes {words} for good.",
        "critical" if not problem else "warning",
        {
            "queue": queue,
            "path": f"/ui/queues/{segment(queue)}/dead-letters",
            "choice": choice,
            "count": counted["matched"],
            "sample": counted.get("sample", []),
        },
        400 if problem else 200,
    )


def delete_spec(choice: Choice) -> dict[str, Any]:
    return {"filter": choice.filter} if choice.filter else {}


async def _sources(view: View, queue: str) -> list[str]:
    found = await view.optional(path_of("queues", queue, "dead-letters"))
    return [] if isinstance(found, Problem) else list(found.get("sources", ()))


_PATH = "/ui/queues/{queue}/dead-letters"
ROUTES = (
    Route(_PATH + "/redrive", act=redrive, tab="dead-letters"),
    Route(_PATH + "/delete", act=delete, tab="dead-letters"),
)
