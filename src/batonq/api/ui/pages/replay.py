"""Replay: deliver retained messages again. Which ones, where to, a preview with numbers, then a job that does it."""

from __future__ import annotations

import json
from typing import Any

from batonq.api.ui import formats
from batonq.api.ui.backend import Problem, path_of, segment
from batonq.api.ui.moments import HELP, read_moment
from batonq.api.ui.pages.jobs import address
from batonq.api.ui.routes import Route
from batonq.api.ui.view import Page, Redirect, View

RATE_DEFAULT, RATE_MAX = 100, 10_000
ATTRIBUTES_HINT = '{"kind": "created"}'


async def show(view: View) -> Page:
    queue = await view.backend.get(path_of("queues", view.names["queue"]))
    page = _page(queue, {"from": "1h", "rate": str(RATE_DEFAULT)}, None)
    kept_s = queue.get("retainSeconds", 0)
    if kept_s:
        page.sentence = f"{queue['name']} keeps every message for {formats.duration(kept_s)}. Preview first."
    else:
        page.sentence, page.level = f"{queue['name']} keeps no history, so there is nothing to replay.", "warning"
    return page


async def act(view: View) -> Page | Redirect:
    """The form with a dry run's result; with `step=start`, the job is started."""
    form, name = view.form, view.names["queue"]
    queue = await view.backend.get(path_of("queues", name))
    path = path_of("queues", name) + ":replay"
    problem: Problem | None = None
    result: dict[str, Any] | None = None
    try:
        spec = replay_spec(form, view.now_ms)
        if form.get("step") == "start":
            job = await view.backend.change("POST", path, spec)
            return Redirect(address(job["jobId"]), "The replay has started.")
        result = await view.backend.change("POST", path, {**spec, "dryRun": True})
    except Problem as found:
        if found.status in (403, 404):
            raise
        problem = found
    page = _page(queue, form, result)
    if problem is not None:
        page.sentence, page.level, page.status = problem.detail, "warning", problem.status
    elif result is not None:
        page.sentence = preview_sentence(result, form, name)
        if result["matched"]:
            page.values["start"] = start_words(result, form, name)
    return page


def _page(queue: dict[str, Any], form: dict[str, str], result: dict[str, Any] | None) -> Page:
    values: dict[str, Any] = {
        "queue": queue,
        "path": f"/ui/queues/{segment(queue['name'])}",
        "form": form,
        "result": result,
        "start": "",
        "help": HELP,
        "hint": ATTRIBUTES_HINT,
    }
    return Page(f"Replay {queue['name']}", "replay.html", values=values)


def replay_spec(form: dict[str, str], now_ms: int) -> dict[str, Any]:
    """The body of the REST operation. Raises Problem for what REST could not name in the words of the form."""
    spec: dict[str, Any] = {"maxMessagesPerSecond": _whole(form.get("rate", ""), "Rate", RATE_MAX) or RATE_DEFAULT}
    for name, label in (("from", "From"), ("until", "Until")):
        if form.get(name, "").strip():
            try:
                spec[name] = read_moment(form[name], now_ms)
            except ValueError as problem:
                raise Problem(400, "invalid_input", f"{label}: {problem}") from None
    if form.get("target", "").strip():
        spec["targetQueue"] = form["target"].strip()
    most = _whole(form.get("most", ""), "At most", 10**12)
    if most:
        spec["maxMessages"] = most
    condition: dict[str, Any] = {}
    if form.get("text", ""):
        condition["bodyContains"] = form["text"]
    if form.get("attributes", "").strip():
        try:
            condition["attributes"] = json.loads(form["attributes"])
        except (ValueError, RecursionError):
            condition["attributes"] = None
        if not isinstance(condition["attributes"], dict):
            raise Problem(400, "invalid_input", f"Attributes: write a JSON object, such as {ATTRIBUTES_HINT}.")
    if condition:
        spec["filter"] = condition
    return spec


def _whole(text: str, label: str, high: int) -> int:
    given = text.strip().replace(",", "")
    if not given:
        return 0
    if not (given.isascii() and given.isdecimal()) or len(given) > 13 or not 1 <= int(given) <= high:
        raise Problem(400, "invalid_input", f"{label}: write a whole number from 1 to {high:,}, not {given[:20]!r}.")
    return int(given)


def preview_sentence(result: dict[str, Any], form: dict[str, str], queue: str) -> str:
    if not result["matched"]:
        return f"Nothing to replay: none of {formats.plural(result['examined'], 'retained message')} matches."
    target = form.get("target", "").strip() or queue
    return f"This would send {formats.plural(result['matched'], 'message')} to {target} again. Nothing was sent yet."


def start_words(result: dict[str, Any], form: dict[str, str], queue: str) -> str:
    """Replay 214 messages to orders at 100/s, about 2 s"""
    rate = _whole(form.get("rate", ""), "Rate", RATE_MAX) or RATE_DEFAULT
    target = form.get("target", "").strip() or queue
    seconds = max(1, round(result["matched"] / rate))
    takes = f"{seconds} s" if seconds < 60 else formats.duration(seconds)
    return f"Replay {formats.plural(result['matched'], 'message')} to {target} at {rate:,}/s, about {takes}"


ROUTES = (Route("/ui/queues/{queue}/replay", show, act, tab="queues"),)
