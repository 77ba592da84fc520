"""Reports of the data pipeline: HTML files, opened in a sandbox."""

from __future__ import annotations

from typing import Any

from batonq.api.http import Response
from batonq.api.ui import formats
from batonq.api.ui.backend import path_of
from batonq.api.ui.routes import Route
from batonq.api.ui.view import Page, View


async def show(view: View) -> Page:
    reports = (await view.backend.get(path_of("reports")))["reports"]
    return Page("Reports", "reports.html", reports_sentence(reports, view.now_ms), "plain", {"reports": reports})


async def open_report(view: View) -> Response:
    return await view.backend.document(path_of("reports", view.names["report"]))


def reports_sentence(reports: list[dict[str, Any]], now_ms: int) -> str:
    if not reports:
        return "No reports yet."
    newest = formats.distance(reports[0]["modifiedAtMs"], now_ms)
    return f"{formats.plural(len(reports), 'report')}, the newest written {newest}."


ROUTES = (
    Route("/ui/reports", show, tab="reports"),
    Route("/ui/reports/{report}", open_report, tab="reports"),
)
