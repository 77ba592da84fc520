"""The first page: is all well, how much is going on, and which queues to look at. Also the data of all plots."""

from __future__ import annotations

from typing import Any

from batonq.api.ui.backend import path_of, segment
from batonq.api.ui.routes import Route
from batonq.api.ui.view import Data, Page, Redirect, View

RANGES = ("15m", "1h", "6h", "24h", "72h")
TOP_QUEUES = 15
PROBLEMS_MAX = 8


async def show(view: View) -> Page | Redirect:
    if not view.operator:  # the overview concerns the whole server, with all its accounts
        return Redirect("/ui/queues")
    status = await view.backend.get(path_of("status"))
    top = await view.optional("/v1/queues:stats", sort="depth", order="desc", limit=TOP_QUEUES)
    alarms = await view.optional(path_of("alarms")) if status["alarms"]["active"] else {"alarms": []}
    verdict = status["verdict"]
    links = {problem["text"]: address(problem, view.account) for problem in verdict["problems"][:PROBLEMS_MAX]}
    unsaid = [problem for problem in verdict["problems"] if problem["text"] not in verdict["sentence"]]
    received = status.get("receivedPerSecond", 0)
    retries = status.get("retriedPerSecond", 0) / received if received else 0
    return Page(
        "Overview",
        "overview.html",
        sentence=verdict["sentence"],
        level=verdict["level"],
        links={text: target for text, target in links.items() if target},
        values={
            "status": status,
            "problems": [(problem, address(problem, view.account)) for problem in unsaid[:PROBLEMS_MAX]],
            "more": len(unsaid) - PROBLEMS_MAX,
            "retries": retries,
            "top": top,
            "alarms": alarms,
            "range": view.choice("range", RANGES),
        },
    )


def address(problem: dict[str, Any], account: str) -> str:
    """The page where something can be done about a problem; empty if there is none."""
    if problem.get("queue") and problem.get("account", account) == account:
        path = f"/ui/queues/{segment(problem['queue'])}"
        return path + "/dead-letters" if "dead letter" in problem["text"] else path
    return f"/ui/alarms/{segment(problem['alarm'])}" if problem.get("alarm") else ""


async def series(view: View) -> Data:
    """The numbers behind the plots: of one queue, or of the whole server."""
    queue = view.query.get("queue", "")
    path = path_of("queues", queue, "series") if queue else path_of("series")
    return Data(await view.backend.get(path, range=view.choice("range", RANGES)))


ROUTES = (
    Route("/ui", show, tab="overview"),
    Route("/ui/data/series", series),
)
