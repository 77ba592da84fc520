"""`baton pipeline report`: an HTML page about the lake's tables."""

from __future__ import annotations

import argparse
import os

from batonq.errors import InvalidInput
from batonq.pipeline.jobs import lifecycle, metrics, usage
from batonq.pipeline.jobs.context import Context, Outcome

HELP = "create an HTML page with plots: rates, depth, latencies, retries, dead letters, usage"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="report.html", metavar="FILE", help="output file (default report.html)")


def run(context: Context) -> Outcome:
    """First recreates the tables that it shows, from the events in the lake."""
    from batonq.pipeline.report.figures import collect
    from batonq.pipeline.report.page import render

    out = os.path.abspath(context.options.out)
    if not os.path.isdir(os.path.dirname(out)):
        raise InvalidInput(f"The directory {os.path.dirname(out)} for the report does not exist.")
    lake, spark = context.lake, context.spark
    metrics.run(context)
    usage.run(context)
    context.progress("drawing")
    figures = collect(lake.read(spark, "queue_minute"), lifecycle.messages(context), lake.read(spark, "tenant_usage"))
    page = render(figures, lake.path).encode()
    with open(out, "wb") as file:
        file.write(page)
    return Outcome(
        0, {"report": out, "bytes": len(page)}, f"The report was written to {out} ({len(page) / 1000:,.0f} kB)."
    )
