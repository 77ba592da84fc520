"""How to connect a program, and the figures of the plots as a table."""

from __future__ import annotations

from typing import Any

from batonq.api.ui import formats
from batonq.api.ui.backend import path_of
from batonq.api.ui.pages.overview import RANGES
from batonq.api.ui.routes import Route
from batonq.api.ui.view import Page, View

ROWS_MAX = 400
# The columns of the table: REST's name, the heading, and how a value is written.
COLUMNS = (
    ("sent", "sent", formats.rate),
    ("received", "received", formats.rate),
    ("acked", "acknowledged", formats.rate),
    ("retried", "retried", formats.rate),
    ("deadLettered", "dead-lettered", formats.rate),
    ("visible", "visible", formats.number),
    ("inFlight", "in flight", formats.number),
    ("delayed", "delayed", formats.number),
    ("oldestSeconds", "oldest", formats.duration),
    ("endToEndP50Ms", "end to end p50", lambda value: formats.duration(None if value is None else value / 1000)),
    ("endToEndP99Ms", "p99", lambda value: formats.duration(None if value is None else value / 1000)),
)


async def show(view: View) -> Page:
    key, secret = ("YOUR_KEY_ID", "YOUR_SECRET") if view.secured else ("x", "x")
    return Page(
        "Connect",
        "start.html",
        "Point an SQS client at this server, or use Baton's own clients.",
        values={
            "key": key,
            "secret": secret,
        },
    )


async def figures(view: View) -> Page:
    """The same numbers as the plots, newest first: for readers without scripts or without sight."""
    queue = view.query.get("queue", "")
    path = path_of("queues", queue, "series") if queue else path_of("series")
    series = await view.backend.get(path, range=view.choice("range", RANGES))
    columns = [column for column in COLUMNS if column[0] in series["values"]]
    values = {
        "queue": queue,
        "range": series["range"],
        "headings": [heading for _, heading, _ in columns],
        "rows": rows(series, columns),
    }
    title = f"Figures of {queue}" if queue else "Figures"
    step = formats.duration(series["stepSeconds"])
    return Page(title, "figures.html", f"One row per {step}, over the last {series['range']}.", values=values)


def rows(series: dict[str, Any], columns: list[Any]) -> list[tuple[int, list[str]]]:
    listed = [(series["values"][name], write) for name, _, write in columns]
    count = max((len(values) for values, _ in listed), default=0)
    step_ms = int(series["stepSeconds"] * 1000)
    made = [
        (
            series["startAtMs"] + place * step_ms,
            [write(values[place]) if place < len(values) else formats.NONE for values, write in listed],
        )
        for place in range(max(0, count - ROWS_MAX), count)
    ]
    return made[::-1]


ROUTES = (
    Route("/ui/start", show, tab="start"),
    Route("/ui/figures", figures, tab="overview"),
)
