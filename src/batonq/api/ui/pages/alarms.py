"""Alarms: what is wrong now, what to do about it, and what was wrong before."""

from __future__ import annotations

from typing import Any

from batonq.api.ui import formats
from batonq.api.ui.backend import Problem, path_of, segment
from batonq.api.ui.routes import Route
from batonq.api.ui.view import Level, Page, Redirect, View

NOTE_LENGTH_MAX = 500
HISTORY_SHOWN = 100
_ORDER = {"critical": 0, "warning": 1, "info": 2}


async def show(view: View) -> Page:
    active, ended = await _alarms(view)
    sentence, level = alarms_sentence(active)
    values = {"active": active, "ended": ended[:HISTORY_SHOWN], "path": path}
    return Page("Alarms", "alarms.html", sentence, level, values)


async def show_alarm(view: View) -> Page:
    active, ended = await _alarms(view)
    wanted = view.names["alarm"]
    found = next((alarm for alarm in (*active, *ended) if alarm["alarm"] == wanted), None)
    if found is None:
        raise Problem(404, "not_found", f"There is no alarm {wanted[:100]}, and none in the history.")
    over = found.get("endedAtMs")
    level: Level = "ok" if over else "critical" if found["severity"] == "critical" else "warning"
    return Page("Alarm", "alarm.html", found["text"], level, {"alarm": found, "path": path})


async def acknowledge(view: View) -> Redirect:
    alarm = view.names["alarm"]
    note = view.form.get("note", "").strip()
    if len(note) > NOTE_LENGTH_MAX:
        raise Problem(400, "invalid_input", f"The note has {len(note)} characters; the maximum is {NOTE_LENGTH_MAX}.")
    body = {"note": note} if note else {}
    await view.backend.change("POST", path_of("alarms", alarm) + ":acknowledge", body)
    return Redirect("/ui/alarms", "The alarm is acknowledged. It stays in the list until its cause is gone.")


async def send_test(view: View) -> Redirect:
    try:
        tried = (await view.backend.change("POST", "/v1/alarms:test"))["results"]
    except Problem as problem:
        if problem.code != "invalid_input":
            raise
        tried = []  # REST refuses when there are no webhooks
    return Redirect("/ui/alarms", webhook_words(tried))


async def _alarms(view: View) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The active alarms, worst first, and those that have ended, newest first."""
    found = await view.backend.get(path_of("alarms"), history=True)
    listed = [*found["alarms"], *found.get("history", ())]
    active = [alarm for alarm in listed if not alarm.get("endedAtMs")]
    active.sort(
        key=lambda alarm: (bool(alarm.get("acknowledgedAtMs")), _ORDER.get(alarm["severity"], 1), alarm["raisedAtMs"])
    )
    ended = sorted((alarm for alarm in listed if alarm.get("endedAtMs")), key=lambda alarm: -int(alarm["endedAtMs"]))
    return active, ended


def webhook_words(results: list[dict[str, Any]]) -> str:
    if not results:
        return "No webhook is set, so nobody is told about alarms. Set one with: baton serve --alarm-webhooks URL"
    failed = [result for result in results if not result["delivered"]]
    if not failed:
        return f"The test event was delivered to {formats.plural(len(results), 'webhook')}."
    why = failed[0].get("problem") or f"it answered {failed[0].get('answerStatus', 'nothing')}"
    return f"{len(failed)} of {formats.plural(len(results), 'webhook')} failed. {failed[0]['webhook']}: {why}"


def path(alarm: dict[str, Any]) -> str:
    return f"/ui/alarms/{segment(alarm['alarm'])}"


def alarms_sentence(active: list[dict[str, Any]]) -> tuple[str, Level]:
    if not active:
        return "No alarms.", "ok"
    new = [alarm for alarm in active if not alarm.get("acknowledgedAtMs")]
    if not new:
        return f"{formats.plural(len(active), 'alarm')}, all acknowledged.", "plain"
    level: Level = "critical" if any(alarm["severity"] == "critical" for alarm in new) else "warning"
    first = new[0]["text"].rstrip(".")
    more = f" And {formats.plural(len(new) - 1, 'other alarm')}." if len(new) > 1 else ""
    return f"{first}.{more}", level


ROUTES = (
    Route("/ui/alarms", show, tab="alarms"),
    Route("/ui/alarms/{alarm}", show_alarm, acknowledge, tab="alarms"),
    Route("/ui/alarm-test", act=send_test, tab="alarms"),
)
