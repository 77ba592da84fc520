"""Access keys: who may use the server. A new key's secret is shown once."""

from __future__ import annotations

from typing import Any

from batonq.api.ui import formats
from batonq.api.ui.backend import Problem, path_of
from batonq.api.ui.routes import Route
from batonq.api.ui.view import Level, Page, Redirect, View

DAY_S = 86_400
SOON_MS = 14 * DAY_S * 1000
LIFETIMES = {"": "never", "1": "1 day", "30": "30 days", "90": "90 days", "365": "1 year"}
ROLES = {"write": "send and receive", "read": "only look", "admin": "everything, also keys and settings"}


async def show(view: View) -> Page:
    return await _page(view)


async def create(view: View) -> Page:
    form = view.form
    body: dict[str, Any] = {"name": form.get("name", "").strip(), "role": form.get("role", "write")}
    if form.get("account", "").strip():
        body["account"] = form["account"].strip()
    days = form.get("days", "")
    if days in LIFETIMES and days:
        body["expiresInSeconds"] = int(days) * DAY_S
    try:
        made = await view.backend.change("POST", path_of("keys"), body)
    except Problem as problem:
        if problem.status == 403:
            raise
        page = await _page(view, form=form, problem=problem)
        page.status = problem.status
        return page
    page = await _page(view, made=made)
    page.sentence, page.level = (
        f"Key {made['keyId']} is created. Copy its secret now: it is never shown again.",
        "warning",
    )
    return page


async def disable(view: View) -> Redirect:
    key = view.names["key"]
    await view.backend.change("POST", path_of("keys", key) + ":disable")
    return Redirect("/ui/keys", f"Key {key} is disabled: requests signed with it are refused from now on.")


async def enable(view: View) -> Redirect:
    key = view.names["key"]
    await view.backend.change("POST", path_of("keys", key) + ":enable")
    return Redirect("/ui/keys", f"Key {key} can be used again.")


async def _page(view: View, **values: Any) -> Page:
    keys = (await view.backend.get(path_of("keys")))["keys"]
    sentence, level = keys_sentence(keys, view.now_ms, view.secured)
    given = {"keys": keys, "form": {}, "problem": None, "made": None, "lifetimes": LIFETIMES, "roles": ROLES}
    return Page("Keys", "keys.html", sentence, level, {**given, **values})


def keys_sentence(keys: list[dict[str, Any]], now_ms: int, secured: bool) -> tuple[str, Level]:
    usable = [key for key in keys if not key.get("disabled") and not key.get("expired")]
    said = f"{formats.plural(len(usable), 'key')} can be used" + (
        f", {len(keys) - len(usable)} cannot." if len(keys) > len(usable) else "."
    )
    if not secured:
        return f"This is a development server: it does not check keys. {said}", "plain"
    soon = [key for key in usable if 0 < key.get("expiresAtMs", 0) < now_ms + SOON_MS]
    if soon:
        first = min(soon, key=lambda key: int(key["expiresAtMs"]))
        left = formats.distance(first["expiresAtMs"], now_ms)
        return f"Key {first.get('name') or first['keyId']} expires {left}. {said}", "warning"
    return said, "ok" if usable else "warning"


ROUTES = (
    Route("/ui/keys", show, create, tab="keys"),
    Route("/ui/keys/{key}/disable", act=disable, tab="keys"),
    Route("/ui/keys/{key}/enable", act=enable, tab="keys"),
)
