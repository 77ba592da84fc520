"""Workers: who polls, what they hold, when they were last seen, and how much they handle."""

from __future__ import annotations

from collections import Counter
from typing import Any

from batonq.api.ui import formats
from batonq.api.ui.backend import path_of
from batonq.api.ui.routes import Route
from batonq.api.ui.view import Level, Page, View

# In the order of the page: what needs attention first.
STATES = ("gone", "holding", "polling", "idle")


async def show(view: View) -> Page:
    found = await view.backend.get(path_of("workers"))
    workers = sorted(found["workers"], key=_place)
    sentence, level = workers_sentence(workers)
    several = len({worker.get("node") for worker in workers}) > 1
    return Page("Workers", "workers.html", sentence, level, {"workers": workers, "several": several})


def _place(worker: dict[str, Any]) -> tuple[int, str]:
    state = worker.get("state", "idle")
    return (STATES.index(state) if state in STATES else len(STATES), worker.get("name", ""))


def workers_sentence(workers: list[dict[str, Any]]) -> tuple[str, Level]:
    if not workers:
        return "No worker has been seen.", "plain"
    by_state = Counter(worker.get("state", "idle") for worker in workers)
    gone = [worker for worker in workers if worker.get("state") == "gone"]
    holding = [worker for worker in gone if worker.get("inFlight")]
    parts = [f"{by_state[state]} {state}" for state in ("polling", "holding", "idle", "gone") if by_state[state]]
    said = f"{formats.plural(len(workers), 'worker')}: {', '.join(parts)}."
    if holding:
        first = holding[0]
        held = formats.plural(int(first["inFlight"]), "message")
        return f"{first.get('name') or 'A worker'} is gone and still holds {held}. {said}", "warning"
    return said, "ok" if not gone else "plain"


ROUTES = (Route("/ui/workers", show, tab="workers"),)
