"""Reports of the data pipeline: the list, and the pages themselves, which browsers open in a sandbox."""

from __future__ import annotations

from batonq.api.http import Response
from batonq.api.rest.queues import query
from batonq.api.rest.service import Answer, Call
from batonq.api.rest.shapes import Answered

CONTENT_TYPE = "text/html; charset=utf-8"
# A report is a file that somebody put there. It gets an origin of its own and can load and send nothing.
POLICY = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
)


class Report(Answered):
    """A report's file."""

    report: str
    bytes: int
    modified_at_ms: int


class Reports(Answered):
    """The reports in the server's directory of reports, newest first."""

    reports: list[Report]


async def list_reports(call: Call) -> Answer:
    call.require_operator(write=False)
    query(call, ())
    return Answer(200, Reports([Report(*file) for file in await call.broker.reports.listed()]))


async def read_report(call: Call) -> Answer:
    call.require_operator(write=False)
    query(call, ())
    return Answer(200, Response(200, await call.broker.reports.read(call.name), CONTENT_TYPE, HEADERS))
