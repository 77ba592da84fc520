"""Exact counters of a queue, each shard at its own position in the log."""

from __future__ import annotations

from typing import Any

from batonq.api.ui import formats
from batonq.api.ui.backend import path_of
from batonq.api.ui.pages import queue as queue_page
from batonq.api.ui.routes import Route
from batonq.api.ui.view import Level, Page, View

# Name of the counter, and what it is called on the page.
COUNTERS = (
    ("sent", "sent"),
    ("arrived", "arrived"),
    ("deleted", "deleted"),
    ("expired", "expired"),
    ("moved", "moved"),
    ("present", "present"),
    ("delivered", "delivered"),
    ("returned", "returned"),
    ("expiredLeases", "leases expired"),
    ("deadLettered", "dead-lettered"),
    ("visible", "visible"),
    ("inFlight", "in flight"),
    ("delayed", "delayed"),
    ("owed", "being moved"),
    ("dead", "dead"),
)


async def show(view: View) -> Page:
    head = await queue_page.top(view)
    found = await view.backend.get(path_of("queues", view.names["queue"], "counters"))
    page = queue_page.page("queue_counters.html", head, found=found, counters=COUNTERS, queue_tab="")
    page.sentence, page.level = counters_sentence(found["counters"])
    return page


def counters_sentence(counted: dict[str, Any]) -> tuple[str, Level]:
    came = counted["sent"] + counted["arrived"]
    if counted["unaccounted"]:
        return f"{formats.plural(counted['unaccounted'], 'message')} cannot be accounted for. Report this.", "critical"
    went = ", ".join(f"{formats.number(counted[name])} {name}" for name in ("deleted", "expired", "moved", "present"))
    return f"Everything is accounted for: {formats.plural(came, 'message')} came in; {went}.", "ok"


ROUTES = (Route("/ui/queues/{queue}/counters", show, tab="queues"),)
